"""What the training loop and the platform ask of a method."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dirdp.accounting import RdpCurve
    from dirdp.plan import TrainingPlan
    from dirdp.randomness import Stream


@dataclass(frozen=True)
class Guarantee:
    """What a method's ε stands for: the words that a table, a run in MLflow and a privacy statement print.

    `name` is what the ε is called. `strength` is "proved" where the stated theorem covers what is really released,
    "nominal" where it covers an idealisation of it, and "none". `release` is what the theorem takes to be published,
    `protects` whose and which data, `adjacency` when two data sets are neighbours, `sampler` what is assumed of the
    minibatches, and `theorem` where the proof is. `not_covered` says what the ε must not be read as.
    """

    name: str
    strength: Literal["proved", "nominal", "none"]
    release: str
    protects: str
    adjacency: str
    sampler: str
    theorem: str
    not_covered: str


class Method(ABC):
    """A training method bound to one plan and calibrated to its budget.

    A subclass calibrates itself in `__init__` and says what it spends (`rdp`) and what that covers (`guarantee`). It
    changes how a step is taken where it differs from plain training: the per-record `losses`, or the whole `backward`.
    """

    guarantee: Guarantee
    """What ε stands for."""
    options: ClassVar[tuple[str, ...]] = ()
    """The families of `dirdp.methods.options` that it uses, by the plan's names for them."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Fields of the plan for which it has a default of its own."""
    calibrated: Mapping[str, float] = {}
    """What was calibrated, by name: {"r": …} or {"noise_multiplier": …}; nothing without a mechanism."""
    epsilon: float = math.inf
    """The achieved budget, at most the plan's."""
    order: int | None = None
    """The Rényi order that attains it."""
    attenuation: float | None = 1.0
    """κ at s_y = 0.9 (eq. 3), 1 without a mechanism; None where γ_eff = γκ has no meaning."""
    views: int = 1
    """Augmented views of each record of a minibatch; those of one record stand together."""

    def __init__(self, plan: TrainingPlan):
        self.plan = plan

    @property
    def learning_rate(self) -> float:
        """γ, given or from γ_eff = γκ (eq. 6)."""
        if self.plan.effective_lr is None:
            return float(self.plan.lr)  # type: ignore[arg-type]  # a plan has one of the two
        return self.plan.effective_lr / float(self.attenuation)  # type: ignore[arg-type]  # `check` asks for κ

    def effective(self, learning_rate: float) -> float | None:
        """γ_eff = γκ (eq. 6) of a learning rate γ; None where it has no meaning."""
        return None if self.attenuation is None else learning_rate * self.attenuation

    @classmethod
    def check(cls, plan: TrainingPlan) -> None:
        """Raise `ValueError` for a plan that this method cannot run; called for every plan, before any calibration."""
        if plan.effective_lr is not None and cls.attenuation is None:
            raise ValueError(f"method {plan.method} has no κ to turn effective_lr={plan.effective_lr} into lr; give lr")

    @classmethod
    def floor(cls, plan: TrainingPlan) -> float:
        """The least ε that can be calibrated at the plan's other settings; 0 without a mechanism."""
        return 0.0

    @abstractmethod
    def rdp(self, steps: int) -> RdpCurve | None:
        """Rényi curve of `steps` steps, for composition over a sweep; None where there is no bound."""

    def epsilon_spent(self, steps: int) -> float:
        """ε at the plan's δ after `steps` steps: 0 after none, and infinite after one where there is no bound."""
        curve = self.rdp(steps)
        if curve is None:
            return math.inf if steps else 0.0
        return curve.epsilon(self.plan.delta).epsilon

    def prepare(self, model: nn.Module) -> nn.Module:
        """The network as this method trains it; called once, before the first step."""
        return model

    def losses(self, logits: Tensor, labels: Tensor, *, noise: Stream) -> Tensor:
        """Losses (B,) of the records of a minibatch, from logits (B, d) and labels (B,): cross-entropies."""
        from torch.nn.functional import cross_entropy  # torch comes with the training, not with the plan

        return cross_entropy(logits, labels, reduction="none")

    def backward(self, model: nn.Module, images: Tensor, labels: Tensor, *, noise: Stream) -> Tensor | None:
        """Fill in the parameters' `.grad` from a minibatch; return its mean loss, detached, or None for no records.

        `images` (B·views, C, H, W) are float, `labels` (B·views,) int64. The sum of the gradients is divided by |B| as
        in Algorithm 1, or by q·n if the plan says `normalize="expected"`. A parameter whose `.grad` stays None is not
        updated, as here in an empty minibatch; that is a counted step all the same.
        """
        if len(labels) == 0:
            return None
        losses = self.losses(model(images), labels, noise=noise)
        plan = self.plan
        divisor = len(labels) if plan.normalize == "batch" else plan.sampling_rate * plan.training_size
        (losses.sum() / divisor).backward()
        return losses.detach().mean()
