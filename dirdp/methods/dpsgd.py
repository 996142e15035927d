"""DP-SGD (Abadi et al. 2016): the gradient of each record clipped, Gaussian noise on their sum."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from dirdp import datasets, gaussian, models
from dirdp.methods.base import Guarantee
from dirdp.methods.noisy import Noisy
from dirdp.plan import TrainingPlan

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dirdp.randomness import Stream

# Floats of per-record gradients held at once (0.5 and 4 GiB); a larger minibatch is taken in parts.
_FLOATS_AT_ONCE = {"cpu": 2**27, "cuda": 2**30}


class DpSgd(Noisy):
    """DP-SGD with σ calibrated for exactly the plan's q and T, by Opacus's per-record gradients.

    A step adds up the gradients of the records, each scaled down to norm C at most, adds N(0, (σ·C)²·I), and divides by
    the constant q·n. An empty minibatch is such a step too, of noise alone. A minibatch of any size is taken in parts
    that fit the memory. Raises `dirdp.BudgetError` where no noise keeps to the budget.

    >>> plan = TrainingPlan(
    ...     dataset="mnist", model="inception", method="dpsgd", epsilon=1, expected_batch_size=250, steps=9600, lr=0.1
    ... )
    >>> method = DpSgd(plan)
    >>> round(method.noise_multiplier, 4), plan.norm, plan.normalize
    (1.8103, 'group', 'expected')
    """

    guarantee = Guarantee(
        name="ε (DP-SGD, Gaussian RDP)",
        strength="proved",
        release="the weights after every step",
        protects="inputs and labels",
        adjacency="add or remove one record",
        sampler="Poisson, participation hidden",
        theorem="Mironov, Talwar and Zhang 2019, arXiv 1908.10530",
        not_covered="the training loss that reports show, which has no noise, the choice among trials, accuracies on "
        "held-out training records, and, with randomness: research, whoever knows the seed",
    )
    options: ClassVar[tuple[str, ...]] = ("dpsgd",)
    defaults: ClassVar = {"norm": "group", "normalize": "expected"}

    def __init__(self, plan: TrainingPlan):
        super().__init__(plan)
        assert plan.dpsgd is not None  # by the plan's own rules
        self.clipping_norm = plan.dpsgd.clipping_norm
        self.views = plan.dpsgd.augmentation_multiplicity

    @classmethod
    def check(cls, plan: TrainingPlan) -> None:
        """Refuse what cannot be trained by clipping records one by one, naming the layers, and a missing Opacus."""
        super().check(plan)
        if plan.normalize != "expected":
            raise ValueError(f"method {plan.method} divides by q·n, got normalize={plan.normalize}; say expected")
        if plan.dpsgd and plan.dpsgd.augmentation_multiplicity > 1 and plan.augmentation == "none":
            raise ValueError(
                f"dpsgd.augmentation_multiplicity={plan.dpsgd.augmentation_multiplicity} needs an augmentation; with "
                "none all views are the same"
            )
        layers = _batch_norms(plan.model, plan.dataset) if plan.norm == "batch" else []
        if layers:
            raise ValueError(
                f"norm=batch: method {plan.method} clips records one by one, but BatchNorm lets them see one another "
                f"in {', '.join(layers)} of {plan.model}; say norm: group"
            )
        if find_spec("opacus") is None:
            raise ValueError(f"method {plan.method} needs Opacus, which is not installed: pip install 'dirdp[dpsgd]'")

    def prepare(self, model: nn.Module) -> nn.Module:
        """The network, if Opacus knows the gradients of its records; layers with running statistics have none."""
        from opacus.grad_sample import GradSampleModule

        errors = GradSampleModule.validate(model, strict=False)
        if errors:
            raise ValueError(f"model {self.plan.model} cannot be trained record by record: {errors[0]}")
        return model

    def backward(self, model: nn.Module, images: Tensor, labels: Tensor, *, noise: Stream) -> Tensor | None:
        """The clipped sum, the noise and the divisor q·n; None for the loss of an empty minibatch."""
        import torch

        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        sums = [torch.zeros_like(parameter) for parameter in parameters]
        loss = torch.zeros((), dtype=torch.float64, device=labels.device)
        at_once = self._views_at_once(parameters)
        for part, truth in zip(images.split(at_once), labels.split(at_once), strict=True):
            if len(truth):
                loss += self._add_clipped(sums, model, part, truth, noise=noise)
        divisor = self.plan.sampling_rate * self.plan.training_size
        for parameter, total in zip(parameters, sums, strict=True):
            draw = noise.normal(total.shape).mul_(self.noise_multiplier * self.clipping_norm)
            parameter.grad = total.add_(draw).div_(divisor)
        return loss / len(labels) if len(labels) else None

    def _views_at_once(self, parameters: list[nn.Parameter]) -> int:
        """How many images to take at once, with all views of a record together."""
        size = self.views * sum(parameter.numel() for parameter in parameters)
        floats = _FLOATS_AT_ONCE.get(parameters[0].device.type, _FLOATS_AT_ONCE["cpu"])
        return self.views * max(1, floats // size)

    def _add_clipped(
        self, sums: list[Tensor], model: nn.Module, images: Tensor, labels: Tensor, *, noise: Stream
    ) -> Tensor:
        """Add the clipped gradients of some records to `sums`; return the sum of the losses of all views."""
        import torch

        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        with _per_sample_gradients(model):
            losses = self.losses(model(images), labels, noise=noise)
            losses.sum().backward()
            gradients = [parameter.grad_sample.flatten(1) for parameter in parameters]  # type: ignore[attr-defined]
        if self.views > 1:
            gradients = [gradient.unflatten(0, (-1, self.views)).mean(1) for gradient in gradients]
        norms = torch.stack([gradient.norm(dim=1) for gradient in gradients]).norm(dim=0)
        factors = (self.clipping_norm * gaussian.INWARD / norms).clamp(max=1)
        finite = norms.isfinite()
        if not finite.all():  # such a gradient has no length to be cut to; it must not make itself known either
            gradients, factors = [gradient[finite] for gradient in gradients], factors[finite]
        for total, gradient in zip(sums, gradients, strict=True):
            total += (factors @ gradient).view_as(total)
        return losses.detach().sum()


@contextmanager
def _per_sample_gradients(model: nn.Module) -> Iterator[None]:
    """Within, a backward pass leaves each view's gradient in the parameters' `grad_sample`; nothing stays behind."""
    from opacus.grad_sample import GradSampleHooks

    hooks = GradSampleHooks(model, loss_reduction="sum")
    try:
        with warnings.catch_warnings():  # images need no gradient, which is as it should be
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            yield
    finally:
        hooks.cleanup()


@lru_cache(maxsize=256)
def _batch_norms(model: str, dataset: str) -> list[str]:
    """Names of a model's BatchNorm layers; the network is built for it, and no random number of the process changes."""
    import torch

    from dirdp.models.normalization import batch_norms

    info = datasets.info(dataset)
    with torch.random.fork_rng(devices=[]):
        network = models.build(model, in_channels=info.channels, image_size=info.image_size, classes=info.classes)
    return batch_norms(network)
