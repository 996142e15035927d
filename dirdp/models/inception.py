"""A simplified Inception for small grayscale or colour images.

After Szegedy et al. 2015, "Going deeper with convolutions" (GoogLeNet). The paper trains a "simplified Inception" on
MNIST and FashionMNIST and does not specify it; this is our reading of that name. BatchNorm and a flattened head matter:
without them the perturbed loss, whose gradient starts out small, hardly moves the network.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_SMALLEST_IMAGE = 20  # keeps more than one position in front of every BatchNorm


def _conv(in_channels: int, out_channels: int, kernel: int) -> nn.Sequential:
    """Convolution that keeps the image size, BatchNorm, ReLU."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2), nn.BatchNorm2d(out_channels), nn.ReLU()
    )


def _shrink(in_channels: int, out_channels: int) -> nn.Sequential:
    """5×5 convolution without padding, then half the size; BatchNorm after the pooling costs a quarter."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 5), nn.MaxPool2d(2), nn.BatchNorm2d(out_channels), nn.ReLU()
    )


class _Block(nn.Module):
    """Four branches side by side: (N, in_channels, S, S) -> (N, narrow + 3·wide, S, S).

    1×1; 1×1 and 5×5; 1×1 and two 3×3; average pooling and 1×1.
    """

    def __init__(self, in_channels: int, *, narrow: int, wide: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [
                _conv(in_channels, narrow, 1),
                nn.Sequential(_conv(in_channels, narrow, 1), _conv(narrow, wide, 5)),
                nn.Sequential(_conv(in_channels, narrow, 1), _conv(narrow, wide, 3), _conv(wide, wide, 3)),
                nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), _conv(in_channels, wide, 1)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def inception(*, in_channels: int, image_size: int, classes: int) -> nn.Module:
    """Simplified Inception: (N, in_channels, image_size, image_size) -> logits (N, classes).

    Twice a 5×5 convolution, max-pooling and an Inception block, with 32, 88, 48 and 176 channels; BatchNorm after every
    convolution; dropout; one linear layer on the flattened 4×4 map. 236,522 parameters for 1 channel, 28×28 images and
    10 classes.

    Raises `ValueError` for images smaller than 20×20.

    >>> sum(p.numel() for p in inception(in_channels=1, image_size=28, classes=10).parameters())
    236522
    """
    if image_size < _SMALLEST_IMAGE:
        raise ValueError(
            f"inception needs images of at least {_SMALLEST_IMAGE}×{_SMALLEST_IMAGE}, got image_size={image_size}"
        )
    size = ((image_size - 4) // 2 - 4) // 2
    return nn.Sequential(
        _shrink(in_channels, 32),
        _Block(32, narrow=16, wide=24),
        _shrink(88, 48),
        nn.Dropout(0.2),
        _Block(48, narrow=32, wide=48),
        nn.Dropout(0.4),
        nn.Flatten(),
        nn.Linear(176 * size * size, classes),
    )
