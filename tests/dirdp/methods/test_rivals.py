"""Tempered sigmoids and Gaussian features, and what is asked of all methods alike."""

import math

import pytest
import torch
from scipy.stats import chi2
from torch import nn

from dirdp import TrainingPlan, gaussian, methods, models, train
from dirdp.models.activations import TemperedSigmoid
from dirdp.randomness import SeededStream

N = 1437


def plan_of(method, **changes):
    fields = {"dataset": "digits", "model": "mlp", "epsilon": 2, "sampling_rate": 32 / N, "steps": 20, "lr": 0.5}
    return TrainingPlan(**(fields | {"method": method, "reports": 2} | changes))


PRIVATE = [name for name in methods.names() if name != "nonprivate"]


@pytest.mark.parametrize("name", PRIVATE)
def test_every_method_trains_within_its_budget(name):
    plan = plan_of(name)
    training = train(plan)
    reports = list(training)
    method = training.method
    assert reports[-1].end_reason == "completed" and reports[-1].train_loss > 0
    assert 0 < reports[0].epsilon_spent < reports[1].epsilon_spent == method.epsilon <= 2
    assert methods.floor(plan) < 2 and set(method.calibrated) in ({"r"}, {"noise_multiplier"})
    assert 2 in method.rdp(20).orders, "an order that all curves have, to compose them"


@pytest.mark.parametrize("name", PRIVATE)
def test_every_epsilon_has_a_name_and_says_what_it_covers(name):
    said = methods.guarantee(name)
    assert ("nominal" in said.name) == (said.strength == "nominal")
    assert "ε" in said.name and said.release and said.not_covered
    if said.strength == "nominal":
        assert "weights" in said.not_covered and "labels are public" in said.protects


def test_a_tempered_sigmoid_stands_for_every_relu():
    plan = plan_of("tempered_sigmoid", tempered_sigmoid={"scale": 1.5, "temperature": 3, "offset": 0.5})
    network = models.build("resnet9", in_channels=1, image_size=8, classes=10, norm="group")
    relus = sum(isinstance(layer, nn.ReLU) for layer in network.modules())
    network = methods.bind(plan).prepare(network)
    layers = [layer for layer in network.modules() if isinstance(layer, TemperedSigmoid)]
    assert len(layers) == relus == 8 and not any(isinstance(layer, nn.ReLU) for layer in network.modules())
    x = torch.linspace(-3, 3, 7)
    torch.testing.assert_close(layers[0](x), 1.5 / (1 + (-3 * x).exp()) - 0.5)
    torch.testing.assert_close(TemperedSigmoid(scale=2, temperature=2, offset=1)(x), x.tanh())


def test_a_network_without_relu_is_refused():
    with pytest.raises(ValueError, match="model mlp has no ReLU layer for method tempered_sigmoid"):
        methods.bind(plan_of("tempered_sigmoid")).prepare(nn.Linear(3, 3))


def test_features_are_cut_and_noisy():
    """A χ² test at a false alarm of 1e-6 accepts σ·C and rejects 2/3 and 3/2 of it; what is cut has length C."""
    method = methods.bind(plan_of("gaussian_features", gaussian_features={"clipping_norm": 0.7}))
    features = torch.randn(400, 30, generator=torch.Generator().manual_seed(0)) * 5
    features[0], features[1] = 1e-3, math.inf
    lengths = features.norm(dim=1, keepdim=True)
    cut = torch.where(lengths.isfinite(), features * (0.7 / lengths).clamp(max=1), torch.zeros(()))
    noise = (method.noisy(features, noise=SeededStream(0, "noise")) - cut).double()

    def accepted(scale):
        statistic = float((noise / scale).square().sum())
        return chi2.ppf(5e-7, noise.numel()) < statistic < chi2.isf(5e-7, noise.numel())

    scale = method.noise_multiplier * 0.7
    assert accepted(scale) and not accepted(scale * 2 / 3) and not accepted(scale * 3 / 2)


def test_features_are_noisy_while_training_only():
    method = methods.bind(plan_of("gaussian_features"))
    model = models.build("mlp", in_channels=1, image_size=8, classes=10).eval()
    images, labels = torch.randn(4, 1, 8, 8), torch.arange(4)
    plain = model(images)
    method.backward(model, images, labels, noise=SeededStream(0, "noise"))
    assert all(parameter.grad is not None for parameter in model.parameters())
    torch.testing.assert_close(model(images), plain, rtol=0, atol=0)
    with pytest.raises(ValueError, match="model mlp has no linear layer"):
        method.prepare(nn.Conv2d(1, 1, 1))


@pytest.mark.parametrize("name", ["tempered_sigmoid", "gaussian_features"])
def test_the_noise_is_that_of_the_sampled_gaussian(name):
    method = methods.bind(plan_of(name))
    run = gaussian.calibrate(epsilon=2, delta=1e-5, sampling_rate=32 / N, steps=20)
    assert (method.noise_multiplier, method.epsilon) == (run.noise_multiplier, run.epsilon)


def test_wide_networks_with_standardised_weights_train_by_dpsgd():
    """De et al. 2022: GroupNorm, standardised weights, views, average; here on a network of two convolutions."""
    plan = plan_of(
        "dpsgd",
        model="cnn",
        weight_standardization=True,
        weight_ema=0.9,
        augmentation="crop-flip",
        dpsgd={"augmentation_multiplicity": 2},
        steps=2,
    )
    training = train(plan)
    convolution = training.model[0]
    weight = convolution.weight.detach().flatten(1)
    before = convolution(torch.ones(1, 1, 8, 8)).detach()
    with torch.no_grad():
        convolution.weight.mul_(3).add_(1)
    torch.testing.assert_close(convolution(torch.ones(1, 1, 8, 8)), before, rtol=1e-3, atol=1e-3)
    assert weight.shape == (32, 9)
    assert list(training)[-1].end_reason == "completed"
