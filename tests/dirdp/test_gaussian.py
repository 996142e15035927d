"""The Poisson-sampled Gaussian: its RDP against three other ways to it, and calibration on the safe side."""

import math
import random

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dirdp import BudgetError, gaussian
from dirdp.accounting import MAX_ORDER, compose, rdp_curve

from . import oracle

# (σ, q, T): the paper's settings, full batches, few and many steps, tiny and huge noise.
SETTINGS = [
    (1.8103, 250 / 60_000, 9600),
    (1.0, 0.01, 1000),
    (0.7, 0.005, 20_000),
    (40.0, 1.0, 500),
    (0.4, 0.2, 3),
    (300.0, 0.001, 10**6),
]


def reference(accountant, noise_multiplier, q, steps):
    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(noise_multiplier))
    return accountant.compose(event, steps)


@pytest.mark.parametrize(("sigma", "q", "steps"), SETTINGS)
def test_rdp_is_the_binomial_sum_at_sixty_digits(sigma, q, steps):
    curve = gaussian.rdp_curve(noise_multiplier=sigma, sampling_rate=q, steps=steps)
    assert curve.orders.tolist() == list(range(2, MAX_ORDER + 1))
    for order in (2, 3, 5, 17, 60, 200):
        exact = oracle.gaussian_rdp(order, noise_multiplier=sigma, q=q, steps=steps)
        assert exact <= curve.rdp[order - 2] <= exact * (1 + 1e-9), order


@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.01), (2.5, 0.3), (0.8, 0.5)])
@pytest.mark.parametrize("order", [2, 4, 9])
def test_rdp_is_the_divergence_of_the_two_outputs(sigma, q, order):
    """Against the definition: the integral, the worse of adding and of removing a record."""
    exact = oracle.gaussian_rdp_by_integration(order, noise_multiplier=sigma, q=q)
    curve = gaussian.rdp_curve(noise_multiplier=sigma, sampling_rate=q, steps=1)
    assert curve.rdp[order - 2] == pytest.approx(float(exact), rel=1e-7)


def test_without_sampling_it_is_the_gaussian_mechanism():
    curve = gaussian.rdp_curve(noise_multiplier=3, sampling_rate=1, steps=7)
    np.testing.assert_allclose(curve.rdp, 7 * curve.orders / 18, rtol=2e-9)


@pytest.mark.parametrize(("sigma", "q", "steps"), SETTINGS)
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_epsilon_is_that_of_dp_accounting(sigma, q, steps, delta):
    theirs = reference(RdpAccountant(list(range(2, 301))), sigma, q, steps)
    ours = gaussian.rdp_curve(noise_multiplier=sigma, sampling_rate=q, steps=steps)
    spent = ours.epsilon(delta).epsilon
    expected, order = theirs.get_epsilon_and_optimal_order(delta)
    if order < 300:
        assert expected * (1 - 1e-12) <= spent <= expected * (1 + 1e-8)
    assert spent <= expected * (1 + 1e-8)


@pytest.mark.parametrize(("sigma", "q", "steps"), [(1.8103, 250 / 60_000, 9600), (1.0, 0.01, 1000), (40.0, 1.0, 500)])
def test_epsilon_is_not_below_the_privacy_loss_distribution(sigma, q, steps):
    tight = reference(PLDAccountant(value_discretization_interval=1e-3), sigma, q, steps).get_epsilon(1e-5)
    spent = gaussian.rdp_curve(noise_multiplier=sigma, sampling_rate=q, steps=steps).epsilon(1e-5).epsilon
    assert 0.5 * spent < tight <= spent


def test_a_curve_composes_with_that_of_another_mechanism():
    noisy = gaussian.rdp_curve(noise_multiplier=1.8, sampling_rate=0.005, steps=1000)
    drawn = rdp_curve(r=0.2349, alpha=3, sampling_rate=0.005, steps=1000)
    both = compose([noisy, drawn])
    assert both.orders.tolist() == drawn.orders.tolist()
    np.testing.assert_array_equal(both.rdp, noisy.rdp[: drawn.orders.size] + drawn.rdp)
    assert both.epsilon(1e-5).epsilon > max(noisy.epsilon(1e-5).epsilon, drawn.epsilon(1e-5).epsilon)


def test_no_steps_cost_nothing():
    assert gaussian.rdp_curve(noise_multiplier=1, sampling_rate=0.01, steps=0).epsilon(1e-5).epsilon == 0


def test_calibration_keeps_to_the_budget_and_wastes_none():
    draw = random.Random(0)
    for _ in range(6):
        setting = {
            "epsilon": math.exp(draw.uniform(math.log(0.05), math.log(50))),
            "delta": 10 ** -draw.uniform(4, 9),
            "sampling_rate": 10 ** -draw.uniform(0, 4),
            "steps": round(10 ** draw.uniform(0, 5)),
        }
        run = gaussian.calibrate(**setting)
        assert 0.999 * setting["epsilon"] <= run.epsilon <= setting["epsilon"] == run.target
        again = gaussian.rdp_curve(
            noise_multiplier=run.noise_multiplier, sampling_rate=setting["sampling_rate"], steps=setting["steps"]
        ).epsilon(setting["delta"])
        assert (again.epsilon, again.order) == (run.epsilon, run.order)


@pytest.mark.parametrize("epsilon", [0.01, 100, 1e4, 1e9])
def test_calibration_reaches_both_ends(epsilon):
    run = gaussian.calibrate(epsilon=epsilon, delta=1e-5, sampling_rate=0.01, steps=1000)
    assert 0.999 * epsilon <= run.epsilon <= epsilon


def test_a_budget_that_no_noise_keeps_to_is_refused_with_the_least():
    setting = {"delta": 1e-5, "sampling_rate": 0.01, "steps": 1000}
    floor = gaussian.budget_floor(**setting)
    with pytest.raises(BudgetError, match=r"orders up to 1001") as caught:
        gaussian.calibrate(epsilon=0.001, **setting)
    assert caught.value.floor == floor
    assert gaussian.calibrate(epsilon=1.01 * floor, **setting).epsilon <= 1.01 * floor


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": math.inf}, "no mechanism"),
        ({"epsilon": 0}, "epsilon must be"),
        ({"delta": 1}, "delta must be"),
        ({"sampling_rate": 0}, "sampling_rate must be"),
        ({"steps": 0}, "steps must be"),
    ],
)
def test_arguments_outside_their_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        gaussian.calibrate(**({"epsilon": 1, "delta": 1e-5, "sampling_rate": 0.01, "steps": 1000} | changes))
