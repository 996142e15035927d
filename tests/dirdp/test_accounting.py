"""Accounting. Five kinds of test: closed form, mpmath oracle, slow naive twin, property, golden value."""

import json
import math
import pickle
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import polygamma

from dirdp.accounting import PrivacySpent, RdpCurve, compose, epsilon_spent, mechanism_rdp, rdp_curve
from dirdp.calibration import calibrate

from . import oracle

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "calibration.json").read_text())
DELTA = 1e-5
CIFAR10 = {"sampling_rate": 0.005, "steps": 20000}


# Closed forms


@pytest.mark.parametrize(
    ("order", "r", "alpha", "expected"),
    [
        (2, 0.5, 1.5, 2 * 0.25 * math.pi**2 / 6),  # ψ′(1) = π²/6
        (2, 0.5, 1.0, 2 * 0.25 * math.pi**2 / 2),  # ψ′(1/2) = π²/2
        (1, 1.0, 2.0, math.pi**2 / 6 - 1),  # ψ′(2) = π²/6 − 1
        (2.5, 1.0, 2.5, 2.5 * math.pi**2 / 6),
    ],
)
def test_lemma_9_at_known_trigammas(order, r, alpha, expected):
    assert_allclose(mechanism_rdp(order, r=r, alpha=alpha), expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("order", "r", "alpha", "expected"),
    [
        (2, 0.5, 1.5, math.log(1.5)),  # Γ(5/2)·Γ(1) / (Γ(2)·Γ(3/2))
        (2, 0.5, 1.0, math.log(2)),  # Γ(2)·Γ(1/2) / (Γ(3/2)·Γ(1))
        (3, 1.0, 4.0, math.log(5) / 2),  # Γ(7)·Γ(2) / (Γ(5)·Γ(4))
        (1, 1.0, 2.0, 0.5),  # the Kullback-Leibler divergence r·(ψ(α+r) − ψ(α)), ψ(3) − ψ(2) = 1/2
    ],
)
def test_exact_bound_at_known_gammas(order, r, alpha, expected):
    assert_allclose(mechanism_rdp(order, r=r, alpha=alpha, bound="exact"), expected, rtol=1e-11)


def test_lemma_9_takes_scalars_and_arrays():
    assert isinstance(mechanism_rdp(2, r=0.1, alpha=1), float)
    orders = np.array([[1, 1.5], [2, 10]])
    values = mechanism_rdp(orders, r=0.1, alpha=1)
    assert values.shape == (2, 2)
    assert values[1, 1] == mechanism_rdp(10, r=0.1, alpha=1)


@pytest.mark.parametrize("q", [1e-9, 0.005, 0.5, 1.0])
def test_theorem_10_at_order_2(q):
    """1 − q² + q²·e^{ε_M(2)} is all there is."""
    curve = rdp_curve(r=0.9, alpha=1, sampling_rate=q, steps=7)
    expected = 7 * math.log1p(q**2 * math.expm1(mechanism_rdp(2, r=0.9, alpha=1)))
    assert list(curve.orders) == [2]
    assert_allclose(curve.rdp, expected, rtol=1e-9)


def test_theorem_10_without_subsampling():
    """q = 1 leaves the term j = λ: ε_M(λ) + log 3/(λ−1), and for λ = 2 without the 3."""
    curve = rdp_curve(r=0.3, alpha=3, sampling_rate=1, steps=1)
    expected = mechanism_rdp(curve.orders, r=0.3, alpha=3) + np.log(3) / (curve.orders - 1)
    expected[0] -= np.log(3)
    assert_allclose(curve.rdp, expected, rtol=1e-9)


def test_lemma_12_steps_multiply():
    one, many = (rdp_curve(r=0.2, alpha=3, sampling_rate=0.01, steps=steps) for steps in (1, 1000))
    assert_allclose(many.rdp, 1000 * one.rdp, rtol=1e-14)


def test_lemma_13_conversion():
    curve = RdpCurve(orders=np.array([2, 5]), rdp=np.array([9.0, 0.25]))
    expected = 0.25 + math.log(4) - (math.log(DELTA) + 5 * math.log(5)) / 4
    assert curve.epsilon(DELTA).order == 5
    assert_allclose(curve.epsilon(DELTA).epsilon, expected, rtol=1e-13)


def test_no_steps_cost_exactly_nothing():
    assert epsilon_spent(r=0.2, alpha=3, delta=1e-9, sampling_rate=1, steps=0) == PrivacySpent(0.0, 2)


def test_a_loss_below_zero_counts_as_zero():
    assert epsilon_spent(r=0.2, alpha=3, delta=0.5, sampling_rate=0.005, steps=100).epsilon == 0.0


# mpmath oracle


def points_near_and_far(count):
    """(r, α, q) over many orders of magnitude."""
    rng = np.random.default_rng(5)
    alpha, ratio, q = (10 ** rng.uniform(low, high, count) for low, high in [(-6, 6), (-2, 0), (-12, 0)])
    return list(zip((alpha * ratio).tolist(), alpha.tolist(), q.tolist(), strict=True))


def assert_just_above(reported, exact):
    assert exact <= oracle.mpf(float(reported)) <= exact * (1 + oracle.mpf("1e-9"))


@pytest.mark.parametrize(("r", "alpha", "q"), points_near_and_far(60))
def test_oracle_theorem_10_is_never_undercut(r, alpha, q):
    curve = rdp_curve(r=r, alpha=alpha, sampling_rate=q, steps=20000)
    for order in {2, int(curve.orders[curve.orders.size // 2]), int(curve.orders[-1])}:
        assert_just_above(curve.rdp[order - 2], oracle.rdp(order, r=r, alpha=alpha, q=q, steps=20000))


@pytest.mark.parametrize("q", [1e-30, 1e-12, 0.001, 0.04, 0.999, 1.0])
def test_oracle_theorem_10_at_high_orders(q):
    curve = rdp_curve(r=0.003, alpha=3, sampling_rate=q, steps=1)
    for order in (2, 500, 1000):
        assert_just_above(curve.rdp[order - 2], oracle.rdp(order, r=0.003, alpha=3, q=q, steps=1))


@pytest.mark.parametrize(
    ("r", "alpha"),
    [(1 - 2**-53, 1), (0.1, 0.3), (0.3, 3), (1 / 3, 1), (0.7, 2.1), (math.nextafter(0.5, 0), 1), (0.1, 1)],
)
def test_oracle_at_the_pole(r, alpha):
    """The orders with α − (λ−1)·r > 0 in exact arithmetic, and digits kept however small that is."""
    curve = rdp_curve(r=r, alpha=alpha, sampling_rate=0.5, steps=1)
    assert list(curve.orders) == oracle.orders(r=r, alpha=alpha)
    last = int(curve.orders[-1])
    assert_just_above(curve.rdp[-1], oracle.rdp(last, r=r, alpha=alpha, q=0.5, steps=1))


@pytest.mark.parametrize(("r", "alpha", "q"), [*points_near_and_far(30), (3e-4, 3, 0.01)])
def test_oracle_exact_bound_is_never_undercut(r, alpha, q):
    curve = rdp_curve(r=r, alpha=alpha, sampling_rate=q, steps=20000, max_order=200, bound="exact")
    for order in {2, int(curve.orders[curve.orders.size // 2]), int(curve.orders[-1])}:
        assert_just_above(curve.rdp[order - 2], oracle.rdp(order, r=r, alpha=alpha, q=q, steps=20000, bound="exact"))


@pytest.mark.parametrize("gap", [1.001e-9, 1e-6, 1e-3, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("alpha", [1e-100, 1e-3, 1, 30, 1e4, 1e12, 1e100])
def test_oracle_exact_divergence_at_any_scale(gap, alpha):
    for order in (1.5, 2, 7, 400):
        r = alpha * (1 - gap) / (order - 1)
        if r < alpha * (1 - 1.001e-9):
            exact = oracle.exact_rdp(order, r=r, alpha=alpha)
            assert_allclose(mechanism_rdp(order, r=r, alpha=alpha, bound="exact"), float(exact), rtol=1e-12)


def softmaxes(rng, classes):
    """Two probability vectors, from nearly uniform to nearly a corner."""
    return [rng.dirichlet(np.full(classes, 10 ** rng.uniform(-2, 2))) for _ in range(2)]


def test_oracle_no_pair_diverges_more_than_two_corners():
    """docs/theory.md's claim, at 60 digits."""
    rng = np.random.default_rng(6)
    tightest = 0
    for _ in range(150):
        classes = int(rng.integers(2, 12))
        alpha, ratio = 10 ** rng.uniform(-2, 2), float(rng.choice([0.999, 0.9, 0.5, 10 ** rng.uniform(-3, 0)]))
        r = alpha * min(ratio, 0.999)
        order = 1 + (alpha / r) * rng.uniform(0.001, 0.9999)
        corners = oracle.exact_rdp(order, r=r, alpha=alpha)
        s, t = ([oracle.mpf(value) / sum(map(oracle.mpf, v)) for value in v] for v in softmaxes(rng, classes))
        pair = oracle.divergence(order, s, t, r=r, alpha=alpha)
        assert 0 <= pair <= corners <= oracle.mechanism_rdp(order, r=r, alpha=alpha)
        tightest = max(tightest, pair / corners)
    assert tightest > 0.99  # some pairs were nearly two corners


def test_oracle_the_pieces_of_the_proof():
    """m(x)/x does not fall for the summand m of a class with t = 0, and the summand of t = 1 falls in s."""
    rng = np.random.default_rng(7)
    for _ in range(40):
        alpha = oracle.mpf(10 ** rng.uniform(-2, 2))
        r = alpha * oracle.mpf(rng.choice([0.999, 0.9, 10 ** rng.uniform(-3, 0)]))
        order = 1 + alpha / r * oracle.mpf(rng.uniform(0.001, 0.9999))
        low, high = sorted(map(oracle.mpf, rng.uniform(1e-3, 1, 2)))

        def summand(s, t, *, order=order, r=r, alpha=alpha):
            return (order - 1) * oracle.divergence(order, [s], [t], r=r, alpha=alpha)

        assert summand(low, 0) / low <= summand(high, 0) / high
        assert summand(low, 1) >= summand(high, 1)


@pytest.mark.parametrize("delta", [1e-300, 1e-9, 1e-5, 0.05])
@pytest.mark.parametrize(("r", "alpha"), [(0.2349, 3), (0.5, 3), (0.0087, 0.1)])
def test_oracle_epsilon(delta, r, alpha):
    spent = epsilon_spent(r=r, alpha=alpha, delta=delta, **CIFAR10)
    exact, order = oracle.epsilon(r=r, alpha=alpha, delta=delta, q=0.005, steps=20000)
    assert spent.order == order
    assert_just_above(spent.epsilon, exact)


# Slow naive twin


def theorem_10(n, *, r, alpha, q):
    """The formula as printed, in floats."""
    step = [j * r**2 * polygamma(1, alpha - (j - 1) * r) for j in range(n + 1)]
    total = (1 - q) ** (n - 1) * (n * q - q + 1)
    total += math.comb(n, 2) * q**2 * (1 - q) ** (n - 2) * math.exp(step[2])
    for j in range(3, n + 1):
        total += 3 * math.comb(n, j) * (1 - q) ** (n - j) * q**j * math.exp((j - 1) * step[j])
    return math.log(total) / (n - 1)


@pytest.mark.parametrize(
    ("r", "alpha", "q", "top"), [(0.2349, 3, 0.05, 13), (0.1, 3.05, 0.5, 28), (0.01, 0.205, 0.9, 18)]
)
def test_naive_twin(r, alpha, q, top):
    curve = rdp_curve(r=r, alpha=alpha, sampling_rate=q, steps=1, max_order=top)
    assert_allclose(curve.rdp, [theorem_10(n, r=r, alpha=alpha, q=q) for n in curve.orders], rtol=1e-9)


# Properties

offsets = st.floats(-2, 2).map(lambda exponent: 10**exponent)
ratios = st.floats(0.005, 0.9999)
rates = st.floats(-6, 0).map(lambda exponent: 10**exponent)
counts = st.integers(1, 10**6)


@settings(max_examples=150, deadline=None)
@given(alpha=offsets, ratio=ratios, q=rates, steps=counts, more=st.floats(0, 1))
def test_property_loss_grows_with_r_q_and_steps(alpha, ratio, q, steps, more):
    def epsilon(ratio=ratio, q=q, steps=steps):
        spent = epsilon_spent(r=alpha * ratio, alpha=alpha, delta=DELTA, sampling_rate=q, steps=steps)
        assert spent.epsilon >= 0
        return spent.epsilon

    base = epsilon() * (1 - 1e-9)
    assert base <= epsilon(ratio=ratio + more * (0.99995 - ratio))
    assert base <= epsilon(q=q + more * (1 - q))
    assert base <= epsilon(steps=steps + int(more * steps))


@settings(max_examples=100, deadline=None)
@given(alpha=offsets, ratio=ratios, q=rates, steps=counts, top=st.integers(2, 60))
def test_property_fewer_orders_only_raise_epsilon(alpha, ratio, q, steps, top):
    setting = {"r": alpha * ratio, "alpha": alpha, "sampling_rate": q, "steps": steps}
    full, limited = rdp_curve(**setting), rdp_curve(**setting, max_order=top)
    assert limited.orders[-1] <= top
    assert_allclose(limited.rdp, full.rdp[: limited.rdp.size], rtol=1e-14)
    assert limited.epsilon(DELTA).epsilon >= full.epsilon(DELTA).epsilon * (1 - 1e-13)


@settings(max_examples=200, deadline=None)
@given(
    alpha=st.floats(1e-100, 1e100),
    ratio=st.floats(1e-150, 1, exclude_max=True),
    q=st.floats(0, 1, exclude_min=True),
    steps=st.integers(0, 2**53),
    delta=st.floats(0, 1, exclude_min=True, exclude_max=True),
)
def test_property_no_nan_and_nothing_negative_anywhere(alpha, ratio, q, steps, delta):
    r = min(alpha * ratio, math.nextafter(alpha, 0))
    curve = rdp_curve(r=r, alpha=alpha, sampling_rate=q, steps=steps, max_order=50)
    assert curve.orders[0] == 2
    assert np.all(curve.rdp > 0) if steps else np.all(curve.rdp == 0)
    assert curve.epsilon(delta).epsilon >= 0


@settings(max_examples=100, deadline=None)
@given(alpha=offsets, ratio=st.floats(0.005, 0.99), order=st.floats(0, 1), more=st.floats(0, 1))
def test_property_exact_bound_is_below_lemma_9_and_grows(alpha, ratio, order, more):
    top = 1 + 0.999 * (1 / ratio)
    order = 1 + order * (top - 1)
    exact, lemma_9 = (mechanism_rdp(order, r=alpha * ratio, alpha=alpha, bound=b) for b in ("exact", "lemma9"))
    assert 0 < exact <= lemma_9 * (1 + 1e-11)
    higher = order + more * (top - order)
    assert exact <= mechanism_rdp(higher, r=alpha * ratio, alpha=alpha, bound="exact") * (1 + 1e-11)
    wider = ratio + more * (min(0.99, 0.999 / max(order - 1, 1)) - ratio)
    assert exact <= mechanism_rdp(order, r=alpha * wider, alpha=alpha, bound="exact") * (1 + 1e-11)


@settings(max_examples=100, deadline=None)
@given(ratio_a=ratios, ratio_b=ratios, q=rates, steps=counts)
def test_property_composition_is_symmetric_and_never_below_its_parts(ratio_a, ratio_b, q, steps):
    a, b = (rdp_curve(r=ratio, alpha=1, sampling_rate=q, steps=steps) for ratio in (ratio_a, ratio_b))
    both, swapped = compose([a, b]), compose([b, a])
    assert list(both.orders) == list(a.orders if a.orders.size < b.orders.size else b.orders)
    assert np.array_equal(both.rdp, swapped.rdp)
    assert both.epsilon(DELTA).epsilon >= max(a.epsilon(DELTA).epsilon, b.epsilon(DELTA).epsilon)


# Golden values


@pytest.mark.parametrize("case", GOLDEN["valleys"], ids=lambda case: f"order-{case['order']}")
def test_golden_valleys(case):
    assert_allclose(valleys()[case["order"]], case["epsilon"], rtol=1e-9)


def test_two_valleys_need_all_orders():
    """ε falls to λ = 3, climbs, and falls again to its least at λ = 5524: an early exit would say 6.08."""
    setting = {"r": 5.39e-4, "alpha": 3, "delta": DELTA, "sampling_rate": 0.04, "steps": 20000}
    values = valleys()
    assert values[3] < values[2]
    assert values[3] < values[4] < values[100] > values[3000] > values[5524]
    spent = epsilon_spent(**setting, max_order=6000)
    assert abs(spent.order - 5524) <= 1  # r is rounded: at ε = 4 it is 5.39137e-4, and there 5524 wins
    assert spent.epsilon < 4 < epsilon_spent(**setting, max_order=1001).epsilon
    assert epsilon_spent(**setting, max_order=1001).order == 3
    assert f"{epsilon_spent(**setting, max_order=100).epsilon:.2f}" == "6.08"


@cache
def valleys():
    curve = rdp_curve(r=5.39e-4, alpha=3, sampling_rate=0.04, steps=20000, max_order=6000)
    return {
        int(n): RdpCurve(curve.orders[n - 2 : n - 1], curve.rdp[n - 2 : n - 1]).epsilon(DELTA).epsilon
        for n in curve.orders
    }


FIGURE_2 = {0.1: 11, 0.2: 11, 0.3: 11, 0.5: 11, 1: 13, 2: 13, 3: 13, 5: 11, 10: 11}
"""Offset -> learning rates tried with it."""


@pytest.mark.parametrize(("seeds", "epsilon", "order"), [(10, "28.77", 2), (1, "7.61", 4)])
def test_golden_epsilon_of_figure_2(seeds, epsilon, order):
    runs = {alpha: calibrate(epsilon=1, delta=DELTA, alpha=alpha, **CIFAR10).curve() for alpha in FIGURE_2}
    trials = [runs[alpha] for alpha, rates in FIGURE_2.items() for _ in range(rates * seeds)]
    assert len(trials) == 105 * seeds
    spent = compose(trials).epsilon(DELTA)
    assert (f"{spent.epsilon:.2f}", spent.order) == (epsilon, order)


def test_golden_epsilon_of_a_mixed_sweep():
    small, large = (calibrate(epsilon=e, delta=DELTA, alpha=3, **CIFAR10).curve() for e in (1, 8))
    assert f"{compose([small] * 10 + [large]).epsilon(DELTA).epsilon:.2f}" == "8.40"


# Refusals

GOOD = {"r": 0.2, "alpha": 3, "delta": DELTA, "sampling_rate": 0.005, "steps": 100, "max_order": 50}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("delta", value) for value in (0, 1, -1e-5, 1.5, math.nan, "1e-5", None, True)),
        *(("sampling_rate", value) for value in (0, -0.1, 1.0001, math.nan, math.inf, "0.1", None, True)),
        *(("alpha", value) for value in (0, -1, math.nan, math.inf, 1e-200, "3", None, [3])),
        *(("r", value) for value in (0, -0.1, 3, 3.1, math.nan, math.inf, "0.2", None)),
        *(("steps", value) for value in (-1, 0.5, True, math.nan, math.inf, "100", None, 10**400)),
        *(("max_order", value) for value in (1, 0, -5, 2.5, True, "9", math.inf)),
    ],
)
def test_refusals_name_argument_and_value(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be ") as refusal:
        epsilon_spent(**{**GOOD, name: value})
    assert repr(value) in str(refusal.value)


def test_refusal_of_bounds_and_of_scalings_without_an_order():
    with pytest.raises(ValueError, match="bound must be lemma9 or exact, got 'tight'"):
        epsilon_spent(**GOOD, bound="tight")
    with pytest.raises(ValueError, match="bound=exact"):
        epsilon_spent(**{**GOOD, "r": 3 * (1 - 1e-10)}, bound="exact")
    with pytest.raises(ValueError, match="order must lie"):
        mechanism_rdp(4, r=1 - 1e-10, alpha=3, bound="exact")


@pytest.mark.parametrize("order", [0.999, 16, 15.999999999, math.nan, "2", [2, 17]])
def test_refusal_of_orders(order):
    with pytest.raises(ValueError, match=r"^order must .* got "):
        mechanism_rdp(order, r=0.2, alpha=3 - 1e-9)


def test_numpy_numbers_are_numbers():
    same = {
        "r": np.float64(0.2),
        "alpha": np.int64(3),
        "delta": np.float64(DELTA),
        "sampling_rate": np.float64(0.005),
        "steps": np.int32(100),
        "max_order": np.uint8(50),
    }
    assert epsilon_spent(**same) == epsilon_spent(**GOOD) == epsilon_spent(**{**GOOD, "steps": 100.0})


def test_arguments_are_keywords():
    with pytest.raises(TypeError):
        epsilon_spent(0.2, 3, DELTA, 0.005, 100)
    with pytest.raises(TypeError):
        mechanism_rdp(2, 0.2, 3)


def test_compose_refuses_what_has_no_common_order():
    low, high = (RdpCurve(orders=np.array([n]), rdp=np.array([1.0])) for n in (2, 3))
    with pytest.raises(ValueError, match="without a common one"):
        compose([low, high])
    with pytest.raises(ValueError, match="at least one"):
        compose([])


def test_curves_survive_pickling():
    curve = rdp_curve(r=0.2, alpha=3, sampling_rate=0.005, steps=100)
    assert pickle.loads(pickle.dumps(curve)).epsilon(DELTA) == curve.epsilon(DELTA)


def test_accounting_loads_neither_torch_nor_the_platform():
    code = (
        "import sys, dirdp, dirdp.accounting, dirdp.calibration, dirdp.theory;"
        "assert not {'torch', 'ray', 'mlflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Speed; measured values times ten or more, since machines are busy


@pytest.mark.parametrize(("max_order", "seconds"), [(1001, 1), (6000, 6)])
def test_speed_of_many_orders(max_order, seconds):
    started = time.perf_counter()
    rdp_curve(r=5e-4, alpha=3, sampling_rate=0.04, steps=20000, max_order=max_order)
    assert time.perf_counter() - started < seconds
