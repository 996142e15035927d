"""Lower bounds on ε from counted guesses: no training, only binomial laws.

Each bound holds with the stated confidence if the mechanism is (ε, δ)-differentially private, whatever the guesses were
made from. What must be fixed before looking is how many guesses are made, and of what.
"""

from __future__ import annotations

from functools import lru_cache
from math import log

import numpy as np
from scipy.special import expit
from scipy.stats import binom, binomtest

from dirdp import _validate

__all__ = ["distinguisher_epsilon", "one_run_cap", "one_run_epsilon", "one_run_p_value"]

_RESOLUTION = 1e-9
# A p-value this close to the level counts as above it, so that rounding proves nothing.
_SLACK = 1e-9


def one_run_epsilon(*, canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """The ε below which the guesses rule out (ε, δ)-DP at this confidence; 0.0 where they rule out nothing.

    `canaries` m records were each included by a fair coin of its own, and from what was released `guesses` r of the
    coins were guessed, `correct` v of them rightly (Steinke, Nasr and Jagielski 2023, Theorem 5.2). r is fixed
    beforehand; which coins are guessed may depend on everything that was released. Adjacency: add or remove one record.

    It is the largest ε with p-values of at most 1 − confidence at ε and everywhere below, and so needs no monotonicity.

    Raises:
        ValueError: not 0 ≤ correct ≤ guesses ≤ canaries with canaries ≥ 1, δ not in [0, 1), confidence not in (0, 1).

    >>> round(one_run_epsilon(canaries=500, guesses=500, correct=490, delta=1e-5, confidence=0.95), 2)
    3.35
    >>> one_run_epsilon(canaries=500, guesses=500, correct=250, delta=1e-5, confidence=0.95)
    0.0
    """
    canaries, guesses, correct, delta = _counts(canaries, guesses, correct, delta)
    level = 1 - _validate.real("confidence", confidence, above=0, below=1)
    return _one_run_epsilon(canaries, guesses, correct, delta, level)


def one_run_cap(*, canaries: int, guesses: int, delta: float, confidence: float) -> float:
    """The greatest lower bound that so many guesses can give: `one_run_epsilon` with every one right.

    >>> for canaries in (100, 500, 1000, 10_000):
    ...     print(round(one_run_cap(canaries=canaries, guesses=canaries, delta=0, confidence=0.95), 2))
    3.49
    5.11
    5.81
    8.11
    """
    return one_run_epsilon(canaries=canaries, guesses=guesses, correct=guesses, delta=delta, confidence=confidence)


def one_run_p_value(*, canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Greatest probability of so many right guesses or more under any (ε, δ)-DP mechanism (Theorem 5.2).

    With W ~ Binomial(r, e^ε/(1 + e^ε)) it is P[W ≥ v] + 2mδ·max over i ≥ 1 of P[v − i ≤ W < v]/i, at most 1.

    >>> round(one_run_p_value(canaries=10, guesses=10, correct=10, epsilon=0, delta=0) * 2**10, 9)
    1.0
    """
    canaries, guesses, correct, delta = _counts(canaries, guesses, correct, delta)
    epsilon = _validate.real("epsilon", epsilon, at_least=0)
    return min(1.0, _p_value(canaries, guesses, correct, delta, low=epsilon, high=epsilon))


def distinguisher_epsilon(
    *, true_positives: int, positives: int, false_positives: int, negatives: int, delta: float, confidence: float
) -> float:
    """The ε below which a distinguisher of two neighbours rules out (ε, δ)-DP at this confidence; 0.0 for nothing.

    It said "used" in `true_positives` of `positives` independent trainings with the record and in `false_positives` of
    `negatives` without. Under (ε, δ)-DP TPR ≤ e^ε·FPR + δ and 1 − FPR ≤ e^ε·(1 − TPR) + δ. Both rates are
    bounded by Clopper and Pearson (1934), each at half the error.

    Raises:
        ValueError: a count is out of range, δ is not in [0, 1) or confidence not in (0, 1).

    >>> counts = {"true_positives": 100, "positives": 100, "false_positives": 0, "negatives": 100}
    >>> round(distinguisher_epsilon(**counts, delta=1e-5, confidence=0.95), 2)
    3.28
    """
    positives = _validate.integer("positives", positives, at_least=0)
    negatives = _validate.integer("negatives", negatives, at_least=0)
    true_positives = _validate.integer("true_positives", true_positives, at_least=0, at_most=positives)
    false_positives = _validate.integer("false_positives", false_positives, at_least=0, at_most=negatives)
    delta = _validate.real("delta", delta, at_least=0, below=1)
    confidence = _validate.real("confidence", confidence, above=0, below=1)
    one_side = (1 + confidence) / 2
    tpr = _least_rate(true_positives, positives, one_side)
    fpr = 1 - _least_rate(negatives - false_positives, negatives, one_side)
    ratios = [(tpr - delta, fpr), (1 - fpr - delta, 1 - tpr)]
    return max(0.0, *(log(over / under) for over, under in ratios if over > 0 and under > 0))


def _least_rate(hits: int, trials: int, confidence: float) -> float:
    """Clopper and Pearson's lower confidence bound on the rate of hits."""
    if trials == 0:
        return 0.0
    return float(binomtest(hits, trials, alternative="greater").proportion_ci(confidence, method="exact").low)


def _counts(canaries: int, guesses: int, correct: int, delta: float) -> tuple[int, int, int, float]:
    canaries = _validate.integer("canaries", canaries, at_least=1)
    guesses = _validate.integer("guesses", guesses, at_least=0, at_most=canaries)
    correct = _validate.integer("correct", correct, at_least=0, at_most=guesses)
    return canaries, guesses, correct, _validate.real("delta", delta, at_least=0, below=1)


@lru_cache(maxsize=4096)
def _one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float, level: float) -> float:
    """March up from ε = 0 over intervals on all of which the p-value is at most the level, ever shorter ones."""
    epsilon, stride = 0.0, 1.0
    while stride > _RESOLUTION:
        if _p_value(canaries, guesses, correct, delta, low=epsilon, high=epsilon + stride) <= level * (1 - _SLACK):
            epsilon += stride
        else:
            stride /= 2
    return epsilon


def _p_value(canaries: int, guesses: int, correct: int, delta: float, *, low: float, high: float) -> float:
    """An upper bound on the p-values at all ε in [low, high], and the p-value itself where the two are one.

    W grows stochastically with ε, so P[W ≥ v] is greatest at `high`, and P[v − i ≤ W < v] = P[W ≥ v − i] − P[W ≥ v] is
    at most the first at `high` less the second at `low`. Beyond i = v the first is 1 and the quotient falls.
    """
    beyond = float(binom.sf(correct - 1, guesses, expit(high)))
    if correct == 0 or delta == 0:
        return beyond
    back = np.arange(1, correct + 1)
    within = binom.sf(correct - 1 - back, guesses, expit(high)) - binom.sf(correct - 1, guesses, expit(low))
    return beyond + 2 * canaries * delta * float(np.max(within / back))
