"""Algorithm 1 against steps written by hand; resumption bit for bit; reports, divergence, empty and single batches."""

import copy
import io
import math
import random
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dirdp import BudgetError, Report, Training, TrainingPlan, calibrate, datasets, epsilon_spent, models, train
from dirdp.mechanism import dirichlet_nll
from dirdp.randomness import EntropyStream, SeededStream
from dirdp.sampling import PoissonSampler

N = 1437
CUSTOM = "dropout_network"


def plan_of(**changes):
    fields = {
        "dataset": "digits",
        "model": "mlp",
        "epsilon": 1,
        "sampling_rate": 16 / N,
        "steps": 12,
        "reports": 6,
        "lr": 0.5,
    }
    return TrainingPlan(**(fields | changes))


def dropout_network(*, in_channels, image_size, classes):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(in_channels * image_size**2, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, classes)
    )


@pytest.fixture(autouse=True)
def custom_network(register_model):
    register_model(CUSTOM, dropout_network)


@pytest.fixture
def twenty(register_dataset):
    """Twenty records of which each one's pixels tell its number, which is also its label."""
    numbers = torch.arange(20)
    images = numbers.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4) * 10
    register_dataset("twenty", images, numbers, classes=20)


def twenty_of(**changes):
    return plan_of(**({"dataset": "twenty", "sampling_rate": 0.5, "allow_large_delta": True} | changes))


def timeless(reports):
    return [replace(report, steps_per_second=0.0) for report in reports]


def weights(training):
    return {name: tensor.clone() for name, tensor in training.model.state_dict().items()}


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def outcome(training):
    """All that a training comes to, bit for bit."""
    return timeless(training), weights(training)


def is_same_outcome(left, right):
    return left[0] == right[0] and same(left[1], right[1])


def saved_and_loaded(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def network_of(plan):
    """The network as the plan's seed initialises it."""
    info = datasets.info(plan.dataset)
    with torch.random.fork_rng():
        torch.manual_seed(plan.seed)
        return models.build(
            plan.model, in_channels=info.channels, image_size=info.image_size, classes=info.classes
        ).train()


def normalised(images, info):
    """(x/255 − mean)/std, channel by channel."""
    channels = [
        (images[:, c].double() / 255 - mean) / std
        for c, (mean, std) in enumerate(zip(info.mean, info.std, strict=True))
    ]
    return torch.stack(channels, 1).float()


def first_batch(plan):
    data = datasets.load(plan.dataset)
    sampler = PoissonSampler(
        size=plan.training_size, sampling_rate=plan.sampling_rate, stream=SeededStream(plan.seed, "sampling")
    )
    batch = sampler.draw()
    return normalised(data.train_images[batch], data.info), data.train_labels[batch]


def minibatches(training):
    """A list that fills with the labels and the loss of each minibatch."""
    seen, backward = [], training.method.backward

    def spy(model, images, labels, *, noise):
        loss = backward(model, images, labels, noise=noise)
        seen.append((labels, loss))
        return loss

    training.method.backward = spy
    return seen


def gradients(loss, network):
    return torch.autograd.grad(loss, list(network.parameters()))


def assert_close_weights(training, network, *, moved_from=None):
    for name, parameter in network.named_parameters():
        mine = dict(training.model.named_parameters())[name]
        torch.testing.assert_close(mine, parameter, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
        if moved_from is not None and parameter.ndim > 1:  # else the comparison would pass without any training
            assert (mine - dict(moved_from.named_parameters())[name]).abs().max() > 1e-3, name


# Algorithm 1, step by step


def test_without_a_mechanism_a_step_is_plain_sgd_on_cross_entropy():
    plan = plan_of(epsilon=math.inf, steps=1, reports=1, lr=1, seed=3)
    training = train(plan)
    report = next(training)

    network, start = network_of(plan), network_of(plan)
    images, labels = first_batch(plan)
    loss = cross_entropy(network(images), labels)
    with torch.no_grad():
        for parameter, gradient in zip(network.parameters(), gradients(loss, network), strict=True):
            parameter -= plan.lr * gradient

    assert_close_weights(training, network, moved_from=start)
    assert report.train_loss == pytest.approx(loss.item(), rel=1e-5)
    assert (report.epsilon_spent, report.effective_learning_rate) == (math.inf, plan.lr)


def test_with_the_mechanism_a_step_follows_one_dirichlet_draw_per_record():
    plan = plan_of(steps=1, reports=1, lr=10, alpha=1, seed=3)
    training = train(plan)
    report = next(training)

    network, start = network_of(plan), network_of(plan)
    r = calibrate(epsilon=1, delta=1e-5, alpha=1, sampling_rate=plan.sampling_rate, steps=1).r
    images, labels = first_batch(plan)
    losses = dirichlet_nll(network(images), labels, r=r, alpha=1, stream=SeededStream(3, "noise"))
    loss = losses.sum() / len(labels)
    with torch.no_grad():
        for parameter, gradient in zip(network.parameters(), gradients(loss, network), strict=True):
            parameter -= plan.lr * gradient

    assert_close_weights(training, network, moved_from=start)
    assert report.train_loss == pytest.approx(loss.item(), rel=1e-5)


def sgd(parameter, gradient, memory, *, momentum=0.0, weight_decay=0.0, nesterov=False, lr):
    gradient = gradient + weight_decay * parameter
    memory["v"] = momentum * memory["v"] + gradient if "v" in memory else gradient
    return parameter - lr * (gradient + momentum * memory["v"] if nesterov else memory["v"])


def adam(parameter, gradient, memory, *, weight_decay=0.0, decoupled=False, lr):
    """Kingma and Ba 2015; decoupled: Loshchilov and Hutter 2019."""
    if decoupled:
        parameter = parameter * (1 - lr * weight_decay)
    else:
        gradient = gradient + weight_decay * parameter
    memory["t"] = memory.get("t", 0) + 1
    memory["m"] = 0.9 * memory.get("m", 0) + 0.1 * gradient
    memory["v"] = 0.999 * memory.get("v", 0) + 0.001 * gradient**2
    mean, square = memory["m"] / (1 - 0.9 ** memory["t"]), memory["v"] / (1 - 0.999 ** memory["t"])
    return parameter - lr * mean / (square.sqrt() + 1e-8)


@pytest.mark.parametrize(
    ("rule", "fields", "options", "lr"),
    [
        (sgd, {}, {}, 0.5),
        (sgd, {"momentum": 0.9}, {"momentum": 0.9}, 0.5),
        (sgd, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "nesterov": True}, 0.5),
        (sgd, {"weight_decay": 0.1}, {"weight_decay": 0.1}, 0.5),
        (adam, {"name": "adam"}, {}, 0.05),
        (adam, {"name": "adam", "weight_decay": 0.3}, {"weight_decay": 0.3}, 0.05),
        (adam, {"name": "adamw", "weight_decay": 0.3}, {"weight_decay": 0.3, "decoupled": True}, 0.05),
    ],
)
def test_optimizers_follow_their_published_rules(register_dataset, register_model, rule, fields, options, lr):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (30, 1, 4, 4), generator=generator, dtype=torch.uint8)
    labels = torch.arange(30) % 3
    info = register_dataset("thirty", images, labels, classes=3)
    register_model(
        "linear", lambda *, in_channels, image_size, classes: nn.Sequential(nn.Flatten(), nn.Linear(16, classes))
    )
    plan = plan_of(
        dataset="thirty", model="linear", epsilon=math.inf, sampling_rate=1, steps=4, reports=1, lr=lr, optimizer=fields
    )
    training = train(plan)
    next(training)

    network, memories = network_of(plan), [{}, {}]
    for _ in range(4):
        slopes = gradients(cross_entropy(network(normalised(images, info)), labels), network)
        with torch.no_grad():
            for parameter, gradient, memory in zip(network.parameters(), slopes, memories, strict=True):
                parameter.copy_(rule(parameter, gradient, memory, lr=lr, **options))
    assert_close_weights(training, network, moved_from=network_of(plan))


def test_minibatches_are_those_of_the_plans_sampler_and_their_losses_are_averaged():
    plan = plan_of(steps=10, reports=3)
    training = train(plan)
    sampler = PoissonSampler(size=N, sampling_rate=16 / N, stream=SeededStream(0, "sampling"))
    expected_labels = [datasets.load("digits").train_labels[sampler.draw()] for _ in range(10)]
    seen = minibatches(training)
    reports = list(training)
    assert [report.step for report in reports] == [4, 7, 10]
    assert all(torch.equal(labels, expected) for (labels, _), expected in zip(seen, expected_labels, strict=True))
    losses = [loss.item() for _, loss in seen]
    means = [np.mean(losses[:4]), np.mean(losses[4:7]), np.mean(losses[7:])]
    assert [report.train_loss for report in reports] == pytest.approx(means, rel=1e-12)


@pytest.mark.parametrize("epsilon", [1, math.inf])
def test_normalising_by_the_expected_batch_scales_the_gradient_by_its_size(epsilon):
    plans = [plan_of(epsilon=epsilon, normalize=way, steps=1, reports=1, lr=1) for way in ("batch", "expected")]
    trainings = [train(plan) for plan in plans]
    size = len(first_batch(plans[0])[1])
    expected = size / (plans[0].sampling_rate * N)
    assert abs(expected - 1) > 0.05  # else nothing is compared
    for training in trainings:
        training.model.double().register_forward_pre_hook(lambda model, inputs: inputs[0].double())
        next(training)
    for ours, theirs in zip(*(training.model.parameters() for training in trainings), strict=True):
        torch.testing.assert_close(theirs.grad, ours.grad * expected, rtol=1e-11, atol=1e-15)


def test_expected_batch_counts_only_the_records_trained_on():
    plan = plan_of(normalize="expected", validation={"fraction": 0.5}, sampling_rate=1, steps=1, reports=1, lr=1)
    rival = plan_of(normalize="batch", validation={"fraction": 0.5}, sampling_rate=1, steps=1, reports=1, lr=1)
    trainings = [train(plan), train(rival)]
    for training in trainings:
        next(training)
    assert_close_weights(trainings[0], trainings[1].model)


# Privacy spent and learning rates


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_reported_epsilon_is_theorem_10_at_that_step(optimizer):
    plan = plan_of(epsilon=2, alpha=1, steps=50, reports=7, optimizer={"name": optimizer}, lr=0.01)
    reports = list(train(plan))
    setting = {"alpha": 1, "delta": 1e-5, "sampling_rate": plan.sampling_rate}
    r = calibrate(epsilon=2, steps=50, **setting).r
    assert [report.step for report in reports] == plan.report_steps == [8, 15, 22, 29, 36, 43, 50]
    assert [report.epsilon_spent for report in reports] == [
        epsilon_spent(r=r, steps=report.step, **setting).epsilon for report in reports
    ]
    assert all(left.epsilon_spent < right.epsilon_spent for left, right in pairwise(reports))
    assert 0.999 * 2 <= reports[-1].epsilon_spent <= 2
    assert [report.epoch for report in reports] == [report.step * plan.sampling_rate for report in reports]
    assert [report.end_reason for report in reports] == [None] * 6 + ["completed"]
    assert all(report.steps == 50 and report.steps_per_second > 0 for report in reports)


@pytest.mark.parametrize("epsilon", [1, math.inf])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_effective_learning_rate_is_divided_by_kappa(epsilon, optimizer):
    plan = plan_of(epsilon=epsilon, lr=None, effective_lr=0.02, optimizer={"name": optimizer})
    training = train(plan)
    kappa = 1.0
    if epsilon == 1:
        r = calibrate(epsilon=1, delta=1e-5, alpha=3, sampling_rate=plan.sampling_rate, steps=plan.steps).r
        kappa = 0.9 * r * float(torch.special.polygamma(1, torch.tensor(0.9 * r + 3, dtype=torch.float64)))
        assert kappa < 0.5
    assert training.method.learning_rate == pytest.approx(0.02 / kappa, rel=1e-9)
    assert training._optimizer.param_groups[0]["lr"] == training.method.learning_rate
    assert next(training).effective_learning_rate == pytest.approx(0.02, rel=1e-12)
    given = train(plan_of(epsilon=epsilon, lr=0.02 / kappa, optimizer={"name": optimizer}))
    assert next(given).effective_learning_rate == pytest.approx(0.02, rel=1e-9)


def test_what_cannot_be_trained_is_refused_before_the_first_step():
    with pytest.raises(BudgetError, match=r"epsilon = 4"):
        train(plan_of(epsilon=4, sampling_rate=0.04, steps=20_000))
    with pytest.raises(datasets.DataError, match=r"'mnist' needs a data folder"):
        train(plan_of(dataset="mnist"))


# Resumption


RESUMED = {
    "mlp, momentum": {"optimizer": {"momentum": 0.9}},
    "mlp, adam, held out": {"optimizer": {"name": "adam"}, "lr": 0.01, "validation": {"fraction": 0.1}},
    "cnn, momentum, crop-flip": {"model": "cnn", "optimizer": {"momentum": 0.9}, "augmentation": "crop-flip"},
    "cnn, adam": {"model": "cnn", "optimizer": {"name": "adam"}, "lr": 0.01},
    "dropout, nesterov, crop-flip": {
        "model": CUSTOM,
        "optimizer": {"momentum": 0.9, "nesterov": True},
        "augmentation": "crop-flip",
    },
    "dropout, adamw, no mechanism": {"model": CUSTOM, "epsilon": math.inf, "optimizer": {"name": "adamw"}, "lr": 0.01},
}
EVERYTHING = RESUMED["dropout, nesterov, crop-flip"]


@pytest.mark.parametrize("changes", RESUMED.values(), ids=RESUMED)
def test_a_resumed_training_goes_on_bit_for_bit(changes):
    plan = plan_of(seed=1, **changes)
    straight = outcome(train(plan))
    assert len(straight[0]) == 6

    first = train(plan)
    head = [next(first) for _ in range(3)]
    state = saved_and_loaded(first.state_dict())
    second = train(plan)
    second.load_state_dict(state)
    assert second.step == 6
    tail = list(second)
    assert is_same_outcome((timeless([*head, *tail]), weights(second)), straight)


@pytest.mark.parametrize(
    "part",
    ["model", "optimizer", "global", "step", "streams.sampling", "streams.noise", "streams.augmentation"],
)
def test_every_part_of_the_state_is_needed(part):
    """So the test above would notice were one of them forgotten."""
    plan = plan_of(seed=1, **EVERYTHING)
    straight = outcome(train(plan))
    first = train(plan)
    head = [next(first) for _ in range(3)]
    state, fresh = first.state_dict(), train(plan).state_dict()
    *path, last = part.split(".")
    for key in path:
        state, fresh = state[key], fresh[key]
    whole = first.state_dict()
    (whole[path[0]] if path else whole)[last] = fresh[last]
    second = train(plan)
    second.load_state_dict(whole)
    assert not is_same_outcome((timeless([*head, *second]), weights(second)), straight)


def test_a_state_stays_as_it_was_when_it_is_trained_on():
    plan = plan_of(**EVERYTHING)
    straight = outcome(train(plan))
    first = train(plan)
    head = [next(first) for _ in range(3)]
    state = first.state_dict()
    for training in (first, train(plan), train(plan)):
        if training is not first:
            training.load_state_dict(state)
        assert is_same_outcome((timeless([*head, *training]), weights(training)), straight)


def test_states_before_the_first_and_after_the_last_report_resume_too():
    plan = plan_of()
    straight = train(plan)
    other = train(plan)
    other.load_state_dict(saved_and_loaded(straight.state_dict()))
    reports = timeless(straight)
    assert timeless(other) == reports and len(reports) == 6
    ended = train(plan)
    ended.load_state_dict(saved_and_loaded(straight.state_dict()))
    assert list(ended) == []
    assert (ended.step, ended.end_reason) == (12, "completed")


@pytest.mark.parametrize("changes", [{"seed": 2}, {"lr": 0.4}, {"steps": 13}, {"epsilon": 2}, {"delta": 1e-6}])
def test_the_state_of_another_plan_is_refused(changes):
    plan, other = plan_of(), plan_of(**changes)
    training = train(plan)
    with pytest.raises(ValueError, match=f"trial_id={other.trial_id}, this training has trial_id={plan.trial_id}"):
        training.load_state_dict(train(other).state_dict())
    assert training.step == 0


def test_the_state_of_another_calibration_is_refused():
    training = train(plan_of())
    state = training.state_dict() | {"calibrated": {"r": training.method.r * 1.01}}
    with pytest.raises(ValueError, match=r"the state is of calibrated=\{'r': \S+\}, this training has calibrated="):
        training.load_state_dict(state)


# Seeds and the process around


def test_the_seed_alone_decides():
    plan = plan_of(**EVERYTHING)
    torch.manual_seed(1)
    first = outcome(train(plan))
    torch.manual_seed(2)
    assert is_same_outcome(outcome(train(plan)), first)
    other = outcome(train(plan_of(seed=1, **EVERYTHING)))
    assert all(left.train_loss != right.train_loss for left, right in zip(first[0], other[0], strict=True))
    assert not same(first[1], other[1])


def test_trainings_side_by_side_do_not_disturb_each_other():
    plans = [plan_of(seed=1, **EVERYTHING), plan_of(seed=2, epsilon=math.inf, **EVERYTHING), plan_of(model="cnn")]
    alone = [outcome(train(plan)) for plan in plans]
    together = [train(plan) for plan in plans]
    reports = [[], [], []]
    for _ in range(6):
        for training, kept in zip(together, reports, strict=True):
            kept.append(next(training))
    for training, kept, expected in zip(together, reports, alone, strict=True):
        assert next(training, None) is None
        assert is_same_outcome((timeless(kept), weights(training)), expected)


def process_state():
    return torch.get_num_threads(), random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()


@pytest.mark.parametrize(("outside", "inside"), [(2, 1), (1, 2)])
def test_the_callers_random_state_and_threads_are_left_alone(register_model, outside, inside):
    threads = []

    class Probe(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = dropout_network(in_channels=1, image_size=8, classes=10)

        def forward(self, images):
            threads.append(torch.get_num_threads())
            return self.network(images)

    register_model("probe", lambda **_: Probe())
    torch.set_num_threads(outside)
    before = process_state()
    training = train(plan_of(model="probe", augmentation="crop-flip"), threads=inside)
    assert process_state() == before
    next(training)
    assert process_state() == before
    training.load_state_dict(training.state_dict())
    assert process_state() == before

    def fail(*_, **__):
        torch.rand(3)
        raise KeyboardInterrupt

    training.method.backward = fail
    with pytest.raises(KeyboardInterrupt):
        next(training)
    assert process_state() == before
    assert set(threads) == {inside}


# Minibatches of none and of one


def test_empty_minibatches_are_counted_steps(twenty):
    plan = twenty_of(sampling_rate=0.01, steps=100, reports=10, model=CUSTOM)
    training = train(plan)
    sizes, updates = [], []
    draw, step = training._sampler.draw, training._optimizer.step

    def spy():
        batch = draw()
        sizes.append(len(batch))
        return batch

    training._sampler.draw = spy
    moved = lambda: any(parameter.grad is not None for parameter in training.model.parameters())  # noqa: E731
    training._optimizer.step = lambda: (updates.append(moved()), step())
    seen = minibatches(training)
    reports = list(training)
    assert 60 < sizes.count(0) < 100  # 82 expected
    assert len(sizes) == reports[-1].step == 100
    assert updates == [size > 0 for size in sizes]
    r = calibrate(epsilon=1, delta=1e-5, alpha=3, sampling_rate=0.01, steps=100).r
    spent = epsilon_spent(r=r, alpha=3, delta=1e-5, sampling_rate=0.01, steps=100)
    assert reports[-1].epsilon_spent == spent.epsilon
    assert all(tensor.isfinite().all() for tensor in weights(training).values())
    for i, report in enumerate(reports):
        assert (report.train_loss is None) == (not any(sizes[10 * i : 10 * i + 10]))
        losses = [loss.item() for _, loss in seen[10 * i : 10 * i + 10] if loss is not None]
        if losses:
            assert report.train_loss == pytest.approx(np.mean(losses), rel=1e-12)
        assert report.test_accuracy is not None


@pytest.mark.parametrize("model", ["mlp", "cnn", CUSTOM])
@pytest.mark.parametrize("optimizer", [{"momentum": 0.9, "weight_decay": 0.1}, {"name": "adamw", "weight_decay": 0.1}])
def test_an_empty_minibatch_changes_no_weight(twenty, model, optimizer):
    training = train(twenty_of(model=model, optimizer=optimizer, steps=3, reports=3, augmentation="crop-flip"))
    next(training)
    before, optimizer_state = weights(training), training.state_dict()["optimizer"]
    training._sampler.draw = lambda: torch.empty(0, dtype=torch.int64)
    report = next(training)
    assert (report.step, report.train_loss) == (2, None)
    assert same(weights(training), before)
    assert str(training.state_dict()["optimizer"]) == str(optimizer_state)


def batch_norm_network(*, in_channels, image_size, classes):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(in_channels * image_size**2, 8),
        nn.BatchNorm1d(8),
        nn.Dropout(0.5),
        nn.Unflatten(1, (8, 1, 1)),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        nn.Linear(8, classes),
    )


@pytest.mark.parametrize("epsilon", [1, math.inf])
def test_a_minibatch_of_one_is_normalised_by_running_statistics(twenty, register_model, epsilon):
    register_model("normed", batch_norm_network)
    training = train(twenty_of(model="normed", epsilon=epsilon, steps=3, reports=3, lr=0.1))
    norms, dropout = [training.model[2], training.model[5]], training.model[3]
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        copy.deepcopy(training.model)(torch.ones(1, 1, 4, 4))  # what would happen without the rule

    training._sampler.draw = lambda: torch.arange(20)
    next(training)
    statistics = [norm.running_mean.clone() for norm in norms]
    assert all(mean.abs().max() > 0 for mean in statistics)

    seen, dropout_modes = [], []

    def compare(norm, inputs, output):
        if len(inputs[0]) == 1:
            row = inputs[0].flatten()
            by_hand = (row - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
            seen.append((output.flatten().detach(), by_hand.detach()))

    for norm in norms:
        norm.register_forward_hook(compare)
    dropout.register_forward_hook(lambda layer, *_: dropout_modes.append(layer.training))
    training._sampler.draw = lambda: torch.tensor([7])
    before = weights(training)
    assert math.isfinite(next(training).train_loss)
    assert len(seen) == 2
    for output, by_hand in seen:
        torch.testing.assert_close(output, by_hand)
    assert dropout_modes[0] is True
    assert not torch.equal(training.model[7].weight, before["7.weight"])
    for norm, statistic in zip(norms, statistics, strict=True):
        assert torch.equal(norm.running_mean, statistic)
        assert norm.num_batches_tracked == 1

    training._sampler.draw = lambda: torch.tensor([7, 8])  # two have a variance: the usual rule again
    next(training)
    for norm, statistic in zip(norms, statistics, strict=True):
        assert not torch.equal(norm.running_mean, statistic)
        assert norm.num_batches_tracked == 2


def test_the_minibatch_after_one_of_one_is_normalised_by_itself(twenty, register_model):
    register_model("normed", batch_norm_network)
    training = train(twenty_of(model="normed", steps=3, reports=1, lr=0.1))
    draws = iter([[7], [7, 8], [5]])
    training._sampler.draw = lambda: torch.tensor(next(draws))
    next(training)
    assert [training.model[layer].num_batches_tracked.item() for layer in (2, 5)] == [1, 1]


def test_minibatches_of_one_resume_bit_for_bit(twenty):
    plan = twenty_of(model="mlp", sampling_rate=0.06, steps=30, reports=6)
    straight = outcome(train(plan))
    first = train(plan)
    head = [next(first) for _ in range(3)]
    second = train(plan)
    second.load_state_dict(saved_and_loaded(first.state_dict()))
    assert is_same_outcome((timeless([*head, *second]), weights(second)), straight)


# Accuracy and the held-out part


def accuracy_by_hand(training, images, labels):
    network = training.model.eval()
    with torch.no_grad():
        return sum(
            int(network(normalised(image[None], datasets.info(training.plan.dataset))).argmax() == label)
            for image, label in zip(images, labels, strict=True)
        ) / len(labels)


def test_accuracies_are_those_of_the_network_on_each_part():
    plan = plan_of(model="cnn", epsilon=math.inf, steps=40, reports=1, validation={"fraction": 0.1})
    training = train(plan)
    (report,) = training
    data = datasets.load("digits")
    assert 0.15 < report.test_accuracy < 0.999
    assert report.test_accuracy == accuracy_by_hand(training, data.test_images, data.test_labels)
    held_out = training._validation
    assert report.validation_accuracy == accuracy_by_hand(training, held_out._images, held_out._labels)
    assert report.validation_accuracy != report.test_accuracy


def test_evaluation_takes_all_records_in_pieces(monkeypatch):
    plan = plan_of(steps=20, reports=1, epsilon=math.inf)
    whole = next(train(plan)).test_accuracy
    monkeypatch.setattr("dirdp.training._EVALUATION_BATCH", 7)  # 360 = 51·7 + 3
    assert next(train(plan)).test_accuracy == whole


def numbers(records):
    return set((records._images[:, 0, 0, 0] // 10).tolist())


@pytest.mark.parametrize(("fraction", "held_out"), [(0.1, 2), (0.5, 10), (0.95, 19)])
def test_the_held_out_part_is_never_trained_on_and_the_same_for_all(twenty, fraction, held_out):
    parts = []
    for changes in ({}, {"seed": 9}, {"epsilon": math.inf}, {"randomness": "secure"}):
        plan = twenty_of(validation={"fraction": fraction}, sampling_rate=1, steps=1, reports=1, **changes)
        training = train(plan)
        trained, validated = numbers(training._train), numbers(training._validation)
        assert trained | validated == set(range(20))
        assert not trained & validated
        assert len(validated) == held_out == 20 - plan.training_size
        used = minibatches(training)
        next(training)
        assert set(used[0][0].tolist()) == trained  # the labels are the records' numbers, and q = 1
        parts.append(validated)
    assert all(part == parts[0] for part in parts)


def test_the_held_out_part_is_a_random_one():
    training = train(plan_of(validation={"fraction": 0.1}))
    counts = training._validation._labels.bincount(minlength=10)
    assert counts.sum() == 144 and counts.min() > 5
    first = datasets.load("digits").train_images[:144]
    assert not torch.equal(training._validation._images, first)
    assert not torch.equal(training._train._images[:144], first)


def test_without_a_held_out_part_all_records_are_trained_on(twenty):
    training = train(twenty_of())
    assert numbers(training._train) == set(range(20))
    assert next(training).validation_accuracy is None


# Divergence


def assert_sound(report):
    for name, value in asdict(report).items():
        if isinstance(value, float):
            assert not math.isnan(value), name
            assert math.isfinite(value) or name == "epsilon_spent", name


@pytest.mark.parametrize("model", ["mlp", "cnn", CUSTOM])
@pytest.mark.parametrize("epsilon", [1, math.inf])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_diverged_training_ends_and_keeps_its_last_good_report(model, epsilon, optimizer):
    plan = plan_of(model=model, epsilon=epsilon, lr=1e30, optimizer={"name": optimizer}, steps=30, reports=30)
    training = train(plan)
    *good, last = reports = list(training)
    assert good
    for report in reports:
        assert_sound(report)
    for report in good:
        assert report.end_reason is None
        assert math.isfinite(report.train_loss)
        assert 0 <= report.test_accuracy <= 1
    assert last.end_reason == training.end_reason == "diverged"
    assert last.step == len(reports) < 30
    assert (last.train_loss, last.test_accuracy, last.validation_accuracy) == (None, None, None)
    assert last.epsilon_spent == training.method.epsilon_spent(last.step)
    assert next(training, None) is None
    resumed = train(plan)
    resumed.load_state_dict(saved_and_loaded(training.state_dict()))
    assert next(resumed, None) is None


def test_a_weight_that_turns_infinite_in_the_last_step_is_seen():
    training = train(plan_of(steps=1, reports=1))
    step = training._optimizer.step
    training._optimizer.step = lambda: (step(), training.model[1].weight.data[3, 5].fill_(math.inf))
    (report,) = training
    assert report.end_reason == "diverged"
    assert (report.train_loss, report.test_accuracy) == (None, None)


def test_a_loss_that_turns_nan_is_seen_though_the_weights_are_finite():
    training = train(plan_of(steps=4, reports=2))
    next(training)
    training.method.backward = lambda *_, **__: torch.tensor(math.nan)
    report = next(training)
    assert (report.end_reason, report.step, report.train_loss) == ("diverged", 4, None)


# Secure randomness


def secure_of(**changes):
    return plan_of(randomness="secure", model=CUSTOM, augmentation="crop-flip", **changes)


def test_secure_trainings_differ_though_weights_and_global_seeds_agree():
    start = network_of(plan_of(model=CUSTOM)).state_dict()
    ends = []
    for _ in range(2):
        torch.manual_seed(0)
        training = train(secure_of(steps=2, reports=1, lr=1))
        training.model.load_state_dict(start)
        training.model[3].p = 0.0
        next(training)
        ends.append(weights(training))
    assert not same(*ends)
    first, second = (train(secure_of()) for _ in range(2))
    assert first._sampler.draw().tolist() != second._sampler.draw().tolist()
    noises = [training._streams["noise"].uniform((4,)).tolist() for training in (first, second)]
    assert not set(noises[0]) & set(noises[1])


def test_a_secure_state_holds_neither_masks_nor_noise():
    training = train(secure_of(optimizer={"momentum": 0.9}))
    assert all(isinstance(source, EntropyStream) for source in training._streams.values())
    next(training)
    state = saved_and_loaded(training.state_dict())
    assert state.keys() == {
        "trial_id",
        "step",
        "end_reason",
        "calibrated",
        "model",
        "average",
        "optimizer",
        "streams",
        "global",
    }
    assert state["streams"] == {"sampling": {}, "noise": {}, "augmentation": {}}
    assert training.plan.seed is None
    # The one generator state there is belongs to initialisation and dropout. It tells of no mask and no noise.
    sampler = PoissonSampler(size=N, sampling_rate=16 / N, stream=SeededStream(0, "sampling"))
    sampler._stream._generator.set_state(state["global"][0])
    assert sampler.draw().tolist() != training._sampler.draw().tolist()


def test_a_secure_training_resumes_with_fresh_entropy():
    plan = secure_of()
    first = train(plan)
    head = [next(first) for _ in range(3)]
    state = first.state_dict()
    tails, ends = [], []
    for _ in range(2):
        second = train(plan)
        second.load_state_dict(saved_and_loaded(state))
        tails.append(list(second))
        ends.append(weights(second))
    assert not same(*ends)
    for tail in tails:
        assert [report.step for report in [*head, *tail]] == plan.report_steps
        assert tail[-1].end_reason == "completed"


# Records on the device


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_normalised_channel_by_channel(register_dataset, channels):
    images = torch.randint(0, 256, (5, channels, 4, 4), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    info = register_dataset("five", images, torch.arange(5), classes=5)
    info = replace(info, mean=(0.1, 0.2, 0.3)[:channels], std=(0.4, 0.5, 0.6)[:channels])
    from dirdp.training import _Records

    records = _Records(images, torch.arange(5), info, torch.device("cpu"))
    found, labels = records.batch(torch.tensor([4, 0]))
    torch.testing.assert_close(found, normalised(images[[4, 0]], info), rtol=1e-5, atol=1e-6)
    assert found.dtype == torch.float32 and labels.tolist() == [4, 0]
    assert records._images.dtype == torch.uint8


def test_training_images_are_augmented_and_others_are_not(register_dataset):
    images = torch.randint(1, 256, (8, 1, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    register_dataset("eight", images, torch.arange(8), classes=8)
    batches = {}
    for augmentation in ("none", "crop-flip"):
        plan = plan_of(
            dataset="eight", augmentation=augmentation, sampling_rate=1, steps=2, reports=1, allow_large_delta=True
        )
        training, seen = train(plan), []
        training.model.register_forward_pre_hook(lambda model, inputs, seen=seen: seen.append(inputs[0]))
        next(training)
        batches[augmentation] = seen
    plain = normalised(images, datasets.info("eight"))
    for batch in batches["none"]:
        torch.testing.assert_close(batch, plain)
    first, second, evaluated = batches["crop-flip"]
    torch.testing.assert_close(evaluated, plain)
    assert not torch.equal(first, second)
    assert (first - plain).abs().max() > 0.1 and (second - plain).abs().max() > 0.1
    # Zero is black, before normalisation as in the images: what comes in at the edges is −mean/std.
    assert first.min() == pytest.approx(-1.0)


def test_a_training_is_an_iterator_of_reports():
    training = train(plan_of())
    assert isinstance(training, Training) and iter(training) is training
    assert isinstance(next(training), Report)
    assert len(list(training)) == 5
    with pytest.raises(StopIteration):
        next(training)


# Real data


def test_sixty_steps_of_inception_on_mnist(data_root):
    plan = plan_of(dataset="mnist", model="inception", epsilon=4, sampling_rate=32 / 60_000, steps=60, reports=1)
    (report,) = list(train(plan, data_root=data_root))
    assert (report.step, report.end_reason) == (60, "completed")
    assert 0.999 * 4 <= report.epsilon_spent <= 4
    assert_sound(report)
    assert math.isfinite(report.train_loss)
    assert 0.05 < report.test_accuracy <= 1
