"""Files of a report: which, whole, repeatable; and the text of ``sweep results``."""

import csv
import io
import json
import math
import os

import pytest

from sweep.reporting import results_rows, write_report
from sweep.reporting.aggregate import TRIAL_COLUMNS


def report(folder, records, **options):
    return write_report(
        folder, **({"item": "figure2", "title": "Made", "seeds": 2, "rung": 0.1} | options), records=records
    )


def test_a_sweep_gives_two_tables_and_a_picture_twice_and_the_same_bytes_again(sweep, tmp_path):
    records = sweep(asha=True)
    paths = report(tmp_path / "new" / "folder", records)
    assert [path.name for path in paths] == ["results.csv", "figure2.csv", "figure2.png", "figure2.pdf"]
    first = [path.read_bytes() for path in paths]
    assert first[2].startswith(b"\x89PNG") and first[3].startswith(b"%PDF")
    width, height = (int.from_bytes(first[2][at : at + 4]) for at in (16, 20))
    assert width > 1500 and height > 700
    assert b"CreationDate" not in first[3] and b"/Type3" not in first[3]
    again = report(tmp_path / "again", records)
    assert [path.read_bytes() for path in again] == first
    assert sorted(path.name for path in again[0].parent.iterdir()) == sorted(path.name for path in again)


def test_an_unknown_item_gets_figure_2(sweep, tmp_path):
    assert len(report(tmp_path, sweep(alphas=(3.0,), rates=3), item="my own sweep")) == 4


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
    assert [path.name for path in paths] == ["results.csv", "figure2.csv"]
    rows = list(csv.DictReader(paths[0].open(encoding="utf-8")))
    assert len(rows) == len(records)


def test_a_failed_write_leaves_the_old_file_and_no_draft(record, tmp_path, monkeypatch):
    (old, *_) = report(tmp_path, [record()])
    before = old.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        report(tmp_path, [record(), record(seed=1)])
    assert old.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure2.csv", "results.csv"]


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
