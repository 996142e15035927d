"""Loaders of digits, MNIST, FashionMNIST and CIFAR10 on small files of the true format, and on the real ones."""

import hashlib
import os
import pickle
import struct
from itertools import chain

import numpy as np
import pytest
import torch
import torchvision

from dirdp import datasets
from dirdp.datasets import DataError, MissingFileError, natural

TRAIN, TEST = 7, 3
IDX = {"mnist": "MNIST", "fashionmnist": "FashionMNIST"}
IDX_FILES = {
    "train-images-idx3-ubyte": (TRAIN, 28, 28),
    "train-labels-idx1-ubyte": (TRAIN,),
    "t10k-images-idx3-ubyte": (TEST, 28, 28),
    "t10k-labels-idx1-ubyte": (TEST,),
}
CIFAR_FILES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
RECORD = 1 + 3 * 32 * 32


def idx(array):
    """The idx format: two zero bytes, type 8 (uint8), number of axes, the axes big-endian, the bytes."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def random_bytes(shape, *, below=256):
    return np.random.default_rng(sum(shape)).integers(0, below, shape, dtype=np.uint8)


@pytest.fixture(params=IDX)
def idx_set(request, tmp_path, resize):
    """(name, root, folder, arrays) of a small MNIST or FashionMNIST."""
    resize(request.param, TRAIN, TEST)
    folder = tmp_path / IDX[request.param] / "raw"
    folder.mkdir(parents=True)
    arrays = {file: random_bytes(shape, below=256 if len(shape) == 3 else 10) for file, shape in IDX_FILES.items()}
    for file, array in arrays.items():
        (folder / file).write_bytes(idx(array))
    return request.param, tmp_path, folder, arrays


@pytest.fixture
def cifar_set(tmp_path, resize, monkeypatch):
    """(root, folder, records) of a small CIFAR10 in its binary format: two records a file."""
    resize("cifar10", 10, 2)
    monkeypatch.setattr(natural, "_CIFAR_FILE", 2 * RECORD)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    records = random_bytes((6, 2, RECORD))
    records[:, :, 0] %= 10
    for file, content in zip(CIFAR_FILES, records, strict=True):
        (folder / file).write_bytes(content.tobytes())
        monkeypatch.setitem(natural._CIFAR_BINARY_MD5, file, hashlib.md5(content.tobytes()).hexdigest())
    return tmp_path, folder, records


def contents(root):
    """Every path under `root` with its mode, time and bytes."""
    return {
        path: (path.stat().st_mode, path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in [root, *root.rglob("*")]
    }


def assert_load_leaves_alone(name, root):
    """Loading needs no right to write, and changes nothing (root may write in spite of the mode)."""
    for path in [*root.rglob("*"), root]:
        path.chmod(path.stat().st_mode & ~0o222)
    before = contents(root)
    try:
        datasets.load(name, root=root)
        assert contents(root) == before
    finally:
        for path in [root, *root.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o200)


def test_digits_are_scikit_learns_with_every_fifth_for_testing():
    from sklearn.datasets import load_digits

    source = load_digits()
    data = datasets.load("digits")
    assert data.train_images.shape == (1437, 1, 8, 8) and data.test_images.shape == (360, 1, 8, 8)
    test = [i for i in range(1797) if i % 5 == 0]
    train = [i for i in range(1797) if i % 5]
    for images, labels, rows in (
        (data.train_images, data.train_labels, train),
        (data.test_images, data.test_labels, test),
    ):
        assert labels.tolist() == source.target[rows].tolist()
        assert images.dtype == torch.uint8 and labels.dtype == torch.int64
        # 17 grey levels, 0 to 16, onto 0 to 255
        np.testing.assert_allclose(images[:, 0].numpy() * (16 / 255), source.images[rows], atol=0.04)
    assert (data.train_images.min(), data.train_images.max()) == (0, 255)


# MNIST and FashionMNIST


def test_idx_files_are_read_as_they_are(idx_set):
    name, root, _, arrays = idx_set
    data = datasets.load(name, root=root)
    images, labels, test_images, test_labels = (torch.from_numpy(array) for array in arrays.values())
    assert torch.equal(data.train_images, images[:, None]) and torch.equal(data.test_images, test_images[:, None])
    assert data.train_labels.tolist() == labels.tolist() and data.test_labels.tolist() == test_labels.tolist()
    assert data.train_images.dtype == torch.uint8 and data.train_labels.dtype == data.test_labels.dtype == torch.int64
    assert data.info == datasets.info(name)
    assert torch.equal(datasets.load(name, root=str(root)).train_images, data.train_images)


@pytest.mark.parametrize("file", IDX_FILES)
def test_a_missing_idx_file_is_named(idx_set, file):
    name, root, folder, _ = idx_set
    (folder / file).unlink()
    with pytest.raises(DataError) as caught:
        datasets.load(name, root=root)
    assert isinstance(caught.value, MissingFileError)
    assert str(caught.value).startswith(f"dataset '{name}': expected the file {folder / file}, found none")


@pytest.mark.parametrize("file", IDX_FILES)
@pytest.mark.parametrize("length", [0, 3, 6, 8, -1])
@pytest.mark.parametrize("unofficial", [False, True])
def test_a_truncated_idx_file_is_refused(idx_set, file, length, unofficial):
    name, root, folder, _ = idx_set
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[:length])
    with pytest.raises(DataError, match=f"dataset '{name}'") as caught:
        datasets.load(name, root=root, allow_unofficial=unofficial)
    message = str(caught.value)
    if unofficial:
        assert "damaged" in message and str(folder) in message
    else:
        found = len(content[:length])
        assert f"{folder / file} is truncated: expected {len(content)} bytes, found {found}" in message


@pytest.mark.parametrize("file", IDX_FILES)
@pytest.mark.parametrize(
    "head",
    [b"\0" * 9, b"<html>not found</html>", struct.pack(">HBBI", 0, 10, 1, 7), struct.pack(">HBBI", 0, 13, 1, 4)],
    ids=["zeros", "a page", "an unused type", "floats"],
)
def test_what_is_no_idx_file_is_damaged(idx_set, file, head):
    """Of the right length, so that only its content tells."""
    name, root, folder, _ = idx_set
    content = (head + (folder / file).read_bytes()[len(head) :])[: (folder / file).stat().st_size]
    (folder / file).write_bytes(content)
    with pytest.raises(DataError, match=r"damaged|expected .* (images|labels) ") as caught:
        datasets.load(name, root=root)
    assert name in str(caught.value)


@pytest.mark.parametrize("shape", [(TRAIN - 1, 28, 28), (TRAIN, 27, 28)])
def test_idx_images_of_another_number_or_size_are_refused(idx_set, shape):
    name, root, folder, _ = idx_set
    (folder / "train-images-idx3-ubyte").write_bytes(idx(random_bytes(shape)))
    with pytest.raises(DataError, match="truncated: expected 5504 bytes"):
        datasets.load(name, root=root)
    with pytest.raises(DataError, match=r"expected train images .*\(7, 1, 28, 28\)"):
        datasets.load(name, root=root, allow_unofficial=True)


def test_a_label_outside_the_classes_is_refused(idx_set):
    name, root, folder, _ = idx_set
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(np.array([0, 11, 3], dtype=np.uint8)))
    with pytest.raises(DataError, match="expected test labels from 0 to 9, found 0 to 11"):
        datasets.load(name, root=root)


def test_an_idx_folder_may_be_read_only(idx_set):
    name, root, *_ = idx_set
    assert_load_leaves_alone(name, root)


# CIFAR10


def test_cifar_binaries_are_read_as_they_are(cifar_set):
    root, _, records = cifar_set
    data = datasets.load("cifar10", root=root)
    flat = records.reshape(12, RECORD)
    assert data.train_labels.tolist() == flat[:10, 0].tolist() and data.test_labels.tolist() == flat[10:, 0].tolist()
    assert data.train_images.shape == (10, 3, 32, 32) and data.train_images.dtype == torch.uint8
    assert data.train_labels.dtype == data.test_labels.dtype == torch.int64
    for record in range(12):
        image = data.train_images[record] if record < 10 else data.test_images[record - 10]
        for channel, row, column in [(0, 0, 0), (0, 0, 31), (1, 5, 7), (2, 31, 0), (2, 31, 31)]:
            assert image[channel, row, column] == flat[record, 1 + 1024 * channel + 32 * row + column]


@pytest.mark.parametrize("file", CIFAR_FILES)
def test_a_missing_cifar_file_is_named(cifar_set, file):
    root, folder, _ = cifar_set
    (folder / file).unlink()
    with pytest.raises(DataError) as caught:
        datasets.load("cifar10", root=root)
    assert isinstance(caught.value, MissingFileError)
    missing = folder.with_name("cifar-10-batches-bin") / file
    assert str(caught.value).startswith(f"dataset 'cifar10': expected the file {missing}, found none")


@pytest.mark.parametrize("file", CIFAR_FILES)
@pytest.mark.parametrize("length", [0, 1, RECORD, 2 * RECORD - 1, 2 * RECORD + 1, 3 * RECORD])
@pytest.mark.parametrize("unofficial", [False, True])
def test_a_cifar_file_of_the_wrong_length_is_named(cifar_set, file, length, unofficial):
    root, folder, _ = cifar_set
    (folder / file).write_bytes(b"\0" * length)
    with pytest.raises(DataError) as caught:
        datasets.load("cifar10", root=root, allow_unofficial=unofficial)
    message = str(caught.value)
    assert f"dataset 'cifar10': {folder / file} is " in message
    assert f"expected {2 * RECORD} bytes, found {length}" in message


def test_a_changed_byte_of_cifar_is_found_and_read_only_if_allowed(cifar_set):
    root, folder, records = cifar_set
    assert not datasets.load("cifar10", root=root).unofficial
    datasets.load.cache_clear()
    records[3, 1, 500] ^= 1
    (folder / "data_batch_4.bin").write_bytes(records[3].tobytes())
    with pytest.raises(DataError, match=r"data_batch_4.bin is not the official file: expected MD5"):
        datasets.load("cifar10", root=root)
    assert datasets.load("cifar10", root=root, allow_unofficial=True).unofficial


def test_the_real_cifar_files_hold_ten_thousand_records():
    assert natural._CIFAR_FILE == 30_730_000


def test_a_cifar_folder_may_be_read_only(cifar_set):
    assert_load_leaves_alone("cifar10", cifar_set[0])


@pytest.fixture
def cifar_pickles(tmp_path, resize, monkeypatch):
    """(root, folder, data, labels) of a small CIFAR10 in the format torchvision keeps, checksums and all."""
    resize("cifar10", 10, 2)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    data, labels = random_bytes((6, 2, 3072)), random_bytes((6, 2), below=10).tolist()
    sums = {}
    for file, rows, classes in zip(CIFAR_FILES, data, labels, strict=True):
        content = pickle.dumps({"data": rows, "labels": classes})
        (folder / file.removesuffix(".bin")).write_bytes(content)
        sums[file.removesuffix(".bin")] = hashlib.md5(content).hexdigest()
    meta = pickle.dumps({"label_names": list("abcdefghij")})
    (folder / "batches.meta").write_bytes(meta)
    reader = torchvision.datasets.CIFAR10
    *train, test = sums.items()
    monkeypatch.setattr(reader, "train_list", [list(pair) for pair in train])
    monkeypatch.setattr(reader, "test_list", [list(test)])
    monkeypatch.setattr(
        reader,
        "meta",
        {"filename": "batches.meta", "key": "label_names", "md5": hashlib.md5(meta).hexdigest()},
    )
    return tmp_path, folder, data, labels


def test_torchvisions_cifar_pickles_are_read_too(cifar_pickles):
    root, _, data, labels = cifar_pickles
    loaded = datasets.load("cifar10", root=root)
    flat = torch.from_numpy(data.reshape(12, 3, 32, 32))
    assert torch.equal(loaded.train_images, flat[:10]) and torch.equal(loaded.test_images, flat[10:])
    assert loaded.train_images.is_contiguous() and loaded.train_images.dtype == torch.uint8
    assert loaded.train_labels.tolist() == list(chain(*labels[:5])) and loaded.test_labels.tolist() == labels[5]
    assert loaded.train_labels.dtype == torch.int64


def test_damaged_cifar_pickles_are_refused(cifar_pickles):
    root, folder, *_ = cifar_pickles
    (folder / "data_batch_3").write_bytes((folder / "data_batch_3").read_bytes()[:-1])
    for unofficial in (False, True):
        with pytest.raises(DataError, match=r"'cifar10': .*cifar-10-batches-py/data_batch_3 is truncated"):
            datasets.load("cifar10", root=root, allow_unofficial=unofficial)


def test_a_pickle_that_is_not_the_published_one_is_never_read(cifar_pickles):
    """Reading it could run anything; here it would make a file."""
    root, folder, *_ = cifar_pickles
    made = root / "made"
    code = f"cbuiltins\nopen\n(S'{made}'\nS'w'\ntR."
    (folder / "data_batch_3").write_bytes(code.encode())
    for unofficial in (False, True):
        with pytest.raises(DataError, match="is a pickle, which is read only if it is the official one"):
            datasets.load("cifar10", root=root, allow_unofficial=unofficial)
    with pytest.raises(DataError, match="is a pickle"):
        natural.cifar10(datasets.info("cifar10"), root)  # nor by one who forgets to check first
    assert not made.exists()
    pickle.loads(code.encode()).close()
    assert made.exists()


def test_a_folder_of_cifar_pickles_may_be_read_only(cifar_pickles):
    assert_load_leaves_alone("cifar10", cifar_pickles[0])


# Real data


def test_real_mnist(data_root):
    data = datasets.load("mnist", root=data_root)
    assert data.train_images.shape == (60_000, 1, 28, 28) and data.test_images.shape == (10_000, 1, 28, 28)
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.train_labels.bincount().tolist() == train
    assert data.test_labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.train_labels[:5].tolist() == [5, 0, 4, 1, 9]
    pixels = data.train_images.float() / 255
    assert pixels.mean().item() == pytest.approx(data.info.mean[0], abs=1e-4)
    assert pixels.std().item() == pytest.approx(data.info.std[0], abs=1e-4)


def test_real_fashionmnist(data_root):
    if not os.path.isdir(data_root / "FashionMNIST"):
        pytest.skip("DIRDP_DATA holds no FashionMNIST")
    data = datasets.load("fashionmnist", root=data_root)
    assert data.train_labels.bincount().tolist() == [6000] * 10
    assert data.test_labels.bincount().tolist() == [1000] * 10


def test_real_cifar10(data_root):
    data = datasets.load("cifar10", root=data_root)
    assert data.train_images.shape == (50_000, 3, 32, 32) and data.test_images.shape == (10_000, 3, 32, 32)
    assert data.train_labels.bincount().tolist() == [5000] * 10
    assert data.test_labels.bincount().tolist() == [1000] * 10
    assert data.train_labels[:5].tolist() == [6, 9, 9, 4, 1]
    for channel, (mean, std) in enumerate(zip(data.info.mean, data.info.std, strict=True)):
        pixels = data.train_images[:, channel].float() / 255
        assert pixels.mean().item() == pytest.approx(mean, abs=1e-4)
        assert pixels.std().item() == pytest.approx(std, abs=1e-3)
