"""A simplified Inception for small grayscale or colour images.

After Szegedy et al. 2015, "Going deeper with convolutions" (GoogLeNet). The paper trains a "simplified Inception" on
MNIST and FashionMNIST and does not specify it; this is our reading of that name. The perturbed loss has a small
gradient (κ is 0.05 to 0.2), so what matters is how fast a network learns at a small rate: BatchNorm after every
convolution and in front of the head, a head on few features, and logits scaled up, so that the features learn as well
as the head does.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

_SMALLEST_IMAGE = 16  # keeps more than one position in front of every BatchNorm2d
_STEM = 32
_LOGIT_SCALE = 3.0


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


# None halves the image.
_BODY = (
    _Widths(one=24, three_reduce=24, three=40, five_reduce=8, five=16, pool=16),
    None,
    _Widths(one=48, three_reduce=48, three=80, five_reduce=16, five=32, pool=32),
    _Widths(one=64, three_reduce=64, three=112, five_reduce=16, five=40, pool=40),
)


class _InceptionBlock(nn.Module):
    """1×1, 3×3, 5×5 and pool branches side by side: (N, in_channels, S, S) -> (N, widths.total, S, S).

    The 1×1 convolutions of all branches are one convolution, which costs less than four; the pool branch therefore
    convolves first and pools then.
    """

    def __init__(self, in_channels: int, widths: _Widths) -> None:
        super().__init__()
        self._split = [widths.one, widths.three_reduce, widths.five_reduce, widths.pool]
        entry = sum(self._split)
        self.entry = nn.Sequential(nn.Conv2d(in_channels, entry, 1), nn.BatchNorm2d(entry), nn.ReLU())
        self.three = nn.Conv2d(widths.three_reduce, widths.three, 3, padding=1)
        self.five = nn.Conv2d(widths.five_reduce, widths.five, 5, padding=2)
        self.wide = nn.Sequential(nn.BatchNorm2d(widths.three + widths.five), nn.ReLU())
        self.pool = nn.MaxPool2d(3, stride=1, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        one, three, five, pool = self.entry(x).split(self._split, dim=1)
        wide = self.wide(torch.cat([self.three(three), self.five(five)], dim=1))
        return torch.cat([one, wide, self.pool(pool)], dim=1)


class _Scale(nn.Module):
    """Multiplies by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def inception(*, in_channels: int, image_size: int, classes: int) -> nn.Module:
    """Simplified Inception: (N, in_channels, image_size, image_size) -> logits (N, classes).

    A 5×5 convolution of 32 channels, an Inception block of 96 channels at half the image's size and two of 192 and 256
    at a quarter; the greatest value of each channel, BatchNorm, one linear layer, and the logits times 3. 197,306
    parameters for 1 channel, 28×28 images and 10 classes.

    Raises `ValueError` for images smaller than 16×16.

    >>> sum(p.numel() for p in inception(in_channels=1, image_size=28, classes=10).parameters())
    197306
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
    channels = _STEM
    for widths in _BODY:
        if widths is None:
            layers.append(nn.MaxPool2d(3, stride=2, padding=1))
        else:
            layers.append(_InceptionBlock(channels, widths))
            channels = widths.total
    layers += [nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.BatchNorm1d(channels)]
    layers += [nn.Linear(channels, classes), _Scale(_LOGIT_SCALE)]
    return nn.Sequential(*layers)
