"""Learning-rate schedules: a pure function of the step, so that a resumed training needs no state for them."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dirdp._frozen import Frozen

__all__ = ["Schedule"]

_Fraction = Annotated[float, Field(gt=0, lt=1)]


class Schedule(Frozen):
    """How the learning rate moves over a training of T steps: at step t it is γ·`factor(t)`.

    - constant: γ throughout;
    - cosine: from γ down to `final`·γ along half a cosine (Loshchilov and Hutter 2017, without restarts);
    - step: multiplied by `decay` at each of `milestones`, which are fractions of T.

    Each may begin with a linear `warmup` over that fraction of T. Raises `ValueError` (pydantic's `ValidationError`)
    for a key that belongs to another schedule.

    >>> Schedule(name="step", milestones=[0.5, 0.75]).factor(600, steps=1000)
    0.1
    """

    name: Literal["constant", "cosine", "step"] = "constant"
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.0
    final: Annotated[float, Field(ge=0, lt=1)] = 0.0
    milestones: tuple[_Fraction, ...] = ()
    decay: _Fraction = 0.1

    @model_validator(mode="after")
    def _keys_are_its_own(self) -> Schedule:
        owners = {"final": "cosine", "milestones": "step", "decay": "step"}
        for key, owner in owners.items():
            value = getattr(self, key)
            if self.name != owner and value != type(self).model_fields[key].default:
                raise ValueError(f"{key}={value} belongs to schedule {owner}, not {self.name}")
        if self.name == "step" and not self.milestones:
            raise ValueError("schedule step needs milestones, fractions of the steps such as [0.5, 0.75]")
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"milestones must ascend, got {list(self.milestones)}")
        return self

    def factor(self, step: int, *, steps: int) -> float:
        """What the learning rate is multiplied by at `step`, counted from 0, of `steps`; in (0, 1].

        >>> [round(Schedule(name="cosine", warmup=0.2).factor(step, steps=10), 3) for step in range(10)]
        [0.5, 1.0, 1.0, 0.962, 0.854, 0.691, 0.5, 0.309, 0.146, 0.038]
        """
        warmup = min(round(self.warmup * steps), steps - 1)
        ramp = min(1.0, (step + 1) / warmup) if warmup else 1.0
        if self.name == "cosine":
            progress = max(0, step - warmup) / (steps - warmup)
            return ramp * (self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2)
        passed = sum(step >= round(milestone * steps) for milestone in self.milestones)
        return ramp * self.decay**passed
