"""Mechanism 8: Dirichlet draws in log space, and the loss of Algorithm 1.

A Dirichlet draw is a vector of Gamma draws divided by their sum. They are drawn here, by the same formulas on
every device and in float64 (float32 on MPS), and stay logarithms throughout: at a concentration of 1e-4 most
Gamma draws are smaller than the smallest float, while their logarithms are plain numbers.

Rejected proposals are drawn again, so the shapes inside vary: call these functions outside compiled regions.
"""

from __future__ import annotations

from math import nan
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dirdp import _validate
from dirdp.randomness import Stream

__all__ = ["dirichlet_nll", "sample_log_dirichlet", "sample_log_gamma"]


def dirichlet_nll(logits: Tensor, labels: Tensor, *, r: float, alpha: float, stream: Stream) -> Tensor:
    """Losses −log p̃_y (N,) in nats, each with a fresh p̃ ~ Dir(r·softmax(z) + α) (Mechanism 8, Algorithm 1).

    `logits` z is (N, d) of any floating type, `labels` y is (N,) int64; N may be 0. The work is done in the
    stream's type, whatever autocast says, and the gradient reaches z in its own. NaN logits make their row's
    loss NaN. Mean, variance and mean gradient are Theorem 11's. That r < α only the accountant asks for.

    Raises:
        ValueError: r or α is not a finite number above 0, or the shapes are not (N, d) and (N,).

    >>> from dirdp.randomness import SeededStream
    >>> logits, labels = torch.zeros(100_000, 10), torch.zeros(100_000, dtype=torch.int64)
    >>> losses = dirichlet_nll(logits, labels, r=0.2349, alpha=3, stream=SeededStream(0, "noise"))
    >>> round(losses.mean().item(), 2)  # eq. 4: ψ(r + 10α) − ψ(r/10 + α) = 2.4603
    2.46
    """
    r, alpha = _validate.real("r", r, above=0), _validate.real("alpha", alpha, above=0)
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        shapes = f"{tuple(logits.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"logits and labels must have shapes (N, d) and (N,), got {shapes}")
    with torch.autocast(logits.device.type, enabled=False):
        # Classes first: PyTorch's softmax is several times slower along a short last axis.
        softmax = logits.to(stream.dtype).T.softmax(0)
        log_p = sample_log_dirichlet(r * softmax + alpha, dim=0, stream=stream)
        return -log_p.gather(0, labels.unsqueeze(0)).squeeze(0)


def sample_log_dirichlet(concentration: Tensor, *, dim: int = -1, stream: Stream) -> Tensor:
    """Logarithms of draws from Dir(concentration), in its shape; the classes lie along the axis `dim`.

    The result is of the stream's type and differentiable as `sample_log_gamma` is. One concentration that is
    NaN, infinite, zero or negative makes its whole draw NaN; an error would hold up the device at every step.

    >>> from dirdp.randomness import SeededStream
    >>> log_p = sample_log_dirichlet(torch.full((2, 3), 1e-3), stream=SeededStream(0, "noise"))
    >>> log_p.exp().sum(-1)
    tensor([1., 1.], dtype=torch.float64)
    """
    return sample_log_gamma(concentration, stream=stream).log_softmax(dim)


def sample_log_gamma(concentration: Tensor, *, stream: Stream) -> Tensor:
    """Logarithms of Gamma draws of scale 1, in the shape of the concentration a, which has at least one axis.

    Differentiable once in a with the randomness held fixed (pathwise; Figurnov, Mohamed and Mnih 2018), so
    E[∂ log g/∂a] = ψ′(a). For a ≥ 1 the derivative is PyTorch's approximation to −(∂F/∂a)/(g·f), with F and f
    the distribution and density of g. It is finite. Its relative error is below 1e-4 in the mean, below 4e-4
    between the first and the last percent of draws, and below 2.2e-3 out to one draw in 1e8.

    A concentration that is NaN, zero or negative gives NaN, an infinite one infinity.

    >>> from dirdp.randomness import SeededStream
    >>> log_gamma = sample_log_gamma(torch.full((100_000,), 0.01), stream=SeededStream(0, "noise"))
    >>> round(log_gamma.mean().item() / -100.56, 2)  # ψ(0.01) = −100.56
    1.0
    """
    return _LogGamma.apply(concentration.to(stream.dtype), stream)


class _LogGamma(torch.autograd.Function):
    """log g(a) = log g(a + [a < 1]) + (log U)/a·[a < 1], the second term being the boost."""

    @staticmethod
    def forward(ctx: Any, concentration: Tensor, stream: Stream) -> Tensor:
        boosted = concentration < 1
        shape = concentration + boosted
        log_gamma = _marsaglia_tsang(shape, stream)
        boost = _boost(concentration, boosted, stream)
        ctx.save_for_backward(concentration, shape, log_gamma, boost)
        return log_gamma + boost

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        concentration, shape, log_gamma, boost = ctx.saved_tensors
        gamma = log_gamma.exp()  # of a shape of at least 1: neither zero nor infinite
        slope = torch._standard_gamma_grad(shape, gamma) / gamma - boost / concentration
        return gradient * slope, None


def _marsaglia_tsang(shape: Tensor, stream: Stream) -> Tensor:
    """log g for shapes of at least 1 (Marsaglia and Tsang 2000): g = d·v, v = (1 + cx)³ with x normal."""
    d = shape - 1 / 3
    x = stream.normal(shape.shape)
    # At cx ≤ −1 no v exists; log v = −∞ makes the bound below infinite, and the proposal is rejected.
    log_v = (9 * d).rsqrt_().mul_(x).clamp_(min=-1).log1p_().mul_(3)
    log_gamma = d.log() + log_v
    # Accepted if −E < x²/2 + d·(1 − v + log v). NaN compares false and so is accepted: the redrawing ends.
    bound = log_v.expm1().sub_(log_v).mul_(d).sub_(x.square_(), alpha=0.5)
    again = (stream.exponential(shape.shape) <= bound).nonzero(as_tuple=True)
    if len(again[0]):
        log_gamma[again] = _marsaglia_tsang(shape[again], stream)
    return log_gamma


def _boost(concentration: Tensor, boosted: Tensor, stream: Stream) -> Tensor:
    """(log U)/a where a < 1, NaN where a ≤ 0 and there is no Gamma law, 0 elsewhere."""
    boost = torch.zeros_like(concentration)
    where = boosted.nonzero(as_tuple=True)
    if len(where[0]):
        a = concentration[where]
        boost[where] = -stream.exponential(a.shape) / a.where(a > 0, nan)
    return boost
