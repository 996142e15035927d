"""The results of a sweep as they lie on the storage: its search space and the records of its trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import ValidationError

from sweep.expand import expand
from sweep.ledger import Ledger, LocalFiles
from sweep.planning import plan
from sweep.privacy import Statement, sweep_statement, trial_statement
from sweep.reporting import write_report
from sweep.spec import SpecError, Sweep, fault, load
from sweep.store import Record, Store

__all__ = ["Results", "privacy_statement"]

_SPEC = "sweep.yaml"


@dataclass(frozen=True)
class Results:
    """One sweep's folder: `sweep` as it was last run, and the records of its trials in the order of the space.

    `removed` counts trials of earlier runs under this name that are not in the space any more.
    """

    folder: Path
    sweep: Sweep
    records: list[Record]
    removed: int = 0

    @staticmethod
    def save_sweep(folder: Path, sweep: Sweep) -> Path:
        """Write down the search space that is being run; return the file."""
        path = folder / _SPEC
        text = yaml.safe_dump(sweep.model_dump(exclude_none=True), sort_keys=False, allow_unicode=True)
        path.write_text(text, encoding="utf-8")
        return path

    @staticmethod
    def exists(storage: Path, name: str) -> bool:
        """Whether a sweep of this name has been run under `storage`."""
        return (storage / name / _SPEC).is_file()

    @classmethod
    def read(cls, storage: Path, name: str) -> Results:
        """The sweep `name` under `storage`.

        Raises `SpecError` if there is none, naming those there are.
        """
        folder = storage / name
        if not (folder / _SPEC).is_file():
            there = ", ".join(sorted(path.parent.name for path in storage.glob(f"*/{_SPEC}"))) or "none"
            raise SpecError(f"no sweep {name!r} under {storage}; there: {there}")
        try:
            sweep = Sweep.model_validate(yaml.safe_load((folder / _SPEC).read_text(encoding="utf-8")))
        except ValidationError as error:
            raise SpecError(f"{folder / _SPEC}: {fault(error, Sweep)}") from error
        stored = Store(folder).read()
        records = [stored[trial.id] for trial in expand(sweep) if trial.id in stored]
        return cls(folder, sweep, records, removed=len(stored) - len(records))

    @property
    def spec(self) -> Path:
        """The file that holds `sweep`."""
        return self.folder / _SPEC

    @property
    def rung(self) -> float | None:
        """ASHA's first rung as a fraction of each trial's steps; None without early stopping."""
        return self.sweep.asha.grace if self.sweep.asha else None

    @property
    def ledger(self) -> Ledger:
        """The ledger of the storage."""
        return Ledger.read(LocalFiles(self.folder.parent))

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


def privacy_statement(
    name: str, *, storage: Path, size: str | None = None, overrides: Sequence[str] = (), trial: str | None = None
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
        return sweep_statement(laid_out, Ledger.read(LocalFiles(storage)))
    found = [one for one in laid_out.trials if one.id.startswith(trial)]
    if len(found) != 1:
        raise SpecError(f"{len(found)} trials of {sweep.name} have an id that begins with {trial!r}; one must")
    return trial_statement(laid_out, found[0], records.get(found[0].id))
