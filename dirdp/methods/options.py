"""What only some methods have to be told: one frozen model a family, each a field of `TrainingPlan` of its own name.

A plan whose method uses a family holds it with its defaults; one whose method does not use it refuses it.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dirdp._frozen import Frozen

__all__ = ["DpSgdOptions", "GaussianFeaturesOptions", "TemperedSigmoidOptions"]

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class DpSgdOptions(Frozen):
    """Of the methods that clip and noise gradients.

    `clipping_norm` C bounds the norm of a record's gradient. `augmentation_multiplicity` K is the number of augmented
    views of a record, over which its gradient is averaged before it is clipped (De et al. 2022).
    """

    clipping_norm: _Positive = 1.0
    augmentation_multiplicity: Annotated[int, Field(ge=1)] = 1


class TemperedSigmoidOptions(Frozen):
    """The activation x ↦ `scale`·sigmoid(`temperature`·x) − `offset`; 2, 2 and 1 make it tanh."""

    scale: _Positive = 2.0
    temperature: _Positive = 2.0
    offset: Annotated[float, Field(allow_inf_nan=False)] = 1.0


class GaussianFeaturesOptions(Frozen):
    """`clipping_norm` C bounds the norm of a record's features, the input of the last linear layer."""

    clipping_norm: _Positive = 1.0
