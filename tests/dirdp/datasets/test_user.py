"""The user's own data: `npz:PATH` and `folder:PATH`."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from dirdp import TrainingPlan, datasets, train
from dirdp.datasets import DataError, MissingFileError

RANDOM = np.random.default_rng(0)


def images(*shape):
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


def arrays(**changes):
    """Twelve grey images of 6×6 in three classes, six more to test on."""
    usual = {
        "train_images": images(12, 6, 6),
        "train_labels": np.arange(12) % 3,
        "test_images": images(6, 6, 6),
        "test_labels": np.arange(6) % 3,
    }
    return {name: array for name, array in (usual | changes).items() if array is not None}


@pytest.fixture
def npz(tmp_path):
    """npz(**arrays): the name of a data set in a file that has just these."""

    def write(**changes):
        path = tmp_path / "mine.npz"
        np.savez_compressed(path, **arrays(**changes))
        datasets.info.cache_clear()
        datasets.load.cache_clear()
        return f"npz:{path}"

    return write


def write_folder(root, *, side=6, mode="RGB", classes=("cat", "dog"), suffix="png"):
    for part, count in (("train", 3), ("test", 2)):
        for number, name in enumerate(classes):
            (root / part / name).mkdir(parents=True)
            for index in range(count):
                pixels = np.full((side, side, 3), 40 * number + index, np.uint8)
                Image.fromarray(pixels).convert(mode).save(root / part / name / f"{index}.{suffix}")
    return f"folder:{root}"


def test_an_npz_is_described_by_its_headers_and_labels(npz):
    info = datasets.info(npz(train_images=images(12, 6, 6, 3), test_images=images(6, 6, 6, 3)))
    assert (info.classes, info.channels, info.image_size, info.train_size, info.test_size) == (3, 3, 6, 12, 6)
    assert info.mean == info.std == (0.5, 0.5, 0.5)


def test_describing_an_npz_reads_no_image(npz, monkeypatch):
    name, read = npz(), []
    get = np.lib.npyio.NpzFile.__getitem__
    monkeypatch.setattr(np.lib.npyio.NpzFile, "__getitem__", lambda self, key: read.append(key) or get(self, key))
    datasets.info(name)
    assert sorted(read) == ["test_labels", "train_labels"]


@pytest.mark.parametrize("colours", [None, 1, 3])
def test_an_npz_is_read_as_it_is(npz, colours):
    shape = (6, 6) if colours is None else (6, 6, colours)
    content = arrays(
        train_images=images(12, *shape), test_images=images(6, *shape), train_labels=np.arange(12)[:, None] % 3
    )
    data = datasets.load(npz(**content))
    assert data.train_images.dtype == torch.uint8 and data.train_labels.dtype == torch.int64
    assert data.train_images.shape == (12, colours or 1, 6, 6) and data.train_labels.shape == (12,)
    assert data.train_labels.tolist() == [0, 1, 2] * 4
    assert (data.test_images.permute(0, 2, 3, 1).numpy() == content["test_images"].reshape(6, 6, 6, -1)).all()
    assert not data.unofficial and data.validation is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"test_labels": None}, "has no test_labels; expected train_images, train_labels, test_images, test_labels"),
        ({"train_labels": np.zeros((12, 14), int)}, r"train_labels is multi-label, \(12, 14\)"),
        ({"train_labels": np.zeros(12)}, r"must be integers .*, got float64 \(12,\)"),
        ({"train_labels": np.zeros(11, int)}, "train_images has 12 records and train_labels has 11"),
        ({"train_images": images(12, 6, 6).astype(float)}, r"must be uint8 .*, got float64 \(12, 6, 6\)"),
        ({"train_images": images(12, 6, 5)}, r"square, got uint8 \(12, 6, 5\)"),
        ({"train_images": images(12, 3, 6, 6)}, r"square, got uint8 \(12, 3, 6, 6\)"),
        ({"train_images": images(12, 5, 5)}, r"train_images is \(12, 1, 5\) and test_images is \(6, 1, 6\)"),
        ({"test_images": images(0, 6, 6), "test_labels": np.zeros(0, int)}, "expected records in test_labels"),
        ({"train_labels": np.array([None] * 12)}, "train_labels cannot be read"),
    ],
)
def test_what_an_npz_must_hold(npz, changes, complaint):
    with pytest.raises(DataError, match=complaint):
        datasets.info(npz(**changes))


def test_labels_below_zero_are_refused(npz):
    name = npz(train_labels=np.arange(12) % 3 - 1)
    with pytest.raises(DataError, match="expected train labels from 0 to 2, found -1 to 1"):
        datasets.load(name)


def test_missing_truncated_and_wrong_files_are_three_things(npz, tmp_path):
    name, path = npz(), tmp_path / "mine.npz"
    content = path.read_bytes()
    with pytest.raises(MissingFileError, match=re.escape(f"expected the file {tmp_path / 'not.npz'}, found none")):
        datasets.info(f"npz:{tmp_path / 'not.npz'}")
    path.write_bytes(content[:-40])
    with pytest.raises(DataError, match=re.escape(f"{path} is truncated or no .npz archive")):
        datasets.info(name)
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"one\.npy is a single array"):
        datasets.info(f"npz:{tmp_path / 'one.npy'}")


def test_a_damaged_array_is_found_out(npz, tmp_path):
    name, path = npz(), tmp_path / "mine.npz"
    info = datasets.info(name)
    content = bytearray(path.read_bytes())
    content[150:160] = bytes(10)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"mine\.npz is damaged"):
        datasets.load(info.name)


def test_a_relative_path_becomes_absolute_in_the_plan(npz, tmp_path, monkeypatch):
    npz()
    monkeypatch.chdir(tmp_path)
    plan = {"model": "mlp", "epsilon": float("inf"), "expected_batch_size": 4, "steps": 6, "lr": 0.1, "reports": 1}
    relative = TrainingPlan(dataset="npz:mine.npz", **plan)
    absolute = TrainingPlan(dataset=f"npz:{tmp_path / 'sub' / '..' / 'mine.npz'}", **plan)
    assert relative.dataset == f"npz:{tmp_path / 'mine.npz'}" and relative.trial_id == absolute.trial_id
    monkeypatch.chdir("/")
    assert list(train(relative))[-1].end_reason == "completed"


def test_a_folder_is_read_by_name(tmp_path):
    name = write_folder(tmp_path)
    info = datasets.info(name)
    assert (info.classes, info.channels, info.image_size, info.train_size, info.test_size) == (2, 3, 6, 6, 4)
    data = datasets.load(name)
    assert data.train_images.shape == (6, 3, 6, 6) and data.train_images.dtype == torch.uint8
    assert data.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.train_images[:, 0, 0, 0].tolist() == [0, 1, 2, 40, 41, 42]
    assert data.test_images[:, 2, 5, 5].tolist() == [0, 1, 40, 41]


def test_grey_folders_have_one_channel(tmp_path):
    assert datasets.load(write_folder(tmp_path, mode="L")).train_images.shape == (6, 1, 6, 6)


def test_a_grey_image_among_coloured_ones_becomes_coloured(tmp_path):
    name = write_folder(tmp_path)
    Image.new("L", (6, 6), 7).save(tmp_path / "train" / "dog" / "2.png")
    assert datasets.load(name).train_images[5].unique().tolist() == [7]


def spoil(root, kind):
    file = root / "train" / "dog" / "1.png"
    match kind:
        case "missing":
            (root / "test").rename(root / "held-out")
        case "classes":
            (root / "test" / "dog").rename(root / "test" / "wolf")
        case "empty":
            for image in (root / "test" / "dog").iterdir():
                image.unlink()
        case "size":
            Image.new("RGB", (6, 7)).save(file)
        case "first":
            Image.new("RGB", (6, 7)).save(root / "train" / "cat" / "0.png")
        case "depth":
            Image.new("I;16", (6, 6)).save(file)
        case "text":
            file.write_text("no image")
        case "truncated":
            Image.fromarray(images(6, 6, 3)).save(file)
            file.write_bytes(file.read_bytes()[:70])


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("missing", r"expected the folder .*test with one folder per class, found none"),
        ("classes", r"same classes, found \['cat', 'dog'\] and \['cat', 'wolf'\]"),
        ("empty", "expected one folder of images per class .*dog"),
        ("size", r"train/dog/1.png: expected 6×6 pixels, as the first image has, found 6×7; resize"),
        ("first", r"train/cat/0.png: expected a square image, found 6×7"),
        ("depth", r"train/dog/1.png: expected 8 bits a channel, .* found I;16"),
        ("text", "train/dog/1.png is no image"),
        ("truncated", "train/dog/1.png is truncated"),
    ],
)
def test_what_a_folder_must_hold(tmp_path, kind, complaint):
    name = write_folder(tmp_path)
    spoil(tmp_path, kind)
    with pytest.raises(DataError, match=complaint):
        datasets.load(name)


def test_a_coloured_image_among_grey_ones_is_refused(tmp_path):
    name = write_folder(tmp_path, mode="L")
    Image.new("RGB", (6, 6)).save(tmp_path / "train" / "dog" / "1.png")
    with pytest.raises(DataError, match=r"dog/1\.png: expected a grey image, as the first image is, found mode RGB"):
        datasets.load(name)


def test_a_folder_trains(tmp_path):
    name = write_folder(tmp_path, side=8)
    fields = {"expected_batch_size": 3, "steps": 4, "lr": 0.1, "reports": 2, "augmentation": "crop-flip"}
    reports = list(train(TrainingPlan(dataset=name, model="cnn", epsilon=float("inf"), **fields)))
    assert reports[-1].end_reason == "completed"


def test_names_without_a_path_are_unknown():
    for name in ("npz:", "folder:", "npz", "tar:/data/mine.tar"):
        with pytest.raises(DataError, match=r"unknown dataset .* choose from .*npz:PATH, folder:PATH"):
            datasets.info(name)
