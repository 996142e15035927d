"""DP-SGD: what a record can add, what noise is added, what it is divided by, and what is refused."""

import math

import pytest
import torch
from scipy.stats import chi2
from torch import nn
from torch.nn.functional import cross_entropy

from dirdp import TrainingPlan, gaussian, methods, train
from dirdp.methods import dpsgd
from dirdp.methods.dpsgd import DpSgd
from dirdp.models.normalization import use_group_norm
from dirdp.randomness import SeededStream, Stream

N = 1437
Q = 16 / N


def plan_of(**changes):
    fields = {
        "dataset": "digits",
        "model": "mlp",
        "method": "dpsgd",
        "epsilon": 2,
        "sampling_rate": Q,
        "steps": 1000,
        "lr": 0.1,
    }
    return TrainingPlan(**(fields | changes))


class NoNoise(Stream):
    """Zeros, and a record of how many were asked for."""

    def __init__(self):
        super().__init__()
        self.drawn = 0

    def normal(self, shape):
        self.drawn += math.prod(shape)
        return torch.zeros(shape, dtype=self.dtype)

    uniform = integers = state_dict = load_state_dict = None


def network():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4, 10)]
    return use_group_norm(nn.Sequential(*layers))


def records(size, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 1, 4, 4, generator=generator), torch.arange(size) % 10


def gradient(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def clipped_sum(images, labels, *, noise=None, **options):
    """What a step's gradient is before the division by q·n."""
    model, method = network(), methods.bind(plan_of(dpsgd=options))
    method.backward(model, images, labels, noise=noise or NoNoise())
    return gradient(model) * (Q * N)


def own_gradients(images, labels):
    """Each record's gradient by a backward pass of its own, without Opacus."""
    rows = []
    for image, label in zip(images, labels, strict=True):
        model = network()
        cross_entropy(model(image[None]), label[None]).backward()
        rows.append(gradient(model))
    return torch.stack(rows)


# Calibration and claim


def test_the_noise_is_calibrated_to_exactly_q_and_t():
    plan = plan_of(validation={"fraction": 0.1}, sampling_rate=0.0123, steps=777)
    method = methods.bind(plan)
    run = gaussian.calibrate(epsilon=2, delta=1e-5, sampling_rate=0.0123, steps=777)
    assert type(method) is DpSgd
    assert method.calibrated == {"noise_multiplier": run.noise_multiplier}
    assert (method.epsilon, method.order) == (run.epsilon, run.order)
    assert method.epsilon_spent(0) == 0 < method.epsilon_spent(776) < method.epsilon_spent(777) == run.epsilon <= 2
    assert method.rdp(777).epsilon(1e-5).epsilon == run.epsilon
    assert methods.floor(plan) == gaussian.budget_floor(delta=1e-5, sampling_rate=0.0123, steps=777)


def test_its_epsilon_says_that_it_covers_weights_inputs_and_labels():
    said = DpSgd.guarantee
    assert "nominal" not in said.name and "DP-SGD" in said.name and said.strength == "proved"
    assert "weights" in said.release and said.protects == "inputs and labels"
    assert "add or remove" in said.adjacency and "Poisson" in said.sampler


# A step


def test_without_noise_and_clipping_it_is_the_plain_gradient_over_qn():
    images, labels = records(6)
    total = clipped_sum(images, labels, clipping_norm=1e6)
    plain = network()
    cross_entropy(plain(images), labels, reduction="sum").backward()
    torch.testing.assert_close(total, gradient(plain), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", [0.01, 0.5, 3.0])
def test_each_record_is_cut_to_the_norm(norm):
    images, labels = records(6)
    scaled = images * torch.tensor([1, 1, 0.1, 30, 1e4, 1])[:, None, None, None]
    own = own_gradients(scaled, labels)
    lengths = own.norm(dim=1, keepdim=True)
    expected = (own * (norm / lengths).clamp(max=1)).sum(0)
    torch.testing.assert_close(clipped_sum(scaled, labels, clipping_norm=norm), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("wild", [1.0, 1e4, 1e30, math.nan, math.inf])
def test_no_record_adds_more_than_the_norm(wild):
    """Remove one record, swap one record, and measure, whatever it holds."""
    images, labels = records(6)
    images[3] *= wild
    others = torch.tensor([0, 1, 2, 4, 5])
    with_it = clipped_sum(images, labels, clipping_norm=0.1).double()
    without = clipped_sum(images[others], labels[others], clipping_norm=0.1).double()
    swapped = clipped_sum(images.index_copy(0, torch.tensor([3]), records(1, seed=9)[0]), labels, clipping_norm=0.1)
    assert (with_it - without).norm() <= 0.1 + 1e-6
    assert (with_it - swapped.double()).norm() <= 0.2 + 1e-6
    if wild == 1:
        assert (with_it - without).norm() > 0.099


def test_a_minibatch_in_parts_is_the_same_step(monkeypatch):
    images, labels = records(7)
    whole, noise = clipped_sum(images, labels), NoNoise()
    monkeypatch.setattr(dpsgd, "_FLOATS_AT_ONCE", {"cpu": 3 * sum(p.numel() for p in network().parameters())})
    torch.testing.assert_close(clipped_sum(images, labels, noise=noise), whole)
    assert noise.drawn == whole.numel(), "noise is added once"


def test_views_of_a_record_are_averaged_before_it_is_cut(monkeypatch):
    images, labels = records(6)
    own = own_gradients(images, labels.repeat_interleave(1)[[0, 0, 1, 1, 2, 2]]).view(3, 2, -1).mean(1)
    expected = (own * (0.5 / own.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
    truth = labels[[0, 0, 1, 1, 2, 2]]
    plan = plan_of(augmentation="crop-flip", dpsgd={"clipping_norm": 0.5, "augmentation_multiplicity": 2})
    for floats in (2**27, 1):  # all at once, and one record at a time
        monkeypatch.setattr(dpsgd, "_FLOATS_AT_ONCE", {"cpu": floats})
        model, method = network(), methods.bind(plan)
        assert method.views == 2
        method.backward(model, images, truth, noise=NoNoise())
        torch.testing.assert_close(gradient(model) * (Q * N), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [0, 5])
def test_the_noise_has_the_calibrated_scale(size):
    """A χ² test at a false alarm of 1e-6 accepts σ·C/(q·n) and rejects 2/3 and 3/2 of it."""
    images, labels = records(size)
    method = methods.bind(plan_of(dpsgd={"clipping_norm": 0.7}))
    without = network()
    method.backward(without, images, labels, noise=NoNoise())
    draws, stream = [], SeededStream(0, "noise")
    for _ in range(20):
        model = network()
        method.backward(model, images, labels, noise=stream)
        draws.append(gradient(model) - gradient(without))
    noise = torch.stack(draws).double()

    def accepted(scale):
        statistic = float((noise / scale).square().sum())
        return chi2.ppf(5e-7, noise.numel()) < statistic < chi2.isf(5e-7, noise.numel())

    scale = method.noise_multiplier * 0.7 / (Q * N)
    assert accepted(scale) and not accepted(scale * 2 / 3) and not accepted(scale * 3 / 2)
    assert abs(float(noise[0] @ noise[1])) < 6 * scale**2 * math.sqrt(noise.shape[1]), "fresh in every step"


def test_an_empty_minibatch_is_a_step_of_noise():
    model, noise = network(), NoNoise()
    method = methods.bind(plan_of())
    assert method.backward(model, *records(0), noise=noise) is None
    assert noise.drawn == sum(p.numel() for p in model.parameters())
    assert all(p.grad is not None for p in model.parameters())


def test_the_loss_is_the_mean_and_nothing_stays_behind():
    images, labels = records(6)
    model = network()
    loss = methods.bind(plan_of()).backward(model, images, labels, noise=NoNoise())
    assert loss.item() == pytest.approx(cross_entropy(network()(images), labels).item(), rel=1e-6)
    assert not loss.requires_grad
    assert not any(hasattr(p, "grad_sample") for p in model.parameters())
    assert not any(m._forward_hooks or m._backward_hooks for m in model.modules())


# Training


def test_empty_minibatches_move_the_weights():
    plan = plan_of(sampling_rate=1e-6, steps=3, reports=3)
    training = train(plan)
    before = {name: tensor.clone() for name, tensor in training.model.state_dict().items()}
    reports = list(training)
    assert [report.train_loss for report in reports] == [None] * 3
    after = training.model.state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert reports[-1].effective_learning_rate is None


def test_it_learns_and_resumes_bit_for_bit():
    plan = plan_of(epsilon=8, sampling_rate=64 / N, steps=60, lr=1, reports=3, weight_ema=0.9)
    whole = train(plan)
    reports = list(whole)
    first = train(plan)
    next(first)
    resumed = train(plan)
    resumed.load_state_dict(first.state_dict())
    rest = list(resumed)
    assert [r.test_accuracy for r in rest] == [r.test_accuracy for r in reports[1:]]
    for one, other in ((whole.model, resumed.model), (whole._average, resumed._average)):
        assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))
    assert not torch.equal(next(whole.model.parameters()), next(whole._average.parameters()))
    assert reports[-1].test_accuracy > 0.3 and reports[-1].epsilon_spent <= 8


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm": "batch"}, r"BatchNorm .* in 2, 5 of mlp; say norm: group"),
        ({"normalize": "batch"}, r"divides by q·n, got normalize=batch; say expected"),
        ({"lr": None, "effective_lr": 0.1}, r"no κ to turn effective_lr=0.1 into lr; give lr"),
        ({"dpsgd": {"augmentation_multiplicity": 4}}, r"augmentation_multiplicity=4 needs an augmentation"),
        ({"method": "dirichlet", "dpsgd": {}}, r"dpsgd: clipping_norm=1.0, .* belongs to method dpsgd or tempered"),
        ({"tempered_sigmoid": {}}, r"tempered_sigmoid: .* belongs to method tempered_sigmoid, not dpsgd"),
        ({"dpsgd": {"clipping_norm": 0}}, r"dpsgd.clipping_norm\s+Input should be greater than 0"),
    ],
)
def test_what_it_cannot_do_is_said_before_any_calibration(changes, message, monkeypatch):
    monkeypatch.setattr(gaussian, "calibrate", lambda **_: pytest.fail("calibrated"))
    with pytest.raises(ValueError, match=message):
        plan_of(**changes)


def test_without_opacus_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(dpsgd, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs Opacus, which is not installed: pip install 'dirdp\[dpsgd\]'"):
        plan_of()


def test_a_layer_that_opacus_cannot_take_is_named():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
    with pytest.raises(ValueError, match=r"model mlp cannot be trained record by record: .*BatchNorm"):
        methods.bind(plan_of()).prepare(model)
