"""ResNet-9, the network of the paper's DermaMNIST experiments."""

from __future__ import annotations

from torch import Tensor, nn


def resnet9(*, in_channels: int, image_size: int, classes: int) -> nn.Module:
    """Eight 3×3 convolutions, two residual blocks among them, and a linear head: (N, C, S, S) -> logits (N, classes).

    The paper says no more than "ResNet-9 following Hölzl et al. (2022)". These are the widths that their group
    published with Klause et al. (2022), arXiv 2203.00324: 64, 128, 128 + 128, 256, 256, 256 + 256, pooled to 2×2;
    with ReLU for their Mish. 2,447,946 parameters for 3 channels and 10 classes. Raises `ValueError` for images below
    8 pixels a side.
    """
    if image_size < 8:
        raise ValueError(f"resnet9 needs images of at least 8 pixels a side, got image_size={image_size}")
    return nn.Sequential(
        _layer(in_channels, 64),
        _layer(64, 128),
        nn.MaxPool2d(2),
        _Residual(_layer(128, 128), _layer(128, 128)),
        _layer(128, 256),
        nn.MaxPool2d(2),
        _layer(256, 256),
        nn.MaxPool2d(2),
        _Residual(_layer(256, 256), _layer(256, 256)),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 256, classes),
    )


class _Residual(nn.Sequential):
    """x + f(x)."""

    def forward(self, images: Tensor) -> Tensor:
        return images + super().forward(images)


def _layer(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())
