"""The user's own data: `npz:PATH`, arrays in one file, and `folder:PATH`, images in one folder per class.

Sizes and classes are public: they come from file headers, folder names and labels. Nothing is ever computed from the
private images, so that normalisation is by the constant 0.5.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dirdp.datasets import DataError, Dataset, DatasetInfo, MissingFileError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torchvision.datasets import ImageFolder

_DAMAGE = (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error)
_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
_GREY, _COLOUR = ("1", "L", "LA"), ("P", "RGB", "RGBA", "CMYK", "YCbCr")


def npz_info(path: Path) -> DatasetInfo:
    """Size and shape of the arrays in `path`, from their headers and the labels; no image is read.

    `train_images`, `test_images` are uint8 (N, S, S) or (N, S, S, C), `train_labels`, `test_labels` integers (N,) or
    (N, 1); the number of classes is the greatest label + 1. Raises `DataError` for anything else.
    """
    with _npz(path) as arrays:
        shapes = {part: _image_shape(path, f"{part}_images") for part in ("train", "test")}
        labels = {part: _labels(path, arrays, f"{part}_labels") for part in ("train", "test")}
    if shapes["train"][1:] != shapes["test"][1:]:
        raise DataError(f"{path}: train_images is {shapes['train']} and test_images is {shapes['test']}")
    sizes = {part: len(labels[part]) for part in labels}
    for part, size in sizes.items():
        if size == 0:
            raise DataError(f"{path}: expected records in {part}_labels, found none")
        if size != shapes[part][0]:
            raise DataError(f"{path}: {part}_images has {shapes[part][0]} records and {part}_labels has {size}")
    classes = int(max(part.max() for part in labels.values())) + 1
    return _info(f"npz:{path}", classes, shapes["train"][1], shapes["train"][2], sizes["train"], sizes["test"])


def npz(info: DatasetInfo, root: Path | None) -> Dataset:
    """The arrays of the file that `info.name` names."""
    path = Path(info.name.removeprefix("npz:"))
    with _npz(path) as arrays:
        try:
            images = [_channels_first(arrays[f"{part}_images"]) for part in ("train", "test")]
        except _DAMAGE as error:
            raise DataError(f"{path} is damaged ({error})") from error
        labels = [torch.from_numpy(_labels(path, arrays, f"{part}_labels")) for part in ("train", "test")]
    return Dataset(info, images[0], labels[0], images[1], labels[1])


@contextmanager
def _npz(path: Path) -> Iterator[np.lib.npyio.NpzFile]:
    """An open archive that has the four arrays."""
    if not path.is_file():
        raise MissingFileError(f"expected the file {path}, found none")
    try:
        arrays = np.load(path)
    except _DAMAGE as error:
        raise DataError(f"{path} is truncated or no .npz archive ({error})") from error
    if not isinstance(arrays, np.lib.npyio.NpzFile):
        raise DataError(f"{path} is a single array; expected an .npz archive with {', '.join(_ARRAYS)}")
    with arrays:
        if missing := [name for name in _ARRAYS if name not in arrays.files]:
            raise DataError(f"{path} has no {', '.join(missing)}; expected {', '.join(_ARRAYS)}, found {arrays.files}")
        yield arrays


def _image_shape(path: Path, name: str) -> tuple[int, int, int]:
    """(records, channels, side) of an array of images, from its header."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
    except _DAMAGE as error:
        raise DataError(f"{path}: the header of {name} cannot be read ({error})") from error
    if dtype != np.uint8 or len(shape) not in (3, 4) or shape[1] != shape[2]:
        raise DataError(f"{path}: {name} must be uint8 (N, S, S) or (N, S, S, C), square, got {dtype} {shape}")
    return shape[0], shape[3] if len(shape) == 4 else 1, shape[1]


def _labels(path: Path, arrays: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    """Labels as int64 (N,)."""
    try:
        labels = arrays[name]
    except _DAMAGE as error:
        raise DataError(f"{path}: {name} cannot be read ({error})") from error
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise DataError(f"{path}: {name} is multi-label, {labels.shape}: a softmax has one class per image")
    if labels.dtype.kind not in "iu" or labels.ndim not in (1, 2):
        raise DataError(f"{path}: {name} must be integers (N,) or (N, 1), got {labels.dtype} {labels.shape}")
    return labels.reshape(-1).astype(np.int64)


def _channels_first(images: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)))


def folder_info(path: Path) -> DatasetInfo:
    """Size and shape of the images in `path`/train/CLASS and `path`/test/CLASS, from their names and the first one.

    All must be square, of one size, with 8 bits a channel, in a format that torchvision's `ImageFolder` knows. Classes
    are numbered in the order of their folders' names. Raises `DataError` for anything else.
    """
    train, test = _listing(path, "train"), _listing(path, "test")
    if train.classes != test.classes:
        raise DataError(f"{path}: train and test must have the same classes, found {train.classes} and {test.classes}")
    file = train.samples[0][0]
    with _open(Path(file)) as first:
        channels, (width, height) = _channels(first, file), first.size
    if width != height:
        raise DataError(f"{file}: expected a square image, found {width}×{height} pixels; crop the images first")
    return _info(f"folder:{path}", len(train.classes), channels, width, len(train.samples), len(test.samples))


def folder(info: DatasetInfo, root: Path | None) -> Dataset:
    """The images under the folder that `info.name` names; grey ones among coloured ones become coloured."""
    path = Path(info.name.removeprefix("folder:"))
    (train_images, train_labels), (test_images, test_labels) = (
        _read(info, _listing(path, part).samples) for part in ("train", "test")
    )
    return Dataset(info, train_images, train_labels, test_images, test_labels)


@lru_cache(maxsize=8)
def _listing(path: Path, part: str) -> ImageFolder:
    """The images of a part and their classes, by name; kept, since a large folder takes a while to list."""
    from torchvision.datasets import ImageFolder

    if not (path / part).is_dir():
        raise MissingFileError(f"expected the folder {path / part} with one folder per class, found none")
    try:
        return ImageFolder(str(path / part))
    except OSError as error:
        raise DataError(f"{path / part}: expected one folder of images per class ({error})") from error


def _read(info: DatasetInfo, samples: list[tuple[str, int]]) -> tuple[Tensor, Tensor]:
    images = np.empty((len(samples), info.image_size, info.image_size, info.channels), np.uint8)
    for index, (file, _) in enumerate(samples):
        with _open(Path(file)) as image:
            if image.size != (info.image_size, info.image_size):
                raise DataError(
                    f"{file}: expected {info.image_size}×{info.image_size} pixels, as the first image has, "
                    f"found {image.size[0]}×{image.size[1]}; resize the images first"
                )
            if _channels(image, file) > info.channels:
                raise DataError(f"{file}: expected a grey image, as the first image is, found mode {image.mode}")
            try:
                pixels = np.asarray(image.convert("L" if info.channels == 1 else "RGB"))
            except OSError as error:
                raise DataError(f"{file} is truncated ({error})") from error
            images[index] = pixels.reshape(info.image_size, info.image_size, info.channels)
    return _channels_first(images), torch.tensor([label for _, label in samples], dtype=torch.int64)


def _open(file: Path) -> Image:
    """An image whose header has been read."""
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(file)
    except UnidentifiedImageError as error:
        raise DataError(f"{file} is no image, or truncated") from error


def _channels(image: Image, file: str) -> int:
    if image.mode in (*_GREY, *_COLOUR):
        return 1 if image.mode in _GREY else 3
    raise DataError(f"{file}: expected 8 bits a channel, mode {', '.join((*_GREY, *_COLOUR))}, found {image.mode}")


def _info(name: str, classes: int, channels: int, side: int, train: int, test: int) -> DatasetInfo:
    half = (0.5,) * channels
    return DatasetInfo(name, classes, channels, side, train, test, half, half)
