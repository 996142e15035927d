"""`import:package.module:factory`, the user's own network."""

import sys

import pytest
import torch

from dirdp import TrainingPlan, models, train

MODULE = """
from torch import nn

def linear(*, in_channels, image_size, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size**2, classes))

def normalised(*, in_channels, image_size, classes):
    return nn.Sequential(nn.BatchNorm2d(in_channels), nn.Flatten(), nn.Dropout(), nn.LazyLinear(classes))

def too_many(*, in_channels, image_size, classes):
    return linear(in_channels=in_channels, image_size=image_size, classes=classes + 1)

def nothing(**_):
    return None
"""


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    """A package `mine` with a module `nets`, on the path."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    (tmp_path / "mine" / "nets.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("mine", "mine.nets"):
        sys.modules.pop(name, None)


def plan_of(factory, **fields):
    usual = {"epsilon": float("inf"), "sampling_rate": 0.05, "steps": 20, "lr": 0.1, "reports": 1}
    return TrainingPlan(dataset="digits", model=f"import:mine.nets:{factory}", **(usual | fields))


@pytest.mark.parametrize("factory", ["linear", "normalised"])
def test_it_trains_as_the_plan_says(factory):
    training = train(plan_of(factory))
    assert training.model.training
    assert list(training)[-1].test_accuracy > 0.3


def test_its_normalisation_can_be_replaced():
    network = train(plan_of("normalised", norm="group")).model
    assert type(network[0]) is torch.nn.GroupNorm


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("import:mine.nets:absent", "cannot be imported .*absent.*must be installed or on PYTHONPATH"),
        ("import:mine.absent:linear", "cannot be imported .*No module named 'mine.absent'"),
        ("import:mine.nets", "unknown model 'import:mine.nets'; choose from mlp, .*import:MODULE:FACTORY"),
        ("import::linear", "unknown model"),
        ("mine.nets:linear", "unknown model"),
    ],
)
def test_a_plan_knows_at_once_that_it_is_not_there(name, complaint):
    with pytest.raises(ValueError, match=complaint):
        TrainingPlan(dataset="digits", model=name, epsilon=1, sampling_rate=0.05, steps=20, lr=0.1)


@pytest.mark.parametrize(
    ("factory", "complaint"),
    [
        ("too_many", r"expected logits \(2, 10\) for images \(2, 1, 8, 8\), got \(2, 11\)"),
        ("nothing", "expected the factory to return a torch.nn.Module, got None"),
    ],
)
def test_what_it_returns_is_checked(factory, complaint):
    with pytest.raises(ValueError, match=rf"model 'import:mine.nets:{factory}': {complaint}"):
        models.build(f"import:mine.nets:{factory}", in_channels=1, image_size=8, classes=10)
