"""Calibration of the mechanism: the largest scaling r whose nominal ε keeps to a budget (eq. 1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from math import ceil, exp, floor, inf, log, log1p, log10
from typing import Any

from scipy.optimize import brentq

from dirdp import _validate
from dirdp.accounting import (
    ALPHA_RANGE,
    LEAST_GAP,
    Bound,
    PrivacySpent,
    RdpCurve,
    checked_bound,
    epsilon_spent,
    rdp_curve,
)

LEAST_USABLE_RATIO = 1e-3
"""Product rule, ours and not a theorem: with r < α/1000 the draw all but ignores the softmax: unusable."""

MAX_EPSILON = 1e9
"""Largest budget calibrated; beyond it α − r is lost in the spacing of floats."""

# log(r/α), from a value whose ε exceeds MAX_EPSILON down to the least usable one. Small r admits many orders
# and is dear, so it comes last.
_LADDER = tuple(
    log(ratio)
    for ratio in (
        *(1 - 4.0**-k for k in range(10, 0, -1)),
        *(2.0**-k for k in range(1, 10)),
        LEAST_USABLE_RATIO,
    )
)

# The exact bound ends just short of α, where its ε may be within the budget still.
_EXACT_LADDER = (log1p(-LEAST_GAP * (1 + 1e-6)), *_LADDER)


class BudgetError(ValueError):
    """The budget `epsilon` is below `floor`, the least usable one; `reason` says what it would need.

    >>> str(BudgetError(epsilon=4, floor=6.08197, reason="it would need r < alpha/1000"))
    'epsilon = 4 is below the least usable budget 6.082: it would need r < alpha/1000; a smaller sampling_rate, \
fewer steps or a larger epsilon helps'
    """

    def __init__(self, *, epsilon: float, floor: float, reason: str) -> None:
        super().__init__(
            f"epsilon = {epsilon:.12g} is below the least usable budget {_round_up(floor):.12g}: {reason}; "
            "a smaller sampling_rate, fewer steps or a larger epsilon helps"
        )
        self.epsilon = epsilon
        self.floor = floor
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), epsilon=self.epsilon, floor=self.floor, reason=self.reason), ()


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A calibrated mechanism and what it spends.

    `r` is the scaling, `epsilon` the nominal ε it achieves in `steps` steps at the integer RDP `order`, and
    `target` the budget asked for: 0.999·target ≤ epsilon ≤ target. With the exact bound h jumps where an order is
    lost, and epsilon may be well below the target.
    """

    r: float
    epsilon: float
    order: int
    target: float
    delta: float
    alpha: float
    sampling_rate: float
    steps: int
    bound: Bound = "lemma9"

    def spent(self, steps: int | None = None) -> PrivacySpent:
        """Nominal ε after the first `steps` steps (all of them unless given); exactly 0.0 after none.

        Raises:
            ValueError: `steps` is negative or no integer.

        >>> run = calibrate(epsilon=1, delta=1e-5, alpha=3, sampling_rate=0.005, steps=20000)
        >>> run.spent() == PrivacySpent(epsilon=run.epsilon, order=run.order)
        True
        >>> round(run.spent(10000).epsilon, 4)
        0.8669
        """
        return self.curve(steps).epsilon(self.delta)

    def curve(self, steps: int | None = None) -> RdpCurve:
        """RDP of the first `steps` steps (all of them unless given), to be composed with other runs.

        Raises:
            ValueError: `steps` is negative or no integer.
        """
        steps = self.steps if steps is None else steps
        return rdp_curve(r=self.r, alpha=self.alpha, sampling_rate=self.sampling_rate, steps=steps, bound=self.bound)


def calibrate(
    *, epsilon: float, delta: float, alpha: float, sampling_rate: float, steps: int, bound: Bound = "lemma9"
) -> Calibration:
    """r* = sup{r in (0, α) : h(r) ≤ ε}, with h the least of Theorem 10 over the orders (eq. 1).

    Brent's method in log(r/α), then a step to the safe side: the ε achieved never exceeds the budget. Results
    are cached. The exact `bound` of one draw in the place of Lemma 9 makes r* larger; it is then the supremum from
    below up to 1e-9 of it.

    Raises:
        BudgetError: r* < α/1000; the error holds the least usable budget.
        ValueError: ε is inf (no mechanism: nothing to calibrate) or not in (0, 1e9], or another argument is
            outside its range.

    >>> run = calibrate(epsilon=1, delta=1e-5, alpha=3, sampling_rate=0.005, steps=20000)
    >>> round(run.r, 6)
    0.234894
    >>> tighter = calibrate(epsilon=1, delta=1e-5, alpha=3, sampling_rate=0.005, steps=20000, bound="exact")
    >>> round(tighter.r, 4)
    0.2569
    """
    if epsilon == inf:
        raise ValueError("epsilon = inf means no mechanism and is not calibrated: train without one")
    epsilon = _validate.real("epsilon", epsilon, above=0, at_most=MAX_EPSILON)
    return _calibrate(epsilon, *_setting(delta, alpha, sampling_rate, steps, bound))


def budget_floor(*, delta: float, alpha: float, sampling_rate: float, steps: int, bound: Bound = "lemma9") -> float:
    """Least usable budget h(α/1000), by the product rule that r < α/1000 is unusable. Results are cached.

    Raises:
        ValueError: an argument is outside its range.

    >>> round(budget_floor(delta=1e-5, alpha=3, sampling_rate=0.04, steps=20000), 4)
    6.082
    """
    return _budget_floor(*_setting(delta, alpha, sampling_rate, steps, bound))


def _setting(
    delta: float, alpha: float, sampling_rate: float, steps: int, bound: Bound
) -> tuple[float, float, float, int, Bound]:
    """The checked arguments, in one form for the caches."""
    return (
        _validate.real("delta", delta, above=0, below=1),
        _validate.real("alpha", alpha, **ALPHA_RANGE),
        _validate.real("sampling_rate", sampling_rate, above=0, at_most=1),
        _validate.integer("steps", steps, at_least=1),
        checked_bound(bound),
    )


@lru_cache(maxsize=4096)
def _calibrate(
    epsilon: float, delta: float, alpha: float, sampling_rate: float, steps: int, bound: Bound
) -> Calibration:
    def spent(log_ratio: float) -> PrivacySpent:
        return epsilon_spent(
            r=alpha * exp(log_ratio), alpha=alpha, delta=delta, sampling_rate=sampling_rate, steps=steps, bound=bound
        )

    def overrun(log_ratio: float) -> float:
        return spent(log_ratio).epsilon - epsilon

    ladder = _LADDER if bound == "lemma9" else _EXACT_LADDER
    safe = next((place for place, rung in enumerate(ladder) if overrun(rung) <= 0), None)
    if safe is None:
        raise BudgetError(
            epsilon=epsilon,
            floor=_budget_floor(delta, alpha, sampling_rate, steps, bound),
            reason="it would need r < alpha/1000, unusable by a rule of this product, not by a theorem",
        )
    log_ratio = lower = ladder[safe]
    if safe > 0:
        log_ratio, step = brentq(overrun, lower, ladder[safe - 1], xtol=1e-14, maxiter=1000), 1e-15
        while overrun(log_ratio) > 0:  # Brent stops on either side of the root or the jump; `lower` is safe
            log_ratio, step = max(lower, log_ratio - step), 2 * step
    achieved = spent(log_ratio)
    return Calibration(
        r=alpha * exp(log_ratio),
        epsilon=achieved.epsilon,
        order=achieved.order,
        target=epsilon,
        delta=delta,
        alpha=alpha,
        sampling_rate=sampling_rate,
        steps=steps,
        bound=bound,
    )


@lru_cache(maxsize=4096)
def _budget_floor(delta: float, alpha: float, sampling_rate: float, steps: int, bound: Bound) -> float:
    r = alpha * exp(_LADDER[-1])
    return epsilon_spent(r=r, alpha=alpha, delta=delta, sampling_rate=sampling_rate, steps=steps, bound=bound).epsilon


def _round_up(value: float, digits: int = 4) -> float:
    """The budget printed must itself be usable."""
    unit = 10.0 ** (floor(log10(value)) + 1 - digits)
    return ceil(value / unit) * unit
