"""Files of a report: which, whole, repeatable; and the text of ``sweep results``."""

import base64
import csv
import io
import json
import math
import os
import re

import pytest
from matplotlib.text import Text

from sweep.reporting import VIEWS, points_frame, results_rows, trials_frame, write_report
from sweep.reporting.aggregate import TRIAL_COLUMNS
from sweep.reporting.table import markdown

TABLE = ["figure2.csv", "figure2.md", "figure2.tex"]


def report(folder, records, **options):
    return write_report(
        folder, **({"item": "figure2", "title": "Made", "seeds": 2, "rung": 0.1} | options), records=records
    )


def test_a_sweep_gives_two_tables_and_a_picture_twice_and_the_same_bytes_again(sweep, tmp_path):
    records = sweep(asha=True)
    paths = report(tmp_path / "new" / "folder", records)
    assert [path.name for path in paths] == ["results.csv", *TABLE, "figure2.png", "figure2.pdf", "figure2.html"]
    first = [path.read_bytes() for path in paths]
    *_, png, pdf, page = first
    assert base64.b64encode(png) in page
    assert png.startswith(b"\x89PNG") and pdf.startswith(b"%PDF") and page.startswith(b"<!DOCTYPE html>")
    width, height = (int.from_bytes(png[at : at + 4]) for at in (16, 20))
    assert width > 1500 and height > 700
    assert b"CreationDate" not in pdf and b"/Type3" not in pdf
    again = report(tmp_path / "again", records)
    assert [path.read_bytes() for path in again] == first
    assert sorted(path.name for path in again[0].parent.iterdir()) == sorted(path.name for path in again)


def test_an_unknown_item_gets_figure_2(record, tmp_path):
    paths = report(tmp_path, [record()], item="my own sweep")
    assert [path.name for path in paths] == ["results.csv", *TABLE, "figure2.html"]


@pytest.mark.parametrize("case", ["nothing", "infeasible", "one point", "unstarted", "not a number"])
def test_a_sweep_that_makes_no_curve_still_gives_its_tables(record, tmp_path, case):
    records = {
        "nothing": [],
        "infeasible": [record(lr=lr, end="infeasible", seed=seed) for lr in (1, 2) for seed in (0, 1)],
        "one point": [record(seed=0), record(seed=1)],
        "unstarted": [record(lr=lr, end=None) for lr in (1, 2)],
        "not a number": [record(lr=lr, accuracy=math.nan, early=math.nan) for lr in (1, 2)],
    }[case]
    paths = report(tmp_path, records)
    assert [path.name for path in paths] == ["results.csv", *TABLE, "figure2.html"]
    rows = list(csv.DictReader(paths[0].read_text(encoding="utf-8").splitlines()))
    assert len(rows) == len(records)


@pytest.mark.parametrize("item", sorted(VIEWS.keys() - {"figure1b"}))  # drawn in test_page.py
def test_every_item_is_written_without_a_trial(tmp_path, item):
    paths = report(tmp_path, [], item=item)
    assert paths[0].name == "results.csv" and paths[-1].name == f"{item}.html"
    assert {path.suffix for path in paths} >= {".csv", ".md", ".tex", ".html"}
    assert all(path.stat().st_size for path in paths)


def test_a_failed_write_leaves_the_old_file_and_no_draft(record, tmp_path, monkeypatch):
    (old, *_) = report(tmp_path, [record()])
    before = old.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        report(tmp_path, [record(), record(seed=1)])
    assert old.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["results.csv", *TABLE, "figure2.html"])


def test_json_is_strict_and_has_all_columns(record):
    text = results_rows([record(epsilon=math.inf, alpha=None, delta=None), record(accuracy=math.nan)], "json")
    rows = json.loads(text, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))
    assert [list(row) for row in rows] == [list(TRIAL_COLUMNS)] * 2
    finite, infinite = rows
    assert infinite["epsilon"] == "inf" and infinite["alpha"] is None and infinite["test_accuracy"] == 0.9
    assert finite["test_accuracy"] is None and finite["rung_step"] is None and finite["seed"] == 0
    assert json.loads(results_rows([], "json")) == []


def test_csv_says_inf_and_leaves_out_what_is_missing(record):
    (row,) = csv.DictReader(io.StringIO(results_rows([record(epsilon=math.inf, end=None)], "csv", rung=0.1)))
    assert list(row) == list(TRIAL_COLUMNS)
    assert (row["epsilon"], row["end_reason"], row["rung_step"], row["seed"]) == ("inf", "", "", "0")


def test_an_unknown_format_names_the_known_ones():
    with pytest.raises(ValueError, match="'xml'; choose csv or json"):
        results_rows([], "xml")


FOUND = {"audit_correct": 30, "audit_epsilon_lower": 0.2}


@pytest.mark.parametrize("rivals", [[], ["dpsgd", "gaussian_features"]], ids=["alone", "beside rivals"])
@pytest.mark.parametrize("item", VIEWS)
def test_no_table_and_no_figure_has_a_bare_epsilon(record, item, rivals):
    """Whatever is cut out of a page and shown elsewhere says itself what its ε is called."""
    setting = {"dataset": "fashionmnist", "model": "inception"}
    audit = {"kind": "one_run", "canaries": 100, "confidence": 0.95} if item == "audit" else None
    records = [
        record(**setting, method=method, lr=lr, epsilon=epsilon, audit=audit)
        for method in ["dirichlet", *rivals]
        for lr in (0.1, 0.3, 1.0)
        for epsilon in (1.0, 4.0)
    ]
    for one in records:
        one.reports[-1] |= FOUND if audit else {}
    trials = trials_frame(records, rung=None)
    made = VIEWS[item](trials, points_frame(trials, seeds=1), title="Made", rung=None)
    shown = [markdown(table) for table in made.tables.values()]
    shown += ["\n".join(text.get_text() for text in figure.findobj(Text)) for figure in made.figures.values()]
    assert any("ε" in text for text in shown)
    for text in shown:
        assert "ε" not in text or re.search(r"nominal|ε \(DP-SGD", text, re.IGNORECASE), text
        assert not re.search("private model|ε-private|-private", text), text
