"""Training without a mechanism (ε = ∞): PoissonSample, softmax and negative log-likelihood."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dirdp.accounting import RdpCurve
from dirdp.methods.base import Guarantee, Method

if TYPE_CHECKING:
    from torch import Tensor

    from dirdp.randomness import Stream


class NonPrivate(Method):
    """Plain training over Poisson minibatches, which the paper calls ε = ∞.

    >>> from dirdp import TrainingPlan
    >>> plan = TrainingPlan(
    ...     dataset="digits", model="mlp", epsilon=float("inf"), sampling_rate=0.01, steps=100, lr=0.1
    ... )
    >>> NonPrivate(plan).epsilon_spent(1)
    inf
    """

    guarantee = Guarantee(
        name="no privacy",
        strength="none",
        release="everything",
        protects="nobody",
        adjacency="none",
        sampler="Poisson",
        theorem="none",
        not_covered="anything: there is no mechanism",
    )

    def losses(self, logits: Tensor, labels: Tensor, *, noise: Stream) -> Tensor:
        """Cross-entropies (B,)."""
        from torch.nn.functional import cross_entropy  # torch comes with the training, not with the plan

        return cross_entropy(logits, labels, reduction="none")

    def epsilon_spent(self, steps: int) -> float:
        """0 before the first step, infinity after."""
        return math.inf if steps else 0.0

    def rdp(self, steps: int) -> RdpCurve | None:
        """None: there is no bound."""
        return None
