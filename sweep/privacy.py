"""What a sweep's or a trial's privacy numbers mean, as a label of a few lines: the same words everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dirdp.filter import RenyiFilter
from dirdp.methods.base import Guarantee
from sweep.expand import Trial
from sweep.ledger import DataSet, Ledger
from sweep.planning import Plan, Point, Spending
from sweep.store import Record
from sweep.words import count, digits, round_up

__all__ = ["Section", "Statement", "choosing", "sweep_statement", "trial_statement", "weakest"]

_STRENGTH = {
    "proved": "proved for what is released",
    "nominal": "nominal: the theorem is about an idealised release, from which training departs",
    "none": "none",
}
UNACCOUNTED = "no sweep guarantee: scores unaccounted"
RESEARCH = "research: drawn from seeds, not for release, since whoever knows a seed can recompute the noise"
SECURE = "secure: drawn from the operating system's entropy"
_CHANGED = (
    "the trials have been changed since the first run, so it holds only if that was done whatever the results were"
)
_SEVERAL = "it holds only if each sweep was laid out whatever the results of the others were"
_NAMED = 3  # trials without a bound that are named, before a count of the others


@dataclass(frozen=True)
class Section:
    """A part of a statement: a title, and what is said under which name."""

    title: str
    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Statement:
    """A privacy statement in the manner of a nutrition label."""

    title: str
    sections: tuple[Section, ...]

    def text(self) -> str:
        """As plain text, a line for each entry."""
        width = max(len(name) for section in self.sections for name, _ in section.rows)
        lines = [f"Privacy of {self.title}"]
        for section in self.sections:
            lines += ["", section.title, *(f"  {name:<{width}}  {said}" for name, said in section.rows)]
        return "\n".join(lines) + "\n"


def weakest(guarantees: Sequence[Guarantee]) -> str:
    """What numbers of several guarantees together are called: by the weakest of them.

    >>> weakest([])
    'nothing'
    """
    if not guarantees:
        return "nothing"
    strength = max((guarantee.strength for guarantee in guarantees), key=("proved", "nominal", "none").index)
    names = [g.name for g in guarantees if g.strength == strength]
    protects = {guarantee.protects for guarantee in guarantees if guarantee.strength != "none"}
    named = ", ".join(dict.fromkeys(names))
    mixed = "" if len(guarantees) == 1 else f" (the weakest of {', '.join(g.name for g in guarantees)})"
    common = " and ".join(f'"{scope}"' for scope in sorted(protects))
    scope = f"; who is protected: only what is common to {common}" if len(protects) > 1 else ""
    return named + mixed + scope


def sweep_statement(plan: Plan, ledger: Ledger, *, names: Mapping[str, str] | None = None) -> Statement:
    """The statement of a sweep, run or not. `names` are short names of its trials."""
    sweep, ledger = plan.sweep, ledger.expecting(plan)
    ran = sweep.name in ledger.sweeps
    changed = f"; {_CHANGED}" if ran and ledger.plan_changed(sweep.name) else ""
    planned = ledger.planned(sweep.name) if ran else plan.spending
    rows = [
        ("trials", f"{len(plan.trials)} of {count(len(plan.points))}"),
        (
            "sweep_epsilon_planned",
            f"{_spending(planned, planned.order, names)}: every trial to its full length{changed}",
        ),
    ]
    if sweep.budget:
        rows.append(("budget.sweep_epsilon", _budget(plan, ledger, planned)))
    if ran:
        spent, order = ledger.spent(sweep.name), ledger.plans[ledger.runs(sweep.name)[-1]]["order"]
        rows.append(("sweep_epsilon_spent", _spending(spent, order, names) + ": ex post, no guarantee by itself"))
    rows += [
        ("choosing the best", choosing(plan)),
        ("scores", _scores(plan)),
        ("randomness", _randomness([trial.plan.randomness for trial in plan.trials])),
    ]
    sections = [Section("The whole sweep", tuple(rows))]
    sections += [_guarantee(guarantee, _budgets(plan, guarantee)) for guarantee in planned.guarantees]
    sections += [_data_set(data) for data in ledger.data_sets() if sweep.name in data.sweeps]
    return Statement(f"the sweep {sweep.name}", tuple(sections))


def trial_statement(plan: Plan, trial: Trial, record: Record | None) -> Statement:
    """The statement of one trial: its own training, without the choice among trials."""
    point = plan.by_point[trial.point_id]
    if point.method is None:
        return Statement(f"trial {trial.id}", (Section("Nothing is trained", (("why", str(point.reason)),)),))
    guarantee, delta = point.method.guarantee, digits(trial.plan.delta)
    rows = [("target", f"{digits(trial.plan.epsilon)} at δ = {delta}, also if it is stopped early")]
    if guarantee.strength != "none":
        rows.append(("achieved at full length", f"{round_up(point.method.epsilon)} in {trial.plan.steps} steps"))
        if record and record.reports:
            last = record.reports[-1]
            ended = record.end_reason or "running"
            said = f"{round_up(last['epsilon_spent'])} in {last['step']} steps, {ended}"
            rows.append(("so far", said if ended == "completed" else f"{said}: ex post, no guarantee by itself"))
    rows += [
        ("not included", "the choice of this trial among others: see the statement of the sweep"),
        ("randomness", _randomness([trial.plan.randomness])),
    ]
    return Statement(
        f"trial {trial.id} of the sweep {plan.sweep.name}",
        (Section(f"This trial: {guarantee.name}", tuple(rows)), _guarantee(guarantee, [])),
    )


def choosing(plan: Plan) -> str:
    """What it costs to choose the best trial, or why it costs as much as all of them."""
    stopping, best = plan.sweep.random_stopping, plan.best_of
    if stopping is None:
        return f"costs what all trials cost together: {_why_composed(plan)}"
    if plan.scores_are_private:
        return f"{UNACCOUNTED}, and the bound for publishing only the winner needs public ones"
    if best is None:
        return "no bound: the space holds trials without a mechanism"
    law, guarantees = stopping.law, list(dict.fromkeys(method.guarantee for method in plan.drawable))
    if any(trial.plan.randomness == "research" for trial in plan.trials):
        known = (
            "; with randomness: research that number follows from sampling_seed, so whoever knows that voids it, too"
        )
    else:
        known = ""
    eta = "" if law.poisson else f", η = {law.eta:g}"
    return (
        f"{round_up(best.epsilon(plan.delta).epsilon)} at δ = {digits(plan.delta)}, {weakest(guarantees)}, for "
        f"publishing only the winner, the number of trials being drawn from the {law.name} law with mean "
        f"{law.mean:g}{eta} (Papernot and Steinke 2022). It holds if the space was fixed in advance, all drawn trials "
        "have run, the scores are public, and neither the other trials nor their number are published: an MLflow "
        f"server or a storage that others can read voids it{known}"
    )


def _why_composed(plan: Plan) -> str:
    if plan.sweep.asha:
        return "ASHA compares trials while they run, so none of them is an independent draw"
    if plan.sweep.budget:
        return "the budget, not chance, ends the search"
    if plan.sweep.samples is None:
        return "a fixed grid is no random search; only trials drawn independently, in random number, cost less"
    return "the number of draws is fixed; drawn at random (trials.random_stopping) it would cost less"


def _spending(spending: Spending, order: int | None, names: Mapping[str, str] | None) -> str:
    called = weakest(spending.guarantees)
    if spending.unbounded:
        shown = [(names or {}).get(trial, trial) for trial in spending.unbounded[:_NAMED]]
        more = len(spending.unbounded) - len(shown)
        named = ", ".join(shown) + (f" and {more} more" if more else "")
        return f"∞, {called}, because of {count(len(spending.unbounded), 'trial')} without a mechanism ({named})"
    epsilon = spending.at(order) if order and spending.curve else 0.0
    return f"{round_up(epsilon)} at δ = {digits(spending.delta)}, {called}, at order λ = {order}"


def _budget(plan: Plan, ledger: Ledger, planned: Spending) -> str:
    assert plan.sweep.budget is not None
    epsilon, name = plan.sweep.budget.sweep_epsilon, plan.sweep.name
    said = f"{digits(epsilon)} at δ = {digits(planned.delta)}, {weakest(planned.guarantees)}"
    runs = [ledger.plans[run] for run in ledger.runs(name)]
    order = next((run["order"] for run in runs if run["budget"]), None)
    if order is not None:
        limit = RenyiFilter.at_order(order, epsilon=epsilon, delta=planned.delta).limit
        if ledger.loss(name, order) > max(0, limit):
            return f"{said}: exceeded by what earlier runs have started; nothing more is started under it"
    said += ", kept by a Rényi filter"
    others = {run["budget"] for run in runs} - {epsilon}
    if not others:
        return f"{said}: all that is started is within it, whatever the results were"
    earlier = ", ".join("none" if other is None else digits(other) for other in others)
    return f"{said}; earlier runs had {earlier}, so it holds only if it was changed whatever the results were"


def _scores(plan: Plan) -> str:
    if plan.scores_are_private:
        return f"private: they come from records under the guarantee; {UNACCOUNTED}"
    public = "public: they come from records that are not under the guarantee"
    if any(trial.plan.validation for trial in plan.trials):
        return (
            f"{public}; the accuracies on held-out private records, by which reports rank the points, are not "
            "accounted for: neither publish them nor choose by them"
        )
    return public


def _randomness(kinds: Sequence[str]) -> str:
    return "; ".join({"research": RESEARCH, "secure": SECURE}[kind] for kind in dict.fromkeys(kinds))


def _budgets(plan: Plan, guarantee: Guarantee) -> list[tuple[str, str]]:
    points: list[Point] = [point for point in plan.points if point.method and point.method.guarantee == guarantee]
    plans = [point.trials[0].plan for point in points]
    if not plans:
        return [("per trial", "only in earlier runs under this name")]
    budgets, deltas, steps = (sorted({getattr(one, name) for one in plans}) for name in ("epsilon", "delta", "steps"))
    said = f"{', '.join(map(digits, budgets))} at δ = {', '.join(map(digits, deltas))}"
    return [("per trial", f"{said}, T = {', '.join(map(str, steps))}")] if guarantee.strength != "none" else []


def _guarantee(guarantee: Guarantee, first: list[tuple[str, str]]) -> Section:
    rows = [
        *first,
        ("kind", _STRENGTH[guarantee.strength]),
        ("what is released", guarantee.release),
        ("who is protected", guarantee.protects),
        ("neighbouring data sets", guarantee.adjacency),
        ("minibatches", guarantee.sampler),
        ("proof", guarantee.theorem),
        ("does not cover", guarantee.not_covered),
    ]
    return Section(guarantee.name, tuple(rows))


def _data_set(data: DataSet) -> Section:
    content = f"content {data.sha256[:12]}" if data.sha256 else "not read yet"
    spent = "∞" if math.isinf(data.spent.epsilon) else round_up(data.spent.epsilon)
    several = f"; {_SEVERAL}" if len(data.sweeps) > 1 else ""
    return Section(
        f"All sweeps on this storage: private data set {data.name} ({content})",
        (
            ("sweeps", ", ".join(data.sweeps)),
            ("planned", _spending(data.planned, data.planned.order, None) + several),
            ("spent, ex post", f"{spent} at δ = {digits(data.spent.delta)}, {weakest(data.spent.guarantees)}"),
        ),
    )
