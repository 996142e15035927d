"""The registry: what is known before a file is read, and what is checked after."""

import time

import pytest
import torch

from dirdp import datasets
from dirdp.datasets import DataError, Dataset


@pytest.mark.parametrize(
    ("name", "classes", "channels", "size", "train", "test"),
    [
        ("digits", 10, 1, 8, 1437, 360),
        ("mnist", 10, 1, 28, 60_000, 10_000),
        ("fashionmnist", 10, 1, 28, 60_000, 10_000),
        ("cifar10", 10, 3, 32, 50_000, 10_000),
        ("medmnist:pneumoniamnist", 2, 1, 28, 4708, 624),
        ("medmnist:dermamnist", 7, 3, 28, 7007, 2005),
    ],
)
def test_sizes_are_known_without_a_file(name, classes, channels, size, train, test):
    info = datasets.info(name)
    assert info.name == datasets.canonical(name)
    assert (info.classes, info.channels, info.image_size) == (classes, channels, size)
    assert (info.train_size, info.test_size) == (train, test)
    assert len(info.mean) == len(info.std) == channels
    assert all(0 < value < 1 for value in (*info.mean, *info.std))


@pytest.mark.parametrize(
    "name", ["imagenet", "MNIST", "", "medmnist", "medmnist:", "medmnist:nope", "medmnist:organmnist3d"]
)
def test_an_unknown_name_lists_the_choices(name):
    with pytest.raises(DataError, match="unknown dataset") as caught:
        datasets.info(name)
    assert repr(name) in str(caught.value)
    choices = ["dermamnist", "pneumoniamnist"] if name.removeprefix("medmnist:") not in ("", name) else datasets.names()
    assert all(choice in str(caught.value) for choice in choices)
    with pytest.raises(DataError, match="unknown dataset"):
        datasets.load(name)


@pytest.mark.parametrize(("flag", "task"), [("chestmnist", "multi-label"), ("retinamnist", "ordinal")])
def test_sets_without_one_class_per_image_are_refused_and_not_offered(flag, task):
    with pytest.raises(DataError, match=f"'medmnist:{flag}' is {task}.*: a softmax has one class per image") as caught:
        datasets.info(f"medmnist:{flag}")
    choices = str(caught.value).partition("choose from ")[2].split(", ")
    assert "pneumoniamnist" in choices
    assert not {"chestmnist", "retinamnist", "organmnist3d"} & set(choices)


@pytest.mark.parametrize(("fraction", "size"), [(0, 1437), (0.1, 1293), (0.5, 719), (0.9, 144)])
def test_training_size_is_what_the_held_out_part_leaves(fraction, size):
    assert datasets.training_size("digits", validation_fraction=fraction) == size


@pytest.mark.parametrize("name", ["mnist", "fashionmnist", "cifar10", "medmnist:pneumoniamnist"])
def test_a_set_that_needs_a_folder_says_so(name):
    with pytest.raises(DataError, match=f"'{name}' needs a data folder: set DIRDP_DATA or pass --data"):
        datasets.load(name)


def test_one_process_reads_a_set_once(fresh_registry, monkeypatch):
    first = datasets.load("digits")
    monkeypatch.setattr(datasets, "_loader", lambda name: pytest.fail("read again"))
    started = time.perf_counter()
    assert datasets.load("digits") is first
    assert time.perf_counter() - started < 0.1


def test_two_names_of_one_set_are_one():
    assert datasets.canonical("medmnist:dermamnist") == "dermamnist"
    assert datasets.info("medmnist:dermamnist") == datasets.info("dermamnist")
    assert [datasets.canonical(name) for name in ("digits", "medmnist:pneumoniamnist")] == [
        "digits",
        "medmnist:pneumoniamnist",
    ]


def images(size, *, channels=1, side=8):
    return torch.zeros(size, channels, side, side, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"train_images": images(1436)}, r"expected train images .* \(1437, 1, 8, 8\) .* found \(1436, 1, 8, 8\)"),
        ({"train_labels": torch.zeros(1436, dtype=torch.int64)}, r"train .* and \(1437,\), found .* and \(1436,\)"),
        ({"test_images": images(361)}, r"test .* \(360, 1, 8, 8\) .* found \(361, 1, 8, 8\)"),
        ({"test_labels": torch.zeros(360, 1, dtype=torch.int64)}, r"test .* and \(360,\), found .* and \(360, 1\)"),
        ({"train_images": images(1437, channels=3)}, r"found \(1437, 3, 8, 8\)"),
        ({"test_images": images(360, side=28)}, r"found \(360, 1, 28, 28\)"),
        ({"train_labels": torch.full((1437,), 10)}, "expected train labels from 0 to 9, found 10 to 10"),
        ({"test_labels": torch.arange(-1, 359) % 11 - 1}, "expected test labels from 0 to 9, found -1 to 9"),
    ],
)
def test_what_was_read_must_be_what_was_announced(fresh_registry, monkeypatch, change, found):
    """Else a training fails at some step, or trains on half the data and counts the privacy of the whole."""
    right = {
        "train_images": images(1437),
        "train_labels": torch.arange(1437) % 10,
        "test_images": images(360),
        "test_labels": torch.arange(360) % 10,
    }
    parts = dict(right)
    monkeypatch.setattr(datasets, "_loader", lambda name: lambda info, root: Dataset(info, **parts))
    assert len(datasets.load("digits").train_labels) == 1437
    datasets.load.cache_clear()
    parts |= change
    with pytest.raises(DataError, match=found) as caught:
        datasets.load("digits", root="some/folder")
    assert "dataset 'digits' under some/folder" in str(caught.value)
