"""Methods: which one a plan binds, what it claims, its losses, and the gradient it leaves behind."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dirdp import BudgetError, TrainingPlan, attenuation, calibrate, epsilon_spent, methods
from dirdp.mechanism import dirichlet_nll
from dirdp.methods.base import Method
from dirdp.methods.dirichlet import Dirichlet
from dirdp.methods.nonprivate import NonPrivate
from dirdp.randomness import SeededStream, Stream

N = 1437


def plan_of(**changes):
    fields = {
        "dataset": "digits",
        "model": "mlp",
        "epsilon": 1,
        "sampling_rate": 16 / N,
        "steps": 1000,
        "lr": 0.1,
    }
    return TrainingPlan(**(fields | changes))


class NoChance(Stream):
    """A stream that nobody may draw from."""

    def _refuse(self, *_):
        pytest.fail("a method without noise drew from the noise")

    uniform = integers = state_dict = load_state_dict = _refuse


def batch(size=6, classes=10):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(size, classes, generator=generator, dtype=torch.float64)
    return logits, torch.arange(size) % classes


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 10)).double()


def images(size=6):
    return torch.randn(size, 1, 2, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_a_plan_binds_the_method_that_it_names():
    assert {"dirichlet", "nonprivate"} <= set(methods.names())
    assert type(methods.bind(plan_of())) is Dirichlet
    assert type(methods.bind(plan_of(method="nonprivate", epsilon=math.inf))) is NonPrivate


@pytest.mark.parametrize("name", ["dirichlet", "nonprivate"])
def test_without_a_budget_there_is_no_mechanism(name):
    method = methods.bind(plan_of(method=name, epsilon=math.inf))
    assert type(method) is NonPrivate
    assert (method.calibrated, method.order, method.epsilon) == ({}, None, math.inf)
    assert (method.attenuation, method.learning_rate) == (1.0, 0.1)
    assert method.guarantee.name == "no privacy"
    assert [method.epsilon_spent(steps) for steps in (0, 1, 1000)] == [0.0, math.inf, math.inf]
    assert method.rdp(0) is None and method.rdp(10) is None


@pytest.mark.parametrize(("epsilon", "alpha", "delta"), [(1, 3, 1e-5), (4, 0.3, 1e-6), (0.7, 10, 1e-5)])
def test_dirichlet_is_calibrated_to_the_whole_plan(epsilon, alpha, delta):
    method = methods.bind(plan_of(epsilon=epsilon, alpha=alpha, delta=delta))
    setting = {"alpha": alpha, "delta": delta, "sampling_rate": 16 / N}
    run = calibrate(epsilon=epsilon, steps=1000, **setting)
    assert method.calibrated == {"r": run.r}
    assert (method.r, method.epsilon, method.order) == (run.r, run.epsilon, run.order)
    assert method.attenuation == attenuation(s_y=0.9, r=run.r, alpha=alpha)
    assert method.learning_rate == 0.1
    for steps in (0, 1, 17, 999, 1000):
        spent = epsilon_spent(r=run.r, steps=steps, **setting)
        assert method.epsilon_spent(steps) == spent.epsilon
        assert method.rdp(steps).epsilon(delta) == spent
    assert method.epsilon_spent(0) == 0
    assert 0 < method.epsilon_spent(999) < method.epsilon_spent(1000) == run.epsilon <= epsilon


def test_what_epsilon_means_is_said_and_called_nominal():
    claim = methods.bind(plan_of()).guarantee.name
    assert "nominal" in claim and "Theorem 10" in claim


def test_the_exact_bound_is_used_and_said():
    usual, exact = methods.bind(plan_of()), methods.bind(plan_of(bound="exact"))
    assert exact.r > usual.r
    assert exact.epsilon_spent(exact.plan.steps) == exact.epsilon <= exact.plan.epsilon
    assert exact.guarantee.name == usual.guarantee.name
    assert "exact" in exact.guarantee.theorem and "exact" not in usual.guarantee.theorem


@pytest.mark.parametrize("epsilon", [1, math.inf])
def test_the_effective_rate_gives_the_rate(epsilon):
    method = methods.bind(plan_of(epsilon=epsilon, lr=None, effective_lr=0.03))
    assert method.learning_rate * method.attenuation == pytest.approx(0.03, rel=1e-14)
    assert (method.learning_rate > 0.05) == (epsilon == 1)


def test_a_budget_that_trains_nothing_is_refused():
    with pytest.raises(BudgetError) as caught:
        methods.bind(plan_of(epsilon=4, sampling_rate=0.04, steps=20_000))
    assert caught.value.floor == pytest.approx(6.082, abs=1e-3)


def test_losses_of_the_mechanism_are_those_of_a_draw_for_each_record():
    logits, labels = batch()
    method = methods.bind(plan_of())
    losses = method.losses(logits, labels, noise=SeededStream(5, "noise"))
    expected = dirichlet_nll(logits, labels, r=method.r, alpha=3.0, stream=SeededStream(5, "noise"))
    assert losses.shape == (6,) and torch.equal(losses, expected)
    assert not torch.equal(losses, method.losses(logits, labels, noise=SeededStream(6, "noise")))


def test_losses_without_a_mechanism_are_cross_entropies():
    logits, labels = batch()
    losses = methods.bind(plan_of(epsilon=math.inf)).losses(logits, labels, noise=NoChance())
    by_hand = logits.exp().sum(1).log() - logits[torch.arange(6), labels]
    torch.testing.assert_close(losses, by_hand)


@pytest.mark.parametrize(("normalize", "divisor"), [("batch", 6), ("expected", 16 / N * 719)])
def test_gradients_are_summed_and_divided_as_the_plan_says(normalize, divisor):
    plan = plan_of(epsilon=math.inf, normalize=normalize, validation={"fraction": 0.5})
    assert plan.training_size == 719
    model, labels = linear(), torch.arange(6)
    loss = methods.bind(plan).backward(model, images(), labels, noise=NoChance())
    losses = cross_entropy(model(images()), labels, reduction="none")
    gradients = torch.autograd.grad(losses.sum() / divisor, list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert loss.item() == pytest.approx(losses.mean().item())  # the mean loss, however gradients are divided
    assert not loss.requires_grad


@pytest.mark.parametrize("epsilon", [1, math.inf])
@pytest.mark.parametrize("normalize", ["batch", "expected"])
def test_an_empty_minibatch_makes_no_update(epsilon, normalize):
    model = linear()
    method = methods.bind(plan_of(epsilon=epsilon, normalize=normalize))
    labels = torch.empty(0, dtype=torch.int64)
    assert method.backward(model, images(0), labels, noise=NoChance()) is None
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_method_must_say_what_it_costs():
    whole = type("Whole", (Method,), {"rdp": lambda self, steps: None})(plan_of(epsilon=math.inf))
    assert whole.learning_rate == 0.1
    with pytest.raises(TypeError, match="rdp"):
        type("Broken", (Method,), {})(plan_of(epsilon=math.inf))
