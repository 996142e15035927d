"""Networks by name, all with PyTorch's per-layer default initialisation.

A factory takes `in_channels`, `image_size` and `classes` by keyword and returns a module that maps images
(N, in_channels, image_size, image_size) to logits (N, classes). `import:package.module:factory` names the user's own.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

__all__ = ["build", "check", "names"]

# name -> module that holds a factory of the same name; looked up late, so that names cost no import of torch.
_FACTORIES = {
    "mlp": "dirdp.models.small",
    "cnn": "dirdp.models.small",
    "inception": "dirdp.models.inception",
    "resnet18": "dirdp.models.resnet",
    "resnet9": "dirdp.models.resnet9",
    "wrn40_4": "dirdp.models.wide",
    "papernot_cnn": "dirdp.models.papernot",
}
_OWN = "import:"


def names() -> list[str]:
    """Names that `build` knows; `import:MODULE:FACTORY` stands for a factory in any module that Python finds."""
    return [*_FACTORIES, f"{_OWN}MODULE:FACTORY"]


def check(name: str) -> None:
    """Raise `ValueError` for a name that `build` does not know, or a factory that cannot be imported."""
    if name not in _FACTORIES:
        _factory(name)


def build(
    name: str,
    *,
    in_channels: int,
    image_size: int,
    classes: int,
    norm: str = "batch",
    weight_standardization: bool = False,
) -> nn.Module:
    """Build the network `name` with fresh weights from PyTorch's global generator.

    `norm="group"` puts GroupNorm in the place of BatchNorm; `weight_standardization` standardises the weights of
    convolutions. Raises `ValueError` for an unknown name, or if a factory of
    the user's own makes no network of this shape.

    >>> sum(p.numel() for p in build("mlp", in_channels=1, image_size=8, classes=10).parameters())
    26634
    """
    network = _factory(name)(in_channels=in_channels, image_size=image_size, classes=classes)
    if norm == "group":
        from dirdp.models.normalization import use_group_norm

        network = use_group_norm(network)
    if weight_standardization:
        from dirdp.models.normalization import standardize_weights

        network = standardize_weights(network)
    if name.startswith(_OWN):
        _check_shape(name, network, shape=(in_channels, image_size, image_size), classes=classes)
    return network


def _factory(name: str) -> Callable[..., nn.Module]:
    module, _, attribute = name.removeprefix(_OWN).partition(":")
    if name in _FACTORIES:
        return getattr(import_module(_FACTORIES[name]), name)
    if not name.startswith(_OWN) or not module or not attribute:
        raise ValueError(f"unknown model {name!r}; choose from {', '.join(names())}")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"model {name!r} cannot be imported ({error}); it must be installed or on PYTHONPATH, on every node"
        ) from error


def _check_shape(name: str, network: Any, *, shape: tuple[int, int, int], classes: int) -> None:
    import torch

    if not isinstance(network, torch.nn.Module):
        raise ValueError(f"model {name!r}: expected the factory to return a torch.nn.Module, got {network!r}")
    with torch.no_grad():
        logits = network.eval()(torch.zeros(2, *shape))
    network.train()
    if tuple(logits.shape) != (2, classes):
        raise ValueError(
            f"model {name!r}: expected logits (2, {classes}) for images (2, {', '.join(map(str, shape))}), "
            f"got {tuple(logits.shape)}"
        )
