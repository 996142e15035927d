"""ResNet-18 for 32×32 images (He et al. 2016)."""

from __future__ import annotations

from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet


def resnet18(*, in_channels: int, image_size: int, classes: int) -> nn.Module:
    """ResNet-18 with a 3×3 stem of stride 1 and no max-pooling: (N, C, S, S) -> logits (N, classes).

    11,173,962 parameters for 3 channels and 10 classes. torchvision's constructor re-initialises its convolutions;
    `reset_parameters` puts PyTorch's per-layer default back, which the paper uses.
    """
    network = ResNet(_Block, [2, 2, 2, 2], num_classes=classes)
    network.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.reset_parameters()
        elif isinstance(module, nn.ReLU):
            module.inplace = False
    return network


class _Block(BasicBlock):
    """torchvision's block without operations in place, which per-record gradients do not allow."""

    def forward(self, images: Tensor) -> Tensor:
        residual = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(images)))))
        shortcut = images if self.downsample is None else self.downsample(images)
        return self.relu(residual + shortcut)
