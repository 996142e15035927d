"""SVHN from small MATLAB files of the published layout."""

import numpy as np
import pytest
import torch
from scipy.io import savemat

from dirdp import datasets
from dirdp.datasets import DataError, MissingFileError

TRAIN, TEST = 12, 5


@pytest.fixture
def svhn(tmp_path, resize):
    """A folder with train_32x32.mat and test_32x32.mat, and what is in them."""
    resize("svhn", TRAIN, TEST)
    random, content = np.random.default_rng(0), {}
    for part, size in (("train", TRAIN), ("test", TEST)):
        images = random.integers(0, 256, (32, 32, 3, size), dtype=np.uint8)
        labels = (np.arange(size, dtype=np.uint8)[:, None] % 10) + 1
        savemat(tmp_path / f"{part}_32x32.mat", {"X": images, "y": labels}, do_compression=True)
        content[part] = images
    return tmp_path, content


def test_images_and_labels_are_those_of_the_file(svhn):
    root, content = svhn
    data = datasets.load("svhn", root=root, allow_unofficial=True)
    assert data.train_images.shape == (TRAIN, 3, 32, 32) and data.train_images.dtype == torch.uint8
    assert (data.train_images.permute(2, 3, 1, 0).numpy() == content["train"]).all()
    assert data.train_labels.dtype == torch.int64
    assert data.train_labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]  # 10 is written for 0
    assert data.unofficial


def test_missing_truncated_and_wrong_files_are_three_things(svhn):
    root, _ = svhn
    file = root / "train_32x32.mat"
    with pytest.raises(DataError, match=rf"{file} is truncated: expected 182040794 bytes, found {file.stat().st_size}"):
        datasets.load("svhn", root=root)
    with file.open("ab") as grown:
        grown.truncate(182_040_794)  # sparse
    with pytest.raises(DataError, match=rf"{file} is not the official file: expected MD5 e26dedcc.*, found [0-9a-f]+;"):
        datasets.load("svhn", root=root)
    file.unlink()
    with pytest.raises(MissingFileError, match=rf"expected the file {file}, found none; `sweep data prepare svhn`"):
        datasets.load("svhn", root=root, allow_unofficial=True)


def test_a_broken_file_is_no_data_even_if_unofficial_ones_are_allowed(svhn):
    root, _ = svhn
    file = root / "test_32x32.mat"
    whole = file.read_bytes()
    for content in (b"", b"no matlab file", whole[: len(whole) // 2]):
        file.write_bytes(content)
        with pytest.raises(DataError, match=rf"{file} is damaged"):
            datasets.load("svhn", root=root, allow_unofficial=True)


def test_labels_beyond_ten_are_refused(svhn):
    root, content = svhn
    labels = np.full((TRAIN, 1), 11)
    savemat(root / "train_32x32.mat", {"X": content["train"], "y": labels})
    with pytest.raises(DataError, match="expected train labels from 0 to 9, found 11 to 11"):
        datasets.load("svhn", root=root, allow_unofficial=True)


def test_the_published_sizes():
    info = datasets.info("svhn")
    assert (info.train_size, info.test_size, info.classes, info.channels, info.image_size) == (
        73_257,
        26_032,
        10,
        3,
        32,
    )
