"""Algorithm 1 of arXiv 2607.19580: the loss of a Dirichlet draw around the softmax output."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dirdp.calibration import budget_floor, calibrate
from dirdp.methods.base import Guarantee, Method
from dirdp.plan import TrainingPlan
from dirdp.theory import TYPICAL_S_Y, attenuation

if TYPE_CHECKING:
    from torch import Tensor

    from dirdp.accounting import RdpCurve
    from dirdp.randomness import Stream


_WITH_EXACT = "with the exact Rényi divergence of the draws in the place of Lemma 9 (docs/theory.md)"


class Dirichlet(Method):
    """Mechanism 8 with r* calibrated by eq. (1).

    Raises `dirdp.BudgetError` where the budget is below `dirdp.budget_floor`.

    >>> plan = TrainingPlan(
    ...     dataset="cifar10", model="resnet18", epsilon=1, sampling_rate=0.005, steps=20_000, lr=0.1
    ... )
    >>> method = Dirichlet(plan)
    >>> round(method.r, 4), round(method.attenuation, 5)
    (0.2349, 0.07712)
    """

    r: float
    guarantee = Guarantee(
        name="nominal ε (Theorem 10)",
        strength="nominal",
        release="the Dirichlet draws of all steps, from one slot a record, without who was sampled",
        protects="inputs; labels are public",
        adjacency="add or remove one record (a null record in its slot)",
        sampler="Poisson, participation hidden",
        theorem="Theorem 10 of arXiv 2607.19580",
        not_covered="the trained weights: the gradient reaches them through the raw inputs, which no noise covers",
    )

    def __init__(self, plan: TrainingPlan):
        super().__init__(plan)
        calibration = calibrate(
            epsilon=plan.epsilon,
            delta=plan.delta,
            alpha=plan.alpha,
            sampling_rate=plan.sampling_rate,
            steps=plan.steps,
            bound=plan.bound,
        )
        self._calibration = calibration
        self.r, self.epsilon, self.order = calibration.r, calibration.epsilon, calibration.order
        self.calibrated = {"r": self.r}
        self.attenuation = float(attenuation(s_y=TYPICAL_S_Y, r=self.r, alpha=plan.alpha))
        if plan.bound == "exact":
            self.guarantee = replace(self.guarantee, theorem=f"{self.guarantee.theorem}, {_WITH_EXACT}")

    @classmethod
    def floor(cls, plan: TrainingPlan) -> float:
        """The least ε with a usable r*."""
        return budget_floor(
            delta=plan.delta, alpha=plan.alpha, sampling_rate=plan.sampling_rate, steps=plan.steps, bound=plan.bound
        )

    def rdp(self, steps: int) -> RdpCurve:
        """Theorem 10's Rényi curve of `steps` steps."""
        return self._calibration.curve(steps)

    def losses(self, logits: Tensor, labels: Tensor, *, noise: Stream) -> Tensor:
        """−log p̃_y (B,) with p̃ ~ Dir(r·softmax(logits) + α)."""
        from dirdp.mechanism import dirichlet_nll  # torch comes with the training, not with the plan

        return dirichlet_nll(logits, labels, r=self.r, alpha=self.plan.alpha, stream=noise)
