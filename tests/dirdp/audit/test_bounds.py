"""Lower bounds on ε: goldens, a slow exact twin, mechanisms whose ε is known, and what must not pass."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import beta, binom

from dirdp.audit import distinguisher_epsilon, one_run_cap, one_run_epsilon, one_run_p_value

DELTA = 1e-5


# Golden values


@pytest.mark.parametrize(("canaries", "cap"), [(100, "3.49"), (500, "5.11"), (1000, "5.81"), (10_000, "8.11")])
def test_golden_caps(canaries, cap):
    setting = {"canaries": canaries, "guesses": canaries, "confidence": 0.95}
    assert f"{one_run_cap(**setting, delta=0):.2f}" == cap
    assert one_run_cap(**setting, delta=DELTA) < one_run_cap(**setting, delta=0)


def test_the_cap_has_a_closed_form_without_delta():
    """All r right has probability (e^ε/(1+e^ε))^r, which is 1 − confidence at ε = logit(0.05^(1/r))."""
    for guesses in (1, 10, 432):
        rate = 0.05 ** (1 / guesses)
        exact = max(0.0, math.log(rate / (1 - rate)))
        cap = one_run_cap(canaries=500, guesses=guesses, delta=0, confidence=0.95)
        assert exact - 1e-8 <= cap <= exact


# Slow exact twin: Theorem 5.2 in rational numbers, term by term


def exact_p_value(m, r, v, odds, delta):
    """With e^ε = `odds`, a rational number."""
    q = Fraction(odds) / (1 + Fraction(odds))
    law = [math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
    assert sum(law) == 1
    tail = sum(law[v:])
    slope = max((sum(law[max(0, v - i) : v]) / i for i in range(1, m + 1)), default=Fraction(0))
    return min(Fraction(1), tail + 2 * m * Fraction(delta) * slope)


@pytest.mark.parametrize(
    ("m", "r", "v"), [(1, 1, 1), (12, 12, 9), (30, 20, 20), (40, 31, 1), (40, 40, 0), (60, 60, 53)]
)
@pytest.mark.parametrize("delta", [0, 1e-5, 1e-3, 0.3])
def test_exact_twin(m, r, v, delta):
    for odds in (1, Fraction(3, 2), 4, 50):
        reported = one_run_p_value(canaries=m, guesses=r, correct=v, epsilon=math.log(odds), delta=delta)
        assert reported == pytest.approx(float(exact_p_value(m, r, v, odds, delta)), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize(("m", "r", "v"), [(12, 12, 11), (30, 20, 20), (40, 40, 36)])
@pytest.mark.parametrize("delta", [0, 1e-5, 1e-3])
def test_exact_twin_of_the_bound(m, r, v, delta):
    """Scanned upwards: nothing below the bound reaches the level, and just above it something does."""
    found = one_run_epsilon(canaries=m, guesses=r, correct=v, delta=delta, confidence=0.95)
    level = Fraction(1, 20)
    for epsilon in np.linspace(0, found - 1e-6, 8):
        assert exact_p_value(m, r, v, Fraction(math.exp(epsilon)).limit_denominator(10**7), delta) <= level
    assert exact_p_value(m, r, v, Fraction(math.exp(found + 1e-6)).limit_denominator(10**7), delta) > level


# Mechanisms whose ε is known exactly


@settings(max_examples=200, deadline=None)
@given(
    m=st.integers(1, 300),
    share=st.floats(0, 1),
    place=st.floats(0, 1),
    epsilon=st.floats(0, 6),
    delta=st.sampled_from([0.0, 1e-6, 1e-3, 0.05]),
)
def test_property_no_mechanism_beats_the_p_value(m, share, place, epsilon, delta):
    """Randomised response that tells each bit outright with probability δ, or all bits at once with probability δ."""
    r = round(share * m)
    v = round(place * r)
    reported = one_run_p_value(canaries=m, guesses=r, correct=v, epsilon=epsilon, delta=delta)
    each = binom.sf(v - 1, r, delta + (1 - delta) * expit(epsilon))
    together = delta + (1 - delta) * binom.sf(v - 1, r, expit(epsilon))
    assert reported >= max(each, together) * (1 - 1e-9)


def test_without_its_delta_term_the_p_value_would_be_beaten():
    """The property above can fail."""
    together = 0.05 + 0.95 * binom.sf(99, 100, expit(1.0))
    assert one_run_p_value(canaries=100, guesses=100, correct=100, epsilon=1, delta=0) < together


def simulated(epsilon, bound, *, m=500, repeats=200):
    """Lower bounds from randomised response on m fair coins, every one guessed."""
    correct = np.random.default_rng(17).binomial(m, expit(epsilon), repeats)
    return np.array([bound(int(v)) for v in correct])


@pytest.mark.parametrize("epsilon", [1, 2, 4])
def test_randomised_response_is_not_overrated(epsilon):
    """At 95 %, 20 or more of 200 above the truth would be an accident of 0.2 %."""
    found = simulated(
        epsilon, lambda v: one_run_epsilon(canaries=500, guesses=500, correct=v, delta=0, confidence=0.95)
    )
    assert (found > epsilon).sum() <= 19
    assert np.median(found) >= epsilon / 2


@pytest.mark.parametrize(
    "wrong",
    [
        lambda v: math.log((v + 0.5) / (500 - v + 0.5)),  # an estimate is no bound
        lambda v: one_run_epsilon(canaries=500, guesses=500, correct=v, delta=0, confidence=0.6),
        lambda v: one_run_epsilon(canaries=500, guesses=500, correct=min(500, v + 6), delta=0, confidence=0.95),
    ],
    ids=["estimate", "level", "six-more"],
)
def test_wrong_bounds_overrate_randomised_response(wrong):
    assert any((simulated(epsilon, wrong) > epsilon).sum() > 19 for epsilon in (1, 2, 4))


# Properties


@settings(max_examples=15, deadline=None)
@given(m=st.integers(1, 200), share=st.floats(0, 1), place=st.floats(0, 1), confidence=st.floats(0.5, 0.999))
def test_property_more_right_guesses_and_less_confidence_raise_the_bound(m, share, place, confidence):
    r = round(share * m)
    v = round(place * r)
    setting = {"canaries": m, "guesses": r, "delta": DELTA}
    found = one_run_epsilon(**setting, correct=v, confidence=confidence)
    assert found <= one_run_cap(**setting, confidence=confidence) + 1e-8
    assert found >= one_run_epsilon(**setting, correct=v, confidence=(1 + confidence) / 2) - 1e-8
    if v:
        assert found >= one_run_epsilon(**setting, correct=v - 1, confidence=confidence) - 1e-8


@pytest.mark.parametrize("v", [0, 100, 250, 260])
def test_guesses_no_better_than_chance_show_nothing(v):
    assert one_run_epsilon(canaries=500, guesses=500, correct=v, delta=DELTA, confidence=0.95) == 0.0


# The distinguisher


def test_clopper_and_pearson():
    counts = {"true_positives": 90, "positives": 100, "false_positives": 5, "negatives": 80}
    tpr, fpr = beta.ppf(0.025, 90, 11), beta.ppf(0.975, 6, 75)
    expected = max(math.log((tpr - DELTA) / fpr), math.log((1 - fpr - DELTA) / (1 - tpr)))
    assert distinguisher_epsilon(**counts, delta=DELTA, confidence=0.95) == pytest.approx(expected, rel=1e-12)


def test_a_perfect_distinguisher_is_capped_by_its_trainings():
    """(1 − 0.025^(1/n)) is the rate that 0 of n leave open."""
    counts = {"true_positives": 50, "positives": 50, "false_positives": 0, "negatives": 50}
    open_rate = 1 - 0.025 ** (1 / 50)
    found = distinguisher_epsilon(**counts, delta=0, confidence=0.95)
    assert found == pytest.approx(math.log((1 - open_rate) / open_rate), rel=1e-12)


@pytest.mark.parametrize(
    ("tp", "p", "fp", "n"), [(0, 50, 0, 50), (50, 50, 50, 50), (25, 50, 25, 50), (0, 0, 0, 9), (9, 9, 0, 0)]
)
def test_a_distinguisher_that_tells_nothing_shows_nothing(tp, p, fp, n):
    found = distinguisher_epsilon(
        true_positives=tp, positives=p, false_positives=fp, negatives=n, delta=DELTA, confidence=0.95
    )
    assert found == 0.0


@pytest.mark.parametrize("epsilon", [0.5, 1, 2])
def test_distinguishers_of_randomised_response_are_not_overrated(epsilon):
    rng = np.random.default_rng(5)
    rate = expit(epsilon)
    found = [
        distinguisher_epsilon(
            true_positives=int(rng.binomial(100, rate)),
            positives=100,
            false_positives=int(rng.binomial(100, 1 - rate)),
            negatives=100,
            delta=0,
            confidence=0.95,
        )
        for _ in range(200)
    ]
    assert (np.array(found) > epsilon).sum() <= 19


# Refusals


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("canaries", 0),
        ("guesses", 11),
        ("correct", 10),
        ("correct", -1),
        ("delta", 1),
        ("confidence", 1),
        ("delta", "0"),
    ],
)
def test_refusals_name_argument_and_value(name, value):
    good = {"canaries": 10, "guesses": 9, "correct": 8, "delta": DELTA, "confidence": 0.95}
    with pytest.raises(ValueError, match=rf"^{name} must be ") as refusal:
        one_run_epsilon(**{**good, name: value})
    assert repr(value) in str(refusal.value)


def test_arguments_are_keywords():
    with pytest.raises(TypeError):
        one_run_epsilon(500, 500, 490, DELTA, 0.95)
