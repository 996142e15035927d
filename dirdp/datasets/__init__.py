"""Data sets by name, whole and in memory: uint8 images, int64 labels, and what is public about them.

The registry answers questions of size and shape without reading a file, so that a plan can be checked before
anything starts. Nothing here downloads. Channel means and deviations are published constants (or 0.5 where none
is), never computed from the private images, since that would be a release of its own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from dirdp.datasets.checksums import PublishedFile

__all__ = [
    "DataError",
    "Dataset",
    "DatasetInfo",
    "MissingFileError",
    "canonical",
    "check",
    "info",
    "load",
    "names",
    "training_size",
]


class DataError(ValueError):
    """A data set is unknown, missing or damaged; the message names path, what was expected and what was found."""


class MissingFileError(DataError):
    """A file of a data set is not there."""


@dataclass(frozen=True)
class DatasetInfo:
    """What is public about a data set before it is read.

    `train_size`, `test_size` and `validation_size` count records, the last one 0 where the publisher splits off no
    validation set; `image_size` is the side in pixels, `mean` and `std` are per channel for images scaled to [0, 1].
    """

    name: str
    classes: int
    channels: int
    image_size: int
    train_size: int
    test_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    validation_size: int = 0


@dataclass(frozen=True)
class Dataset:
    """A data set in memory: images uint8 (N, C, H, W), labels int64 (N,).

    `validation` is the publisher's own validation set, images and labels, where there is one. `unofficial` says that
    a file was read which is not the published one.
    """

    info: DatasetInfo
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    validation: tuple[Tensor, Tensor] | None = None
    unofficial: bool = False

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the training images and labels, which tells private data sets apart, whatever their name.

        >>> load("digits").fingerprint[:12]
        'ce36cf39979a'
        """
        digest = hashlib.sha256(repr(tuple(self.train_images.shape)).encode())
        for tensor in (self.train_images, self.train_labels):
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()


_INFOS = {
    "digits": DatasetInfo("digits", 10, 1, 8, 1437, 360, (0.3,), (0.37,)),
    "mnist": DatasetInfo("mnist", 10, 1, 28, 60_000, 10_000, (0.1307,), (0.3081,)),
    "fashionmnist": DatasetInfo("fashionmnist", 10, 1, 28, 60_000, 10_000, (0.2860,), (0.3530,)),
    "cifar10": DatasetInfo("cifar10", 10, 3, 32, 50_000, 10_000, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "svhn": DatasetInfo("svhn", 10, 3, 32, 73_257, 26_032, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
}
_DERMAMNIST = "dermamnist"
_USERS = ("npz", "folder")


def names() -> list[str]:
    """Names that `info` and `load` know.

    `medmnist:NAME` stands for MedMNIST's 2-D single-label sets, `npz:PATH` and `folder:PATH` for the user's own data.
    """
    return [*_INFOS, _DERMAMNIST, "medmnist:NAME", *(f"{kind}:PATH" for kind in _USERS)]


def canonical(name: str) -> str:
    """The one name of a data set, valid in every folder: a path becomes absolute.

    >>> canonical("medmnist:dermamnist"), canonical("npz:/data/a/../mine.npz")
    ('dermamnist', 'npz:/data/mine.npz')
    """
    kind, _, rest = name.partition(":")
    if kind in _USERS and rest:
        return f"{kind}:{os.path.abspath(os.path.expanduser(rest))}"
    return _DERMAMNIST if name == f"medmnist:{_DERMAMNIST}" else name


@lru_cache
def info(name: str) -> DatasetInfo:
    """Size, shape and normalisation of the data set `name`, without reading its images.

    Raises `DataError` for an unknown name, or one whose labels are not one class per image.

    >>> info("digits").train_size
    1437
    """
    if name in _INFOS:
        return _INFOS[name]
    name = canonical(name)
    kind, _, rest = name.partition(":")
    if (kind == "medmnist" and rest) or name == _DERMAMNIST:
        from dirdp.datasets import medical

        return replace(medical.medmnist_info(rest or name), name=name)
    if kind in _USERS and rest:
        from dirdp.datasets import user

        return {"npz": user.npz_info, "folder": user.folder_info}[kind](Path(rest))
    raise DataError(f"unknown dataset {name!r}; choose from {', '.join(names())}")


def training_size(name: str, *, validation_fraction: float = 0.0) -> int:
    """Number of records trained on once `validation_fraction` of the training set is held out.

    >>> training_size("digits", validation_fraction=0.1)
    1293
    """
    size = info(name).train_size
    return size - round(size * validation_fraction)


@lru_cache(maxsize=2)
def load(name: str, *, root: str | Path | None = None, allow_unofficial: bool = False) -> Dataset:
    """Read the data set `name` whole into memory, from the folder `root` where it is published as files.

    Read-only, and the last two are kept, so that trials in one process read a file once. A file that is not the
    published one is read only with `allow_unofficial`. Raises `DataError` when files are missing, damaged or others.

    >>> data = load("digits")
    >>> data.train_images.shape, data.train_images.dtype, len(data.test_labels)
    (torch.Size([1437, 1, 8, 8]), torch.uint8, 360)
    """
    description = info(name)
    unofficial = check(name, root=root, allow_unofficial=allow_unofficial)
    data = _loader(description.name)(description, Path(root) if root is not None else None)
    where, side = f"dataset {name!r}" + (f" under {root}" if root is not None else ""), description.image_size
    for part, size, images, labels in (
        ("train", description.train_size, data.train_images, data.train_labels),
        ("test", description.test_size, data.test_images, data.test_labels),
        *([("validation", description.validation_size, *data.validation)] if data.validation else []),
    ):
        expected = ((size, description.channels, side, side), (size,))
        found = (tuple(images.shape), tuple(labels.shape))
        if found != expected:
            raise DataError(
                f"{where}: expected {part} images and labels of shapes {expected[0]} and {expected[1]}, "
                f"found {found[0]} and {found[1]}"
            )
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= description.classes:
            raise DataError(
                f"{where}: expected {part} labels from 0 to {description.classes - 1}, found {low} to {high}"
            )
    return replace(data, unofficial=unofficial)


def check(name: str, *, root: str | Path | None = None, allow_unofficial: bool = False) -> bool:
    """Whether a file of the data set `name` under `root` is not the published one; raises as `load` does.

    >>> check("digits")
    False
    """
    from dirdp.datasets import checksums

    description = info(name)
    files = _files(description.name)
    if files is None:
        return False
    if root is None:
        raise DataError(f"dataset {name!r} needs a data folder: set DIRDP_DATA or pass --data")
    return checksums.check(description.name, files(description, Path(root)), allow_unofficial=allow_unofficial)


def _loader(name: str) -> Callable[[DatasetInfo, Path | None], Dataset]:
    from dirdp.datasets import medical, natural, user

    return {
        "digits": natural.digits,
        "mnist": natural.mnist,
        "fashionmnist": natural.mnist,
        "cifar10": natural.cifar10,
        "svhn": natural.svhn,
        "npz": user.npz,
        "folder": user.folder,
    }.get(name.partition(":")[0], medical.medmnist)


def _files(name: str) -> Callable[[DatasetInfo, Path], list[PublishedFile]] | None:
    """What lists the published files of a data set; None where nothing is published as a file."""
    from dirdp.datasets import medical, natural

    return {
        "mnist": natural.mnist_files,
        "fashionmnist": natural.mnist_files,
        "cifar10": natural.cifar10_files,
        "svhn": natural.svhn_files,
        "medmnist": medical.medmnist_files,
        _DERMAMNIST: medical.medmnist_files,
    }.get(name.partition(":")[0])
