"""Gaussian noise on the penultimate features (Monir and Ghinita 2024), from the description in arXiv 2607.19580."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dirdp import gaussian
from dirdp.methods.base import Guarantee
from dirdp.methods.noisy import Noisy
from dirdp.plan import TrainingPlan

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dirdp.randomness import Stream


class GaussianFeatures(Noisy):
    """Each record's features, the input of the last linear layer, cut to norm C, with N(0, (σ·C)²·I) added.

    σ is calibrated by the RDP of the Poisson-sampled Gaussian; labels are public. Its authors clip gradients as well,
    which the ε of the features does not need. Raises `dirdp.BudgetError` where no noise keeps to the budget.

    >>> plan = TrainingPlan(
    ...     dataset="digits", model="mlp", method="gaussian_features", epsilon=4, sampling_rate=0.01, steps=1000, lr=0.1
    ... )
    >>> GaussianFeatures(plan).epsilon_spent(1000) <= 4
    True
    """

    guarantee = Guarantee(
        name="nominal ε (Gaussian features)",
        strength="nominal",
        release="the noisy features of all steps, from one slot a record, without who was sampled",
        protects="inputs; labels are public",
        adjacency="add or remove one record (its features replaced by zeros in its slot)",
        sampler="Poisson, participation hidden",
        theorem="Mironov, Talwar and Zhang 2019, arXiv 1908.10530",
        not_covered="the trained weights: the gradient reaches them through the raw inputs, which no noise covers; "
        "and BatchNorm lets one input move the features of its whole batch",
    )
    options = ("gaussian_features",)

    def __init__(self, plan: TrainingPlan):
        super().__init__(plan)
        assert plan.gaussian_features is not None  # by the plan's own rules
        self.clipping_norm = plan.gaussian_features.clipping_norm

    def prepare(self, model: nn.Module) -> nn.Module:
        """The network, if it ends in a linear layer."""
        _head(model, self.plan.model)
        return model

    def backward(self, model: nn.Module, images: Tensor, labels: Tensor, *, noise: Stream) -> Tensor | None:
        """The gradient of the mean cross-entropy, with the features made noisy on their way to the last layer."""

        def cover(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            features, *rest = inputs
            return (self.noisy(features, noise=noise), *rest)

        hook = _head(model, self.plan.model).register_forward_pre_hook(cover)
        try:
            return super().backward(model, images, labels, noise=noise)
        finally:
            hook.remove()

    def noisy(self, features: Tensor, *, noise: Stream) -> Tensor:
        """Features (B, f), each cut to norm C, with fresh noise of standard deviation σ·C on each of its numbers."""
        lengths = features.norm(dim=1, keepdim=True)
        cut = features * (self.clipping_norm * gaussian.INWARD / lengths).clamp(max=1)
        cut = cut.masked_fill(~lengths.isfinite(), 0)
        return cut + noise.normal(cut.shape).mul_(self.noise_multiplier * self.clipping_norm).to(cut)


def _head(model: nn.Module, name: str) -> nn.Linear:
    from torch import nn

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    if not layers:
        raise ValueError(f"model {name} has no linear layer whose input method gaussian_features could make noisy")
    return layers[-1]
