"""Publishing only the best of a random number of runs: formulas, an exact twin, and another library."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import exp, log, mp, mpf
from numpy.testing import assert_allclose

from dirdp import calibrate
from dirdp.accounting import RdpCurve, conversion
from dirdp.selection import RunCount

mp.dps = 40
DELTA = 1e-5
ETAS = [-0.5, 0, 0.3, 1, 4, math.inf]
CIFAR10 = calibrate(epsilon=1, delta=DELTA, alpha=3, sampling_rate=0.005, steps=20000)


def gaussian(sigma, *, top=200):
    """The curve of a Gaussian mechanism of sensitivity 1."""
    orders = np.arange(2, top)
    return RdpCurve(orders=orders, rdp=orders / (2 * sigma**2))


# Goldens


@pytest.mark.parametrize(("eta", "expected"), [(0, 1.892), (1, 2.232), (math.inf, 2.655)])
def test_golden_best_of_a_mean_of_20(eta, expected):
    best = RunCount(mean=20, eta=eta).best_of(CIFAR10.curve()).epsilon(DELTA).epsilon
    assert round(best, 3) == expected
    assert CIFAR10.epsilon < best < (CIFAR10.curve() * 20).epsilon(DELTA).epsilon


def test_golden_all_of_20():
    assert round((CIFAR10.curve() * 20).epsilon(DELTA).epsilon, 2) == 3.71


# The law of the count


@pytest.mark.parametrize("eta", ETAS)
@pytest.mark.parametrize("mean", [1.01, 2, 20, 300])
def test_the_law_has_its_mean(mean, eta):
    law = RunCount(mean=mean, eta=eta)
    generate, top = exact_generating_function(law), 400
    shown = [law.probability(k) for k in range(top)]
    # The coefficients of the probability generating function, by a Taylor expansion at 0.
    assert_allclose(shown[:8], [float(c) for c in mp.taylor(generate, 0, 7)], rtol=1e-8, atol=1e-12)
    assert_allclose(float(mp.diff(generate, 1, direction=-1, h=mpf("1e-15"))), mean, rtol=1e-8)
    assert all(a >= 0 for a in shown) and sum(shown) <= 1 + 1e-9


def exact_generating_function(law):
    """E[x^K] from the paper, at 40 digits."""
    if law.poisson:
        return lambda x: exp(mpf(law.mean) * (x - 1))
    gamma, eta = exp(mpf(law.log_gamma)), mpf(law.eta)
    if law.eta == 0:
        return lambda x: log(1 - (1 - gamma) * x) / log(gamma)
    return lambda x: ((1 - (1 - gamma) * x) ** -eta - 1) / (gamma**-eta - 1)


def test_known_laws():
    assert_allclose([RunCount(mean=4, eta=1).probability(k) for k in (1, 2, 3)], [1 / 4, 3 / 16, 9 / 64], rtol=1e-10)
    assert_allclose(RunCount(mean=2, eta=math.inf).probability(3), math.exp(-2) * 8 / 6, rtol=1e-12)
    law = RunCount(mean=20, eta=0)
    gamma = math.exp(law.log_gamma)
    assert_allclose((1 / gamma - 1) / math.log(1 / gamma), 20, rtol=1e-10)
    assert_allclose(law.probability(3), (1 - gamma) ** 3 / (3 * math.log(1 / gamma)), rtol=1e-10)
    assert [RunCount(mean=2, eta=eta).name for eta in (0, 1, 0.5, math.inf)] == [
        "logarithmic",
        "geometric",
        "truncated negative binomial",
        "Poisson",
    ]


def test_eta_0_is_the_limit():
    near, at = RunCount(mean=20, eta=1e-9), RunCount(mean=20, eta=0)
    assert_allclose(near.log_gamma, at.log_gamma, rtol=1e-7)
    assert_allclose(near.best_of(CIFAR10.curve()).rdp, at.best_of(CIFAR10.curve()).rdp, rtol=1e-7)


@pytest.mark.parametrize("eta", [0, 1, math.inf])
def test_draws_follow_the_law(eta):
    """χ² over the counts 0 to 9 and beyond, false alarm 0.1 %; a law of another mean is rejected."""
    law, generator, n = RunCount(mean=6, eta=eta), np.random.default_rng(3), 4000
    drawn = np.bincount(np.minimum([law.draw(generator.random) for _ in range(n)], 10), minlength=11)

    def statistic(of):
        expected = n * np.array([of.probability(k) for k in range(10)])
        expected = np.append(expected, n - expected.sum())
        kept = expected > 1e-9
        assert drawn[~kept].sum() == 0
        return (((drawn - expected)[kept]) ** 2 / expected[kept]).sum()

    assert statistic(law) < 29.6  # χ²(10) at 99.9 %
    assert statistic(RunCount(mean=7, eta=eta)) > 29.6


@pytest.mark.parametrize(("mean", "eta"), [(1, 0), (0.99, math.inf), (-3, 1), (math.inf, 0), (20, -1), (20, math.nan)])
def test_faults_name_the_value(mean, eta):
    with pytest.raises(ValueError, match=r"(mean|eta) must be a number in"):
        RunCount(mean=mean, eta=eta)


# The formulas at 40 digits


def exact_best_of(curve, *, mean, eta):
    """Theorems 2 and 6 as printed, over the orders of the curve (and λ̂ = 1)."""
    n = [mpf(int(order)) for order in curve.orders]
    rdp, mean = [mpf(float(value)) for value in curve.rdp], mpf(mean)
    if eta == math.inf:
        found = []
        for order, loss in zip(n, rdp, strict=True):
            e = log(1 + 1 / (order - 1))
            delta = min(exp((o - 1) * (v - e)) / (o - 1) * (1 - 1 / o) ** o for o, v in zip(n, rdp, strict=True))
            found.append(loss + mean * min(delta, 1) + log(mean) / (order - 1))
        return found
    gamma = mp.findroot(
        lambda g: ((1 / g - 1) / log(1 / g) if eta == 0 else eta * (1 - g) / g / (1 - g**eta)) - mean,
        (mpf("1e-9"), mpf("0.999999")),
        solver="anderson",
        tol=1e-30,
        verify=False,
    )
    paid = [(1 - 1 / o) * v + log(1 / gamma) / o for o, v in zip(n, rdp, strict=True)]
    least = min(*paid, log(1 / gamma))
    return [v + (1 + mpf(eta)) * least + log(mean) / (o - 1) for o, v in zip(n, rdp, strict=True)]


@pytest.mark.parametrize("eta", [0, 0.5, 1, 3, math.inf])
@pytest.mark.parametrize("mean", [2, 20, 500])
@pytest.mark.parametrize("curve", [CIFAR10.curve(), gaussian(3, top=64), gaussian(0.5, top=16)])
def test_oracle_is_never_undercut(curve, mean, eta):
    mine = RunCount(mean=mean, eta=eta).best_of(curve)
    exact = exact_best_of(curve, mean=mean, eta=eta)
    for place, value in enumerate(mine.rdp):
        assert value >= min(exact[place:]), "not below the formula, at this order or a greater one"
    allowed = [exact[place] * (1 + mpf("3e-9")) for place in range(len(exact))]
    assert all(value <= high for value, high in zip(mine.rdp, allowed, strict=True))


# Truth: the divergence itself, for mechanisms with a few outcomes


def divergence(p, q, order):
    return math.log(sum(a**order * b ** (1 - order) for a, b in zip(p, q, strict=True))) / (order - 1)


def law_of_best(p, law):
    """Of the best of K draws from `p`, by the probability generating function of K."""
    generate = exact_generating_function(law)
    at_most = [float(generate(min(float(x), 1.0))) for x in np.cumsum(p)]
    least = float(generate(0))  # no run at all: an outcome of its own, which depends on no data
    return [least, *np.diff([least, *at_most])]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    p=st.lists(st.floats(0.05, 1), min_size=4, max_size=4),
    q=st.lists(st.floats(0.05, 1), min_size=4, max_size=4),
    mean=st.floats(1.001, 60),
    eta=st.sampled_from([-0.5, 0, 0.7, 1, 3, math.inf]),
)
def test_the_bound_holds_for_the_true_divergence(p, q, mean, eta):
    """A second way: best-of-K of a mechanism with four outcomes, both directions, without any theorem."""
    p, q = (np.array(weights) / sum(weights) for weights in (p, q))
    law, orders = RunCount(mean=mean, eta=eta), np.arange(2, 33)
    single = RdpCurve(orders=orders, rdp=np.array([max(divergence(p, q, n), divergence(q, p, n)) for n in orders]))
    bound = law.best_of(single)
    best_p, best_q = law_of_best(p, law), law_of_best(q, law)
    if law.poisson:
        assert best_p[0] == best_q[0]
    else:
        best_p, best_q = best_p[1:], best_q[1:]
    for order, limit in zip(orders[:8], bound.rdp[:8], strict=True):
        assert divergence(best_p, best_q, order) <= limit + 1e-9
        assert divergence(best_q, best_p, order) <= limit + 1e-9


@pytest.mark.parametrize(("mean", "holds"), [(0.5, False), (1, True)])
def test_theorem_6_is_for_means_of_at_least_1(mean, holds):
    """Below, it forgets that no run at all is likely, too, and promises less than the best of K tells."""
    p, q = np.array([0.3, 0.7]), np.array([0.31, 0.69])
    best_p, best_q = (
        [math.exp(-mean), math.exp(mean * (x[0] - 1)) - math.exp(-mean), 1 - math.exp(mean * (x[0] - 1))]
        for x in (p, q)
    )
    delta = 0.0  # of one run: no outcome is as much as e^ε̂ = 2 times as likely
    promised = divergence(p, q, 2) + mean * delta + math.log(mean)
    assert (divergence(best_p, best_q, 2) <= max(0, promised)) == holds


def test_a_fixed_number_of_runs_has_no_such_bound():
    """Why the number is drawn: the best of exactly 20 tells more than Theorem 2 would allow for a mean of 20."""
    p, q, order = np.array([1 - 1e-6, 1e-6]), np.array([1 - 4e-6, 4e-6]), 40
    single = RdpCurve(orders=np.arange(2, 41), rdp=np.array([divergence(q, p, n) for n in range(2, 41)]))
    of_20 = [[(1 - tail) ** 20, 1 - (1 - tail) ** 20] for tail in (p[1], q[1])]
    law = RunCount(mean=20, eta=-0.9)
    random = divergence(law_of_best(q, law)[1:], law_of_best(p, law)[1:], order)
    assert random <= law.best_of(single).at(40)
    assert divergence(of_20[1], of_20[0], order) > single.at(40)


# Another library


@pytest.mark.parametrize("eta", [0, 0.5, 1, 2, math.inf])
@pytest.mark.parametrize(("sigma", "mean"), [(5, 20), (1, 3), (20, 100)])
def test_dp_accounting_agrees(sigma, mean, eta):
    events = pytest.importorskip("dp_accounting.dp_event")
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant([1 + 1e-9, *range(2, 200)])  # it has no order 1, which Theorem 2 allows as λ̂
    accountant.compose(events.RepeatAndSelectDpEvent(events.GaussianDpEvent(sigma), mean, eta))
    mine = RunCount(mean=mean, eta=eta).best_of(gaussian(sigma)).epsilon(DELTA).epsilon
    assert_allclose(mine, accountant.get_epsilon(DELTA), rtol=1e-8)


# Properties


@settings(max_examples=100, deadline=None, derandomize=True)
@given(sigma=st.floats(0.3, 50), mean=st.floats(1.001, 1e4), eta=st.sampled_from(ETAS))
def test_best_of_costs_more_than_one_and_grows_with_the_mean(sigma, mean, eta):
    curve = gaussian(sigma, top=64)
    once, more = (RunCount(mean=m, eta=eta).best_of(curve) for m in (mean, 1.5 * mean))
    assert (once.rdp >= curve.rdp).all() and (np.diff(once.rdp) >= 0).all()
    assert more.epsilon(DELTA).epsilon >= once.epsilon(DELTA).epsilon


def test_delta_inverts_epsilon():
    for curve in (CIFAR10.curve(), gaussian(2)):
        for delta in (1e-12, 1e-5, 0.01):
            assert_allclose(curve.delta(curve.epsilon(delta).epsilon), delta, rtol=1e-9)
    assert gaussian(0.01).delta(0.0) == 1.0
    with pytest.raises(ValueError, match="epsilon must be a number"):
        CIFAR10.curve().delta(-1)


def test_a_share_of_a_curve_and_its_value_at_an_order():
    curve = gaussian(2)
    assert_allclose((curve * 3).at(5), 3 * 5 / 8)
    assert_allclose((curve * 0.5).rdp * 2, curve.rdp)
    with pytest.raises(ValueError, match="order must be one of 2 to 199, got 200"):
        curve.at(200)
    with pytest.raises(ValueError, match="times must be"):
        curve * -1
    assert_allclose(curve.at(9) + conversion(9, DELTA), 9 / 8 + math.log(8 / 9) - (math.log(DELTA) + math.log(9)) / 8)
