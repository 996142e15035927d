"""Made trials: records as the store keeps them, and whole sweeps whose law is known."""

import hashlib
import math
from dataclasses import dataclass, field

import pytest

ATTENUATION = {0.1: 0.6823, 0.3: 0.36, 1.0: 0.11475, 3.0: 0.07712, 10.0: 0.04817}


@dataclass
class Record:
    trial_id: str
    point_id: str
    plan: dict
    info: dict = field(default_factory=dict)
    reports: list = field(default_factory=list)
    end_reason: str | None = None


def make_record(*, alpha=3.0, lr=0.1, seed=0, accuracy=0.9, early=0.5, end="completed", done=None, **plan):
    """One trial of 100 steps with reports at 10, 50 and 100, as far as it came; ``early`` before the last."""
    point = hashlib.sha256(repr((alpha, lr, sorted(plan.items()))).encode()).hexdigest()[:12]
    done = {"completed": 100, "early_stopped": 10}.get(end, 0) if done is None else done
    plan = {
        "dataset": "digits",
        "model": "mlp",
        "method": "dirichlet",
        "epsilon": 1.0,
        "delta": 1e-5,
        "alpha": alpha,
        "sampling_rate": 0.01,
        "steps": 100,
        "lr": lr,
        "seed": seed,
        "validation": None,
    } | plan
    calibrated = plan["method"] == "dirichlet" and plan["epsilon"] < math.inf
    kappa = ATTENUATION.get(alpha, 0.1) if calibrated else 1.0
    info = {
        "r": 0.08 * alpha if calibrated else None,
        "attenuation": kappa,
        "learning_rate": lr,
        "effective_learning_rate": lr * kappa,
        "epsilon": 0.9999,
        "order": 12,
    }
    reports = [
        {
            "step": step,
            "steps": 100,
            "epoch": step / 90,
            "train_loss": 0.25,
            "test_accuracy": accuracy if step == 100 else early,
            "validation_accuracy": accuracy - 0.01 if plan["validation"] else None,
            "epsilon_spent": 0.9999 * (step / 100),
            "effective_learning_rate": lr * kappa,
            "steps_per_second": 900.0,
        }
        for step in (10, 50, 100)
        if step <= done
    ]
    infeasible = end == "infeasible"
    return Record(f"{int(point, 16) ^ seed:012x}", point, plan, {} if infeasible else info, reports, end)


def law(log_rate):
    """Accuracy as a function of log10 γ_eff: a rise about 0.016 and a fall about 4."""
    return 0.1 + 0.86 / (1 + math.exp(-3 * (log_rate + 1.8))) / (1 + math.exp(7 * (log_rate - 0.6)))


def make_sweep(*, alphas=(0.3, 1.0, 3.0), rates=8, seeds=2, asha=False, noise=0.008, **plan):
    """A sweep that obeys ``law`` on γ_eff; with ``asha`` poor points stop at the first rung."""
    records = []
    for alpha in alphas:
        for place in range(rates):
            log_rate = -2.5 + 3 * place / (rates - 1)
            lr = 10**log_rate / ATTENUATION[alpha]
            stopped = asha and law(log_rate) < 0.8
            for seed in range(1 if stopped else seeds):
                accuracy = law(log_rate) + noise * math.sin(17 * place + 5 * seed + 3 * alpha)
                made = {"alpha": alpha, "lr": lr, "seed": seed, "accuracy": accuracy, "early": 0.6 * accuracy}
                records.append(make_record(**made, end="early_stopped" if stopped else "completed", **plan))
    return records


@pytest.fixture
def record():
    return make_record


@pytest.fixture
def sweep():
    return make_sweep
