"""The MedMNIST loader on small files of the same format, and on the real PneumoniaMNIST."""

import hashlib

import medmnist
import numpy as np
import pytest
import torch

from dirdp import datasets
from dirdp.datasets import DataError, MissingFileError

TRAIN, TEST = 6, 4


def md5(file):
    return hashlib.md5(file.read_bytes()).hexdigest()


@pytest.fixture
def publish(monkeypatch):
    """publish(flag, file): MedMNIST says of the file what it is, so that only its content can be wrong."""
    return lambda flag, file: monkeypatch.setitem(medmnist.INFO, flag, medmnist.INFO[flag] | {"MD5": md5(file)})


@pytest.fixture(params=["pneumoniamnist", "dermamnist"])
def small(request, tmp_path, monkeypatch, fresh_registry):
    """(flag, root, arrays) of a set as MedMNIST writes it: labels (N, 1), colour last, a validation part beside."""
    flag = request.param
    entry = medmnist.INFO[flag]
    generator = np.random.default_rng(0)
    shape = (28, 28) if entry["n_channels"] == 1 else (28, 28, 3)
    arrays = {}
    for part, size in (("train", TRAIN), ("val", 2), ("test", TEST)):
        arrays[f"{part}_images"] = generator.integers(0, 256, (size, *shape), dtype=np.uint8)
        arrays[f"{part}_labels"] = generator.integers(0, len(entry["label"]), (size, 1), dtype=np.uint8)
    file = tmp_path / f"{flag}.npz"
    np.savez(file, **arrays)
    sizes = {"train": TRAIN, "val": 2, "test": TEST}
    monkeypatch.setitem(medmnist.INFO, flag, entry | {"n_samples": sizes, "MD5": md5(file)})
    return flag, tmp_path, arrays


def test_arrays_are_read_as_they_are(small):
    flag, root, arrays = small
    data = datasets.load(f"medmnist:{flag}", root=root)
    for images, labels, part in (
        (data.train_images, data.train_labels, "train"),
        (*data.validation, "val"),
        (data.test_images, data.test_labels, "test"),
    ):
        given = arrays[f"{part}_images"]
        assert images.shape == (len(given), data.info.channels, 28, 28)
        assert images.dtype == torch.uint8 and images.is_contiguous()
        for channel in range(data.info.channels):
            plane = given if given.ndim == 3 else given[..., channel]
            assert np.array_equal(images[:, channel].numpy(), plane)
        assert labels.tolist() == arrays[f"{part}_labels"][:, 0].tolist()
        assert labels.dtype == torch.int64 and labels.shape == (len(given),)


def name_of(flag):
    return datasets.info(f"medmnist:{flag}").name


def test_a_missing_file_is_named(small):
    flag, root, _ = small
    (root / f"{flag}.npz").unlink()
    with pytest.raises(MissingFileError) as caught:
        datasets.load(f"medmnist:{flag}", root=root)
    expected = f"dataset '{name_of(flag)}': expected the file {root / flag}.npz, found none"
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize("unofficial", [False, True])
@pytest.mark.parametrize("kept", [0, 1, 100, 0.5, 0.99])
def test_a_truncated_file_is_refused(small, kept, unofficial):
    flag, root, _ = small
    file = root / f"{flag}.npz"
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    with pytest.raises(DataError, match=f"'{name_of(flag)}': .*(truncated|not the official|damaged)") as caught:
        datasets.load(f"medmnist:{flag}", root=root, allow_unofficial=unofficial)
    assert str(file) in str(caught.value)


def test_a_changed_byte_is_found(small, publish):
    flag, root, arrays = small
    file = root / f"{flag}.npz"
    content = bytearray(file.read_bytes())
    at = content.index(arrays["train_images"].tobytes()[:50])
    content[at + 20] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=f"{file} is not the official file: expected MD5"):
        datasets.load(f"medmnist:{flag}", root=root)
    publish(flag, file)  # with its own checksum too the archive knows
    with pytest.raises(DataError, match="damaged"):
        datasets.load(f"medmnist:{flag}", root=root)


def test_another_file_is_read_only_if_allowed_and_says_so(small):
    flag, root, arrays = small
    assert not datasets.load(f"medmnist:{flag}", root=root).unofficial
    datasets.load.cache_clear()
    np.savez(root / f"{flag}.npz", **arrays | {"train_images": 255 - arrays["train_images"]})
    with pytest.raises(DataError, match="not the official file"):
        datasets.load(f"medmnist:{flag}", root=root)
    assert datasets.load(f"medmnist:{flag}", root=root, allow_unofficial=True).unofficial


@pytest.mark.parametrize("content", [b"<html>not found</html>" * 50, b"\0" * 1000], ids=["a page", "zeros"])
def test_what_is_no_archive_is_damaged(small, publish, content):
    flag, root, _ = small
    (root / f"{flag}.npz").write_bytes(content)
    publish(flag, root / f"{flag}.npz")
    with pytest.raises(DataError, match="damaged"):
        datasets.load(f"medmnist:{flag}", root=root)


@pytest.mark.parametrize("missing", ["train_images", "train_labels", "test_images", "test_labels"])
def test_an_archive_without_an_array_is_damaged(small, publish, missing):
    flag, root, arrays = small
    np.savez(root / f"{flag}.npz", **{name: array for name, array in arrays.items() if name != missing})
    publish(flag, root / f"{flag}.npz")
    with pytest.raises(DataError, match=f"damaged .*{missing}"):
        datasets.load(f"medmnist:{flag}", root=root)


def test_a_file_of_larger_images_is_refused(small, publish):
    flag, root, arrays = small
    large = arrays | {"train_images": np.repeat(np.repeat(arrays["train_images"], 2, 1), 2, 2)}
    np.savez(root / f"{flag}.npz", **large)
    publish(flag, root / f"{flag}.npz")
    with pytest.raises(DataError, match=r"expected train images .* found \(6, \d, 56, 56\)"):
        datasets.load(f"medmnist:{flag}", root=root)


def test_a_file_of_another_number_of_records_is_refused(small, publish):
    flag, root, arrays = small
    short = arrays | {name: arrays[name][:-1] for name in ("test_images", "test_labels")}
    np.savez(root / f"{flag}.npz", **short)
    publish(flag, root / f"{flag}.npz")
    with pytest.raises(DataError, match=r"expected test images .*\(4, .* found \(3, "):
        datasets.load(f"medmnist:{flag}", root=root)


def test_a_read_only_folder_will_do_and_is_left_alone(small):
    flag, root, _ = small
    file = root / f"{flag}.npz"
    file.chmod(0o444)
    root.chmod(0o555)
    try:
        before = file.read_bytes(), file.stat().st_mtime_ns, root.stat().st_mtime_ns
        datasets.load(f"medmnist:{flag}", root=root)
        assert (file.read_bytes(), file.stat().st_mtime_ns, root.stat().st_mtime_ns) == before
        assert list(root.iterdir()) == [file]
    finally:
        root.chmod(0o755)


def test_real_pneumoniamnist(data_root):
    # Real images, but the archive may have been packed anew, which its MD5 tells.
    data = datasets.load("medmnist:pneumoniamnist", root=data_root, allow_unofficial=True)
    assert data.train_images.shape == (4708, 1, 28, 28) and data.test_images.shape == (624, 1, 28, 28)
    assert data.train_labels.bincount().tolist() == [1214, 3494]
    assert data.test_labels.bincount().tolist() == [234, 390]
    assert len(data.validation[1]) == 524
