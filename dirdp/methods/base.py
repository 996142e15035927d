"""What the training loop and the platform ask of a method."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dirdp.theory import effective_learning_rate, learning_rate

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

    A subclass gives the per-record losses; one whose gradients are not those of a mean loss overrides `backward`.
    """

    guarantee: Guarantee
    """What ε stands for."""
    r: float | None = None
    """The calibrated scaling r*; None without a mechanism."""
    epsilon: float = math.inf
    """The achieved budget, at most the plan's."""
    order: int | None = None
    """The Rényi order that attains it."""

    def __init__(self, plan: TrainingPlan):
        self.plan = plan
        self.attenuation = effective_learning_rate(learning_rate=1.0, r=self.r, alpha=plan.alpha)
        """κ at s_y = 0.9 (eq. 3); 1 without a mechanism."""
        self.learning_rate = (
            plan.lr
            if plan.lr is not None
            else learning_rate(effective_learning_rate=plan.effective_lr, r=self.r, alpha=plan.alpha)
        )
        """γ, given or from γ_eff = γκ (eq. 6)."""

    @abstractmethod
    def losses(self, logits: Tensor, labels: Tensor, *, noise: Stream) -> Tensor:
        """Losses (B,) of the records of a minibatch, from logits (B, d) and labels (B,)."""

    @abstractmethod
    def epsilon_spent(self, steps: int) -> float:
        """ε at the plan's δ after `steps` steps."""

    @abstractmethod
    def rdp(self, steps: int) -> RdpCurve | None:
        """Rényi curve of `steps` steps, for composition over a sweep; None where there is no bound."""

    def backward(self, model: nn.Module, images: Tensor, labels: Tensor, *, noise: Stream) -> Tensor | None:
        """Fill in the parameters' `.grad` from a minibatch; return its mean loss, detached.

        `images` (B, C, H, W) are float, `labels` (B,) int64. The sum of the gradients is divided by |B| as in
        Algorithm 1, or by q·n if the plan says `normalize="expected"`. None means that this minibatch makes no
        update, as an empty one does here; it is a counted step all the same.
        """
        if len(labels) == 0:
            return None
        losses = self.losses(model(images), labels, noise=noise)
        plan = self.plan
        divisor = len(labels) if plan.normalize == "batch" else plan.sampling_rate * plan.training_size
        (losses.sum() / divisor).backward()
        return losses.detach().mean()
