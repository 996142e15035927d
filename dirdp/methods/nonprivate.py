"""Training without a mechanism (ε = ∞): PoissonSample, softmax and negative log-likelihood."""

from __future__ import annotations

import math

from dirdp.accounting import RdpCurve
from dirdp.methods.base import Guarantee, Method
from dirdp.plan import TrainingPlan


class NonPrivate(Method):
    """Plain training over Poisson minibatches, which the paper calls ε = ∞.

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

    @classmethod
    def check(cls, plan: TrainingPlan) -> None:
        """Refuse a budget."""
        super().check(plan)
        if not math.isinf(plan.epsilon):
            raise ValueError(f"method nonprivate has epsilon=inf, got epsilon={plan.epsilon}")

    def rdp(self, steps: int) -> RdpCurve | None:
        """None: there is no bound."""
        return None
