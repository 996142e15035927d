"""Tempered sigmoids (Papernot et al. 2021): DP-SGD with bounded activations in the place of ReLU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dirdp.methods.dpsgd import DpSgd

if TYPE_CHECKING:
    from torch import nn


class TemperedSigmoid(DpSgd):
    """DP-SGD on the plan's network with x ↦ scale·sigmoid(temperature·x) − offset for every ReLU.

    The paper's own network for MNIST and FashionMNIST is the model `papernot_cnn`, and its best choice there tanh, the
    default of the options.
    """

    options = ("dpsgd", "tempered_sigmoid")

    def prepare(self, model: nn.Module) -> nn.Module:
        """The network with its ReLUs replaced. Raises `ValueError` where it has none."""
        from dirdp.models.activations import use_tempered_sigmoid

        assert self.plan.tempered_sigmoid is not None  # by the plan's own rules
        options = self.plan.tempered_sigmoid
        model, replaced = use_tempered_sigmoid(
            model, scale=options.scale, temperature=options.temperature, offset=options.offset
        )
        if not replaced:
            raise ValueError(f"model {self.plan.model} has no ReLU layer for method tempered_sigmoid to replace")
        return super().prepare(model)
