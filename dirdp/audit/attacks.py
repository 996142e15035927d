"""The audits to call: one training with many canaries, or many short trainings with one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from dirdp import _validate
from dirdp.audit.bounds import distinguisher_epsilon
from dirdp.audit.canaries import OneRunResult, down
from dirdp.plan import Audit, TrainingPlan
from dirdp.training import Training

__all__ = ["InputCanaryResult", "input_canary", "one_run"]


def one_run(
    plan: TrainingPlan,
    *,
    data_root: str | Path | None = None,
    device: str | torch.device = "cpu",
    threads: int = 1,
) -> OneRunResult:
    """Train an audited plan to its end and guess which canaries it used (Steinke, Nasr and Jagielski 2023).

    Raises `ValueError` where the plan has no audit, or where the training diverges and there is nothing to score.

    >>> plan = TrainingPlan(
    ...     dataset="digits", model="mlp", method="nonprivate", epsilon=float("inf"), sampling_rate=0.02, steps=300,
    ...     lr=0.1, audit={"kind": "one_run", "canaries": 40, "canary": "unique_coordinate"},
    ... )
    >>> found = one_run(plan)
    >>> found.guesses, found.correct >= 36, found.epsilon_lower > 1
    (40, True, True)
    """
    if plan.audit is None:
        raise ValueError("the plan has no audit; give audit: {kind: one_run, canaries: 500}")
    training = Training(plan, data_root=data_root, device=device, threads=threads)
    for report in training:
        if report.end_reason == "diverged":
            raise ValueError(f"the training diverged by step {report.step}: there is nothing to audit")
    return training.audit_result()


@dataclass(frozen=True)
class InputCanaryResult:
    """What a distinguisher of "used" and "not used" got right in the trainings it was not tuned on.

    It said "used" in `true_positives` of `positives` trainings with the canary and in `false_positives` of `negatives`
    without; `epsilon_lower` holds at `confidence` and δ.
    """

    true_positives: int
    positives: int
    false_positives: int
    negatives: int
    delta: float
    confidence: float

    @property
    def epsilon_lower(self) -> float:
        """Lower bound on ε."""
        return distinguisher_epsilon(
            true_positives=self.true_positives,
            positives=self.positives,
            false_positives=self.false_positives,
            negatives=self.negatives,
            delta=self.delta,
            confidence=self.confidence,
        )

    def __str__(self) -> str:
        """The finding in one line.

        >>> print(InputCanaryResult(50, 50, 0, 50, delta=1e-5, confidence=0.95))
        said "used" in 50 of 50 trainings with the canary and 0 of 50 without: ε ≥ 2.56 at δ = 1e-05, 95 % confidence
        """
        return (
            f'said "used" in {self.true_positives} of {self.positives} trainings with the canary and '
            f"{self.false_positives} of {self.negatives} without: ε ≥ {down(self.epsilon_lower)} at "
            f"δ = {self.delta:g}, {100 * self.confidence:.4g} % confidence"
        )


def input_canary(
    plan: TrainingPlan,
    *,
    trainings: int = 200,
    confidence: float = 0.95,
    data_root: str | Path | None = None,
    device: str | torch.device = "cpu",
    threads: int = 1,
) -> InputCanaryResult:
    """Tell from the trained first layer whether a record with an input coordinate of its own was used.

    Training i of `trainings` has the seed `plan.seed` + i and includes the canary if its coin says so. The score is how
    differently the coordinate's weights moved from those of coordinates that no record has. On the first half of the
    trainings the threshold is chosen; the second half alone is counted.

    Raises `ValueError` where the plan has an audit already, has no seed or no dense first layer.

    >>> plan = TrainingPlan(
    ...     dataset="digits", model="mlp", epsilon=0.8, alpha=3, sampling_rate=0.02, steps=150, lr=0.1, reports=1
    ... )
    >>> found = input_canary(plan, trainings=4)
    >>> found.positives + found.negatives
    2
    """
    trainings = _validate.integer("trainings", trainings, at_least=4)
    if plan.audit is not None or plan.seed is None:
        raise ValueError(f"input_canary needs a seed and a plan without an audit, got seed={plan.seed}, {plan.audit!r}")
    audit = Audit(canaries=1, canary="unique_coordinate", confidence=confidence)
    coins, scores = [], []
    for number in range(trainings):
        # Not model_copy, which would pass over the checks.
        fields = dict(plan) | {"audit": audit, "seed": plan.seed + number, "reports": 1}
        training = Training(TrainingPlan(**fields), data_root=data_root, device=device, threads=threads)
        (report,) = training
        if report.end_reason == "diverged":
            raise ValueError(f"the training with seed {plan.seed + number} diverged: there is nothing to audit")
        coin, score = training.audit_scores()
        coins.append(bool(coin))
        scores.append(float(score))
    half = trainings // 2
    threshold = _threshold(coins[:half], scores[:half])
    said = [score > threshold for score in scores[half:]]
    used = coins[half:]
    return InputCanaryResult(
        true_positives=sum(s and u for s, u in zip(said, used, strict=True)),
        positives=sum(used),
        false_positives=sum(s and not u for s, u in zip(said, used, strict=True)),
        negatives=len(used) - sum(used),
        delta=plan.delta,
        confidence=confidence,
    )


def _threshold(coins: list[bool], scores: list[float]) -> float:
    """The midpoint between two neighbouring scores that tells most coins rightly."""
    ordered = sorted(zip(scores, coins, strict=True))
    # Right above place k: the coins after it that are heads, and those up to it that are tails.
    heads_after, tails_before = sum(coins), 0
    best, threshold = heads_after, ordered[0][0] - 1
    for place, (score, coin) in enumerate(ordered):
        heads_after, tails_before = heads_after - coin, tails_before + (not coin)
        if heads_after + tails_before > best:
            best = heads_after + tails_before
            following = ordered[place + 1][0] if place + 1 < len(ordered) else score
            threshold = (score + following) / 2
    return threshold
