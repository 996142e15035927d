"""Calibration: what it promises for any setting, and every published value."""

import copy
import json
import math
import pickle
import time
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import dirdp
from dirdp import calibration
from dirdp.accounting import epsilon_spent
from dirdp.calibration import BudgetError, Calibration, budget_floor, calibrate

from . import oracle

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "calibration.json").read_text())
DELTA = 1e-5
PAPER = {"delta": DELTA, "alpha": 3, "sampling_rate": 0.005, "steps": 20000}
UNUSABLE = {"delta": DELTA, "alpha": 3, "sampling_rate": 0.04, "steps": 20000}


@pytest.fixture
def cold():
    calibration._calibrate.cache_clear()
    calibration._budget_floor.cache_clear()


def setting(case):
    return {"delta": DELTA, "alpha": case["alpha"], "sampling_rate": case["q"], "steps": case["steps"]}


def name(case):
    return f"{case.get('source', '')} q={case['q']:.4g} T={case['steps']} alpha={case['alpha']} {case['printed']}"


def as_printed(value, printed):
    return f"{value:.{len(printed.partition('.')[2])}f}"


# Closed form


def test_one_full_step_solves_lemma_9():
    """q = T = 1 and r near α leave order 2: ε = ε_M(2; r) + log(1/4δ)."""
    run = calibrate(epsilon=1e4, delta=DELTA, alpha=3, sampling_rate=1, steps=1)
    assert run.order == 2
    assert_allclose(run.epsilon, dirdp.accounting.mechanism_rdp(2, r=run.r, alpha=3) - math.log(4 * DELTA), rtol=1e-9)


# mpmath oracle


@pytest.mark.parametrize(
    ("epsilon", "delta", "alpha", "q", "steps"),
    [
        (0.7, 1e-6, 0.7, 0.002, 300),
        (3, 1e-3, 20, 0.3, 2),
        (12, 1e-9, 1e-3, 1.0, 1),
        (1e4, 1e-5, 3, 0.01, 1000),
    ],
)
def test_oracle_scaling(epsilon, delta, alpha, q, steps):
    run = calibrate(epsilon=epsilon, delta=delta, alpha=alpha, sampling_rate=q, steps=steps)
    exact = oracle.scaling(budget=epsilon, alpha=alpha, delta=delta, q=q, steps=steps, digits=10)
    assert_allclose(run.r, float(exact), rtol=1e-8)


# Properties


@settings(max_examples=200, deadline=None)
@given(
    epsilon=st.floats(-3, 4).map(lambda exponent: 10**exponent),
    delta=st.floats(-12, -1).map(lambda exponent: 10**exponent),
    alpha=st.floats(-4, 4).map(lambda exponent: 10**exponent),
    q=st.floats(-6, 0).map(lambda exponent: 10**exponent),
    steps=st.integers(1, 10**6),
)
def test_property_the_budget_is_kept_and_used(epsilon, delta, alpha, q, steps):
    rest = {"delta": delta, "alpha": alpha, "sampling_rate": q, "steps": steps}
    try:
        run = calibrate(epsilon=epsilon, **rest)
    except BudgetError as error:
        assert error.floor == budget_floor(**rest) > epsilon == error.epsilon
        return
    assert 0.999 * epsilon <= run.epsilon <= epsilon == run.target
    assert alpha * 0.000999 < run.r < alpha
    again = epsilon_spent(r=run.r, **rest)
    assert (again.epsilon, again.order) == (run.epsilon, run.order)


@settings(max_examples=20, deadline=None)
@given(q=st.floats(-4, -1).map(lambda exponent: 10**exponent), steps=st.integers(1, 10**5))
def test_property_the_floor_is_the_least_budget(q, steps):
    rest = {"delta": DELTA, "alpha": 3, "sampling_rate": q, "steps": steps}
    least = budget_floor(**rest)
    assert calibrate(epsilon=least, **rest).epsilon <= least
    with pytest.raises(BudgetError):
        calibrate(epsilon=least * (1 - 1e-6), **rest)


@settings(max_examples=20, deadline=None)
@given(
    epsilon=st.floats(-1, 4).map(lambda exponent: 10**exponent),
    alpha=st.floats(-4, 4).map(lambda exponent: 10**exponent),
    q=st.floats(-6, 0).map(lambda exponent: 10**exponent),
    steps=st.integers(1, 10**6),
)
def test_property_the_exact_bound_keeps_the_budget_and_uses_it_up_to_a_jump(epsilon, alpha, q, steps):
    rest = {"delta": DELTA, "alpha": alpha, "sampling_rate": q, "steps": steps, "bound": "exact"}
    try:
        run = calibrate(epsilon=epsilon, **rest)
    except BudgetError as error:
        assert error.floor == budget_floor(**rest) > epsilon
        return
    assert run.epsilon <= epsilon
    assert epsilon_spent(r=run.r, **rest).epsilon == run.epsilon == run.spent().epsilon
    more = run.r * (1 + 1e-8)
    assert more > alpha * (1 - 1e-8) or epsilon_spent(r=more, **rest).epsilon > epsilon * (1 - 1e-6)


def test_the_exact_bound_stops_at_jumps():
    """The order 11 is lost at r = α/10, below which ε is well under the budget."""
    run = calibrate(epsilon=1, **{**PAPER, "alpha": 0.1}, bound="exact")
    assert_allclose(run.r, 0.01 * (1 - 1e-9), rtol=1e-12)
    assert run.epsilon < 0.99
    assert epsilon_spent(r=0.01, bound="exact", **{**PAPER, "alpha": 0.1}).epsilon > 1


def test_property_scaling_grows_with_the_budget():
    scalings = [calibrate(epsilon=epsilon, **PAPER).r for epsilon in np.geomspace(0.7, 1e6, 40)]
    assert scalings == sorted(set(scalings))


# Golden values


@pytest.mark.parametrize("case", GOLDEN["scalings"], ids=name)
def test_golden_scaling(case):
    run = calibrate(epsilon=case["epsilon"], **setting(case))
    assert as_printed(run.r, case["printed"]) == case["printed"]
    assert_allclose(run.r, case["r"], rtol=1e-8)


@pytest.mark.parametrize("case", GOLDEN["exact_scalings"], ids=name)
def test_golden_scaling_with_the_exact_bound(case):
    run = calibrate(epsilon=case["epsilon"], **setting(case), bound="exact")
    assert as_printed(run.r, case["printed"]) == case["printed"]
    assert_allclose(run.r, case["r"], rtol=1e-8)
    assert run.epsilon <= case["epsilon"]
    assert run.r > calibrate(epsilon=case["epsilon"], **setting(case)).r


@pytest.mark.parametrize("case", GOLDEN["attenuations"], ids=name)
def test_golden_attenuation(case):
    run = calibrate(epsilon=case["epsilon"], **setting(case))
    kappa = dirdp.attenuation(s_y=0.9, r=run.r, alpha=run.alpha)
    assert as_printed(kappa, case["printed"]) == case["printed"]
    assert_allclose(kappa, case["kappa"], rtol=1e-8)


@pytest.mark.parametrize("case", GOLDEN["floors"], ids=name)
def test_golden_floor(case):
    least = budget_floor(**setting(case))
    assert as_printed(least, case["printed"]) == case["printed"]
    assert_allclose(least, case["epsilon"], rtol=1e-8)


@pytest.mark.parametrize(("epsilon", "four", "three"), [(2, "0.4035", "0.404"), (6, "0.8245", "0.825")])
def test_table_7_rounds_two_values_twice(epsilon, four, three):
    assert as_printed(calibrate(epsilon=epsilon, **PAPER).r, four) == four
    assert Decimal(four).quantize(Decimal("0.001"), ROUND_HALF_UP) == Decimal(three)


def test_table_6_prints_the_ratios_of_rounded_scalings():
    assert f"{calibrate(epsilon=1, **{**PAPER, 'alpha': 0.1}).r / 0.1:.4f}" == "0.0867"


# Ends


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2, 0.1, 1, 8, 100, 1e4, 1e9])
def test_extreme_budgets_end_soon(epsilon, cold):
    rest = {"delta": DELTA, "alpha": 3, "sampling_rate": 0.01, "steps": 1000}
    started = time.perf_counter()
    try:
        run = calibrate(epsilon=epsilon, **rest)
        assert 0.999 * epsilon <= run.epsilon <= epsilon
    except BudgetError as error:
        assert error.floor > epsilon
    assert time.perf_counter() - started < 5


def test_a_budget_below_the_floor_is_one_clear_line():
    with pytest.raises(BudgetError) as caught:
        calibrate(epsilon=4, **UNUSABLE)
    message = str(caught.value)
    assert f"{caught.value.floor:.2f}" == "6.08"
    for part in ("epsilon = 4 ", "6.082", "unusable", "rule of this product", "sampling_rate", "fewer steps"):
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize("clone", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_budget_errors_survive_copying(clone):
    error = BudgetError(epsilon=4.0, floor=6.08197, reason="it would need more")
    twin = clone(error)
    assert isinstance(twin, BudgetError)
    assert (twin.epsilon, twin.floor, twin.reason, str(twin)) == (4.0, 6.08197, "it would need more", str(error))


@pytest.mark.parametrize("floor", [6.08197, 0.46570436724457, 123456.7, 1e-7])
def test_the_printed_floor_is_itself_enough(floor):
    printed = (
        str(BudgetError(epsilon=floor / 2, floor=floor, reason="no")).split("least usable budget ")[1].split(":")[0]
    )
    assert floor <= float(printed) <= floor * 1.001


def test_no_mechanism_is_not_calibrated():
    with pytest.raises(ValueError, match="epsilon = inf means no mechanism"):
        calibrate(epsilon=math.inf, **PAPER)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("epsilon", value) for value in (0, -1, -math.inf, math.nan, 1e10, "1", None, True)),
        *(("delta", value) for value in (0, 1, math.nan, "1e-5")),
        *(("alpha", value) for value in (0, -3, math.nan, math.inf, "3")),
        *(("sampling_rate", value) for value in (0, 1.5, math.nan, "q")),
        *(("steps", value) for value in (0, -1, 1.5, True, math.nan, "9")),
    ],
)
def test_refusals_name_argument_and_value(argument, value):
    with pytest.raises(ValueError, match=rf"^{argument} must be ") as refusal:
        calibrate(**{"epsilon": 1, **PAPER, argument: value})
    assert repr(value) in str(refusal.value)
    if argument != "epsilon":
        with pytest.raises(ValueError, match=rf"^{argument} must be "):
            budget_floor(**{**PAPER, argument: value})


def test_arguments_are_keywords():
    with pytest.raises(TypeError):
        calibrate(1, DELTA, 3, 0.005, 20000)
    with pytest.raises(TypeError):
        budget_floor(DELTA, 3, 0.005, 20000)


# The result


def test_spent_and_curve_follow_the_steps():
    run = calibrate(epsilon=1, **PAPER)
    spent = [run.spent(steps).epsilon for steps in (0, 1, 100, 10000, 20000)]
    assert spent[0] == 0.0
    assert spent == sorted(set(spent))
    assert spent[-1] == run.spent().epsilon == run.epsilon
    assert_allclose(run.curve().rdp, 2 * run.curve(10000).rdp, rtol=1e-14)


def test_calibration_is_frozen_cached_and_picklable():
    run = calibrate(epsilon=1, **PAPER)
    assert isinstance(run, Calibration)
    assert calibrate(epsilon=np.float64(1), **{**PAPER, "steps": np.int64(20000)}) is run
    assert pickle.loads(pickle.dumps(run)) == run
    assert hash(run) == hash(pickle.loads(pickle.dumps(run)))
    with pytest.raises(AttributeError):
        run.r = 1.0


# Speed; measured values times ten or more, since machines are busy


def test_speed_of_one_calibration(cold):
    started = time.perf_counter()
    calibrate(epsilon=1, **PAPER)
    assert time.perf_counter() - started < 0.3


def test_speed_of_figure_2(cold):
    started = time.perf_counter()
    for alpha in (0.1, 0.2, 0.3, 0.5, 1, 2, 3, 5, 10):
        calibrate(epsilon=1, **{**PAPER, "alpha": alpha})
    assert time.perf_counter() - started < 1
