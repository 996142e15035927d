"""The network that Papernot et al. (2021) train on MNIST and FashionMNIST, arXiv 2007.14191."""

from __future__ import annotations

from torch import nn

_SMALLEST_IMAGE = 14


def papernot_cnn(*, in_channels: int, image_size: int, classes: int) -> nn.Module:
    """Two convolutions of stride 2, each with 2×2 max-pooling of stride 1, and two linear layers, with ReLU.

    (N, C, S, S) -> logits (N, classes). 26,010 parameters for 1 channel, 28×28 images and 10 classes. Method
    `tempered_sigmoid` puts its activation in the place of ReLU. Raises `ValueError` for images smaller than 14×14.

    >>> sum(p.numel() for p in papernot_cnn(in_channels=1, image_size=28, classes=10).parameters())
    26010
    """
    if image_size < _SMALLEST_IMAGE:
        raise ValueError(
            f"papernot_cnn needs images of at least {_SMALLEST_IMAGE}×{_SMALLEST_IMAGE}, got image_size={image_size}"
        )
    first = image_size // 2 - 1
    size = (first - 4) // 2
    return nn.Sequential(
        nn.Conv2d(in_channels, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * size * size, 32),
        nn.ReLU(),
        nn.Linear(32, classes),
    )
