"""A sweep's points beside the paper's: which number each is compared with, and by how much they differ."""

import math

import pytest

from sweep.reporting.aggregate import points_frame, trials_frame
from sweep.reporting.comparison import OURS, comparison, departures, difference


def points_of(records, *, seeds=2):
    return points_frame(trials_frame(records, rung=None), seeds=seeds)


def ours(records, item="table1", **options):
    frame = comparison(points_of(records, **options), item)
    return frame[frame["source"] == OURS].reset_index(drop=True)


def test_the_difference_is_in_units_of_the_root_worked_out_by_hand(record):
    """88.17 ± 0.33 is published over 5 runs. Ours: 88 and 89, mean 88.5, s′² = 0.5, so that the unit is
    √(0.33²/5 + 0.5/2) = √0.27178 = 0.521325 and the difference 0.33/0.521325 = 0.633002."""
    at_four = [record(dataset="cifar10", epsilon=4.0, seed=seed, accuracy=a) for seed, a in [(0, 0.88), (1, 0.89)]]
    (row,) = ours(at_four).to_dict(orient="records")
    assert (row["mean"], row["std"], row["n"]) == (pytest.approx(88.5), pytest.approx(math.sqrt(0.5)), 2)
    assert (row["published_mean"], row["published_std"], row["published_n"]) == (88.17, 0.33, 5)
    assert row["difference"] == pytest.approx(0.633002, abs=1e-6)


@pytest.mark.parametrize(
    "change",
    [{"n": 1, "std": math.nan}, {"n": 0, "std": math.nan}, {"published_std": math.nan}, {"std": 0, "published_std": 0}],
)
def test_there_is_no_difference_without_both_deviations(change):
    known = {"mean": 88.0, "std": 0.4, "n": 2, "published_mean": 88.5, "published_std": 0.3, "published_n": 5}
    assert math.isfinite(difference(**known))
    assert math.isnan(difference(**(known | change)))


def test_a_point_is_compared_with_its_own_method_value_and_data_set_alone(record):
    at = {"epsilon": 4.0, "dataset": "svhn"}
    rivals = [record(**at, method="dpsgd", model=model) for model in ("resnet18", "inception")]
    records = [record(**at), *rivals, record(**(at | {"dataset": "digits"}))]
    records += [record(**(at | {"epsilon": 5.0})), record(**(at | {"epsilon": math.inf, "method": "nonprivate"}))]
    found = {
        (row["method"].partition(",")[0], row["model"], row["dataset"], row["value"]): row["published_mean"]
        for row in ours(records, "table5").to_dict(orient="records")
    }
    missing = [key for key, mean in found.items() if math.isnan(mean)]
    assert sorted(missing) == [
        ("Algorithm 1", "mlp", "digits", 4.0),
        ("Algorithm 1", "mlp", "svhn", 5.0),
        ("DP-SGD", "inception", "svhn", 4.0),  # the paper's is of ResNet-18
    ]
    assert found["Algorithm 1", "mlp", "svhn", 4.0] == 92.94
    assert found["DP-SGD", "resnet18", "svhn", 4.0] == 85.10
    assert found["Algorithm 1", "mlp", "svhn", math.inf] == 94.58


def test_sources_tell_quoted_from_published():
    frame = comparison(points_of([]), "table5")
    assert set(map(tuple, frame[["method", "source"]].to_numpy())) == {
        ("DP-SGD (Opacus)", "quoted"),
        ("Algorithm 1", "published"),
    }
    assert list(frame["printed"])[:2] == ["76.77 ± 1.19", "82.66 ± 0.62"]


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ("completed", ""),
        ("infeasible", "infeasible"),
        ("diverged", "diverged"),
        ("early_stopped", "stopped early"),
        ("error", "missing"),
        (None, "missing"),
    ],
)
def test_a_point_without_accuracy_says_why(record, end, outcome):
    (row,) = ours([record(end=end)]).to_dict(orient="records")
    assert row["outcome"] == outcome
    assert math.isnan(row["mean"]) == bool(outcome)


def test_points_of_one_value_are_told_apart_by_what_differs_and_no_more(record):
    assert set(ours([record(epsilon=e) for e in (1.0, 2.0)])["method"]) == {"Algorithm 1"}
    rates = ours([record(epsilon=e, lr=lr) for e in (1.0, 2.0) for lr in (0.1, 1)])
    assert set(rates["method"]) == {"Algorithm 1, γ = 0.1", "Algorithm 1, γ = 1"}
    offsets = ours([record(epsilon=1.0, alpha=a, lr=0.1 * a) for a in (1.0, 3.0)])
    assert set(offsets["method"]) == {"Algorithm 1, α = 1", "Algorithm 1, α = 3"}
    variants = ours([record(augmentation=name) for name in ("none", "crop-flip")])
    assert set(variants["method"]) == {
        'Algorithm 1, augmentation="none"',
        'Algorithm 1, augmentation="crop-flip"',
    }


def test_effective_rates_that_give_every_budget_its_own_gamma_make_one_row(record):
    records = [record(epsilon=epsilon, lr=lr) for epsilon, lr in [(1.0, 0.11), (2.0, 0.13)]]
    assert set(ours(records)["method"]) == {"Algorithm 1"}


def test_without_a_mechanism_alpha_plays_no_part(record):
    records = [record(epsilon=e, alpha=a) for e, a in [(1.0, 3.0), (2.0, 3.0), (math.inf, 1.0)]]
    assert set(ours(records)["method"]) == {"Algorithm 1"}


def test_departures_from_the_papers_setting_are_named(record):
    at = {"dataset": "mnist", "model": "inception", "sampling_rate": 250 / 60000, "steps": 9600, "lr": 0.1}
    whole = [record(**at), record(**(at | {"epsilon": math.inf, "alpha": 1.0, "delta": None}))]
    assert departures(points_of(whole), "table2") == []
    cut = [record(**(at | {"steps": 500, "alpha": 1.0, "model": "mlp"}))]
    assert departures(points_of(cut), "table2") == [
        "model = mlp (paper: inception)",
        "T = 500 (paper: 9600)",
        "α = 1 (paper: 3)",
    ]
    assert departures(points_of([record(epsilon=2.0)]), "table9")[-1] == "ε = 2 (paper: 4)"


def test_appendix_f_may_hold_steps_or_epochs_fixed(record):
    at = {"dataset": "cifar10", "model": "resnet18", "epsilon": 4.0}
    given = [record(**at, sampling_rate=q, steps=t) for q, t in [(0.01, 20_000), (0.01, 10_000), (0.04, 2_500)]]
    assert departures(points_of(given), "table9") == []
    assert departures(points_of([record(**at, sampling_rate=0.04, steps=400)]), "table9") == ["T = 400 (paper: 20000)"]
