"""MedMNIST's 2-D data sets with one class per image (Yang et al. 2023)."""

from __future__ import annotations

import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch

from dirdp.datasets import DataError, Dataset, DatasetInfo
from dirdp.datasets.checksums import PublishedFile

_SINGLE_LABEL = ("multi-class", "binary-class")


def single_label() -> list[str]:
    """The 2-D sets with one class per image.

    >>> single_label()[:4]
    ['pathmnist', 'dermamnist', 'octmnist', 'pneumoniamnist']
    """
    from medmnist import INFO

    return [flag for flag in INFO if INFO[flag]["task"] in _SINGLE_LABEL and not flag.endswith("3d")]


def medmnist_info(flag: str) -> DatasetInfo:
    """What MedMNIST publishes about the 28×28 set `flag`; a multi-label or ordinal set is refused with the reason."""
    from medmnist import INFO

    flat = single_label()
    if flag not in INFO or flag.endswith("3d"):
        raise DataError(f"unknown dataset 'medmnist:{flag}'; choose from {', '.join(flat)}")
    entry = INFO[flag]
    if flag not in flat:
        raise DataError(
            f"dataset 'medmnist:{flag}' is {entry['task']}: a softmax has one class per image; "
            f"choose from {', '.join(flat)}"
        )
    channels = entry["n_channels"]
    sizes = entry["n_samples"]
    half = (0.5,) * channels
    return DatasetInfo(
        f"medmnist:{flag}",
        classes=len(entry["label"]),
        channels=channels,
        image_size=28,
        train_size=sizes["train"],
        test_size=sizes["test"],
        mean=half,
        std=half,
        validation_size=sizes["val"],
    )


def medmnist_files(info: DatasetInfo, root: Path) -> list[PublishedFile]:
    """The one archive of a set, with MedMNIST's MD5."""
    from medmnist import INFO

    flag = info.name.rpartition(":")[2]
    return [PublishedFile(root / f"{flag}.npz", md5=INFO[flag]["MD5"])]


def medmnist(info: DatasetInfo, root: Path | None) -> Dataset:
    """The arrays of `root`/NAME.npz; labels of shape (N, 1) become int64 (N,)."""
    if root is None:
        raise DataError(f"dataset {info.name!r} needs a data folder: set DIRDP_DATA or pass --data")
    file = medmnist_files(info, root)[0].path
    try:
        with np.load(file) as arrays:
            train, validation, test = (
                _tensors(arrays[f"{part}_images"], arrays[f"{part}_labels"]) for part in ("train", "val", "test")
            )
    except (OSError, EOFError, ValueError, LookupError, BadZipFile, zlib.error) as error:
        raise DataError(
            f"dataset {info.name!r}: expected MedMNIST's arrays in {file}, found it damaged ({error})"
        ) from error
    return Dataset(info, *train, *test, validation=validation)


def _tensors(images: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    channels_first = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(channels_first)), torch.from_numpy(labels.reshape(-1).astype(np.int64))
