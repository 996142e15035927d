"""Privacy of T steps of the Poisson-sampled Gaussian mechanism, and its calibration.

The mechanism adds N(0, (σ·C)²·I) to a sum in which a record, present with probability q, has a part of norm at most C.
Mironov, Talwar and Zhang 2019 (arXiv 1908.10530) give its RDP under addition or removal of one record, exactly at the
integer orders λ; they are searched from 2 to `dirdp.accounting.MAX_ORDER`, and there is nothing else to choose.
Composition and the conversion to (ε, δ) are those of `dirdp.accounting`. Only scipy and numpy are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import inf

import numpy as np
from scipy.optimize import brentq

from dirdp import _validate
from dirdp.accounting import MAX_ORDER, PrivacySpent, RdpCurve, poisson_curve
from dirdp.calibration import MAX_EPSILON, BudgetError

__all__ = ["INWARD", "GaussianCalibration", "budget_floor", "calibrate", "rdp_curve"]

INWARD = 1 - 1e-5
"""Factor on the norm C that records are cut to, so that rounding in float32 makes none longer than C."""

# The least σ spends more than any budget that is calibrated; at the most, the RDP is nothing beside the conversion.
_LOG2_NOISE = (-20.0, 20.0)


@dataclass(frozen=True, kw_only=True)
class GaussianCalibration:
    """A calibrated mechanism: `epsilon` ≤ `target` is what `steps` steps at `noise_multiplier` σ spend, at `order`."""

    noise_multiplier: float
    epsilon: float
    order: int
    target: float
    delta: float
    sampling_rate: float
    steps: int


def rdp_curve(*, noise_multiplier: float, sampling_rate: float, steps: int) -> RdpCurve:
    """RDP of `steps` steps at the integer orders λ from 2 to `MAX_ORDER` (Mironov et al. 2019, Section 3.3).

    A step costs log(Σ_{k=0..λ} C(λ,k)·(1−q)^(λ−k)·q^k·exp((k²−k)/(2σ²)))/(λ−1). Every value is at least the exact one
    and at most 1 + 1e-9 times it.

    Raises:
        ValueError: σ not in [2⁻²⁰, 2²⁰], sampling rate not in (0, 1], or steps < 0.

    >>> run = rdp_curve(noise_multiplier=1, sampling_rate=0.01, steps=1000).epsilon(1e-5)
    >>> round(run.epsilon, 3), run.order
    (2.108, 8)
    """
    sigma = _validate.real("noise_multiplier", noise_multiplier, at_least=2**-20, at_most=2**20)
    q = _validate.real("sampling_rate", sampling_rate, above=0, at_most=1)
    steps = _validate.integer("steps", steps, at_least=0)
    orders = np.arange(2, MAX_ORDER + 1)
    exponents = orders * (orders - 1) / (2 * sigma**2)
    log_excess = exponents + np.log(-np.expm1(-exponents))  # log(e^a − 1) without overflow
    return poisson_curve(orders, log_excess, sampling_rate=q, steps=steps)


def calibrate(*, epsilon: float, delta: float, sampling_rate: float, steps: int) -> GaussianCalibration:
    """The least noise multiplier σ whose ε keeps to the budget, for exactly this sampling rate and number of steps.

    Brent's method in log σ, then a step to the safe side: the ε achieved never exceeds the budget. Results are cached.

    Raises:
        BudgetError: no σ up to 2²⁰ keeps to the budget; the error holds the least budget that one keeps to.
        ValueError: ε is inf (no mechanism) or not in (0, 1e9], or another argument is outside its range.

    >>> run = calibrate(epsilon=1, delta=1e-5, sampling_rate=250 / 60_000, steps=9600)
    >>> round(run.noise_multiplier, 4), run.epsilon <= 1
    (1.8103, True)
    """
    if epsilon == inf:
        raise ValueError("epsilon = inf means no mechanism and is not calibrated: train without one")
    epsilon = _validate.real("epsilon", epsilon, above=0, at_most=MAX_EPSILON)
    return _calibrate(epsilon, *_setting(delta, sampling_rate, steps))


def budget_floor(*, delta: float, sampling_rate: float, steps: int) -> float:
    """The least budget that any σ up to 2²⁰ keeps to: the price of the conversion at the highest order.

    Raises:
        ValueError: an argument is outside its range.

    >>> round(budget_floor(delta=1e-5, sampling_rate=0.005, steps=20_000), 4)
    0.0036
    """
    return _spent(2.0**20, *_setting(delta, sampling_rate, steps)).epsilon


def _setting(delta: float, sampling_rate: float, steps: int) -> tuple[float, float, int]:
    """The checked arguments, in one form for the cache."""
    return (
        _validate.real("delta", delta, above=0, below=1),
        _validate.real("sampling_rate", sampling_rate, above=0, at_most=1),
        _validate.integer("steps", steps, at_least=1),
    )


def _spent(noise_multiplier: float, delta: float, sampling_rate: float, steps: int) -> PrivacySpent:
    return rdp_curve(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, steps=steps).epsilon(delta)


def _bracket(overrun: Callable[[float], float]) -> tuple[float, float]:
    """Neighbouring powers of two, the lower one over the budget; at the end of the range the upper one may be too."""
    least, most = _LOG2_NOISE
    high = 0.0
    while overrun(high) > 0 and high < most:
        high += 1
    while overrun(high - 1) <= 0 and high - 1 > least:
        high -= 1
    return high - 1, high


@lru_cache(maxsize=4096)
def _calibrate(epsilon: float, delta: float, sampling_rate: float, steps: int) -> GaussianCalibration:
    def spent(log2_noise: float) -> PrivacySpent:
        return _spent(2.0**log2_noise, delta, sampling_rate, steps)

    def overrun(log2_noise: float) -> float:
        return spent(log2_noise).epsilon - epsilon

    low, high = _bracket(overrun)
    if overrun(high) > 0:
        raise BudgetError(
            epsilon=epsilon,
            floor=budget_floor(delta=delta, sampling_rate=sampling_rate, steps=steps),
            reason=f"no noise keeps to it at the Rényi orders up to {MAX_ORDER}",
        )
    log2_noise, step = brentq(overrun, low, high, xtol=1e-14, maxiter=1000), 1e-15
    while overrun(log2_noise) > 0:  # Brent stops on either side of the root; `high` is safe
        log2_noise, step = min(high, log2_noise + step), 2 * step
    achieved = spent(log2_noise)
    return GaussianCalibration(
        noise_multiplier=2.0**log2_noise,
        epsilon=achieved.epsilon,
        order=achieved.order,
        target=epsilon,
        delta=delta,
        sampling_rate=sampling_rate,
        steps=steps,
    )
