"""Two small networks for small images: a multilayer perceptron and a convolutional network."""

from __future__ import annotations

from torch import nn


def mlp(*, in_channels: int, image_size: int, classes: int, width: int = 128) -> nn.Module:
    """Two hidden layers with BatchNorm and ReLU: (N, C, S, S) -> logits (N, classes)."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(in_channels * image_size**2, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )


def cnn(*, in_channels: int, image_size: int, classes: int, width: int = 32) -> nn.Module:
    """Two 3×3 convolutions with BatchNorm, ReLU and 2×2 max-pooling, and a linear head.

    (N, C, S, S) -> logits (N, classes), for S of at least 4 pixels.
    """
    if image_size < 4:
        raise ValueError(f"cnn needs images of at least 4 pixels a side, got image_size={image_size}")
    return nn.Sequential(
        nn.Conv2d(in_channels, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (image_size // 4) ** 2, classes),
    )
