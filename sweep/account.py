"""What a running sweep has spent and may still spend: the ledger, asked before each segment of a trial."""

from __future__ import annotations

import math
from fractions import Fraction
from importlib.metadata import version
from typing import Any
from uuid import uuid4

import torch

from dirdp.accounting import conversion
from dirdp.filter import RenyiFilter
from sweep.expand import Trial
from sweep.ledger import Charge, Ledger, Mechanism, opening
from sweep.lock import Lock
from sweep.planning import Plan, Segment, Spending
from sweep.spec import SpecError
from sweep.storage import Storage
from sweep.version import project_version

__all__ = ["Account"]


class Account:
    """The ledger as one run of a sweep uses it.

    Without a budget every segment may start, and is written down. `device` ("cpu" or "cuda") and `threads` are what
    trials are given: with them it is known whether a trial that goes on after a death repeats the same bits, which
    costs nothing, or draws new noise. Nothing is written before the first charge.

    Raises `SpecError` where the budget cannot be kept: beside earlier trials without a bound, or with points that lack
    the order at which the budget was opened. Later `StoreError` where the ledger cannot be written, or where another
    driver has the sweep's `lock`: its charges are not known here, and this one's are not known there.
    """

    def __init__(self, plan: Plan, storage: Storage, *, device: str, threads: int, lock: Lock | None = None):
        self._plan, self._storage, self._lock = plan, storage, lock
        self._run = uuid4().hex[:12]
        # Other code or another kind of processor would combine the same noise with other gradients.
        same = (device, str(threads), version("torch"), project_version(), torch.backends.cpu.get_cpu_capability())
        self._where = " ".join(same) if device == "cpu" else None
        self._data: dict[str, str] = {}
        self._reserved: dict[str, Fraction] = {}
        self._ledger = Ledger.read(storage)
        self._mechanisms = {name: Mechanism.of(point).id for name, point in plan.by_point.items() if point.feasible}
        self._unwritten: list[dict[str, Any]] = []
        self._has_written = False
        self._rests: dict[str, Fraction] = {}
        self._filter = self._open()
        charges = list(self._ledger.distinct(plan.sweep.name))
        self._covered = {(charge.segment, charge.replay) for charge in charges}
        self._unbounded = bool(self.spent.unbounded)
        for charge in charges:
            self._filter.spent += self._loss(charge.mechanism, charge.share)
        self.steps = sum(charge.end - charge.start for charge in charges)

    @property
    def _limited(self) -> bool:
        return math.isfinite(self._filter.limit)

    @property
    def order(self) -> int:
        """λ*, the order at which the sweep's spending is added up."""
        return self._filter.order

    @property
    def planned(self) -> Spending:
        """Every trial of the plan to its full length, with those of earlier plans that were started."""
        return self._ledger.planned(self._plan.sweep.name)

    @property
    def spent(self) -> Spending:
        """All that was started, in this run and earlier ones: ex post, no guarantee by itself."""
        return self._ledger.spent(self._plan.sweep.name)

    @property
    def spent_epsilon(self) -> float:
        """`spent` as ε at λ*, quickly."""
        if self._unbounded or not self._filter.spent:
            return math.inf if self._unbounded else 0.0
        loss = math.nextafter(float(self._filter.spent), math.inf)
        return max(0.0, loss + conversion(self.order, self._ledger.delta(self._plan.sweep.name)))

    def repeats(self, trial: Trial) -> bool:
        """Whether the trial, started over, gives the same bits again."""
        return self._where is not None and trial.plan.randomness == "research"

    def know(self, dataset: str, sha256: str) -> None:
        """Note what this run reads under the name of a data set; once is enough.

        Where it is other data than before, what follows is a run of its own: what was started stays with its data.
        """
        if self._data.get(dataset) == sha256:
            return
        changed = dataset in self._data
        self._data[dataset] = sha256
        self._rests.clear()
        if changed:
            self._run = uuid4().hex[:12]
            self._write(self._entry | {"run": self._run})
        for name in self._data if changed else [dataset]:
            self._write({"kind": "data", "run": self._run, "dataset": name, "sha256": self._data[name]})

    def may_start(self, trial: Trial) -> bool:
        """Whether a trial fits in full beside all that is still to come of those that run."""
        if not self._limited:
            return True
        if trial.id not in self._rests:
            self._rests[trial.id] = self._rest(trial, 0)
        rest = self._rests[trial.id]
        return not rest or self._filter.fits(rest + sum(self._reserved.values()))

    def reserve(self, trial: Trial) -> None:
        """Set aside what a trial that is handed out will need, until it ends."""
        if self._limited:
            self._reserved[trial.id] = self._rest(trial, 0)

    def charge(self, trial: Trial, step: int) -> bool:
        """Charge the segment of a trial that follows `step`, up to its next report; return whether it may start.

        It may if the budget has room for it. Where nothing follows, or nothing is trained, there is nothing to charge.
        """
        segment = next((segment for segment in self._segments(trial) if segment.start == step), None)
        if segment is None:
            return True
        if not self._is_covered(trial, segment) and not self._pay(trial, segment):
            return False
        if self._limited:
            self._reserved[trial.id] = self._rest(trial, segment.end)
        return True

    def ended(self, trial: Trial) -> None:
        """Release what was reserved for the rest of a trial."""
        self._reserved.pop(trial.id, None)

    def _pay(self, trial: Trial, segment: Segment) -> bool:
        """Write a charge down if the budget has room for it; return whether it has."""
        if self._lock is not None:
            self._lock.check(look=True)
        charge = Charge(
            run=self._run,
            trial=trial.id,
            mechanism=self._mechanisms[trial.point_id],
            start=segment.start,
            end=segment.end,
            share=segment.share,
            replay=self._replay(trial),
        )
        if not self._filter.charge(self._loss(charge.mechanism, charge.share)):
            return False
        self._write(charge.entry)
        self._covered.add((charge.segment, charge.replay))
        self._unbounded |= self._ledger.mechanisms[charge.mechanism].curve is None
        self._rests.pop(trial.id, None)
        self.steps += charge.end - charge.start
        return True

    def _open(self) -> RenyiFilter:
        """Note the plan and its mechanisms, and find the filter for them."""
        *mechanisms, entry = opening(self._plan, self._run)
        for mechanism in mechanisms:
            if mechanism["id"] not in self._ledger.mechanisms:
                self._write(mechanism)
        self._ledger.take(entry)
        budget = self._opened_filter()
        self._entry = entry | {"order": budget.order}
        self._write(self._entry)
        return budget

    def _opened_filter(self) -> RenyiFilter:
        """The budget at the order at which it was first opened, or else at the one where most of the plan fits."""
        sweep, planned = self._plan.sweep, self.planned
        if sweep.budget is None:
            return RenyiFilter(order=planned.order or 2, limit=math.inf)
        where, epsilon = (
            f"{sweep.name}: budget.sweep_epsilon={sweep.budget.sweep_epsilon:g}",
            sweep.budget.sweep_epsilon,
        )
        if planned.unbounded or planned.curve is None:
            raise SpecError(f"{where} cannot hold: earlier trials of this name had no mechanism (epsilon=inf)")
        earlier = [plan for run in self._ledger.runs(sweep.name)[:-1] if (plan := self._ledger.plans[run])["budget"]]
        if not earlier:
            try:
                return RenyiFilter.for_budget(planned.curve, epsilon=epsilon, delta=planned.delta)
            except ValueError as error:
                raise SpecError(f"{where}: {error}") from error
        order = earlier[0]["order"]
        if order not in planned.curve.orders:
            raise SpecError(
                f"{where} was opened at the Rényi order {order}, which not all points of the space have any more; "
                "run the new space under another name"
            )
        return RenyiFilter.at_order(order, epsilon=epsilon, delta=planned.delta)

    def _segments(self, trial: Trial) -> list[Segment]:
        """The segments of a trial; none where nothing is trained."""
        return self._plan.by_point[trial.point_id].segments

    def _rest(self, trial: Trial, step: int) -> Fraction:
        """Loss at λ* of what follows `step` and is not covered."""
        rest = [one for one in self._segments(trial) if one.start >= step and not self._is_covered(trial, one)]
        share = sum((segment.share for segment in rest), Fraction(0))
        return self._loss(self._mechanisms[trial.point_id], share) if rest else Fraction(0)

    def _is_covered(self, trial: Trial, segment: Segment) -> bool:
        replay = self._replay(trial)
        key = (trial.id, self._mechanisms[trial.point_id], segment.start, segment.end)
        return replay is not None and (key, replay) in self._covered

    def _replay(self, trial: Trial) -> str | None:
        """What must be equal for a segment to be the same bits again; None if it never is."""
        if not self.repeats(trial):
            return None
        name = trial.plan.dataset
        known = self._data.get(name, "")
        if not known and not name.startswith(("npz:", "folder:")):  # a published data set does not change
            known = next((sha256 for (_, read), sha256 in self._ledger.data.items() if read == name), "")
        return f"{self._where} {known[:12]}".strip()

    def _loss(self, mechanism: str, share: Fraction) -> Fraction:
        """Loss at λ* of a share of a mechanism; 0 for one without a bound, which `_unbounded` remembers."""
        curve = self._ledger.mechanisms[mechanism].curve
        return share * Fraction(curve.at(self.order)) if curve else Fraction(0)

    def _write(self, entry: dict[str, Any]) -> None:
        """Take a line into account and write it; those before the first charge wait for that."""
        self._ledger.take(entry)
        self._unwritten.append(entry)
        self._has_written |= entry["kind"] == "charge"
        if self._has_written:
            Ledger.append(self._storage, self._plan.sweep.name, self._unwritten)
            self._unwritten.clear()
