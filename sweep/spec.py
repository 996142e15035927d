"""The YAML of search_spaces/, read strictly: every fault is one line naming file, key, value and choices."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from dirdp.plan import TrainingPlan
from dirdp.selection import RunCount

__all__ = [
    "Asha",
    "Budget",
    "RandomStopping",
    "Resources",
    "SpecError",
    "Sweep",
    "fault",
    "load",
    "number",
    "shipped",
    "unknown",
]

TRIAL_KEYS = sorted({*TrainingPlan.model_fields, "expected_batch_size", "epochs"} - {"seed", "repeat"})
# Two names for one thing: laying one over a file that has the other replaces it.
_SYNONYMS = [{"steps", "epochs"}, {"sampling_rate", "expected_batch_size"}, {"lr", "effective_lr"}]


class SpecError(ValueError):
    """A search space cannot be read; the message is one line."""


def number(text: str) -> float:
    """A number as people write it in a search space: 0.005, 1e-5, 250/60000, inf.

    Raises `SpecError`.

    >>> number("250/50000")
    0.005
    """
    value = _parse(text, repr(text))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(f"{text!r} is not a number")
    return float(value)


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: Any, field: ValidationInfo) -> Any:
        """Pydantic would take true for 1, and 1 for true."""
        if isinstance(value, bool) != (cls.model_fields[str(field.field_name)].annotation is bool):
            raise ValueError(
                f"expected {'no truth value' if isinstance(value, bool) else 'true or false'}, got {value}"
            )
        return value


class Asha(_Strict):
    """Asynchronous successive halving (Li et al. 2020) inside each group of comparable trials.

    Rungs lie at `grace`·T, `grace`·`reduction_factor`·T, …; at each, a trial below the best 1/`reduction_factor` of
    those that came before it is stopped. `metric` None means the plan's own score: validation accuracy where records
    are held out, else test accuracy.
    """

    metric: Literal["validation_accuracy", "test_accuracy"] | None = None
    grace: Annotated[float, Field(gt=0, lt=1)] = 0.1
    reduction_factor: Annotated[float, Field(gt=1)] = 3.0


class Scheduler(_Strict):
    """What may stop a trial early."""

    asha: Asha


class Resources(_Strict):
    """What one trial is given; fractions of a GPU share it."""

    cpu: Annotated[int, Field(ge=1)] = 1
    gpu: Annotated[float, Field(ge=0)] = 0.0


class Budget(_Strict):
    """What the whole sweep may spend: ε at the sweep's δ, of all that is started (`dirdp.filter`)."""

    sweep_epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class RandomStopping(_Strict):
    """The number of draws is itself drawn, so that the best alone may be published (`dirdp.selection`).

    `mean` is that of the number, `eta` the shape of its law: 0 logarithmic, 1 geometric, .inf Poisson.
    """

    mean: float
    eta: float = 0.0

    @model_validator(mode="after")
    def _is_a_law(self) -> RandomStopping:
        _ = self.law
        return self

    @property
    def law(self) -> RunCount:
        """The law of the number of draws."""
        return RunCount(mean=self.mean, eta=self.eta)


class Trials(_Strict):
    """How many trials there are, where `samples` does not say."""

    random_stopping: RandomStopping


_TAKEN = ("ledger", "mlartifacts")
"""Folders that lie beside those of the sweeps on a storage."""


class Sweep(_Strict):
    """A search space, resolved: `trial` holds what all trials share, `space` the grids whose union is searched.

    With `training` false its points are only calibrated, which is all that some tables of the paper need. Under
    `trials.random_stopping` the number of draws that a run has made lies in `samples`. `score_data` says whether the
    accuracy that steers the search is computed from records under the guarantee; None: it is if they are held out of
    the training set.
    """

    name: str
    title: str
    reproduces: str | None = None
    training: bool = True
    trial: dict[str, Any]
    space: Annotated[list[dict[str, Any]], Field(min_length=1)] = [{}]
    seeds: Annotated[int, Field(ge=1)] = 1
    samples: Annotated[int, Field(ge=0)] | None = None
    sampling_seed: Annotated[int, Field(ge=0)] = 0
    trials: Trials | None = None
    scheduler: Scheduler | None = None
    budget: Budget | None = None
    score_data: Literal["public", "private"] | None = None
    resources: Resources = Resources()
    sizes: dict[str, dict[str, Any]] = {}

    @field_validator("name")
    @classmethod
    def _is_free(cls, name: str) -> str:
        if name in _TAKEN:
            raise ValueError(f"{name!r} is a folder of the storage itself; give the sweep another --name")
        return name

    @field_validator("space", mode="before")
    @classmethod
    def _one_grid_or_more(cls, value: Any) -> Any:
        return [value] if isinstance(value, Mapping) else value

    @property
    def asha(self) -> Asha | None:
        """The early-stopping rule, if there is one."""
        return self.scheduler.asha if self.scheduler else None

    @property
    def random_stopping(self) -> RandomStopping | None:
        """The law of the number of draws, if it is drawn."""
        return self.trials.random_stopping if self.trials else None

    @property
    def draws(self) -> int | None:
        """Draws of each distribution: `samples`; under `random_stopping` the mean before the number is drawn."""
        if self.samples is None and self.random_stopping:
            return max(1, round(self.random_stopping.mean))
        return self.samples

    @model_validator(mode="after")
    def _drawn_alike(self) -> Sweep:
        """Whatever would void the theorem behind `random_stopping` is refused rather than explained afterwards."""
        if self.trials is None:
            if self.samples == 0:
                raise ValueError("samples=0: there must be at least one draw")
            return self
        where = "trials.random_stopping"
        if self.scheduler:
            raise ValueError(f"{where} needs trials that all run to their end; take scheduler away")
        if self.budget:
            raise ValueError(f"{where} draws the number of trials, which a budget would cut; take budget away")
        if len(self.space) > 1:
            raise ValueError(f"{where} draws every trial from one space, got {len(self.space)} grids")
        for key, value in self.space[0].items():
            if isinstance(value, list):
                raise ValueError(f"{where} draws every trial; {key} is a grid, write {{choice: {value}}}")
            if key in DECIDE_LOSS and is_distribution(value) and "choice" not in value:
                raise ValueError(f"{where} needs the privacy loss over the whole space; give {key} as {{choice: […]}}")
        return self


DECIDE_LOSS = {"alpha", "delta", "epochs", "epsilon", "expected_batch_size", "sampling_rate", "steps"}
"""The numbers of a trial that its privacy loss depends on."""
_KEYS = [name for name in Sweep.model_fields if name != "name"]  # which the file's own name gives


class _Loader(yaml.SafeLoader):
    """YAML with the numbers people write (1e-5, inf, 16/1437), and without keys that silently win over others."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?$|^[-+]?\.?inf$|^\.nan$"),
    list("-+.0123456789in"),
)
_Loader.add_implicit_resolver("!fraction", re.compile(r"^\d+(\.\d+)?/\d+(\.\d+)?$"), list("0123456789"))


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = loader.construct_scalar(node)
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


def _fraction(loader: _Loader, node: yaml.ScalarNode) -> float:
    numerator, denominator = loader.construct_scalar(node).split("/")
    if float(denominator) == 0:
        raise yaml.constructor.ConstructorError(None, None, f"{node.value} divides by zero", node.start_mark)
    return float(numerator) / float(denominator)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", node.start_mark)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:float", _float)
_Loader.add_constructor("!fraction", _fraction)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def shipped() -> dict[str, Traversable]:
    """The search spaces of the installation, name to file."""
    files = [file for file in resources.files("search_spaces").iterdir() if file.name.endswith(".yaml")]
    return {file.name.removesuffix(".yaml"): file for file in sorted(files, key=lambda file: file.name)}


def load(name: str, *, size: str | None = None, overrides: Iterable[str] = (), called: str | None = None) -> Sweep:
    """Read a shipped search space by name, or any by path, and lay `size` and then the `key=value` overrides over it.

    The sweep has the name of its file, and of its size, unless it is `called` otherwise. Raises `SpecError`.

    >>> load("figure2").seeds
    10
    >>> load("figure2", overrides=["seeds=2", "alpha=[1, 3]"]).space[0]["alpha"]
    [1, 3]
    """
    file = _find(name)
    content = _read(file)
    own = file.name.removesuffix(".yaml").removesuffix(".yml") + (f"-{size}" if size else "")
    content["name"] = own if called is None else _folder_name(called)
    sweep = _validated(content, file.name)
    if size is not None:
        if size not in sweep.sizes:
            raise SpecError(f"{file.name}: unknown size {size!r}; choose from {', '.join(sweep.sizes) or 'none'}")
        _lay_over(content, sweep.sizes[size])
        sweep = _validated(content, f"{file.name}: size {size}")
    for override in overrides:
        _override(content, override)
        sweep = _validated(content, f"{file.name}: --set {override}")
    return sweep


def _read(file: Traversable) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"{file.name}: not a text file in UTF-8 ({error})") from error
    content = _parse(text, file.name)
    if not isinstance(content, dict):
        raise SpecError(f"{file.name}: expected a mapping with keys {', '.join(_KEYS)}")
    if "name" in content:
        raise SpecError(f"{file.name}: the file's name is the sweep's; take the key 'name' away")
    return content


def _validated(content: dict[str, Any], where: str) -> Sweep:
    try:
        sweep = Sweep.model_validate(content)
    except ValidationError as error:
        raise SpecError(f"{where}: {fault(error, Sweep)}") from error
    if sweep.trials and sweep.samples is not None:
        raise SpecError(f"{where}: give samples or trials.random_stopping, not both, got samples={sweep.samples}")
    places = {"trial": sweep.trial} | {f"space[{i}]": grid for i, grid in enumerate(sweep.space)}
    for place, fields in places.items():
        for key, value in fields.items():
            if key not in TRIAL_KEYS:
                raise SpecError(f"{where}: {place}: {unknown(key, TRIAL_KEYS)}")
            drawn = place != "trial" and is_distribution(value)
            if isinstance(value, Mapping) and not drawn and _field_model(TrainingPlan, key) is None:
                raise SpecError(
                    f"{where}: {place}: {key}={value} is no value; a distribution, which belongs into space, is one of "
                    f"{', '.join(DISTRIBUTIONS)}"
                )
    return sweep


def fault(error: ValidationError, model: type[BaseModel]) -> str:
    """The first fault of a validation in one line: the key, its value, and the valid keys where one is unknown."""
    # A misspelt key is also a missing one; it is the spelling that helps.
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        inner = model
        for part in first["loc"][:-1]:
            inner = _field_model(inner, part) or inner
        return unknown(where, [name for name in inner.model_fields if name != "name" or inner is not Sweep])
    if first["type"] == "missing":
        return f"{where} is missing"
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if not where:
        return message
    if first["type"] == "value_error":  # our own, which name the value
        return f"{where}: {message}"
    return f"{where}={first['input']!r}: {message}"


def _field_model(model: type[BaseModel], name: Any) -> type[BaseModel] | None:
    field = model.model_fields.get(name)
    candidates = [field.annotation, *getattr(field.annotation, "__args__", ())] if field else []
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def unknown(key: Any, choices: list[str]) -> str:
    """Say that `key` is none of `choices`, and which one may have been meant."""
    near = difflib.get_close_matches(str(key).rpartition(".")[2], choices, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"unknown key {key!r}{hint}; choose from {', '.join(choices)}"


def _folder_name(name: str) -> str:
    if not re.fullmatch(r"[\w][\w.-]*", name):
        raise SpecError(f"--name {name!r}: expected letters, digits, '.', '_' and '-', not '.' or '-' first")
    return name


def _find(name: str) -> Traversable:
    known = shipped()
    if name in known:
        return known[name]
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise SpecError(f"no such file: {name}")
    raise SpecError(f"unknown search space {name!r}; choose from {', '.join(known)}, or give the path of a .yaml file")


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a number or a date that is none
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        problem = " ".join(str(getattr(error, "problem", error)).split())
        raise SpecError(f"{where}:{line} {problem}") from error


def _lay_over(content: dict[str, Any], over: Mapping[str, Any]) -> None:
    """Replace keys of `content` by those of `over`; the mappings `trial`, `resources` and `scheduler` key by key."""
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(content.get(key), Mapping) and key != "space":
            for synonyms in _SYNONYMS:
                if synonyms & value.keys():
                    for name in synonyms:
                        content[key].pop(name, None)
            _lay_over(content[key], value)
        else:
            content[key] = value


def _override(content: dict[str, Any], override: str) -> None:
    """Apply one `key=value`: a key of the sweep, or a trial's, which then leaves the search space or varies in it."""
    key, separator, text = override.partition("=")
    if not separator:
        raise SpecError(f"--set {override}: expected key=value")
    value = _parse(text, f"--set {override}")
    head, *rest = key.split(".")
    for part in reversed(rest):
        value = {part: value}
    settable = [name for name in _KEYS if name != "sizes"]
    if head in settable:
        _lay_over(content, {head: value})
        return
    if head not in TRIAL_KEYS:
        raise SpecError(f"--set {override}: {unknown(head, [*settable, *TRIAL_KEYS])}")
    if rest:
        _lay_over(content, {"trial": {head: value}})
        return
    grids = content.get("space") or [{}]
    grids = [dict(grid) for grid in ([grids] if isinstance(grids, Mapping) else grids)]
    replaced = next((synonyms for synonyms in _SYNONYMS if head in synonyms), {head})
    for place in [content["trial"], *grids]:
        for name in replaced:
            place.pop(name, None)
    if is_varied(value):
        for grid in grids:
            grid[head] = value
    else:
        content["trial"][head] = value
    # Grids that differed only in what has been replaced are now the same one.
    content["space"] = [grid for i, grid in enumerate(grids) if grid not in grids[:i]]


DISTRIBUTIONS = ("uniform", "loguniform", "randint", "choice")


def is_distribution(value: Any) -> bool:
    """Whether a value of `space` is drawn at random, as {loguniform: [1e-3, 1]} is."""
    return isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in DISTRIBUTIONS


def is_varied(value: Any) -> bool:
    """Whether a value of `space` stands for several: a list or a distribution."""
    return isinstance(value, list) or is_distribution(value)
