"""Wide residual networks (Zagoruyko and Komodakis 2016)."""

from __future__ import annotations

from torch import Tensor, nn


def wrn40_4(*, in_channels: int, image_size: int, classes: int) -> nn.Module:
    """WRN-40-4, depth 40 and width factor 4: (N, C, S, S) -> logits (N, classes).

    8,949,210 parameters for 3 channels and 10 classes. De et al. (2022) train it with DP-SGD, with GroupNorm.
    """
    blocks, widths = (40 - 4) // 6, (16, 64, 128, 256)
    groups = [
        _Block(widths[group] if first else widths[group + 1], widths[group + 1], stride=2 if first and group else 1)
        for group in range(3)
        for first in [True] + [False] * (blocks - 1)
    ]
    return nn.Sequential(
        nn.Conv2d(in_channels, widths[0], 3, padding=1, bias=False),
        *groups,
        nn.BatchNorm2d(widths[-1]),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], classes),
    )


class _Block(nn.Module):
    """Norm, ReLU, 3×3 convolution, twice, beside a shortcut: the identity, or 1×1 where the width changes."""

    def __init__(self, inputs: int, outputs: int, *, stride: int):
        super().__init__()
        self.activation = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        )
        self.shortcut = None if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        activated = self.activation(images)
        shortcut = images if self.shortcut is None else self.shortcut(activated)
        return shortcut + self.residual(activated)
