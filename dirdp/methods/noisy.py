"""What the methods that add calibrated Gaussian noise share."""

from __future__ import annotations

from dirdp import gaussian
from dirdp.accounting import RdpCurve
from dirdp.methods.base import Method
from dirdp.plan import TrainingPlan


class Noisy(Method):
    """A method whose noise multiplier σ is calibrated to the budget, for exactly the plan's q and T.

    Raises `dirdp.BudgetError` where no noise keeps to the budget.
    """

    attenuation = None

    def __init__(self, plan: TrainingPlan):
        super().__init__(plan)
        calibration = gaussian.calibrate(
            epsilon=plan.epsilon, delta=plan.delta, sampling_rate=plan.sampling_rate, steps=plan.steps
        )
        self.noise_multiplier = calibration.noise_multiplier
        self.epsilon, self.order = calibration.epsilon, calibration.order
        self.calibrated = {"noise_multiplier": self.noise_multiplier}

    @classmethod
    def floor(cls, plan: TrainingPlan) -> float:
        """The least ε that some noise keeps to."""
        return gaussian.budget_floor(delta=plan.delta, sampling_rate=plan.sampling_rate, steps=plan.steps)

    def rdp(self, steps: int) -> RdpCurve:
        """Rényi curve of `steps` steps at the integer orders."""
        return gaussian.rdp_curve(
            noise_multiplier=self.noise_multiplier, sampling_rate=self.plan.sampling_rate, steps=steps
        )
