"""Privacy of T steps of Algorithm 1: Theorem 10, at every admissible integer order.

The chain is: RDP of one Dirichlet draw (Lemma 9, or its exact worst case), Poisson amplification (Zhu & Wang 2019,
Theorem 5), times T (Lemma 12), conversion to (ε, δ) (Canonne et al. 2020; Lemma 13). Symbols and proofs are in
docs/theory.md, what this nominal ε covers in docs/privacy.md. Only scipy and numpy are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, xlog1py, xlogy, zeta

from dirdp import _validate

MAX_ORDER = 1001
"""Highest order searched unless told otherwise; with r ≥ α/1000 no higher one is admissible."""

ALPHA_RANGE = {"at_least": 1e-100, "at_most": 1e100}
"""Offsets for which no intermediate value leaves the range of a float."""

Bound = Literal["lemma9", "exact"]
"""Which bound holds one draw's Rényi loss: the paper's Lemma 9, or the divergence of the worst pair itself."""

LEAST_GAP = 1e-9
"""With the exact bound an order counts if α − (λ−1)·r is at least this much of α: beyond, r has no digits left."""

# Relative excess put on every RDP value, so that it is never below the exact one. Rounding
# moves a value by about 1e-13 of it at orders up to 100 and by 2e-11 at order 5524.
_OUTWARD = 4e-10

_TINY = np.finfo(float).tiny


@dataclass(frozen=True)
class PrivacySpent:
    """A nominal ε, with the integer RDP order λ that gives it.

    >>> PrivacySpent(epsilon=1.0, order=12)
    PrivacySpent(epsilon=1.0, order=12)
    """

    epsilon: float
    order: int


@dataclass(frozen=True, eq=False)
class RdpCurve:
    """Rényi privacy loss of a whole run: `rdp[i]` at the integer order `orders[i]`, both of shape (n,).

    Curves add: RDP composes order by order (Lemma 12), so `a + b` is the loss of both runs at their common
    orders.

    >>> run = rdp_curve(r=0.234893, alpha=3, sampling_rate=0.005, steps=20000)
    >>> round(run.epsilon(1e-5).epsilon, 3), round((run + run).epsilon(1e-5).epsilon, 3)
    (1.0, 1.266)
    """

    orders: NDArray[np.int64]
    rdp: NDArray[np.float64]

    def epsilon(self, delta: float) -> PrivacySpent:
        """The least ε at δ over the orders (Canonne et al. 2020; Lemma 13); exactly 0 for no steps.

        Raises:
            ValueError: δ is not in (0, 1).
        """
        delta = _validate.real("delta", delta, above=0, below=1)
        epsilons = np.where(self.rdp > 0, self.rdp + conversion(self.orders, delta), 0).clip(min=0)
        best = int(np.argmin(epsilons))
        return PrivacySpent(epsilon=float(epsilons[best]), order=int(self.orders[best]))

    def delta(self, epsilon: float) -> float:
        """The least δ at ε over the orders, at most 1: `epsilon` solved for δ.

        Raises:
            ValueError: ε is negative or not finite.

        >>> run = rdp_curve(r=0.234893, alpha=3, sampling_rate=0.005, steps=20000)
        >>> round(run.delta(1.0), 7)
        1e-05
        """
        epsilon = _validate.real("epsilon", epsilon, at_least=0)
        n = self.orders
        log_deltas = (n - 1) * (self.rdp - epsilon + np.log1p(-1 / n) + 1e-15 * (1 + epsilon)) - np.log(n)
        return float(np.exp(log_deltas.min().clip(max=0)))

    def at(self, order: int) -> float:
        """The loss at one order.

        Raises:
            ValueError: the curve does not hold it.
        """
        place = np.flatnonzero(self.orders == order)
        if not place.size:
            raise ValueError(f"order must be one of {self.orders[0]} to {self.orders[-1]}, got {order}")
        return float(self.rdp[place[0]])

    def __mul__(self, times: float) -> RdpCurve:
        """The loss of `times` such runs, or of that share of one."""
        return RdpCurve(orders=self.orders, rdp=self.rdp * _validate.real("times", times, at_least=0))

    def __add__(self, other: RdpCurve) -> RdpCurve:
        orders, mine, theirs = np.intersect1d(self.orders, other.orders, assume_unique=True, return_indices=True)
        return RdpCurve(orders=orders, rdp=self.rdp[mine] + other.rdp[theirs])


def compose(curves: Iterable[RdpCurve]) -> RdpCurve:
    """Loss of all the runs together, at the orders common to all of them (Lemma 12).

    All curves of `rdp_curve` hold λ = 2 and so have a common order. Leaving out the others can only raise ε.

    Raises:
        ValueError: there are no curves, or they share no order.

    >>> run = rdp_curve(r=0.2349, alpha=3, sampling_rate=0.005, steps=20000)
    >>> round(compose([run] * 10).epsilon(1e-5).epsilon, 3)
    2.642
    """
    curves = list(curves)
    if not curves:
        raise ValueError("curves must hold at least one RdpCurve, got []")
    total = reduce(add, curves)
    if not total.orders.size:
        raise ValueError(f"curves must share an order, got {len(curves)} curves without a common one")
    return total


def worst(curves: Iterable[RdpCurve]) -> RdpCurve:
    """Loss of whichever of the runs is made: at each order common to all of them, the greatest.

    It is also that of a run chosen at random, if the choice depends on no data.

    Raises:
        ValueError: there are no curves, or they share no order.

    >>> small, large = (rdp_curve(r=r, alpha=3, sampling_rate=0.005, steps=20000) for r in (0.2, 0.3))
    >>> worst([small, large]).at(5) == large.at(5)
    True
    """
    curves = list(curves)
    orders = compose(curves).orders
    losses = [curve.rdp[np.isin(curve.orders, orders)] for curve in curves]
    return RdpCurve(orders=orders, rdp=np.max(losses, axis=0))


def conversion(orders: ArrayLike, delta: float) -> Any:
    """log(λ−1) − (log δ + λ·log λ)/(λ−1): what ε at δ has above the Rényi loss at each order λ (Lemma 13).

    Rounded up by a bound on its rounding error.

    >>> round(conversion(12, 1e-5), 4)
    0.7337
    """
    orders, log_delta = np.asarray(orders), np.log(delta)
    added = np.log1p(-1 / orders) - (log_delta + np.log(orders)) / (orders - 1) + 1e-15 * (1 - log_delta)
    return _validate.plain(added)


def mechanism_rdp(order: ArrayLike, *, r: float, alpha: float, bound: Bound = "lemma9") -> Any:
    """ε_M(λ; r): RDP of one draw from Dir(r·s + α) at order λ, whatever the two softmax vectors s.

    The bound "lemma9" is λ·r²·ψ′(α − (λ−1)·r) (Lemma 9). "exact" is the least there is, the divergence of two
    different corners of the simplex, [lnΓ(α+λr) + lnΓ(α−(λ−1)r) − lnΓ(α+r) − lnΓ(α)]/(λ−1) (docs/theory.md).

    `order` is one real order or an array of them; the result has its shape. It is the nearest float, not
    rounded outward.

    Raises:
        ValueError: the bound is unknown, r is not in (0, α), or some order is not in [1, 1 + α/r); with "exact" both
            stop where α − (λ−1)·r, for r at λ = 2, falls below 1e-9·α.

    >>> round(mechanism_rdp(2, r=0.5, alpha=1.5), 6)  # ψ′(1) = π²/6
    0.822467
    >>> round(mechanism_rdp(2, r=0.5, alpha=1.5, bound="exact"), 6)  # log(Γ(2.5)·Γ(1)/(Γ(2)·Γ(1.5))) = log 1.5
    0.405465
    """
    alpha, r, bound = _draw(alpha, r, bound)
    orders = _validate.reals("order", order, at_least=1)
    if not np.all(_is_admissible(orders, r, alpha, bound)):
        raise ValueError(f"order must lie in [1, 1 + alpha/r) = [1, {1 + alpha / r:g}), got {order!r}")
    return _validate.plain(_MECHANISM_RDP[bound](orders, r, alpha))


def rdp_curve(
    *,
    r: float,
    alpha: float,
    sampling_rate: float,
    steps: int,
    max_order: int = MAX_ORDER,
    bound: Bound = "lemma9",
) -> RdpCurve:
    """RDP of `steps` steps (Theorem 10, first term) at the integer orders 2 ≤ λ < 1 + α/r up to `max_order`.

    `bound` is that of one draw, as in `mechanism_rdp`. Every value is at least the exact one of the formula and at
    most 1 + 1e-9 times it. A limit on the orders can only raise the ε drawn from them.

    Raises:
        ValueError: α ≤ 0, r not in (0, α), sampling rate not in (0, 1], steps < 0, max_order < 2 or an unknown bound.

    >>> curve = rdp_curve(r=1, alpha=3, sampling_rate=0.005, steps=20000)
    >>> curve.orders, curve.rdp.round(4)
    (array([2, 3]), array([ 1.3161, 74.1886]))
    """
    alpha, r, bound = _draw(alpha, r, bound)
    sampling_rate = _validate.real("sampling_rate", sampling_rate, above=0, at_most=1)
    steps = _validate.integer("steps", steps, at_least=0)
    max_order = _validate.integer("max_order", max_order, at_least=2)
    orders = np.arange(2, int(min(max_order, alpha / r + 2)) + 1)
    orders = orders[_is_admissible(orders, r, alpha, bound)]
    draw = _MECHANISM_RDP[bound](orders, r, alpha)
    return poisson_curve(orders, _log_excess(orders, draw), sampling_rate=sampling_rate, steps=steps)


def poisson_curve(
    orders: NDArray[np.int64], log_excess: NDArray[np.float64], *, sampling_rate: float, steps: int
) -> RdpCurve:
    """RDP of `steps` Poisson-sampled steps at `orders`, which are 2, 3, …, n; `log_excess` is (n − 1,).

    Each step costs log(Σ_j weight_j·(1 + excess_j))/(λ − 1), where weight_j is the probability that j of λ draws are
    hits at rate q, and excess_j is 0 for j < 2. Binomial weights sum to 1, so the sum is 1 + Σ_{j≥2} weight_j·excess_j.
    All terms are positive: nothing cancels. Rounded outward: at least the exact value, at most 1 + 1e-9 times it.
    """
    return RdpCurve(orders=orders, rdp=steps * _step_rdp(orders, log_excess, sampling_rate) * (1 + _OUTWARD))


def epsilon_spent(
    *,
    r: float,
    alpha: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    max_order: int = MAX_ORDER,
    bound: Bound = "lemma9",
) -> PrivacySpent:
    """Nominal ε of `steps` steps at δ: the least of Theorem 10 over all admissible orders up to `max_order`.

    Never less than the exact value of the formula. Zero steps cost exactly 0.0, reported at order 2.

    Raises:
        ValueError: an argument is outside its range, as in `rdp_curve` and `RdpCurve.epsilon`.

    >>> spent = epsilon_spent(r=0.2349, alpha=3, delta=1e-5, sampling_rate=0.005, steps=20000)
    >>> round(spent.epsilon, 3), spent.order
    (1.0, 12)
    """
    curve = rdp_curve(r=r, alpha=alpha, sampling_rate=sampling_rate, steps=steps, max_order=max_order, bound=bound)
    return curve.epsilon(delta)


def checked_bound(bound: Any) -> Bound:
    """`bound`, if it is the name of one; the error lists them.

    >>> checked_bound("tight")
    Traceback (most recent call last):
    ValueError: bound must be lemma9 or exact, got 'tight'
    """
    if bound not in get_args(Bound):
        raise ValueError(f"bound must be {' or '.join(get_args(Bound))}, got {bound!r}")
    return bound


def _draw(alpha: Any, r: Any, bound: Any) -> tuple[float, float, Bound]:
    """α, r and the bound, checked; at such r the order 2 is admissible."""
    bound = checked_bound(bound)
    alpha = _validate.real("alpha", alpha, **ALPHA_RANGE)
    r = _validate.real("r", r, above=0, below=alpha)
    if not _is_admissible(np.array([2]), r, alpha, bound)[0]:
        raise ValueError(f"r must be a number in (0, alpha·(1 − {LEAST_GAP:g})] with bound=exact, got {r!r}")
    return alpha, r, bound


def _is_admissible(orders: NDArray[Any], r: float, alpha: float, bound: Bound) -> NDArray[np.bool_]:
    gap = _gap(orders, r, alpha)
    return gap > 0 if bound == "lemma9" else gap >= LEAST_GAP * alpha


def _step_rdp(orders: NDArray[np.int64], log_excess: NDArray[np.float64], q: float) -> NDArray[np.float64]:
    hits, misses = orders, np.arange(orders.size)
    log_hits = log_excess + xlogy(hits, q) - gammaln(hits + 1)
    log_misses = xlog1py(misses, -q) - gammaln(misses + 1)
    log_sums = [_log_sum(log_hits[: n + 1] + log_misses[n::-1]) for n in misses]
    # The floor keeps a loss that underflows from being reported as none.
    return np.logaddexp(0, gammaln(orders + 1) + log_sums).clip(min=_TINY) / (orders - 1)


def _log_sum(logs: NDArray[np.float64]) -> float:
    """log Σ exp(logs), without overflow."""
    greatest = logs.max()
    if greatest == -np.inf:
        return greatest
    return greatest + np.log(np.exp(logs - greatest).sum())


def _log_excess(orders: NDArray[np.int64], draw: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(c·e^a − 1) = a + log((c − 1) − (e^(−a) − 1)) with a = (j−1)·ε_M(j), c_2 = 1 and c_j = 3 beyond."""
    exponents = ((orders - 1) * draw).clip(min=_TINY)
    return exponents + np.log(np.where(orders == 2, 0, 2) - np.expm1(-exponents))


def _lemma_9(orders: NDArray[Any], r: float, alpha: float) -> NDArray[np.float64]:
    """Lemma 9 with ψ′(x) = 1/x² + ψ′(1 + x) and ψ′ = ζ(2, ·): no overflow at the pole."""
    gap = _gap(orders, r, alpha)
    return orders * ((r / gap) ** 2 + r**2 * zeta(2, 1 + gap))


def _exact(orders: NDArray[Any], r: float, alpha: float) -> NDArray[np.float64]:
    """The divergence of two corners: ψ′ over the rectangle with corner α − (λ−1)·r and sides (λ−1)·r and λ·r.

    Differences of log-gammas would lose their digits for r ≪ α; here every term is positive. With ψ′(x) = 1/x² +
    ψ′(1 + x) the first part has a closed form. The second is integrated over x + y, whose density is a trapezium: it
    rises, stays and falls. Each of its three pieces is smooth in the logarithm of 1 + x + y.
    """
    # Order 1 is a limit; D grows with the order, so the value a little above it is on the safe side.
    short = np.maximum(np.asarray(orders, float) - 1, 1e-12) * r
    long, corner = short + r, _gap(orders, r, alpha)
    pole = np.log1p(short / corner * (long / (corner + short + long)))
    start = 1 + corner
    rise = _over_log(start, short, lambda z: z)
    stay = _over_log(start + short, np.full_like(short, r), lambda z: short)
    fall = _over_log(start + long, short, lambda z: short - z)
    return r * ((pole + rise + stay + fall) / short)


_PANEL = 2.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def _over_log(
    start: NDArray[np.float64], length: NDArray[np.float64], density: Callable[[Any], Any]
) -> NDArray[np.float64]:
    """∫ density(z)·ψ′(start + z) dz over [0, length], by Gauss and Legendre in t = log(1 + z/start).

    ψ′(eᵗ) is analytic for |Im t| < π: 16 nodes on a panel of length 2 leave a relative error of 6.4^(−32) = 2e-26.
    """
    span = np.log1p(length / start)
    panels = max(1, int(np.ceil(span.max(initial=0) / _PANEL)))
    total = np.zeros_like(span)
    for panel in range(panels):
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            z = start * np.expm1(span * ((panel + (node + 1) / 2) / panels))
            total += weight * density(z) * (start + z) * zeta(2, start + z)
    return total * span / (2 * panels)


_MECHANISM_RDP = {"lemma9": _lemma_9, "exact": _exact}


def _gap(orders: NDArray[Any], r: float, alpha: float) -> NDArray[np.float64]:
    """α − (λ−1)·r to the last bit, so that neither admissibility nor the pole at 0 suffers from cancellation.

    The rounding error of the product is recovered by Dekker's splitting.
    """
    factor, scale = np.asarray(orders - 1, float), np.asarray(r, float)
    product = factor * scale
    a, b = _upper_half(factor), _upper_half(scale)
    lost = ((a * b - product) + a * (scale - b) + (factor - a) * b) + (factor - a) * (scale - b)
    return (alpha - product) - lost


def _upper_half(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """x without the lower 27 bits of its mantissa."""
    return (x.view(np.int64) & -(1 << 27)).view(np.float64)
