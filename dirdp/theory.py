"""What the mechanism does to learning: Theorem 11, and the effective learning rate (eq. 6).

Every argument is a number or an array, and arrays broadcast; numbers give a number. `s_y` is the softmax
probability of the true class, in [0, 1]; `r` and `alpha` are the mechanism's scaling and offset, both > 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import digamma, zeta

from dirdp import _validate

TYPICAL_S_Y = 0.9
"""Where the paper evaluates κ for plots and for learning rates (eq. 6)."""


def attenuation(*, s_y: Any, r: Any, alpha: Any) -> Any:
    """κ = r·s_y·ψ′(r·s_y + α), the factor on the cross-entropy gradient (eq. 3).

    At most 1 + 1/(4α), so above 1 only where α is small. `r=None` means no mechanism, where κ is 1.

    Raises:
        ValueError: an argument is outside its range.

    >>> round(attenuation(s_y=0.9, r=0.234894, alpha=3), 5)
    0.07712
    """
    s_y = _validate.reals("s_y", s_y, at_least=0, at_most=1)
    alpha = _validate.reals("alpha", alpha, above=0)
    if r is None:
        return _validate.plain(np.ones(np.broadcast_shapes(s_y.shape, alpha.shape)))
    scaled = _validate.reals("r", r, above=0) * s_y
    return _validate.plain(scaled * _trigamma(scaled + alpha))


def expected_loss(*, s_y: Any, r: Any, alpha: Any, classes: Any) -> Any:
    """E[−log p̃_y] = ψ(r + d·α) − ψ(r·s_y + α), in nats, with d = `classes` (eq. 4).

    Raises:
        ValueError: an argument is outside its range.

    >>> round(expected_loss(s_y=1, r=1, alpha=1, classes=2), 6)  # ψ(3) − ψ(2) = 1/2
    0.5
    """
    drawn, others = _beta(s_y, r, alpha, classes)
    return _validate.plain(digamma(drawn + others) - digamma(drawn))


def loss_variance(*, s_y: Any, r: Any, alpha: Any, classes: Any) -> Any:
    """Var[−log p̃_y] = ψ′(r·s_y + α) − ψ′(r + d·α), in nats², with d = `classes` (eq. 5).

    Raises:
        ValueError: an argument is outside its range.

    >>> round(loss_variance(s_y=1, r=1, alpha=1, classes=2), 6)  # ψ′(2) − ψ′(3) = 1/4
    0.25
    """
    drawn, others = _beta(s_y, r, alpha, classes)
    return _validate.plain(_trigamma(drawn) - _trigamma(drawn + others))


def effective_learning_rate(*, learning_rate: Any, r: Any, alpha: Any, s_y: Any = TYPICAL_S_Y) -> Any:
    """γ_eff = γ·κ, the step as cross-entropy would see it (eq. 6). `r=None` means no mechanism.

    Raises:
        ValueError: an argument is outside its range.

    >>> round(effective_learning_rate(learning_rate=0.1, r=0.234894, alpha=3), 6)
    0.007712
    """
    rate = _validate.reals("learning_rate", learning_rate, above=0)
    return _validate.plain(rate * attenuation(s_y=s_y, r=r, alpha=alpha))


def learning_rate(*, effective_learning_rate: Any, r: Any, alpha: Any, s_y: Any = TYPICAL_S_Y) -> Any:
    """γ = γ_eff/κ, the inverse of `effective_learning_rate` (eq. 6). `r=None` means no mechanism.

    Raises:
        ValueError: an argument is outside its range, or s_y = 0, where κ = 0.

    >>> round(learning_rate(effective_learning_rate=0.007712, r=0.234894, alpha=3), 4)
    0.1
    """
    rate = _validate.reals("effective_learning_rate", effective_learning_rate, above=0)
    s_y = _validate.reals("s_y", s_y, above=0, at_most=1)
    return _validate.plain(rate / attenuation(s_y=s_y, r=r, alpha=alpha))


def _beta(s_y: Any, r: Any, alpha: Any, classes: Any) -> tuple[Any, Any]:
    """p̃_y is Beta(r·s_y + α, r·(1 − s_y) + (d − 1)·α): one coordinate of a Dirichlet vector."""
    s_y = _validate.reals("s_y", s_y, at_least=0, at_most=1)
    r = _validate.reals("r", r, above=0)
    alpha = _validate.reals("alpha", alpha, above=0)
    classes = _validate.integer("classes", classes, at_least=2)
    return r * s_y + alpha, r * (1 - s_y) + (classes - 1) * alpha


def _trigamma(x: Any) -> Any:
    return zeta(2, x)
