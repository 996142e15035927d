"""Official, unofficial, truncated, missing: what each data set does with each kind of file."""

import os

import numpy as np
import pytest
from medmnist import INFO

from dirdp import TrainingPlan, datasets, train
from dirdp.datasets import DataError, MissingFileError, checksums
from dirdp.datasets.checksums import PublishedFile


@pytest.fixture(autouse=True)
def forget(fresh_registry):
    pass


@pytest.fixture
def breastmnist(tmp_path, monkeypatch):
    """A made BreastMNIST of the right sizes, whose MD5 is the published one as far as medmnist knows."""
    random, sizes = np.random.default_rng(0), INFO["breastmnist"]["n_samples"]
    arrays = {}
    for part, size in sizes.items():
        arrays[f"{part}_images"] = random.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        arrays[f"{part}_labels"] = random.integers(0, 2, (size, 1), dtype=np.uint8)
    file = tmp_path / "breastmnist.npz"
    np.savez_compressed(file, **arrays)
    monkeypatch.setitem(INFO["breastmnist"], "MD5", checksums.md5(file))
    return file


def plan_of(dataset, **fields):
    usual = {"model": "mlp", "epsilon": float("inf"), "sampling_rate": 0.05, "steps": 4, "lr": 0.1, "reports": 2}
    return TrainingPlan(dataset=dataset, **(usual | fields))


def test_the_official_file_is_used(breastmnist):
    data = datasets.load("medmnist:breastmnist", root=breastmnist.parent)
    assert not data.unofficial
    assert not train(plan_of("medmnist:breastmnist"), data_root=breastmnist.parent).unofficial


def test_another_file_is_used_only_if_the_plan_says_so(breastmnist, monkeypatch):
    monkeypatch.setitem(INFO["breastmnist"], "MD5", "0" * 32)
    found = checksums.md5(breastmnist)
    with pytest.raises(
        DataError, match=f"{breastmnist} is not the official file: expected MD5 {'0' * 32}, found {found}"
    ):
        train(plan_of("medmnist:breastmnist"), data_root=breastmnist.parent)
    training = train(plan_of("medmnist:breastmnist", allow_unofficial=True), data_root=breastmnist.parent)
    assert training.unofficial and list(training)[-1].end_reason == "completed"


def test_missing_and_truncated(breastmnist):
    whole = breastmnist.read_bytes()
    breastmnist.write_bytes(whole[:-30])
    for allow in (False, True):
        with pytest.raises(DataError, match=f"{breastmnist} is truncated|{breastmnist}, found it damaged"):
            datasets.load("medmnist:breastmnist", root=breastmnist.parent, allow_unofficial=allow)
    breastmnist.unlink()
    with pytest.raises(MissingFileError, match=f"expected the file {breastmnist}, found none"):
        datasets.load("medmnist:breastmnist", root=breastmnist.parent)


def test_the_published_validation_set_is_reported(breastmnist):
    plan = plan_of("medmnist:breastmnist")
    assert plan.score == "validation_accuracy" and plan.training_size == 546
    reports = list(train(plan, data_root=breastmnist.parent))
    assert all(
        report.validation_accuracy * 78 == pytest.approx(round(report.validation_accuracy * 78)) for report in reports
    )
    held_out = plan_of("medmnist:breastmnist", validation={"fraction": 0.5})
    assert held_out.training_size == 273
    last = list(train(held_out, data_root=breastmnist.parent))[-1]
    assert last.validation_accuracy * 273 == pytest.approx(round(last.validation_accuracy * 273))


def test_dermamnist_is_medmnists():
    info = datasets.info("dermamnist")
    assert (info.name, info.train_size, info.validation_size, info.test_size) == ("dermamnist", 7007, 1003, 2005)
    assert datasets.info("medmnist:dermamnist") == info
    assert plan_of("medmnist:dermamnist").trial_id == plan_of("dermamnist").trial_id
    assert plan_of("dermamnist").score == "validation_accuracy" and plan_of("mnist").score == "test_accuracy"


def test_a_checksum_is_computed_once_until_the_file_changes(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"one")
    checksums._md5.cache_clear()
    assert checksums.md5(file) == checksums.md5(file) == "f97c5d29941bfb1b2fdab0874906ab82"
    assert checksums._md5.cache_info().misses == 1
    file.write_bytes(b"two")
    os.utime(file, ns=(1, 1))
    assert checksums.md5(file) == "b8a9f715dbb64fd5c56e7783c6820a61"


def test_what_a_published_file_can_be(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"content")
    assert checksums.check("x", [PublishedFile(file)]) is False
    assert checksums.check("x", [PublishedFile(file, 7, checksums.md5(file))]) is False
    hint = "`allow_unofficial: true` uses it all the same"
    for other, complaint in (
        (PublishedFile(file, size=8), "truncated: expected 8 bytes, found 7"),
        (PublishedFile(file, size=6), f"not the official file: expected 6 bytes, found 7; {hint}"),
        (
            PublishedFile(file, md5="0" * 32),
            f"not the official file: expected MD5 {'0' * 32}, found 9a0364b9e99bb480dd25e1f0284c8555; {hint}",
        ),
    ):
        with pytest.raises(DataError, match=f"dataset 'x': {file} is {complaint}$"):
            checksums.check("x", [other])
        assert checksums.check("x", [other], allow_unofficial=True) is True


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_trial_writes_nothing(breastmnist):
    breastmnist.chmod(0o444)
    breastmnist.parent.chmod(0o555)
    try:
        assert list(train(plan_of("medmnist:breastmnist"), data_root=breastmnist.parent))
    finally:
        breastmnist.parent.chmod(0o755)
