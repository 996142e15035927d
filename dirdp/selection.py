"""The price of publishing only the best of several runs, when their number is drawn (Papernot and Steinke 2022).

A search that runs the same private training a fixed number of times and publishes the best result costs as much as
publishing all of them. If the number of runs is itself drawn at random, and neither it nor the losers are published,
the price is little more than that of one run, however many there were. The derivation is in docs/theory.md. Only
scipy and numpy are needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dirdp import _validate
from dirdp.accounting import RdpCurve

__all__ = ["RunCount"]

# Relative excess on every value, far above what rounding loses.
_OUTWARD = 1e-9
_LEAST_LOG_GAMMA = -230.0
_MANY = 10_000_000


@dataclass(frozen=True, kw_only=True)
class RunCount:
    """The law of the number K of runs: mean E[K], and shape η.

    η from −0.9 is the truncated negative binomial law on 1, 2, … (Definition 1 of the paper): 0 is the logarithmic law,
    1 the geometric one. A smaller η costs less privacy and has a heavier tail. η = ∞ is the Poisson law, under which K
    may be 0 and then nothing is run or published; its theorem does not hold for means below 1.

    Raises:
        ValueError: the mean is not above 1 (at least 1 if η = ∞), or η is below −0.9.

    >>> round(RunCount(mean=20, eta=1).probability(1), 6)
    0.05
    >>> RunCount(mean=0.5, eta=0)
    Traceback (most recent call last):
    ValueError: mean must be a number in (1, 1000000], got 0.5
    """

    mean: float
    eta: float

    def __post_init__(self) -> None:
        if self.eta != math.inf:
            _validate.real("eta", self.eta, at_least=-0.9, at_most=1000)
        _validate.real("mean", self.mean, **({"at_least": 1} if self.poisson else {"above": 1}), at_most=1e6)

    @property
    def poisson(self) -> bool:
        """Whether K follows the Poisson law."""
        return self.eta == math.inf

    @property
    def name(self) -> str:
        """What the law is called."""
        if self.poisson:
            return "Poisson"
        return {0.0: "logarithmic", 1.0: "geometric"}.get(self.eta, "truncated negative binomial")

    @cached_property
    def log_gamma(self) -> float:
        """log γ of the truncated negative binomial law with this mean and shape.

        >>> round(math.exp(RunCount(mean=20, eta=0).log_gamma), 6)
        0.010956
        """
        return brentq(lambda x: _log_mean(x, self.eta) - math.log(self.mean), _LEAST_LOG_GAMMA, -1e-12, xtol=1e-15)

    def probability(self, count: int) -> float:
        """Pr[K = count]."""
        count = _validate.integer("count", count, at_least=0)
        if self.poisson:
            return math.exp(count * math.log(self.mean) - self.mean - math.lgamma(count + 1))
        if count == 0:
            return 0.0
        log_stay = math.log(-math.expm1(self.log_gamma))  # log(1 − γ)
        if self.eta == 0:
            return math.exp(count * log_stay) / (count * -self.log_gamma)
        # Pr = (1−γ)^k / (γ^−η − 1) · Π_{l<k} (l + η)/(l + 1); its first factor η has the sign of γ^−η − 1.
        log_product = math.lgamma(count + self.eta) - math.lgamma(1 + self.eta) - math.lgamma(count + 1)
        return math.exp(count * log_stay + log_product) * self.eta / math.expm1(-self.eta * self.log_gamma)

    def draw(self, uniform: Callable[[], float]) -> int:
        """One K by inversion of one uniform number on [0, 1).

        >>> RunCount(mean=20, eta=1).draw(lambda: 0.5)
        14
        """
        left, count = uniform(), 0
        while count < _MANY:
            left -= self.probability(count)
            if left < 0:
                return count
            count += 1
        return count

    def best_of(self, run: RdpCurve) -> RdpCurve:
        """Rényi loss of publishing nothing but the best of K independent runs with the loss `run`.

        Theorem 2 for η < ∞, Theorem 6 for the Poisson law. Every value is at least that of the formula.

        >>> from dirdp.accounting import rdp_curve
        >>> run = rdp_curve(r=0.234893, alpha=3, sampling_rate=0.005, steps=20000)
        >>> [round(RunCount(mean=20, eta=eta).best_of(run).epsilon(1e-5).epsilon, 3) for eta in (0, 1, math.inf)]
        [1.892, 2.232, 2.655]
        """
        extra = self._poisson_extra(run) if self.poisson else self._negative_binomial_extra(run)
        rdp = np.maximum(run.rdp + extra, 0) + _OUTWARD * (run.rdp + np.abs(extra))
        # Rényi divergences grow with the order, so what holds at a greater order holds at a smaller one.
        return RdpCurve(orders=run.orders, rdp=np.minimum.accumulate(rdp[::-1])[::-1])

    def _negative_binomial_extra(self, run: RdpCurve) -> NDArray[np.float64]:
        """(1 + η)·min over λ̂ of ((1 − 1/λ̂)·ε(λ̂) + log(1/γ)/λ̂) + log E[K]/(λ − 1); λ̂ = 1 is allowed, too."""
        charges = (1 - 1 / run.orders) * run.rdp - self.log_gamma / run.orders
        least = min(float(charges.min()), -self.log_gamma)
        return (1 + self.eta) * least + math.log(self.mean) / (run.orders - 1)

    def _poisson_extra(self, run: RdpCurve) -> NDArray[np.float64]:
        """μ·δ̂ + log μ/(λ − 1), with δ̂ that of one run at e^ε̂ = 1 + 1/(λ − 1)."""
        deltas = np.array([run.delta(math.log1p(1 / (order - 1))) for order in run.orders])
        return self.mean * deltas + math.log(self.mean) / (run.orders - 1)


def _log_mean(log_gamma: float, eta: float) -> float:
    """log E[K] = log(η(1−γ) / (γ(1−γ^η))), continuous at η = 0: log((1/γ − 1)/log(1/γ))."""
    x = eta * log_gamma
    # −expm1(x)/η, which is log(1/γ) at η = 0
    spread = -log_gamma if abs(x) < 1e-14 else -math.expm1(x) / eta
    return math.log(-math.expm1(log_gamma)) - log_gamma - math.log(spread)
