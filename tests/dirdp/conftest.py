"""Fixtures of the tests of `dirdp`: one CPU thread, small data sets and networks by name, the folder of real data."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dirdp import datasets, models
from dirdp.datasets import Dataset, DatasetInfo


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def data_root():
    """The folder of real data; without one the test is skipped."""
    if not os.environ.get("DIRDP_DATA"):
        pytest.skip("DIRDP_DATA is unset: no real data")
    return Path(os.environ["DIRDP_DATA"])


@pytest.fixture
def fresh_registry():
    """What the registry remembers neither enters the test nor outlives it."""
    datasets.info.cache_clear()
    datasets.load.cache_clear()
    yield
    datasets.info.cache_clear()
    datasets.load.cache_clear()


@pytest.fixture
def resize(monkeypatch, fresh_registry):
    """resize(name, train, test): the registry expects a data set of that many records, in place of the real ones."""

    def change(name, train, test):
        info = replace(datasets._INFOS[name], train_size=train, test_size=test)
        monkeypatch.setitem(datasets._INFOS, name, info)

    return change


@pytest.fixture
def register_dataset(monkeypatch, fresh_registry):
    """register_dataset(name, images, labels, ...): the name stands for these tensors, the test set being the same."""

    def register(name, images, labels, *, classes):
        _, channels, side, _ = images.shape
        size = len(labels)
        info = DatasetInfo(name, classes, channels, side, size, size, (0.5,) * channels, (0.5,) * channels)
        usual = datasets._loader
        monkeypatch.setitem(datasets._INFOS, name, info)
        monkeypatch.setattr(
            datasets,
            "_loader",
            lambda wanted: (
                (lambda *_: Dataset(info, images, labels, images, labels)) if wanted == name else usual(wanted)
            ),
        )
        return info

    return register


@pytest.fixture
def register_model(monkeypatch):
    """register_model(name, factory): plans may name the network that the factory makes."""

    def register(name, factory):
        module = ModuleType(f"network_{name}")
        setattr(module, name, factory)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(models._FACTORIES, name, module.__name__)

    return register
