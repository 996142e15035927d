"""What a sweep will do and cost before it starts: feasibility, steps, and the nominal ε of the whole."""

import math
import re

import pytest
from numpy.testing import assert_allclose
from rich.console import Console

from dirdp import calibrate, epsilon_spent
from dirdp.accounting import compose, conversion
from sweep.expand import expand
from sweep.plan_table import calibration_row, plan_table, plan_totals
from sweep.planning import plan
from sweep.spec import SpecError, load

from .spaces import RATE, a_sweep

# Appendix F: this budget is below the least usable one, 6.08.
INFEASIBLE = {"sampling_rate": 0.04, "steps": 20000, "epsilon": 4, "alpha": 3, "reports": 20}
ASHA = {"asha": {"grace": 0.25, "reduction_factor": 2}}


def fault(sweep):
    with pytest.raises(SpecError) as caught:
        plan(sweep)
    text = str(caught.value)
    assert "\n" not in text
    return text


def text_of(table):
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


# Points


def test_each_point_has_its_own_calibration():
    laid_out = plan(load("figure2"))
    by_alpha = {point.trials[0].plan.alpha: point for point in laid_out.points}
    for alpha, point in by_alpha.items():
        paper = calibrate(epsilon=1, delta=1e-5, alpha=alpha, sampling_rate=0.005, steps=20_000)
        assert point.method.r == paper.r and point.method.epsilon <= 1
        assert point.floor < 1 and point.reason is None
        assert {trial.plan.seed for trial in point.trials} == set(range(10))
    assert f"{by_alpha[3].method.r:.4f}" == "0.2349"


def test_all_trials_are_in_the_plan_in_their_order():
    sweep = a_sweep({"lr": [0.1, 1], "alpha": [1, 3]}, seeds=2)
    assert plan(sweep).trials == expand(sweep)


def test_an_infeasible_point_has_a_reason_and_the_others_go_on():
    sweep = a_sweep({"lr": 1, "epsilon": [4, 8]}, trial=INFEASIBLE | {"epsilon": None}, seeds=2)
    laid_out = plan(sweep)
    bad, good = laid_out.points
    assert (bad.feasible, good.feasible) == (False, True)
    assert "epsilon = 4" in bad.reason and "6.08" in bad.reason
    assert f"{bad.floor:.2f}" == f"{good.floor:.2f}" == "6.08" and good.reason is None
    assert len(laid_out.trials) == 4
    assert laid_out.total_steps == laid_out.expected_steps == 2 * 20_000, "what cannot run costs nothing"
    alone = plan(a_sweep({"lr": 1, "epsilon": 8}, trial=INFEASIBLE | {"epsilon": None}, seeds=2))
    assert laid_out.sweep_epsilon == alone.sweep_epsilon


def test_all_infeasible_is_a_fault():
    said = fault(a_sweep(trial=INFEASIBLE))
    assert "tiny" in said and "no point has a usable r*" in said and "6.08" in said


def test_a_metric_that_nothing_gives_is_a_fault():
    asha = {"asha": {"metric": "validation_accuracy"}}
    said = fault(a_sweep(scheduler=asha))
    assert "scheduler.asha.metric=validation_accuracy" in said and "fraction" in said and "test_accuracy" in said
    plan(a_sweep(scheduler=asha, trial={"validation": {"fraction": 0.1}}))
    plan(a_sweep(scheduler={"asha": {"metric": "test_accuracy"}}))
    plan(a_sweep(scheduler={"asha": {}}))


# Steps


def test_steps_without_a_scheduler():
    laid_out = plan(a_sweep({"lr": [0.1, 1], "steps": [40, 100]}, seeds=3))
    assert laid_out.total_steps == laid_out.expected_steps == 3 * 2 * (40 + 100)


def test_expected_steps_of_halving():
    """8 points, rungs at T/4 and T/2, two seeds: 8, then 4, then 2 first seeds go on, and 2 second seeds run."""
    laid_out = plan(a_sweep({"lr": [2.0**k for k in range(8)]}, seeds=2, scheduler=ASHA))
    assert laid_out.total_steps == 8 * 2 * 40
    assert laid_out.expected_steps == 8 * 10 + 4 * 10 + 2 * 20 + 2 * 40


def test_expected_steps_are_those_of_each_group():
    one, two = (
        plan(a_sweep({"lr": [1, 2, 4, 8], "epsilon": budgets}, seeds=2, scheduler=ASHA)) for budgets in ([1], [1, 2])
    )
    assert two.expected_steps == 2 * one.expected_steps < two.total_steps


@pytest.mark.parametrize("points", [1, 2, 3, 7])
@pytest.mark.parametrize("seeds", [1, 2, 5])
@pytest.mark.parametrize("grace, factor", [(0.05, 1.5), (0.25, 2), (0.3, 4), (0.9, 3), (0.1, 100)])
def test_expected_steps_are_at_most_all(points, seeds, grace, factor):
    rule = {"asha": {"grace": grace, "reduction_factor": factor}}
    laid_out = plan(a_sweep({"lr": [2.0**k for k in range(points)]}, seeds=seeds, scheduler=rule))
    assert points * grace * 40 <= laid_out.expected_steps <= laid_out.total_steps
    if points == 1:
        assert laid_out.expected_steps == laid_out.total_steps, "there is nothing to lose against"


# The nominal ε of the whole sweep


def test_sweep_epsilon_of_figure2():
    """Golden: 105 points of ten seeds, composed at their common orders."""
    assert f"{plan(load('figure2')).sweep_epsilon:.2f}" == "28.77"


def test_sweep_epsilon_of_one_trial_is_its_own():
    laid_out = plan(a_sweep())
    assert_allclose(laid_out.sweep_epsilon, laid_out.points[0].method.epsilon, rtol=1e-12)


def test_sweep_epsilon_of_seeds_is_that_of_one_long_training():
    laid_out = plan(a_sweep(seeds=5))
    r = laid_out.points[0].method.r
    long = epsilon_spent(r=r, alpha=3, delta=1e-5, sampling_rate=RATE, steps=5 * 40).epsilon
    assert_allclose(laid_out.sweep_epsilon, long, rtol=1e-12)
    assert 1 < laid_out.sweep_epsilon < 5, "more than one trial's, less than five times it"


def test_sweep_epsilon_grows_with_every_point():
    spent = [plan(a_sweep({"lr": [1, 2, 3][:n], "alpha": [1, 3]})).sweep_epsilon for n in (1, 2, 3)]
    assert 1 < spent[0] < spent[1] < spent[2]


def test_sweep_epsilon_does_not_count_on_early_stopping():
    space = {"lr": [1, 2, 4]}
    assert plan(a_sweep(space, seeds=2, scheduler=ASHA)).sweep_epsilon == plan(a_sweep(space, seeds=2)).sweep_epsilon


def test_no_mechanism_no_bound():
    laid_out = plan(a_sweep({"lr": 1, "epsilon": [1, math.inf]}))
    assert laid_out.sweep_epsilon == math.inf
    assert laid_out.points[1].feasible and laid_out.points[1].floor == 0
    assert "∞" in plan_totals(laid_out)


def test_the_least_delta_is_the_sweep_s():
    laid_out = plan(a_sweep({"lr": 1, "delta": [1e-5, 1e-7, 1e-6]}))
    assert laid_out.delta == 1e-7
    assert "δ = 1e-7" in plan_totals(laid_out)


# What `sweep plan` prints


def test_plan_table():
    table = text_of(plan_table(plan(a_sweep({"alpha": [1, 3], "lr": [0.1, 1]}, seeds=2, title="A [draft] of it"))))
    assert "A [draft] of it" in table
    assert "infeasible" not in table and "epsilon" not in table
    row = next(line.split() for line in table.splitlines() if line.split()[:2] == ["3", "0.1"])
    κ = float(row[4])
    assert_allclose(float(row[2]), 0.1 * κ, rtol=1e-3)
    assert row[6:] == ["40", "2"]


def test_plan_table_shows_what_varies():
    table = text_of(plan_table(plan(a_sweep({"effective_lr": 0.1, "epsilon": [1, math.inf]}))))
    assert "epsilon" in table and "∞" in table and "model" not in table


def test_plan_table_of_an_infeasible_point():
    laid_out = plan(a_sweep({"lr": 1, "epsilon": [4, 8]}, trial=INFEASIBLE | {"epsilon": None}))
    table = text_of(plan_table(laid_out))
    assert table.count("infeasible") == 1
    row = next(line for line in table.splitlines() if "infeasible" in line).split()
    assert "–" in row and "6.082" in row, "no r*, but the floor"
    totals = plan_totals(laid_out)
    assert "2 points, 1 feasible" in totals and "infeasible: epsilon = 4" in totals


def test_plan_totals():
    laid_out = plan(a_sweep({"lr": [1, 2, 4, 8]}, seeds=2, scheduler=ASHA))
    totals = plan_totals(laid_out)
    assert "4 points, 4 feasible; 8 trials; 320 steps" in totals
    assert f"ASHA may save about {1 - laid_out.expected_steps / 320:.0%}" in totals
    assert "nominal ε (Theorem 10)" in totals and "composed over all trials" in totals
    assert "no scheduler" in plan_totals(plan(a_sweep()))


def test_the_shown_epsilon_of_a_sweep_is_never_below_the_true_one():
    laid_out = plan(a_sweep({"lr": [1, 2, 3]}))
    shown = float(plan_totals(laid_out).split("full length: ")[1].split()[0])
    assert laid_out.sweep_epsilon <= shown <= laid_out.sweep_epsilon + 1e-4


def test_a_plan_of_several_methods_shows_what_each_calibrates():
    space = {"lr": 1, "method": ["dirichlet", "dpsgd"], "epsilon": [1, 2]}
    laid_out = plan(a_sweep(space, trial={"epsilon": None}))
    table = text_of(plan_table(laid_out))
    assert all(name in table for name in ("method", "r*", "σ")) and "normalize" not in table
    noise = [point.method.calibrated.get("noise_multiplier") for point in laid_out.points]
    assert [f"{sigma:.4g}" in table for sigma in noise if sigma] == [True, True] and noise.count(None) == 2
    curves = [point.method.rdp(point.trials[0].plan.steps) for point in laid_out.points]
    assert laid_out.sweep_epsilon == compose(curves).epsilon(laid_out.delta).epsilon > 2
    assert "nominal ε (Theorem 10), ε (DP-SGD, Gaussian RDP)" in plan_totals(laid_out)


def test_how_far_a_budget_reaches():
    laid_out = plan(a_sweep({"lr": list(range(1, 9))}, trial={"epsilon": 8}, budget={"sweep_epsilon": 10}))
    line = re.search(r"sweep_epsilon = 10 at order λ = (\d+) reaches for (\d) of 8 trials", plan_totals(laid_out))
    order, reached = map(int, line.groups())
    curve = laid_out.points[0].method.rdp(40)

    def spent(trials):
        return trials * curve.at(order) + conversion(order, laid_out.delta)

    assert reached > 0 and spent(reached) <= 10 < spent(reached + 1)


def test_what_a_budget_reaches_with_early_stopping():
    """Of 8 points as many steps run as two rungs leave: 8 to T/4, 4 to T/2, 2 to T."""
    space, rest = {"lr": [2.0**k for k in range(8)]}, {"trial": {"epsilon": 8}, "scheduler": ASHA}
    assert "for about 100% of the search" in plan_totals(plan(a_sweep(space, budget={"sweep_epsilon": 20}, **rest)))
    laid_out = plan(a_sweep(space, budget={"sweep_epsilon": 10}, **rest))
    order, share = map(int, re.search(r"λ = (\d+) .* for about (\d+)% of the search", plan_totals(laid_out)).groups())
    whole = (8 * 10 + 4 * 10 + 2 * 20) / 40 * laid_out.points[0].method.rdp(40).at(order)
    assert share == round(100 * (10 - conversion(order, laid_out.delta)) / whole) < 100


# Calibration rows


def test_calibration_row():
    row = calibration_row(epsilon=1, delta=1e-5, alpha=3, sampling_rate=0.005, steps=20_000, classes=10, s_y=0.9)
    assert f"{row['r']:.5f}" == "0.23489" and row["order"] == 12 and row["achieved"] <= 1
    assert f"{row['kappa']:.4f}" == "0.0771"
    assert row["expected_loss"] > 0 and row["loss_variance"] > 0


def test_calibration_row_with_the_exact_bound():
    setting = {"epsilon": 8, "delta": 1e-5, "alpha": 3, "sampling_rate": 0.005, "steps": 20_000}
    row = calibration_row(**setting, bound="exact", classes=None, s_y=0.9)
    assert f"{row['r']:.4f}" == "1.4116" and row["bound"] == "exact"


def test_calibration_row_below_the_floor():
    row = calibration_row(epsilon=4, delta=1e-5, alpha=3, sampling_rate=0.04, steps=20_000, classes=None, s_y=0.9)
    assert row["r"] is None and row["achieved"] is None and f"{row['floor']:.2f}" == "6.08"


def test_calibration_row_without_a_mechanism():
    row = calibration_row(
        epsilon=math.inf, delta=1e-5, alpha=3, sampling_rate=0.04, steps=20_000, classes=None, s_y=0.9
    )
    assert (row["r"], row["kappa"], row["achieved"], row["floor"]) == (None, 1, math.inf, 0)
