"""GroupNorm in the place of BatchNorm, for methods that need records not to see one another."""

from __future__ import annotations

from torch import nn

_MOST_GROUPS = 32


def use_group_norm(network: nn.Module) -> nn.Module:
    """Replace every BatchNorm inside `network` by a GroupNorm (Wu and He 2018) over as many channels; return it.

    No random number is drawn: the other weights are those of the BatchNorm network of the same seed.

    >>> use_group_norm(nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)))[1]
    GroupNorm(8, 16, eps=1e-05, affine=True, bias=True)
    """
    if isinstance(network, nn.modules.batchnorm._BatchNorm):
        return nn.GroupNorm(groups(network.num_features), network.num_features)
    for name, child in network.named_children():
        setattr(network, name, use_group_norm(child))
    return network


def batch_norms(network: nn.Module) -> list[str]:
    """Names of the BatchNorm layers inside `network`.

    >>> batch_norms(nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)))
    ['1']
    """
    return [name for name, layer in network.named_modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


def groups(channels: int) -> int:
    """The most groups, 32 at most, that divide `channels` and hold two or more: one value alone has no variance.

    >>> groups(256), groups(88), groups(16), groups(7)
    (32, 22, 8, 1)
    """
    return max(count for count in range(1, _MOST_GROUPS + 1) if channels % count == 0 and 2 * count <= max(2, channels))
