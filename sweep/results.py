"""The results of a sweep as they lie on the storage: its search space and the records of its trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

import yaml
from pydantic import ValidationError

from sweep.expand import expand
from sweep.ledger import Ledger
from sweep.planning import plan
from sweep.privacy import Statement, sweep_statement, trial_statement
from sweep.reporting import write_report
from sweep.spec import SpecError, Sweep, fault, load
from sweep.storage import Storage
from sweep.store import Record, Store

__all__ = ["Results", "privacy_statement", "unused_name"]

_SPEC = "sweep.yaml"


@dataclass(frozen=True)
class Results:
    """One sweep: the search space as it was last run, and the records of its trials in the order of the space.

    `storage` holds it beside other sweeps; `removed` counts trials of earlier runs under this name that are not in the
    space any more.
    """

    storage: Storage
    sweep: Sweep
    records: list[Record]
    removed: int = 0

    @staticmethod
    def save_sweep(storage: Storage, sweep: Sweep) -> None:
        """Write down, on the sweep's storage, the search space that is being run."""
        storage.write(_SPEC, _text(sweep).encode())

    @staticmethod
    def exists(storage: Storage, name: str) -> bool:
        """Whether a sweep of this name has been run under `storage`."""
        return storage.below(name).read(_SPEC) is not None

    @staticmethod
    def read_sweep(storage: Storage, name: str) -> Sweep:
        """The search space of the sweep `name` under `storage`, as it was last run.

        Raises `SpecError` if there is none, naming those there are.
        """
        of_sweep = storage.below(name)
        content = of_sweep.read(_SPEC)
        if content is None:
            there = [other for other in storage.names() if _SPEC in storage.names(other)]
            raise SpecError(f"no sweep {name!r} under {storage}; there: {', '.join(there) or 'none'}")
        try:
            return Sweep.model_validate(yaml.safe_load(content))
        except ValidationError as error:
            raise SpecError(f"{_SPEC} of {of_sweep}: {fault(error, Sweep)}") from error

    @classmethod
    def read(cls, storage: Storage, name: str) -> Results:
        """The sweep `name` under `storage`; raises as `read_sweep` does."""
        sweep, of_sweep = cls.read_sweep(storage, name), storage.below(name)
        stored = Store(of_sweep).read()
        records = [stored[trial.id] for trial in expand(sweep) if trial.id in stored]
        return cls(storage, sweep, records, removed=len(stored) - len(records))

    @property
    def folder(self) -> Path:
        """Where its reports lie, on this machine."""
        return self.storage.below(self.sweep.name).local

    def write_spec(self) -> Path:
        """Write the search space beside the reports; return its path."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / _SPEC
        path.write_text(_text(self.sweep), encoding="utf-8")
        return path

    @property
    def rung(self) -> float | None:
        """ASHA's first rung as a fraction of each trial's steps; None without early stopping."""
        return self.sweep.asha.grace if self.sweep.asha else None

    @property
    def ledger(self) -> Ledger:
        """The ledger of the storage."""
        return Ledger.read(self.storage)

    @property
    def privacy(self) -> Statement:
        """What the sweep's privacy numbers are and mean, with what all sweeps on this storage have spent."""
        return sweep_statement(plan(self.sweep), self.ledger)

    def write_report(self) -> list[Path]:
        """Write tables and figures into the sweep's folder; return their paths."""
        return write_report(
            self.folder,
            item=self.sweep.reproduces or "figure2",
            title=self.sweep.title,
            records=self.records,
            seeds=self.sweep.seeds,
            rung=self.rung,
            privacy=self.privacy,
        )


def unused_name(storage: Storage, name: str) -> str:
    """`name`, or the first of name.2, name.3, … that no sweep under `storage` has yet."""
    taken = set(storage.names())
    return next(new for new in chain([name], (f"{name}.{n}" for n in count(2))) if new not in taken)


def privacy_statement(
    name: str, *, storage: Storage, size: str | None = None, overrides: Sequence[str] = (), trial: str | None = None
) -> Statement:
    """The privacy statement of a sweep that has been run, or of a search space, or of the `trial` of either.

    Raises `SpecError` for an unknown name or trial.
    """
    run = f"{name}-{size}" if size else name
    if Results.exists(storage, run) and not overrides:
        results = Results.read(storage, run)
        sweep, records = results.sweep, {record.trial_id: record for record in results.records}
    else:
        sweep, records = load(name, size=size, overrides=overrides), {}
    laid_out = plan(sweep)
    if trial is None:
        return sweep_statement(laid_out, Ledger.read(storage))
    found = [one for one in laid_out.trials if one.id.startswith(trial)]
    if len(found) != 1:
        raise SpecError(f"{len(found)} trials of {sweep.name} have an id that begins with {trial!r}; one must")
    return trial_statement(laid_out, found[0], records.get(found[0].id))


def _text(sweep: Sweep) -> str:
    return yaml.safe_dump(sweep.model_dump(exclude_none=True), sort_keys=False, allow_unicode=True)
