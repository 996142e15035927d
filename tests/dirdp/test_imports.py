"""Imports point one way, and each part of `dirdp` asks only for what it needs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dirdp

PACKAGE = Path(dirdp.__file__).parent
ACCOUNTING = """
import dirdp
run = dirdp.calibrate(epsilon=1, delta=1e-5, alpha=3, sampling_rate=0.005, steps=20_000)
assert abs(run.r - 0.234894) < 1e-6
assert dirdp.epsilon_spent(r=run.r, alpha=3, delta=1e-5, sampling_rate=0.005, steps=20_000).epsilon == run.epsilon
assert dirdp.budget_floor(delta=1e-5, alpha=3, sampling_rate=0.005, steps=20_000) < 1
assert dirdp.attenuation(s_y=0.9, r=run.r, alpha=3) > 0.077
assert set(dirdp.__all__) <= set(dir(dirdp))
"""
PLANNING = """
from dirdp import TrainingPlan, methods
plan = TrainingPlan(dataset="mnist", model="inception", epsilon=1, expected_batch_size=250, epochs=40, lr=0.1)
assert (plan.sampling_rate, plan.steps) == (250 / 60_000, 9600)
assert abs(methods.bind(plan).r - 0.2771) < 1e-4
"""
TRAINING = """
from dirdp import TrainingPlan, train
plan = TrainingPlan(dataset="digits", model="mlp", epsilon=1, sampling_rate=16/1437, steps=20, lr=0.5, reports=2)
reports = list(train(plan))
assert [report.step for report in reports] == [10, 20] and reports[-1].end_reason == "completed"
assert 0 < reports[0].epsilon_spent < reports[1].epsilon_spent <= 1
"""


def run_without(blocked, code):
    """Run `code` in a fresh interpreter in which these modules cannot be imported."""
    head = f"import sys\nsys.modules.update(dict.fromkeys({blocked!r}))\n"
    return subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("code", "blocked"),
    [
        (ACCOUNTING, ["torch", "torchvision", "ray", "mlflow", "yaml", "pydantic", "typer", "sweep"]),
        (PLANNING, ["torch", "torchvision", "ray", "mlflow", "yaml", "typer", "sweep"]),
        (TRAINING, ["ray", "mlflow", "yaml", "typer", "sweep"]),
    ],
    ids=["accounting", "planning", "training"],
)
def test_what_is_not_needed_may_be_missing(code, blocked):
    run = run_without(blocked, code)
    assert run.returncode == 0, run.stderr


def test_a_blocked_module_is_really_missing():
    run = run_without(["torch"], TRAINING)
    assert run.returncode != 0
    assert "ModuleNotFoundError: import of torch halted" in run.stderr


@pytest.mark.parametrize("name", dirdp.__all__)
def test_every_public_name_is_there(name):
    assert getattr(dirdp, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'dirdp' has no attribute 'nonsense'"):
        _ = dirdp.nonsense


def imported(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_no_file_imports_the_platform():
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 15
    for file in files:
        assert not set(imported(file)) & {"sweep", "ray", "mlflow", "yaml", "typer", "rich", "matplotlib"}, file
    assert "pydantic" in set(imported(PACKAGE / "plan.py"))
