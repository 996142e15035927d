"""The results of a sweep as they lie on the storage: its search space and the records of its trials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import ValidationError

from sweep.expand import expand
from sweep.reporting import write_report
from sweep.spec import SpecError, Sweep, fault
from sweep.store import Record, Store

__all__ = ["Results"]

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
    def read_sweep(storage: Path, name: str) -> Sweep:
        """The search space of the sweep `name` under `storage`, as it was last run.

        Raises `SpecError` if there is none, naming those there are.
        """
        path = storage / name / _SPEC
        if not path.is_file():
            there = ", ".join(sorted(path.parent.name for path in storage.glob(f"*/{_SPEC}"))) or "none"
            raise SpecError(f"no sweep {name!r} under {storage}; there: {there}")
        try:
            return Sweep.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        except ValidationError as error:
            raise SpecError(f"{path}: {fault(error, Sweep)}") from error

    @classmethod
    def read(cls, storage: Path, name: str) -> Results:
        """The sweep `name` under `storage`; raises as `read_sweep` does."""
        sweep = cls.read_sweep(storage, name)
        stored = Store(storage / name).read()
        records = [stored[trial.id] for trial in expand(sweep) if trial.id in stored]
        return cls(storage / name, sweep, records, removed=len(stored) - len(records))

    @property
    def spec(self) -> Path:
        """The file that holds `sweep`."""
        return self.folder / _SPEC

    @property
    def rung(self) -> float | None:
        """ASHA's first rung as a fraction of each trial's steps; None without early stopping."""
        return self.sweep.asha.grace if self.sweep.asha else None

    def write_report(self) -> list[Path]:
        """Write tables and figures into the sweep's folder; return their paths."""
        return write_report(
            self.folder,
            item=self.sweep.reproduces or "figure2",
            title=self.sweep.title,
            records=self.records,
            seeds=self.sweep.seeds,
            rung=self.rung,
        )
