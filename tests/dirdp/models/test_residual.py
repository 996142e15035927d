"""ResNet-9 and WRN-40-4: size, shape and structure. What holds for every network is in test_models.py."""

import itertools

import pytest
import torch
from torch import nn

from dirdp import models

WIDTHS = (16, 64, 128, 256)


def build(name, *, channels=3, size=32, classes=10, norm="batch"):
    torch.manual_seed(0)
    return models.build(name, in_channels=channels, image_size=size, classes=classes, norm=norm)


def layers(network, kind):
    return [module for module in network.modules() if isinstance(module, kind)]


def resnet9_parameters(channels, classes):
    pairs = [(channels, 64), (64, 128), (128, 128), (128, 128), (128, 256), (256, 256), (256, 256), (256, 256)]
    return sum(9 * a * b + 2 * b for a, b in pairs) + (4 * 256 + 1) * classes


def wrn40_4_parameters(channels, classes):
    total = 9 * channels * WIDTHS[0]
    for before, width in itertools.pairwise(WIDTHS):
        total += 2 * before + 9 * before * width + 2 * width + 9 * width * width + before * width
        total += 5 * (2 * width + 9 * width * width + 2 * width + 9 * width * width)
    return total + 2 * WIDTHS[-1] + (WIDTHS[-1] + 1) * classes


@pytest.mark.parametrize(
    ("name", "count", "known"),
    [("resnet9", resnet9_parameters, 2_447_946), ("wrn40_4", wrn40_4_parameters, 8_949_210)],
)
@pytest.mark.parametrize(("channels", "size", "classes"), [(3, 32, 10), (3, 28, 7), (1, 28, 2)])
def test_size_and_shape(name, count, known, channels, size, classes):
    network = build(name, channels=channels, size=size, classes=classes)
    assert count(3, 10) == known
    assert sum(parameter.numel() for parameter in network.parameters()) == count(channels, classes)
    assert network(torch.randn(2, channels, size, size)).shape == (2, classes)
    assert network(torch.empty(0, channels, size, size)).shape == (0, classes)
    assert network.eval()(torch.randn(1, channels, size, size)).shape == (1, classes)


@pytest.mark.parametrize(("name", "convolutions", "shortcuts"), [("resnet9", 8, 0), ("wrn40_4", 37, 3)])
def test_depth(name, convolutions, shortcuts):
    """By the authors' way of counting: 3×3 convolutions and the head, and WRN's three 1×1 shortcuts."""
    network = build(name)
    kernels = [layer.kernel_size for layer in layers(network, nn.Conv2d)]
    assert kernels.count((3, 3)) == convolutions and kernels.count((1, 1)) == shortcuts
    assert len(kernels) == convolutions + shortcuts and len(layers(network, nn.Linear)) == 1


def test_wrn_halves_the_image_twice():
    sides = []
    network = build("wrn40_4", size=32)
    for block in network[1:19]:
        block.register_forward_hook(lambda layer, _, output: sides.append(tuple(output.shape[1:3])))
    network(torch.randn(1, 3, 32, 32))
    assert sides == [(64, 32)] * 6 + [(128, 16)] * 6 + [(256, 8)] * 6


@pytest.mark.parametrize("name", ["resnet9", "wrn40_4"])
def test_residual_branches_are_beside_an_identity(name):
    """With all 3×3 weights inside the blocks at 0 the image still gets through."""
    network = build(name, norm="group").eval()
    blocks = [m for m in network.modules() if type(m).__name__ in ("_Residual", "_Block")]
    assert len(blocks) == {"resnet9": 2, "wrn40_4": 18}[name]
    for block in blocks:
        for layer in layers(block, nn.Conv2d):
            if layer.kernel_size == (3, 3):
                nn.init.zeros_(layer.weight)
    logits = network(torch.randn(2, 3, 32, 32))
    assert not torch.allclose(logits[0], logits[1])


def test_small_images_are_refused_by_resnet9():
    with pytest.raises(ValueError, match="resnet9 needs images of at least 8 pixels a side, got image_size=7"):
        build("resnet9", size=7)
