"""Bounded activations in the place of ReLU."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TemperedSigmoid(nn.Module):
    """x ↦ scale·sigmoid(temperature·x) − offset (Papernot et al. 2021), element by element.

    >>> TemperedSigmoid(scale=2, temperature=2, offset=1)(torch.tensor([0.5])), torch.tensor([0.5]).tanh()
    (tensor([0.4621]), tensor([0.4621]))
    """

    def __init__(self, *, scale: float, temperature: float, offset: float):
        super().__init__()
        self.scale, self.temperature, self.offset = scale, temperature, offset

    def forward(self, x: Tensor) -> Tensor:
        """A tensor of the shape of `x`."""
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset


def use_tempered_sigmoid(
    network: nn.Module, *, scale: float, temperature: float, offset: float
) -> tuple[nn.Module, int]:
    """Replace every ReLU layer inside `network` by a tempered sigmoid; return it, and how many were replaced."""
    if isinstance(network, nn.ReLU):
        return TemperedSigmoid(scale=scale, temperature=temperature, offset=offset), 1
    replaced = 0
    for name, child in network.named_children():
        changed, count = use_tempered_sigmoid(child, scale=scale, temperature=temperature, offset=offset)
        setattr(network, name, changed)
        replaced += count
    return network, replaced
