"""TrainingPlan: everything that decides a training's result and its privacy claim, frozen and hashable.

The plan holds no knob that changes only the speed (device, threads, where the data lie): those are arguments of
`dirdp.train`. Its content hash is therefore the identity of a trial.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from dirdp import _validate, datasets, methods, models
from dirdp._frozen import Frozen
from dirdp.accounting import Bound
from dirdp.methods.options import DpSgdOptions, GaussianFeaturesOptions, TemperedSigmoidOptions
from dirdp.schedule import Schedule

__all__ = ["Audit", "Optimizer", "Schedule", "TrainingPlan", "Validation"]

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# PyTorch's optimisers raise where a rate overflows float32; up to here even γ_eff/κ stays below 3.4e38.
_Rate = Annotated[float, Field(gt=0, le=1e30)]


class Optimizer(Frozen):
    """The rule that turns gradients into steps; `momentum` and `nesterov` are SGD's."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    nesterov: bool = False

    @model_validator(mode="after")
    def _momentum_is_sgds(self) -> Optimizer:
        if self.name != "sgd" and (self.momentum or self.nesterov):
            raise ValueError(
                f"momentum={self.momentum} and nesterov={self.nesterov} belong to sgd, got name={self.name}"
            )
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov=True needs momentum above 0")
        return self


class Validation(Frozen):
    """A part of the training set held out, the same for every seed; decisions look at it, not at the test set."""

    fraction: Annotated[float, Field(gt=0, lt=1)]


class Audit(Frozen):
    """Canaries among the records trained on, and guesses in the end about which were used (`dirdp.audit.one_run`).

    `canaries` records make way for canaries, each included by a fair coin: real images with a wrong label
    ("mislabelled"), random pixels ("noise"), or blank images with one pixel that no other record has
    ("unique_coordinate", for networks with a dense first layer). Of `guesses`, half go to the canaries that look most
    used and half to those that look least so; None means two fifths of the canaries, and all unique coordinates. The
    lower bound on ε holds at `confidence`.
    """

    kind: Literal["one_run"] = "one_run"
    canaries: Annotated[int, Field(gt=0)]
    canary: Literal["mislabelled", "noise", "unique_coordinate"] = "noise"
    guesses: Annotated[int, Field(gt=0)] | None = None
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95

    @model_validator(mode="after")
    def _guesses_are_two_halves(self) -> Audit:
        if self.guesses is not None and (
            self.guesses > self.canaries or (self.guesses < self.canaries and self.guesses % 2)
        ):
            raise ValueError(f"guesses={self.guesses} must be even and below canaries={self.canaries}, or equal to it")
        return self

    @property
    def number_of_guesses(self) -> int:
        """How many coins are guessed."""
        if self.guesses is not None:
            return self.guesses
        # What moves a weight of its own is found nearly always; a loss tells most at the ends of the ranking.
        return self.canaries if self.canary == "unique_coordinate" else 2 * (self.canaries // 5)


class TrainingPlan(Frozen):
    """One training of Algorithm 1 (or of a rival method), complete.

    Give `lr` (the learning rate γ) or `effective_lr` (γ_eff, from which γ = γ_eff / κ follows once r* is known).
    `expected_batch_size` may stand for `sampling_rate` (q = size / n) and `epochs` for `steps` (T = epochs / q), n
    being the number of records trained on. `epsilon=inf` means no mechanism. `bound="exact"` accounts for a Dirichlet
    draw by its exact worst case in the place of Lemma 9, which lets r* be larger. `reports` is the number of evenly
    spaced evaluations. Both rates are what `schedule` starts from. `norm="group"` puts GroupNorm in the place of the
    model's BatchNorm, `weight_standardization` standardises the weights of its convolutions. `weight_ema` above 0
    evaluates an exponential average of the weights with that decay. `audit` puts canaries among the records: it is then
    a training on other data. Files that are not the published ones are read only with `allow_unofficial`. `dpsgd`,
    `tempered_sigmoid` and `gaussian_features` are options of those methods, which may have defaults of their own for
    other fields, too.

    `randomness="research"` draws everything from `seed`: reproducible, and not for release, since whoever knows the
    seed can recompute the noise. `"secure"` draws masks and noise from the operating system's entropy; a seed is
    refused and repeats are told apart by `repeat`.

    Raises `ValueError` (pydantic's `ValidationError`) naming the field and its value.

    >>> plan = TrainingPlan(dataset="digits", model="mlp", epsilon=1, sampling_rate=16/1437, steps=1500, lr=0.1)
    >>> plan.trial_id
    'f85c3462c99e'
    """

    dataset: str
    model: str
    norm: Literal["batch", "group"] = "batch"
    weight_standardization: bool = False
    method: str = "dirichlet"
    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    alpha: _Positive = 3.0
    bound: Bound = "lemma9"
    sampling_rate: Annotated[float, Field(gt=0, le=1)]
    steps: Annotated[int, Field(gt=0)]
    dpsgd: DpSgdOptions | None = None
    tempered_sigmoid: TemperedSigmoidOptions | None = None
    gaussian_features: GaussianFeaturesOptions | None = None
    lr: _Rate | None = None
    effective_lr: _Rate | None = None
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    augmentation: Literal["none", "crop-flip"] = "none"
    normalize: Literal["batch", "expected"] = "batch"
    weight_ema: Annotated[float, Field(ge=0, lt=1)] = 0.0
    validation: Validation | None = None
    audit: Audit | None = None
    reports: Annotated[int, Field(gt=0)] = 20
    randomness: Literal["research", "secure"] = "research"
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    repeat: Annotated[int, Field(ge=0)] = 0
    allow_large_delta: bool = False
    allow_unofficial: bool = False

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        fields = {**methods.defaults(fields.get("method", "dirichlet")), **fields}
        if "expected_batch_size" in fields:
            size = _validate.real("expected_batch_size", fields.pop("expected_batch_size"), above=0)
            if "sampling_rate" in fields:
                raise ValueError(
                    f"give sampling_rate or expected_batch_size, not both, got {fields['sampling_rate']} and {size:g}"
                )
            records = _records(fields)
            if size > records:
                raise ValueError(f"expected_batch_size={size:g} is more than the {records} records trained on")
            fields["sampling_rate"] = size / records
        if "epochs" in fields:
            epochs = _validate.real("epochs", fields.pop("epochs"), above=0)
            if "steps" in fields:
                raise ValueError(f"give steps or epochs, not both, got {fields['steps']} and {epochs:g}")
            rate = _validate.real("sampling_rate", fields.get("sampling_rate"), above=0, at_most=1)
            fields["steps"] = round(_validate.real("epochs / sampling_rate", epochs / rate))
        if fields.get("randomness", "research") == "research" and fields.get("seed") is None:
            fields["seed"] = 0
        return fields

    @field_validator("dataset")
    @classmethod
    def _known_dataset(cls, name: str) -> str:
        datasets.info(name)
        return datasets.canonical(name)

    @field_validator("model")
    @classmethod
    def _known_model(cls, name: str) -> str:
        models.check(name)
        return name

    @field_validator("method")
    @classmethod
    def _known_method(cls, name: str) -> str:
        return _one_of("method", name, methods.names())

    @model_validator(mode="after")
    def _consistent(self) -> TrainingPlan:
        if (self.lr is None) == (self.effective_lr is None):
            raise ValueError(f"give exactly one of lr and effective_lr, got {self.lr} and {self.effective_lr}")
        if self.bound != "lemma9" and self.method != "dirichlet":
            raise ValueError(f"bound={self.bound} is for method dirichlet, got method={self.method}")
        if self.randomness == "secure" and self.seed is not None:
            raise ValueError(f"randomness=secure draws from the operating system and takes no seed, got {self.seed}")
        if self.randomness == "research" and self.repeat:
            raise ValueError(f"repeat={self.repeat} is for randomness=secure; use seed")
        if self.reports > self.steps:
            raise ValueError(f"reports={self.reports} is more than steps={self.steps}")
        if self.audit and self.audit.canaries >= self.training_size:
            raise ValueError(
                f"audit.canaries={self.audit.canaries} must be fewer than the {self.training_size} records trained on"
            )
        moved_otherwise = self.optimizer.weight_decay or self.augmentation != "none"
        if self.audit and self.audit.canary == "unique_coordinate" and moved_otherwise:
            raise ValueError(
                "audit.canary=unique_coordinate needs optimizer.weight_decay=0 and augmentation=none, got "
                f"{self.optimizer.weight_decay} and {self.augmentation}"
            )
        records = datasets.info(self.dataset).train_size
        if self.validation and not 0 < self.training_size < records:
            raise ValueError(
                f"validation.fraction={self.validation.fraction} holds out {records - self.training_size} of the "
                f"{records} training records; some must be held out and some left to train on"
            )
        if not self.allow_large_delta and not math.isinf(self.epsilon) and self.delta >= 1 / self.training_size:
            raise ValueError(
                f"delta={self.delta} is not below 1/n = {1 / self.training_size:.3g}, which would let a whole record "
                "be published; choose a smaller delta or say allow_large_delta: true"
            )
        methods.check(self)
        return self

    @property
    def training_size(self) -> int:
        """Number n of records trained on."""
        return datasets.training_size(
            self.dataset, validation_fraction=self.validation.fraction if self.validation else 0.0
        )

    @property
    def trial_id(self) -> str:
        """12 hexadecimal digits of the SHA-256 of the plan's content."""
        return _digest(self.model_dump(mode="json"))

    @property
    def point_id(self) -> str:
        """Like `trial_id`, and the same for all seeds of one point of a search space."""
        return _digest(self.model_dump(mode="json", exclude={"seed", "repeat"}))

    @property
    def score(self) -> Literal["validation_accuracy", "test_accuracy"]:
        """The accuracy that decisions look at: validation where records are held out or published so, else test."""
        validated = self.validation or datasets.info(self.dataset).validation_size
        return "validation_accuracy" if validated else "test_accuracy"

    @property
    def report_steps(self) -> list[int]:
        """The steps after which the training is evaluated; the last one is `steps`."""
        return [-(-self.steps * i // self.reports) for i in range(1, self.reports + 1)]


def _records(fields: dict[str, Any]) -> int:
    validation, fraction = fields.get("validation"), 0.0
    if isinstance(validation, Validation):
        fraction = validation.fraction
    elif isinstance(validation, dict):
        fraction = _validate.real("validation.fraction", validation.get("fraction"), above=0, below=1)
    elif validation is not None:
        raise ValueError(f"validation takes a fraction, got {validation!r}")
    return datasets.training_size(str(fields.get("dataset")), validation_fraction=fraction)


def _one_of(name: str, value: str, choices: list[str]) -> str:
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}; choose from {', '.join(choices)}")
    return value


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
