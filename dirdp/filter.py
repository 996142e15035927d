"""A privacy budget that adaptive training may spend down to the last segment: a Rényi filter of fixed order.

Composition over what is planned pays for every planned step, run or not. A filter pays for what is started, and may
let the next step depend on all results so far (Feldman and Zrnic 2021; for interleaved runs Haney et al. 2023). The
derivation is in docs/theory.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dirdp import _validate
from dirdp.accounting import RdpCurve, conversion

__all__ = ["RenyiFilter"]


@dataclass(kw_only=True)
class RenyiFilter:
    """A limit on the sum of the Rényi losses, at the order λ*, of all that is started.

    Order and limit are chosen before anything runs. If nothing is started that `charge` refuses, all that was started
    is together (λ*, limit)-RDP, however each choice depended on earlier results. `spent` is summed without rounding.

    >>> budget = RenyiFilter(order=4, limit=1.0)
    >>> budget.charge(0.75), budget.charge(0.75), budget.charge(0.25)
    (True, False, True)
    """

    order: int
    limit: float
    spent: Fraction = Fraction(0)

    @classmethod
    def for_budget(cls, demand: RdpCurve, *, epsilon: float, delta: float) -> RenyiFilter:
        """The filter for the budget (ε, δ), at the order of `demand` at which the greatest share of `demand` fits.

        `demand` is the loss of all that is planned.

        Raises:
            ValueError: at no order of `demand` is anything left of ε; or an argument is outside its range.

        >>> from dirdp.accounting import rdp_curve
        >>> trials = rdp_curve(r=0.234893, alpha=3, sampling_rate=0.005, steps=20000) * 1050
        >>> budget = RenyiFilter.for_budget(trials, epsilon=8, delta=1e-5)
        >>> budget.order, round(budget.limit, 2)
        (4, 4.91)
        """
        limits = _limits(demand.orders, epsilon, delta)
        if not np.any(limits > 0):
            raise ValueError(
                f"epsilon = {epsilon:g} leaves nothing to spend at delta = {delta:g}: the conversion from Rényi loss "
                f"alone takes {epsilon - limits.max():.4g} at the orders up to {demand.orders[-1]}"
            )
        shares = limits / demand.rdp.clip(min=np.finfo(float).tiny)
        best = int(np.argmax(shares))
        return cls(order=int(demand.orders[best]), limit=float(limits[best]))

    @classmethod
    def at_order(cls, order: int, *, epsilon: float, delta: float) -> RenyiFilter:
        """The filter for the budget (ε, δ) at an order chosen earlier; where the limit is below 0 nothing fits.

        >>> round(RenyiFilter.at_order(4, epsilon=8, delta=1e-5).limit, 2)
        4.91
        """
        return cls(order=order, limit=float(_limits(np.array([order]), epsilon, delta)[0]))

    def fits(self, loss: float | Fraction) -> bool:
        """Whether something of this loss at the order may be started. What costs nothing always may."""
        return not loss or self.spent + Fraction(loss) <= self.limit

    def charge(self, loss: float | Fraction) -> bool:
        """Charge a loss at the order if it fits, before what causes it starts; return whether it did.

        Raises:
            ValueError: the loss is negative or not finite.
        """
        _validate.real("loss", float(loss), at_least=0)
        if fits := self.fits(loss):
            self.spent += Fraction(loss)
        return fits


def _limits(orders: NDArray[Any], epsilon: float, delta: float) -> NDArray[np.float64]:
    """B = ε − (log(λ−1) − (log δ + λ·log λ)/(λ−1)).

    `conversion` is rounded up by more than twice its rounding error. Half of that is given back, so that one run
    calibrated to ε fits into the budget ε.
    """
    epsilon = _validate.real("epsilon", epsilon, above=0)
    delta = _validate.real("delta", delta, above=0, below=1)
    return epsilon - conversion(orders, delta) + 0.5e-15 * (1 - np.log(delta))
