"""Algorithm 1 as one straight loop that yields a report after each part of the training."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from dirdp import datasets, methods, models
from dirdp.audit.canaries import OneRun, OneRunResult
from dirdp.datasets.augmentation import AUGMENTATIONS
from dirdp.plan import TrainingPlan
from dirdp.randomness import stream
from dirdp.sampling import PoissonSampler

__all__ = ["Report", "Training", "train"]

# On a CPU memory for the activations of more images costs three times the arithmetic.
_EVALUATION_BATCH = 250
# The hold-out is one choice for all seeds and trials, so that their accuracies can be compared.
_HOLD_OUT_SEED = 0


@dataclass(frozen=True)
class Report:
    """What is known after `step` of `steps` steps.

    `epoch` is step·q, the expected number of passes. Accuracies are in [0, 1]; `train_loss` is the mean of the
    minibatch losses since the last report. Accuracies and loss are None where there is none: no validation set, no
    non-empty minibatch, or a diverged network. `epsilon_spent` is what the plan's method claims for the steps so
    far, `effective_learning_rate` is γκ at s_y = 0.9 (eq. 6), with the γ of the step just made, or None where the
    method has no κ. `end_reason` is "completed" or "diverged" in the last report and None before.
    `audit_epsilon_lower` is the lower bound on ε that the plan's audit found, with `audit_correct` right guesses; it
    comes with the report of a completed training.
    """

    step: int
    steps: int
    epoch: float
    train_loss: float | None
    test_accuracy: float | None
    validation_accuracy: float | None
    epsilon_spent: float
    effective_learning_rate: float | None
    steps_per_second: float
    end_reason: str | None = None
    audit_epsilon_lower: float | None = None
    audit_correct: int | None = None


def train(
    plan: TrainingPlan,
    *,
    data_root: str | Path | None = None,
    device: str | torch.device = "cpu",
    threads: int = 1,
) -> Training:
    """Start the training of `plan`; iterate over the result for its reports.

    The device and the number of CPU threads are what the caller was given; the same plan, device kind and thread
    count give the same reports. Raises `dirdp.BudgetError` and `datasets.DataError` before the first step.

    >>> plan = TrainingPlan(
    ...     dataset="digits", model="mlp", epsilon=1, sampling_rate=16/1437, steps=400, lr=1, reports=2
    ... )
    >>> for report in train(plan):
    ...     print(report.step, report.test_accuracy > 0.5, report.epsilon_spent <= 1)
    200 True True
    400 True True
    """
    return Training(plan, data_root=data_root, device=device, threads=threads)


class Training(Iterator[Report]):
    """A running training: an iterator over `Report`, which may be saved and resumed between any two of them."""

    def __init__(
        self,
        plan: TrainingPlan,
        *,
        data_root: str | Path | None = None,
        device: str | torch.device = "cpu",
        threads: int = 1,
    ):
        self.plan = plan
        self.method = methods.bind(plan)
        self.step = 0
        self.end_reason: str | None = None
        self._device = torch.device(device)
        self._threads = threads

        data = datasets.load(plan.dataset, root=data_root, allow_unofficial=plan.allow_unofficial)
        self.unofficial = data.unofficial
        train_part, validation_part = _hold_out(len(data.train_labels), plan)
        held_out = (data.train_images[validation_part], data.train_labels[validation_part])
        validation = held_out if plan.validation else data.validation
        images, labels = data.train_images[train_part], data.train_labels[train_part]
        self._audit: OneRun | None = None
        if plan.audit:
            coins = stream("audit", seed=plan.seed)
            self._audit = OneRun(plan.audit, images, labels, classes=data.info.classes, coins=coins)
            self._canaries = _Records(self._audit.images, self._audit.labels, data.info, self._device)
            images, labels = self._audit.records
        self._train = _Records(images, labels, data.info, self._device)
        self._test = _Records(data.test_images, data.test_labels, data.info, self._device)
        self._validation = _Records(*validation, data.info, self._device) if validation else None

        # One stream for each use of chance, so that none disturbs another.
        self._streams = {
            "sampling": stream("sampling", seed=plan.seed),
            "noise": stream("noise", seed=plan.seed, device=self._device),
            "augmentation": stream("augmentation", seed=plan.seed, device=self._device),
        }
        self._sampler = PoissonSampler(
            size=len(self._train), sampling_rate=plan.sampling_rate, stream=self._streams["sampling"]
        )
        augment = AUGMENTATIONS[plan.augmentation]
        self._augment = augment and partial(augment, stream=self._streams["augmentation"])
        # PyTorch initialises networks and draws dropout from its global generators: they get a state of their own.
        self._global_state = _seeded_global_state(plan, self._device)
        with self._own_process_state():
            network = models.build(
                plan.model,
                in_channels=data.info.channels,
                image_size=data.info.image_size,
                classes=data.info.classes,
                norm=plan.norm,
                weight_standardization=plan.weight_standardization,
            )
        self.model = self.method.prepare(network).to(self._device)
        if self._audit:
            self._audit.watch(self.model)
        # Channels last halves the time of a convolution on the CPU, and suits tensor cores.
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._average = _average(self.model, decay=plan.weight_ema) if plan.weight_ema else None
        self._optimizer = _optimizer(plan, self.model, learning_rate=self.method.learning_rate)

    def __next__(self) -> Report:
        """Train up to the next report. Raises `StopIteration` once the training has ended."""
        if self.end_reason is not None:
            raise StopIteration
        with self._own_process_state():
            return self._advance(next(step for step in self.plan.report_steps if step > self.step))

    def _advance(self, until: int) -> Report:
        started, first = time.perf_counter(), self.step
        loss_sum, losses = torch.zeros((), dtype=torch.float64, device=self._device), 0
        self.model.train()
        while self.step < until:
            self._set_learning_rate()
            records = self._sampler.draw().repeat_interleave(self.method.views)
            images, labels = self._train.batch(records, self._augment)
            self._optimizer.zero_grad(set_to_none=True)
            with _single_record_rule(self.model, len(labels)):
                loss = self.method.backward(self.model, images, labels, noise=self._streams["noise"])
            self._optimizer.step()
            if self._average:
                self._average.update_parameters(self.model)
            if loss is not None:
                loss_sum += loss
                losses += 1
            self.step += 1
        diverged = not (math.isfinite(loss_sum.item()) and _is_finite(self.model))  # waits for the device
        steps_per_second = (self.step - first) / (time.perf_counter() - started)

        if diverged or self.step == self.plan.steps:
            self.end_reason = "diverged" if diverged else "completed"
        evaluated = self._average or self.model
        return Report(
            step=self.step,
            steps=self.plan.steps,
            epoch=self.step * self.plan.sampling_rate,
            train_loss=loss_sum.item() / losses if losses and not diverged else None,
            test_accuracy=None if diverged else _accuracy(evaluated, self._test),
            validation_accuracy=_accuracy(evaluated, self._validation) if self._validation and not diverged else None,
            epsilon_spent=self.method.epsilon_spent(self.step),
            effective_learning_rate=self.method.effective(self._learning_rate(self.step - 1)),
            steps_per_second=steps_per_second,
            end_reason=self.end_reason,
            **self._audited(),
        )

    def audit_scores(self) -> tuple[Tensor, Tensor]:
        """The coins (m,) of the plan's audit, and the canaries' scores (m,) by the network as it is trained now.

        Raises `ValueError` without an audit.
        """
        audit = self._audited_by()
        return audit.coins, audit.scores(self.model, self._canary_inputs())[0]

    def audit_result(self) -> OneRunResult:
        """What the plan's audit finds in the network as it is trained now. Raises `ValueError` without an audit."""
        return self._audited_by().result(self.model, self._canary_inputs(), delta=self.plan.delta)

    def _canary_inputs(self) -> Tensor:
        return self._canaries.batch(slice(None))[0]

    def _audited_by(self) -> OneRun:
        if self._audit is None:
            raise ValueError("the plan has no audit; give audit: {kind: one_run, canaries: 500}")
        return self._audit

    def _audited(self) -> dict[str, Any]:
        if not self._audit or self.end_reason != "completed":
            return {}
        found = self.audit_result()
        return {"audit_epsilon_lower": found.epsilon_lower, "audit_correct": found.correct}

    def _learning_rate(self, step: int) -> float:
        """γ at `step`, counted from 0."""
        return self.method.learning_rate * self.plan.schedule.factor(step, steps=self.plan.steps)

    def _set_learning_rate(self) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate(self.step)

    def state_dict(self) -> dict[str, Any]:
        """All that the rest of the training depends on, for `torch.save`.

        Weights and their average, optimiser, streams, step, and what was calibrated.

        A copy: what is trained afterwards does not change it.
        """
        state = {
            "trial_id": self.plan.trial_id,
            "step": self.step,
            "end_reason": self.end_reason,
            "calibrated": dict(self.method.calibrated),
            "model": self.model.state_dict(),
            "average": self._average and self._average.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "streams": {name: source.state_dict() for name, source in self._streams.items()},
            "global": self._global_state,
        }
        if self._audit:
            state["audit"] = self._audit.state_dict()
        return copy.deepcopy(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` of the same plan; on the CPU the rest is then bit for bit what it would have been.

        Raises `ValueError` if the state belongs to another plan or another calibration.
        """
        for name, mine in (("trial_id", self.plan.trial_id), ("calibrated", dict(self.method.calibrated))):
            if state[name] != mine:
                raise ValueError(f"the state is of {name}={state[name]}, this training has {name}={mine}")
        self.step, self.end_reason = state["step"], state["end_reason"]
        self.model.load_state_dict(state["model"])
        if self._average:
            self._average.load_state_dict(state["average"])
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # which would otherwise train in it
        for name, source in self._streams.items():
            source.load_state_dict(state["streams"][name])
        self._global_state = state["global"]
        if self._audit:
            self._audit.load_state_dict(state["audit"])
            self._train = self._train.replaced(*self._audit.records)
            self._sampler.size = len(self._train)

    @contextmanager
    def _own_process_state(self) -> Iterator[None]:
        """Within, the process has this training's thread count and global random state; afterwards its own again."""
        cuda = [self._device] if self._device.type == "cuda" else []
        threads = torch.get_num_threads()
        with torch.random.fork_rng(devices=cuda):
            torch.set_num_threads(self._threads)
            torch.set_rng_state(self._global_state[0])
            for device, state in zip(cuda, self._global_state[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            try:
                yield
            finally:
                self._global_state = [
                    torch.get_rng_state(),
                    *(torch.cuda.get_rng_state(device) for device in cuda),
                ]
                torch.set_num_threads(threads)


class _Records:
    """Images and labels on a device; images are kept as uint8 and normalised batch by batch."""

    def __init__(self, images: Tensor, labels: Tensor, info: datasets.DatasetInfo, device: torch.device):
        self._info = info
        self._images, self._labels = images.to(device), labels.to(device)
        self._mean = torch.tensor(info.mean, device=device).mul(255).view(-1, 1, 1)
        self._scale = torch.tensor(info.std, device=device).mul(255).reciprocal().view(-1, 1, 1)

    def replaced(self, images: Tensor, labels: Tensor) -> _Records:
        """Other records of the same data set, on the same device."""
        return _Records(images, labels, self._info, self._labels.device)

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, index: Tensor | slice, augment: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        if isinstance(index, Tensor):
            index = index.to(self._labels.device)
        images = self._images[index]
        if augment:
            images = augment(images)
        return (images - self._mean) * self._scale, self._labels[index]


def _hold_out(size: int, plan: TrainingPlan) -> tuple[Tensor, Tensor]:
    order = torch.randperm(size, generator=torch.Generator().manual_seed(_HOLD_OUT_SEED))
    return order[: plan.training_size].sort().values, order[plan.training_size :].sort().values


def _seeded_global_state(plan: TrainingPlan, device: torch.device) -> list[Tensor]:
    places = [torch.device("cpu"), device] if device.type == "cuda" else [torch.device("cpu")]
    generators = [torch.Generator(place) for place in places]
    for generator in generators:
        if plan.seed is None:
            generator.seed()
        else:
            generator.manual_seed(plan.seed)
    return [generator.get_state() for generator in generators]


def _optimizer(plan: TrainingPlan, model: nn.Module, *, learning_rate: float) -> torch.optim.Optimizer:
    rule = plan.optimizer
    if rule.name == "sgd":
        return torch.optim.SGD(
            model.parameters(),
            lr=learning_rate,
            momentum=rule.momentum,
            weight_decay=rule.weight_decay,
            nesterov=rule.nesterov,
        )
    optimizer = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[rule.name]
    return optimizer(model.parameters(), lr=learning_rate, weight_decay=rule.weight_decay)


def _average(model: nn.Module, *, decay: float) -> AveragedModel:
    """A running average of weights and buffers; its decay rises as (1 + t)/(10 + t) at first (De et al. 2022)."""

    def average(mean: Tensor, value: Tensor, updates: Tensor | int) -> Tensor:
        keep = torch.clamp((1 + torch.as_tensor(updates)) / (10 + torch.as_tensor(updates)), max=decay)
        return mean + (1 - keep) * (value - mean)

    return AveragedModel(model, avg_fn=average, use_buffers=True)


@contextmanager
def _single_record_rule(model: nn.Module, size: int) -> Iterator[None]:
    """A minibatch of one has no variance to normalise by: for that step BatchNorm uses its running statistics."""
    layers = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)] if size == 1 else []
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()


def _is_finite(model: nn.Module) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())


@torch.inference_mode()
def _accuracy(model: nn.Module, records: _Records) -> float:
    model.eval()
    correct = 0
    for start in range(0, len(records), _EVALUATION_BATCH):
        images, labels = records.batch(slice(start, start + _EVALUATION_BATCH))
        correct += int((model(images).argmax(1) == labels).sum())
    return correct / len(records)
