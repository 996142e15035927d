"""The shipped search spaces: each planned in all its sizes, and the smoke sizes run as a user runs them."""

import io
import math
import shutil
from collections import Counter

import pytest
from rich.console import Console

from sweep.expand import expand
from sweep.planning import plan
from sweep.reporting import COMPUTED, VIEWS, published
from sweep.results import Results
from sweep.running import RunOptions, run
from sweep.spec import load, shipped
from sweep.storage import Folder

TRAINED = sorted(name for name in shipped() if load(name).training)
COMPARED = {f"table{number}": f"table{number}" for number in range(1, 6)} | {"appendix_g": "table10"}


@pytest.mark.parametrize("name", sorted(shipped()))
def test_the_head_says_what_to_expect(name):
    head = shipped()[name].read_text(encoding="utf-8").split("\ntitle:")[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert "expect" in head.lower() and ("point" in head or "draws" in head)
    assert load(name).reproduces in {None, *VIEWS, *COMPUTED}


def test_every_item_of_the_paper_is_there():
    items = {
        "figure1b",
        "figure2",
        "figure3",
        *(f"table{number}" for number in range(1, 8)),
        "appendix_f",
        "appendix_g",
    }
    assert items | {"appendix_f_epochs", "joint_asha", "quickstart", "rivals"} == set(shipped())


@pytest.mark.parametrize("name", TRAINED)
def test_every_size_can_be_planned(name):
    sizes = load(name).sizes
    assert "smoke" in sizes or name == "quickstart"
    for size in sizes:
        laid_out = plan(load(name, size=size))
        # A step of the small network on digits takes a millisecond or two: minutes for all together.
        assert size != "smoke" or laid_out.total_steps <= 40_000
        assert size == "smoke" or {trial.plan.dataset for trial in laid_out.trials} != {"digits"}


@pytest.mark.parametrize("name", sorted(shipped()))
def test_what_is_infeasible_is_announced_in_the_head(name):
    head = shipped()[name].read_text(encoding="utf-8").split("\ntitle:")[0]
    for size in (None, *load(name).sizes):
        assert all(point.feasible for point in plan(load(name, size=size)).points) or "infeasible" in head


@pytest.mark.parametrize("name, item", COMPARED.items())
def test_the_budgets_are_the_papers(name, item):
    paper = published.values(item)
    ours = [grid["epsilon"] for grid in load(name).space if grid.get("method", ["dirichlet"]) == ["dirichlet"]]
    assert ours == [list(paper.loc[paper["method"] == "dirichlet", "value"])]
    assert load(name).seeds == published.SEEDS


def test_groups_of_the_everyday_search_have_members():
    sweep = load("joint_asha")
    trials = expand(sweep)
    assert set(Counter(trial.group for trial in trials).values()) == {40} and len({t.plan.alpha for t in trials}) == 160
    assert sweep.asha.metric == "validation_accuracy"
    assert all(0.1 <= t.plan.alpha <= 10 and 0.001 <= t.plan.effective_lr <= 0.3 for t in trials)


# The smoke sizes with one seed, through to MLflow and the files


@pytest.fixture(scope="module")
def smoke(tmp_path_factory, empty_store):
    def call(name):
        storage = tmp_path_factory.mktemp(name)
        shutil.copy(empty_store, storage / "mlflow.db")
        console = Console(file=io.StringIO())
        outcome = run(
            plan(load(name, size="smoke", overrides=["seeds=1"])),
            RunOptions(Folder(storage), local=True),
            console=console,
        )
        assert outcome.complete
        assert {path.name for path in outcome.files} >= {"results.csv", f"{load(name).reproduces}.html"}
        return outcome

    return call


def ends(results: Results) -> Counter:
    return Counter(record.end_reason for record in results.records)


def best(results: Results) -> float:
    return max(record.reports[-1]["test_accuracy"] for record in results.records if record.reports)


def test_smoke_of_figure2(smoke):
    outcome = smoke("figure2")
    assert ends(outcome.results).keys() <= {"completed", "diverged"} and len(outcome.results.records) == 9
    assert best(outcome.results) > 0.85
    assert {"figure2.png", "figure2.pdf", "figure2.csv", "figure2.md", "figure2.tex"} <= {p.name for p in outcome.files}


def test_smoke_of_table2(smoke):
    outcome = smoke("table2")
    assert ends(outcome.results) == {"completed": 5} and best(outcome.results) > 0.85
    assert any(math.isinf(record.plan["epsilon"]) for record in outcome.results.records)
    assert "99.28 ± 0.072" in (outcome.results.folder / "table2.md").read_text(encoding="utf-8")


def test_smoke_of_appendix_f_records_a_row_without_r_star_and_goes_on(smoke):
    outcome = smoke("appendix_f")
    assert ends(outcome.results) == {"completed": 3, "infeasible": 1}
    (lost,) = (record for record in outcome.results.records if record.end_reason == "infeasible")
    assert lost.plan["sampling_rate"] == 0.04 and "least usable budget 1.129" in lost.message
    table = (outcome.results.folder / "table9.md").read_text(encoding="utf-8")
    assert "infeasible" in table and "nominal ε (Theorem 10) = 1" in table
    both = (outcome.results.folder / "appendix_f_r_star.md").read_text(encoding="utf-8")
    assert all(r in both for r in ("0.7528", "0.5046", "0.2192", "0.7407", "0.5688", "0.4734", "0.2858"))


def test_smoke_of_appendix_g(smoke):
    outcome = smoke("appendix_g")
    assert ends(outcome.results) == {"completed": 7} and best(outcome.results) > 0.85
    assert {record.plan["optimizer"]["name"] for record in outcome.results.records} == {"adam"}
