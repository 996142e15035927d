"""A simplified Inception for small grayscale or colour images.

After Szegedy et al. 2015, "Going deeper with convolutions" (GoogLeNet). The paper trains a "simplified Inception" on
MNIST and FashionMNIST and does not specify it; this is our reading of that name. BatchNorm and a flattened head
matter: without them the perturbed loss, whose gradient starts out small, hardly moves the network.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

_SMALLEST_IMAGE = 16  # keeps more than one position in front of every BatchNorm, so a minibatch of one image trains


class _Widths(NamedTuple):
    """Channels of one block, named as in GoogLeNet's table; `reduce` is the 1×1 in front of a larger kernel."""

    one: int
    three_reduce: int
    three: int
    five_reduce: int
    five: int
    pool: int

    @property
    def total(self) -> int:
        return self.one + self.three + self.five + self.pool


_STEM = 32
_BLOCKS = (
    _Widths(one=16, three_reduce=16, three=32, five_reduce=8, five=16, pool=16),
    _Widths(one=32, three_reduce=32, three=64, five_reduce=16, five=32, pool=32),
    _Widths(one=64, three_reduce=48, three=96, five_reduce=24, five=64, pool=32),
)


def _conv(in_channels: int, out_channels: int, kernel: int) -> nn.Sequential:
    """Convolution that keeps the image size, BatchNorm, ReLU."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
    )


class _InceptionBlock(nn.Module):
    """Parallel 1×1, 3×3, 5×5 and pool branches: (N, in_channels, S, S) -> (N, widths.total, S, S)."""

    def __init__(self, in_channels: int, widths: _Widths) -> None:
        super().__init__()
        self.one = _conv(in_channels, widths.one, 1)
        self.three = nn.Sequential(
            _conv(in_channels, widths.three_reduce, 1), _conv(widths.three_reduce, widths.three, 3)
        )
        self.five = nn.Sequential(_conv(in_channels, widths.five_reduce, 1), _conv(widths.five_reduce, widths.five, 5))
        self.pool = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _conv(in_channels, widths.pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], dim=1)


def inception(*, in_channels: int, image_size: int, classes: int) -> nn.Module:
    """Simplified Inception: (N, in_channels, image_size, image_size) -> logits (N, classes).

    A 5×5 convolution of 32 channels, then three Inception blocks of 80, 160 and 256 channels, the image halved in
    front of each; BatchNorm after every convolution; one linear layer on the flattened 4×4 map (28×28 and 32×32
    images). 200,330 parameters for 1 channel, 28×28 images and 10 classes.

    Raises `ValueError` for images smaller than 16×16.

    >>> sum(p.numel() for p in inception(in_channels=1, image_size=28, classes=10).parameters())
    200330
    """
    if image_size < _SMALLEST_IMAGE:
        raise ValueError(
            f"inception needs images of at least {_SMALLEST_IMAGE}×{_SMALLEST_IMAGE}, got image_size={image_size}"
        )
    # The stem pools before BatchNorm: nearly the same function, at a quarter of BatchNorm's cost.
    layers: list[nn.Module] = [
        nn.Conv2d(in_channels, _STEM, 5, padding=2),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(_STEM),
        nn.ReLU(),
    ]
    channels, size = _STEM, image_size // 2
    for index, widths in enumerate(_BLOCKS):
        if index > 0:
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
            size = (size + 1) // 2
        layers.append(_InceptionBlock(channels, widths))
        channels = widths.total
    layers += [nn.Flatten(), nn.Linear(channels * size * size, classes)]
    return nn.Sequential(*layers)
