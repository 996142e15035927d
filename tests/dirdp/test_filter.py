"""The Rényi filter: what it lets pass is within the budget, by a slow exact sum; what fits it does not refuse."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import log, mp, mpf

from dirdp import calibrate
from dirdp.accounting import RdpCurve, compose
from dirdp.filter import RenyiFilter

mp.dps = 40
CIFAR10 = {"delta": 1e-5, "alpha": 3, "sampling_rate": 0.005, "steps": 20000}
RUN = calibrate(epsilon=1, **CIFAR10).curve()


def exact_epsilon(losses, *, order, delta):
    """ε of the sum of the losses at the order, at 40 digits."""
    n = mpf(order)
    return sum(mpf(loss) for loss in losses) + log(n - 1) - (log(mpf(delta)) + n * log(n)) / (n - 1)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    losses=st.lists(st.floats(0, 3), max_size=60),
    epsilon=st.floats(0.5, 20),
    delta=st.sampled_from([1e-9, 1e-5, 1e-3]),
    order=st.integers(2, 60),
)
def test_what_passes_is_within_the_budget(losses, epsilon, delta, order):
    budget = RenyiFilter.at_order(order, epsilon=epsilon, delta=delta)
    passed = [loss for loss in losses if budget.charge(loss)]
    if any(passed):
        assert exact_epsilon(passed, order=order, delta=delta) <= epsilon
    refused = len(losses) - len(passed)
    room = mpf(budget.limit) - sum(map(mpf, passed))
    assert budget.spent == sum(map(Fraction, passed))
    if refused:
        assert room < 3, "something is refused only where little is left"


def test_the_order_is_the_one_at_which_most_fits():
    for epsilon in (1, 2, 8, 28.77):
        demand = RUN * 1050
        budget = RenyiFilter.for_budget(demand, epsilon=epsilon, delta=1e-5)
        fitting = {
            int(n): RenyiFilter.at_order(n, epsilon=epsilon, delta=1e-5).limit / demand.at(n) for n in RUN.orders
        }
        assert max(fitting, key=fitting.get) == budget.order
        assert math.floor(budget.limit / RUN.at(budget.order)) >= 1


def test_a_budget_of_what_is_planned_lets_all_pass():
    planned = compose([RUN] * 10 + [calibrate(epsilon=8, **CIFAR10).curve()])
    spent = planned.epsilon(1e-5)
    assert f"{spent.epsilon:.2f}" == "8.40", "golden: ten trials at ε = 1 and one at ε = 8"
    budget = RenyiFilter.for_budget(planned, epsilon=spent.epsilon, delta=1e-5)
    assert budget.order == spent.order
    assert budget.charge(planned.at(budget.order)) and not budget.charge(1e-6)


@pytest.mark.parametrize("epsilon", [0.7, 1, 2, 3.3, 8])
@pytest.mark.parametrize("segments", [1, 20, 997])
def test_one_run_fits_into_its_own_epsilon(epsilon, segments):
    run = calibrate(epsilon=epsilon, **CIFAR10).curve()
    budget = RenyiFilter.for_budget(run, epsilon=epsilon, delta=1e-5)
    part = math.nextafter(run.at(budget.order) / segments, math.inf)
    assert all(budget.charge(part) for _ in range(segments))
    assert not budget.charge(part)
    assert exact_epsilon([part] * segments, order=budget.order, delta=1e-5) <= epsilon


def test_nothing_left_is_an_error():
    with pytest.raises(ValueError, match=r"epsilon = 0.5 leaves nothing to spend at delta = 1e-05"):
        RenyiFilter.for_budget(RdpCurve(orders=np.array([2, 3]), rdp=np.array([1.0, 2.0])), epsilon=0.5, delta=1e-5)


def test_what_costs_nothing_always_passes():
    full = RenyiFilter(order=4, limit=-1.0)
    assert full.charge(0) and not full.charge(1e-300)


@pytest.mark.parametrize("loss", [-0.1, math.inf, math.nan])
def test_a_loss_that_is_none_is_an_error(loss):
    with pytest.raises((ValueError, OverflowError)):
        RenyiFilter(order=4, limit=1.0).charge(loss)
