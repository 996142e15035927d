"""Theorem 11: closed forms, the mpmath oracle, a Monte Carlo twin and properties."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dirdp.theory import attenuation, effective_learning_rate, expected_loss, learning_rate, loss_variance

from . import oracle

probabilities = st.floats(0, 1)
scalings = st.floats(-4, 4).map(lambda exponent: 10**exponent)


# Closed forms


def test_equation_3_at_known_trigammas():
    assert_allclose(attenuation(s_y=0.5, r=1, alpha=0.5), 0.5 * math.pi**2 / 6, rtol=1e-14)
    assert_allclose(attenuation(s_y=1, r=1, alpha=1), math.pi**2 / 6 - 1, rtol=1e-14)
    assert attenuation(s_y=0, r=1, alpha=1) == 0.0


def test_equations_4_and_5_at_integers():
    """ψ(n) and ψ′(n) differ by harmonic sums: here α = 1, d = 3, r·s_y + α = 2, r + dα = 5."""
    point = {"s_y": 0.5, "r": 2, "alpha": 1, "classes": 3}
    assert_allclose(expected_loss(**point), 1 / 2 + 1 / 3 + 1 / 4, rtol=1e-14)
    assert_allclose(loss_variance(**point), 1 / 4 + 1 / 9 + 1 / 16, rtol=1e-14)


def test_no_mechanism():
    assert attenuation(s_y=0.3, r=None, alpha=3) == 1.0
    assert_allclose(attenuation(s_y=np.array([0.1, 0.9]), r=None, alpha=3), [1, 1])
    assert effective_learning_rate(learning_rate=0.1, r=None, alpha=3) == 0.1
    assert learning_rate(effective_learning_rate=0.1, r=None, alpha=3) == 0.1


def test_a_huge_scaling_is_close_to_no_mechanism():
    assert_allclose(attenuation(s_y=0.3, r=1e9, alpha=3), 1, rtol=1e-7)
    assert_allclose(expected_loss(s_y=0.3, r=1e9, alpha=3, classes=10), -math.log(0.3), rtol=1e-6)
    assert_allclose(loss_variance(s_y=0.3, r=1e9, alpha=3, classes=10), 0, atol=1e-8)


# mpmath oracle


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 3, 1e4])
@pytest.mark.parametrize("ratio", [1e-3, 0.08, 0.999])
@pytest.mark.parametrize("s_y", [1e-6, 0.1, 0.9, 1])
def test_oracle(alpha, ratio, s_y):
    r = ratio * alpha
    a, total = oracle.mpf(r) * s_y + oracle.mpf(alpha), oracle.mpf(r) + 10 * oracle.mpf(alpha)
    point = {"s_y": s_y, "r": r, "alpha": alpha}
    assert_allclose(attenuation(**point), float(oracle.attenuation(**point)), rtol=1e-13)
    loss, variance = oracle.psi(0, total) - oracle.psi(0, a), oracle.psi(1, a) - oracle.psi(1, total)
    assert_allclose(expected_loss(**point, classes=10), float(loss), rtol=1e-12)
    assert_allclose(loss_variance(**point, classes=10), float(variance), rtol=1e-12)


# Slow naive twin


@pytest.mark.parametrize(("r", "alpha"), [(0.2349, 3), (2.0, 0.5)])
def test_monte_carlo_twin(r, alpha):
    """Mean and variance of 400,000 draws of −log p̃_y, to six standard errors (false alarms below 1e-8)."""
    softmax = np.array([0.7, 0.2, 0.1])
    losses = -np.log(np.random.default_rng(1).dirichlet(r * softmax + alpha, size=400_000)[:, 0])
    point = {"s_y": 0.7, "r": r, "alpha": alpha, "classes": 3}
    squares = (losses - losses.mean()) ** 2
    for sample, exact, wrong in [
        (losses, expected_loss(**point), expected_loss(**{**point, "classes": 4})),
        (squares, loss_variance(**point), loss_variance(**{**point, "s_y": 0.2})),
    ]:
        error = sample.std() / math.sqrt(sample.size)
        assert abs(sample.mean() - exact) < 6 * error < abs(sample.mean() - wrong)


# Properties


@given(s_y=probabilities, r=scalings, alpha=scalings)
def test_property_attenuation_is_bounded(s_y, r, alpha):
    """ψ′(x) ≤ 1/x + 1/x² and x/(x + α)² ≤ 1/(4α)."""
    assert 0 <= attenuation(s_y=s_y, r=r, alpha=alpha) <= (1 + 1 / (4 * alpha)) * (1 + 1e-14)


@given(s_y=probabilities, r=scalings, alpha=scalings, classes=st.integers(2, 1000))
def test_property_moments_are_positive(s_y, r, alpha, classes):
    assert expected_loss(s_y=s_y, r=r, alpha=alpha, classes=classes) > 0
    assert loss_variance(s_y=s_y, r=r, alpha=alpha, classes=classes) > 0


@given(rate=scalings, r=scalings, alpha=scalings)
def test_property_learning_rates_invert(rate, r, alpha):
    effective = effective_learning_rate(learning_rate=rate, r=r, alpha=alpha)
    assert_allclose(learning_rate(effective_learning_rate=effective, r=r, alpha=alpha), rate, rtol=1e-14)


# Golden values are those of κ in test_calibration.py

# Shapes and refusals


def test_numbers_give_numbers_and_arrays_arrays():
    assert type(attenuation(s_y=0.9, r=0.2, alpha=3)) is float
    assert type(effective_learning_rate(learning_rate=np.float64(0.1), r=0.2, alpha=3)) is float
    grid = attenuation(s_y=np.array([[0.1], [0.9]]), r=np.array([0.1, 0.2, 0.3]), alpha=3)
    assert grid.shape == (2, 3)
    assert grid[1, 1] == attenuation(s_y=0.9, r=0.2, alpha=3)
    assert effective_learning_rate(learning_rate=[0.1, 1], r=0.2, alpha=3).shape == (2,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("s_y", value) for value in (-0.1, 1.1, math.nan, "0.9", [0.5, 2], True)),
        *(("r", value) for value in (0, -1, math.nan, math.inf, "1")),
        *(("alpha", value) for value in (0, -1, math.nan, None)),
        *(("classes", value) for value in (1, 2.5, "10", True)),
    ],
)
def test_refusals_name_argument_and_value(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be ") as refusal:
        expected_loss(**{"s_y": 0.9, "r": 0.2, "alpha": 3, "classes": 10, name: value})
    assert repr(value) in str(refusal.value)


def test_a_learning_rate_needs_a_gradient():
    with pytest.raises(ValueError, match=r"^s_y must be "):
        learning_rate(effective_learning_rate=0.1, r=0.2, alpha=3, s_y=0)


def test_arguments_are_keywords():
    with pytest.raises(TypeError):
        attenuation(0.9, 0.2, 3)
