"""Augmentation of a batch on its device, per image, from a random stream of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from dirdp.randomness import Stream

_PAD = 4


def crop_flip(images: Tensor, *, stream: Stream) -> Tensor:
    """Pad by 4 pixels of zero, crop at random to the old size, flip left to right with probability 1/2.

    `images` is (N, C, H, W) of any type; the result has the same shape and type.
    """
    count, _, height, width = images.shape
    rows = stream.integers(2 * _PAD + 1, (count, 1)) + torch.arange(height, device=images.device)
    columns = stream.integers(2 * _PAD + 1, (count, 1)) + torch.arange(width, device=images.device)
    flip = stream.uniform((count, 1)) < 0.5
    columns = torch.where(flip, columns.flip(1), columns)
    padded = F.pad(images, (_PAD,) * 4)
    index = torch.arange(count, device=images.device)
    # Advanced indices around a slice put the channels last.
    return padded[index[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


AUGMENTATIONS: dict[str, Callable[..., Tensor] | None] = {"none": None, "crop-flip": crop_flip}
