"""Loaders of digits, MNIST, FashionMNIST, CIFAR10 and SVHN, and the files that each is published as."""

from __future__ import annotations

import pickle
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dirdp.datasets import DataError, Dataset, DatasetInfo, checksums
from dirdp.datasets.checksums import PublishedFile

_CIFAR_RECORD = 1 + 3 * 32 * 32
_CIFAR_FILE = 10_000 * _CIFAR_RECORD
# MD5 of files whose SHA-1 are those that Apache MXNet's Gluon lists for the official binary version.
_CIFAR_BINARY_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
# What http://ufldl.stanford.edu/housenumbers sends as Content-Length; torchvision has the MD5 only.
_SVHN_SIZES = {"train": 182_040_794, "test": 64_275_384}


def digits(info: DatasetInfo, root: Path | None) -> Dataset:
    """scikit-learn's 1,797 handwritten digits of 8×8; every fifth one is a test record."""
    from sklearn.datasets import load_digits

    source = load_digits()
    images = torch.from_numpy((source.images * (255 / 16)).round().astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(source.target.astype(np.int64))
    test = torch.arange(len(labels)) % 5 == 0
    return Dataset(info, images[~test], labels[~test], images[test], labels[test])


def mnist_files(info: DatasetInfo, root: Path) -> list[PublishedFile]:
    """The four idx files, images and labels in turn, where torchvision keeps them: `root`/MNIST/raw.

    Their sizes follow from the format. torchvision knows the MD5 of the compressed files only, so another file of the
    right size is not found out here; `sweep data prepare` checks the compressed ones.
    """
    folder = root / {"mnist": "MNIST", "fashionmnist": "FashionMNIST"}[info.name] / "raw"
    pixels = info.channels * info.image_size**2
    return [
        PublishedFile(folder / f"{part}-{kind}", size=header + records * record)
        for part, records in (("train", info.train_size), ("t10k", info.test_size))
        for kind, header, record in (("images-idx3-ubyte", 16, pixels), ("labels-idx1-ubyte", 8, 1))
    ]


def mnist(info: DatasetInfo, root: Path | None) -> Dataset:
    """MNIST or FashionMNIST from the files of `mnist_files`."""
    from torchvision.datasets.mnist import read_image_file, read_label_file

    paths = [str(file.path) for file in mnist_files(info, _root(info, root))]
    try:
        train, test = (
            (read_image_file(images).unsqueeze(1), read_label_file(labels)) for images, labels in (paths[:2], paths[2:])
        )
    except (RuntimeError, ValueError, TypeError, LookupError, AssertionError, OSError) as error:
        folder = Path(paths[0]).parent
        raise DataError(f"dataset {info.name!r}: the files in {folder} are damaged ({error})") from error
    return Dataset(info, *train, *test)


def cifar10_files(info: DatasetInfo, root: Path) -> list[PublishedFile]:
    """torchvision's six pickles or, where only those are present, the official binary files; the test batch last."""
    from torchvision.datasets import CIFAR10

    pickles, binaries = root / CIFAR10.base_folder, root / "cifar-10-batches-bin"
    if binaries.is_dir() and not pickles.is_dir():
        return [PublishedFile(binaries / file, _CIFAR_FILE, md5) for file, md5 in _CIFAR_BINARY_MD5.items()]
    batches = [*CIFAR10.train_list, *CIFAR10.test_list]
    return [PublishedFile(pickles / file, md5=md5, runs_code=True) for file, md5 in batches]


def cifar10(info: DatasetInfo, root: Path | None) -> Dataset:
    """CIFAR10 from the files of `cifar10_files`."""
    files = cifar10_files(info, _root(info, root))
    batches = [_cifar_pickle(file) if file.runs_code else _cifar_binary(file) for file in files]
    images = [torch.from_numpy(batch.reshape(-1, 3, 32, 32)) for batch, _ in batches]
    labels = [torch.from_numpy(batch.astype(np.int64)) for _, batch in batches]
    return Dataset(info, torch.cat(images[:-1]), torch.cat(labels[:-1]), images[-1], labels[-1])


def _cifar_pickle(file: PublishedFile) -> tuple[np.ndarray, np.ndarray]:
    checksums.check("cifar10", [file])  # whoever calls: an unchecked pickle is never read
    with file.path.open("rb") as source:
        batch = pickle.load(source, encoding="latin1")
    return batch["data"], np.asarray(batch["labels"])


def _cifar_binary(file: PublishedFile) -> tuple[np.ndarray, np.ndarray]:
    size = file.path.stat().st_size
    if size != _CIFAR_FILE:
        raise DataError(
            f"dataset 'cifar10': {file.path} is truncated or wrong, expected {_CIFAR_FILE} bytes, found {size}"
        )
    records = np.fromfile(file.path, np.uint8).reshape(-1, _CIFAR_RECORD)
    return records[:, 1:], records[:, 0]


def svhn_files(info: DatasetInfo, root: Path) -> list[PublishedFile]:
    """The two MATLAB files of cropped digits, train and test, that torchvision reads; the "extra" set is not used."""
    from torchvision.datasets import SVHN

    return [
        PublishedFile(root / file, _SVHN_SIZES[part], md5)
        for part, (_, file, md5) in SVHN.split_list.items()
        if part in _SVHN_SIZES
    ]


def svhn(info: DatasetInfo, root: Path | None) -> Dataset:
    """SVHN from the files of `svhn_files`; the files write the digit 0 as 10, here it is 0."""
    (train_images, train_labels), (test_images, test_labels) = (
        _svhn_part(file.path) for file in svhn_files(info, _root(info, root))
    )
    return Dataset(info, train_images, train_labels, test_images, test_labels)


def _svhn_part(path: Path) -> tuple[Tensor, Tensor]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        arrays = loadmat(path, variable_names=["X", "y"])
        images, digits = arrays["X"].transpose(3, 2, 0, 1), arrays["y"].reshape(-1).astype(np.int64)
    except (MatReadError, ValueError, TypeError, LookupError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"dataset 'svhn': {path} is damaged ({error})") from error
    return torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(np.where(digits == 10, 0, digits))


def _root(info: DatasetInfo, root: Path | None) -> Path:
    if root is None:
        raise DataError(f"dataset {info.name!r} needs a data folder: set DIRDP_DATA or pass --data")
    return root
