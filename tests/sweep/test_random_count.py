"""The random number of trials: drawn once, kept, and refused where the theorem behind it would not hold."""

import math

import pytest

from sweep.expand import expand, support
from sweep.random_count import with_drawn_count
from sweep.results import Results
from sweep.spec import SpecError, Sweep, load
from sweep.storage import Folder

from .spaces import a_sweep

RANDOM = {"random_stopping": {"mean": 5, "eta": 0}}
SPACE = {"alpha": {"choice": [1, 3]}, "lr": {"loguniform": [0.1, 1]}}


def a_search(space=SPACE, **keys):
    return a_sweep(space, trials=RANDOM, **keys)


def test_the_number_is_drawn_once_and_kept(tmp_path):
    drawn = with_drawn_count(a_search(), Folder(tmp_path))
    assert (
        drawn.samples >= 1
        and with_drawn_count(a_search(), Folder(tmp_path)) == drawn == Results.read(Folder(tmp_path), "tiny").sweep
    )
    assert len(expand(drawn)) == drawn.samples


def test_it_follows_from_the_sampling_seed_in_research(tmp_path):
    counts = [with_drawn_count(a_search(sampling_seed=n), Folder(tmp_path / str(n))).samples for n in range(30)]
    assert counts == [
        with_drawn_count(a_search(sampling_seed=n), Folder(tmp_path / f"b{n}")).samples for n in range(30)
    ]
    assert len(set(counts)) > 3


def test_in_secure_mode_number_and_draws_are_from_entropy(tmp_path):
    one, two = (with_drawn_count(a_search(trial={"randomness": "secure"}), Folder(tmp_path / name)) for name in "ab")
    assert one.sampling_seed != two.sampling_seed
    assert with_drawn_count(a_search(trial={"randomness": "secure"}), Folder(tmp_path / "a")) == one


def test_another_search_under_the_name_is_refused(tmp_path):
    with_drawn_count(a_search(), Folder(tmp_path))
    with pytest.raises(SpecError, match="another space or law"):
        with_drawn_count(a_search(SPACE | {"lr": {"loguniform": [0.1, 2]}}), Folder(tmp_path))


def test_other_sweeps_are_left_alone(tmp_path):
    sweep = a_sweep()
    assert with_drawn_count(sweep, Folder(tmp_path)) is sweep and not list(tmp_path.iterdir())


def test_draws_are_independent():
    """Equal draws are still two trainings, with seeds of their own."""
    trials = expand(a_search({"alpha": {"choice": [3]}, "lr": 1}, seeds=2).model_copy(update={"samples": 4}))
    assert [trial.plan.seed for trial in trials] == list(range(8))
    assert [trial.replicate for trial in trials] == [0, 1] * 4


def test_the_support_holds_every_choice():
    plans = support(a_search(SPACE | {"epsilon": {"choice": [1, 2, 4]}}))
    assert {(plan.alpha, plan.epsilon) for plan in plans} == {(a, e) for a in (1, 3) for e in (1, 2, 4)}
    assert len(plans) == 6


@pytest.mark.parametrize(
    ("space", "keys", "message"),
    [
        (SPACE, {"scheduler": {"asha": {}}}, "take scheduler away"),
        (SPACE, {"budget": {"sweep_epsilon": 8}}, "take budget away"),
        ([SPACE, SPACE], {}, "from one space, got 2 grids"),
        ({"lr": [1, 2]}, {}, r"lr is a grid, write \{choice: \[1, 2\]\}"),
        ({"lr": 1, "alpha": {"uniform": [1, 3]}}, {}, "give alpha as {choice"),
    ],
)
def test_what_would_void_the_theorem_is_refused(space, keys, message):
    with pytest.raises(ValueError, match=message):
        a_search(space, **keys)


@pytest.mark.parametrize(("law", "message"), [({"mean": 0.5}, "mean must be"), ({"mean": 5, "eta": -2}, "eta must be")])
def test_a_law_that_is_none_is_refused(law, message):
    with pytest.raises(ValueError, match=message):
        a_sweep(SPACE, trials={"random_stopping": law})


def test_in_a_file(tmp_path):
    file = tmp_path / "mine.yaml"
    text = "title: T\ntrial: {dataset: digits, model: mlp, sampling_rate: 0.01, steps: 40, epsilon: 1, reports: 4}\n"
    file.write_text(text + "space: {lr: {loguniform: [0.1, 1]}}\ntrials: {random_stopping: {mean: 20, eta: inf}}\n")
    sweep = load(str(file))
    assert sweep.random_stopping.law.poisson and sweep.draws == 20
    assert Sweep.model_validate(sweep.model_dump()).random_stopping.eta == math.inf
    with pytest.raises(SpecError, match="give samples or trials"):
        load(str(file), overrides=["samples=3"])
    with pytest.raises(SpecError, match=r"trials.random_stopping.meen"):
        load(str(file), overrides=["trials.random_stopping.meen=3"])
