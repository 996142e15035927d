"""The privacy ledger of a storage: what was planned and what was started, kept for ever in append-only files.

Each line is one JSON object: a `mechanism` (a Rényi curve with the words of its guarantee), the `plan` of a run, the
`data` that a run trained on, or a `charge`: a segment of a trial, from one report to the next, written before it may
start. Each sweep has a file of its own, since a bucket cannot take lines from two drivers; they lie in `ledger/`,
beside the sweeps' folders, so that removing results does not remove what they cost.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from dirdp.accounting import RdpCurve, compose
from dirdp.methods.base import Guarantee
from sweep.planning import Plan, Point, Spending
from sweep.storage import Storage

__all__ = ["Charge", "DataSet", "Ledger", "Mechanism", "opening"]

FOLDER = "ledger"


@dataclass(frozen=True, eq=False)
class Mechanism:
    """What one training of a point costs at full length: its curve (None without a bound), and what that stands for."""

    dataset: str
    guarantee: Guarantee
    steps: int
    curve: RdpCurve | None

    @classmethod
    def of(cls, point: Point) -> Mechanism:
        """That of a feasible point."""
        assert point.method is not None
        plan = point.trials[0].plan
        return cls(plan.dataset, point.method.guarantee, plan.steps, point.curve)

    @property
    def id(self) -> str:
        """12 hexadecimal digits of the SHA-256 of its content."""
        return hashlib.sha256(json.dumps(self._content, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def entry(self) -> dict[str, Any]:
        """Its line in the ledger."""
        return {"kind": "mechanism", "id": self.id} | self._content

    @property
    def _content(self) -> dict[str, Any]:
        curve = self.curve
        return {
            "dataset": self.dataset,
            "guarantee": asdict(self.guarantee),
            "steps": self.steps,
            "orders": curve.orders.tolist() if curve else None,
            "rdp": curve.rdp.tolist() if curve else None,
        }

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Mechanism:
        """The one that a line says."""
        curve = None
        if entry["orders"] is not None:
            curve = RdpCurve(orders=np.array(entry["orders"], dtype=np.int64), rdp=np.array(entry["rdp"], dtype=float))
        return cls(entry["dataset"], Guarantee(**entry["guarantee"]), entry["steps"], curve)


@dataclass(frozen=True)
class Charge:
    """A segment of a trial, steps `start` to `end`: the `share` of its mechanism at full length that it costs.

    Charges with the same segment and the same `replay` are the same bits again and count once; None never is.
    """

    run: str
    trial: str
    mechanism: str
    start: int
    end: int
    share: Fraction
    replay: str | None

    @property
    def segment(self) -> tuple[str, str, int, int]:
        """What was trained, however often."""
        return self.trial, self.mechanism, self.start, self.end

    @property
    def entry(self) -> dict[str, Any]:
        """Its line in the ledger."""
        return {"kind": "charge"} | asdict(self) | {"share": str(self.share)}


@dataclass(frozen=True, eq=False)
class DataSet:
    """What all sweeps of a storage together did with one private data set; `sha256` is None before a trial read it."""

    name: str
    sha256: str | None
    sweeps: tuple[str, ...]
    planned: Spending
    spent: Spending


@dataclass(frozen=True)
class _Share:
    """What a trial has to pay: a share of a mechanism's full length."""

    run: str
    trial: str
    mechanism: str
    share: Fraction


def opening(plan: Plan, run: str) -> list[dict[str, Any]]:
    """The lines with which a run of a plan begins: its mechanisms, and last the plan, still without its order."""
    mechanisms: dict[str, dict[str, Any]] = {}
    trials: dict[str, list[str]] = defaultdict(list)
    for point in plan.points:
        if point.feasible:
            mechanism = Mechanism.of(point)
            mechanisms[mechanism.id] = mechanism.entry
            trials[mechanism.id] += [trial.id for trial in point.trials]
    entry = {
        "kind": "plan",
        "run": run,
        "sweep": plan.sweep.name,
        "delta": plan.delta,
        "budget": plan.sweep.budget.sweep_epsilon if plan.sweep.budget else None,
        "trials": dict(trials),
    }
    return [*mechanisms.values(), entry]


@dataclass
class Ledger:
    """All that a ledger says.

    A line torn by a crash belongs to a segment that never started, since lines are written first: it is passed over.
    """

    mechanisms: dict[str, Mechanism] = field(default_factory=dict)
    plans: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By run: `sweep`, `delta`, `order`, `budget` and the `trials` by mechanism."""
    data: dict[tuple[str, str], str] = field(default_factory=dict)
    """SHA-256 of what a run read under the name of a data set."""
    charges: list[Charge] = field(default_factory=list)

    @classmethod
    def read(cls, storage: Storage) -> Ledger:
        """The ledger of a storage, empty if there is none."""
        ledger, files = cls(), storage.below(FOLDER)
        for name in files.names():
            for line in (files.read(name) or b"").decode(errors="replace").splitlines():
                try:
                    ledger.take(json.loads(line))
                except json.JSONDecodeError:
                    continue
        return ledger

    @staticmethod
    def append(storage: Storage, sweep: str, entries: Iterable[Mapping[str, Any]]) -> None:
        """Add lines to the file of a sweep; they lie on the storage for certain when this returns."""
        lines = "".join(f"\n{json.dumps(entry, ensure_ascii=False)}" for entry in entries)  # starts after a torn line
        storage.append(f"{FOLDER}/{sweep}.jsonl", f"{lines}\n".encode())

    def take(self, entry: Mapping[str, Any]) -> None:
        """Take a line into account."""
        fields = {key: value for key, value in entry.items() if key != "kind"}
        match entry["kind"]:
            case "mechanism":
                self.mechanisms[entry["id"]] = Mechanism.read(entry)
            case "plan":
                self.plans[entry["run"]] = fields
            case "data":
                self.data[entry["run"], entry["dataset"]] = entry["sha256"]
            case "charge":
                self.charges.append(Charge(**fields | {"share": Fraction(entry["share"])}))

    def expecting(self, plan: Plan) -> Ledger:
        """This ledger with a plan whose sweep has been run before, if it is another one than that of the last run.

        A run writes nothing before its first charge, and a plan may only be asked about. What is said of it must
        include it all the same.
        """
        *mechanisms, entry = opening(plan, "")
        if plan.sweep.name not in self.sweeps:
            return self
        last = self.plans[self.runs(plan.sweep.name)[-1]]
        if all(last[key] == entry[key] for key in ("delta", "trials")):
            return self
        expected = replace(self, mechanisms=dict(self.mechanisms), plans=dict(self.plans))
        for line in (*mechanisms, entry | {"order": last["order"]}):
            expected.take(line)
        return expected

    @property
    def sweeps(self) -> list[str]:
        """The sweeps that have started something, by name."""
        return list(dict.fromkeys(plan["sweep"] for plan in self.plans.values()))

    def runs(self, sweep: str) -> list[str]:
        """The runs of a sweep, in their order."""
        return [run for run, plan in self.plans.items() if plan["sweep"] == sweep]

    def delta(self, sweep: str) -> float:
        """δ of a sweep: the least of its runs."""
        return min(self.plans[run]["delta"] for run in self.runs(sweep))

    def plan_changed(self, sweep: str) -> bool:
        """Whether the runs of a sweep had different trials in view."""
        first, *others = (self.plans[run]["trials"] for run in self.runs(sweep))
        return any(other != first for other in others)

    def loss(self, sweep: str, order: int) -> Fraction | float:
        """Rényi loss at an order of all that a sweep has started, without rounding; infinite where there is none."""
        total = Fraction(0)
        for charge in self.distinct(sweep):
            curve = self.mechanisms[charge.mechanism].curve
            if curve is None or order not in curve.orders:
                return math.inf
            total += charge.share * Fraction(curve.at(order))
        return total

    def spent(self, sweep: str) -> Spending:
        """What a sweep has started, in all its runs."""
        return self._together(self.distinct(sweep), self.delta(sweep))

    def planned(self, sweep: str) -> Spending:
        """Every trial of the latest plan to its full length, with those of earlier plans that were started.

        What was run twice, with new noise, counts twice, and so does what was trained on data that have changed since.
        """
        return self._together(self._planned(sweep), self.delta(sweep))

    def data_sets(self) -> list[DataSet]:
        """The private data sets of the storage, and what all sweeps together plan and have started on each."""
        sweeps_of: dict[str, dict[str, None]] = defaultdict(dict)
        planned: dict[str, list[_Share]] = defaultdict(list)
        spent: dict[str, list[Charge]] = defaultdict(list)
        for sweep in self.sweeps:
            for share in self._planned(sweep):
                planned[self._content_of(share)].append(share)
                sweeps_of[self._content_of(share)][sweep] = None
            for charge in self.distinct(sweep):
                spent[self._content_of(charge)].append(charge)
        return [self._data_set(key, tuple(sweeps), planned[key], spent[key]) for key, sweeps in sweeps_of.items()]

    def distinct(self, sweep: str) -> Iterator[Charge]:
        """The charges of a sweep, without those that are the same bits again."""
        runs, seen = set(self.runs(sweep)), set()
        for charge in self.charges:
            if charge.run in runs:
                key = (charge.segment, charge.replay)
                if charge.replay is None or key not in seen:
                    yield charge
                seen.add(key)

    def _planned(self, sweep: str) -> list[_Share]:
        latest = self.runs(sweep)[-1]
        planned = self.plans[latest]["trials"]
        shares = [
            _Share(latest, trial, mechanism, Fraction(1)) for mechanism, trials in planned.items() for trial in trials
        ]
        whole, covered = {(self._content_of(share), share.trial, share.mechanism) for share in shares}, set()
        for charge in self.distinct(sweep):
            content = self._content_of(charge)
            if (content, charge.trial, charge.mechanism) not in whole:
                whole.add((content, charge.trial, charge.mechanism))
                shares.append(_Share(charge.run, charge.trial, charge.mechanism, Fraction(1)))
            if (content, charge.segment) in covered:
                shares.append(_Share(charge.run, charge.trial, charge.mechanism, charge.share))
            covered.add((content, charge.segment))
        return shares

    def _data_set(self, key: str, sweeps: tuple[str, ...], planned: list[_Share], spent: list[Charge]) -> DataSet:
        names = dict.fromkeys(self.mechanisms[share.mechanism].dataset for share in planned)
        delta = min(self.delta(sweep) for sweep in sweeps)
        sha256 = key if key in self.data.values() else None
        return DataSet(", ".join(names), sha256, sweeps, self._together(planned, delta), self._together(spent, delta))

    def _content_of(self, share: _Share | Charge) -> str:
        """The hash of the data that were trained on; their name where no run has read them yet."""
        name = self.mechanisms[share.mechanism].dataset
        elsewhere = (sha256 for (_, other), sha256 in self.data.items() if other == name)
        return self.data.get((share.run, name)) or next(elsewhere, name)

    def _together(self, shares: Iterable[_Share | Charge], delta: float) -> Spending:
        by_mechanism: dict[str, Fraction] = defaultdict(Fraction)
        unbounded: dict[str, None] = {}
        for share in shares:
            by_mechanism[share.mechanism] += share.share
            if self.mechanisms[share.mechanism].curve is None:
                unbounded[share.trial] = None
        curves = [
            curve * _up(times)
            for name, times in by_mechanism.items()
            if (curve := self.mechanisms[name].curve) is not None
        ]
        guarantees = dict.fromkeys(self.mechanisms[name].guarantee for name in by_mechanism)
        return Spending(delta, compose(curves) if curves else None, tuple(unbounded), tuple(guarantees))


def _up(times: Fraction) -> float:
    """As a float, not below what it is."""
    near = float(times)
    return near if near >= times else math.nextafter(near, math.inf)
