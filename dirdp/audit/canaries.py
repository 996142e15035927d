"""An audit within one training: canaries among its records, and guesses about which of them were used.

m records of the training set make way for m canaries, each of which is included by a fair coin of its own. All else in
the training is as its plan says, q, T and the constant n among it. From what was trained the audit guesses coins,
as many as the plan fixes, and the number of right guesses bounds ε from below (`dirdp.audit.bounds`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dirdp.audit.bounds import one_run_cap, one_run_epsilon
from dirdp.randomness import SeededStream, Stream

if TYPE_CHECKING:
    from dirdp.plan import Audit

__all__ = ["OneRun", "OneRunResult"]

# Coordinates that no record uses; how differently their weights move tells rounding and noise from a canary.
_REFERENCES = 8


@dataclass(frozen=True)
class OneRunResult:
    """`correct` of `guesses` guesses about `canaries` coins were right, which bounds ε at δ from below.

    `epsilon_lower` holds at `confidence`; `cap` is what it would be with every guess right.
    """

    canaries: int
    guesses: int
    correct: int
    delta: float
    confidence: float

    @property
    def epsilon_lower(self) -> float:
        """Lower bound on ε."""
        return self.epsilon_lower_at(self.confidence)

    def epsilon_lower_at(self, confidence: float) -> float:
        """Lower bound on ε at another confidence."""
        return one_run_epsilon(
            canaries=self.canaries,
            guesses=self.guesses,
            correct=self.correct,
            delta=self.delta,
            confidence=confidence,
        )

    @property
    def cap(self) -> float:
        """The greatest lower bound that could have come out."""
        return one_run_cap(canaries=self.canaries, guesses=self.guesses, delta=self.delta, confidence=self.confidence)

    def __str__(self) -> str:
        """The finding in one line.

        >>> print(OneRunResult(canaries=100, guesses=100, correct=96, delta=1e-5, confidence=0.95))
        96 of 100 guesses right: ε ≥ 2.32 at δ = 1e-05, 95 % confidence (cap 3.49)
        """
        return (
            f"{self.correct} of {self.guesses} guesses right: ε ≥ {down(self.epsilon_lower)} at δ = {self.delta:g}, "
            f"{100 * self.confidence:.4g} % confidence (cap {down(self.cap)})"
        )


class OneRun:
    """The canaries of one training, their coins, and what is guessed of them in the end.

    `images` (N, C, H, W) uint8 and `labels` (N,) are the records that would be trained on without an audit; canaries
    take the places of m of them, the same ones in every trial. What the canaries are is public and the same in every
    trial as well; only the `coins` are drawn from the stream given.

    Raises `ValueError` where the records cannot hold so many canaries.
    """

    def __init__(self, audit: Audit, images: Tensor, labels: Tensor, *, classes: int, coins: Stream):
        self.audit = audit
        if audit.canaries >= len(labels):
            raise ValueError(f"audit.canaries={audit.canaries} must be fewer than the {len(labels)} records trained on")
        # Fixed, so that trials and seeds are audited with the same canaries; it needs no secrecy, the coins do.
        chance = SeededStream(0, "canaries")
        order = chance.uniform((len(labels),)).argsort()
        replaced, kept = order[: audit.canaries], order[audit.canaries :].sort().values
        self._others = images[kept], labels[kept]
        self.images, self.labels = images[replaced].clone(), labels[replaced].clone()
        self._coordinates: Tensor | None = None
        if audit.canary == "mislabelled":
            self.labels = (self.labels + 1 + chance.integers(classes - 1, self.labels.shape)) % classes
        else:
            self.labels = chance.integers(classes, self.labels.shape)
        if audit.canary == "noise":
            self.images = chance.integers(256, self.images.shape).to(torch.uint8)
        if audit.canary == "unique_coordinate":
            self._coordinates = self._free_coordinates(images)
        self.coins = coins.uniform((audit.canaries,)) < 0.5
        self._start: Tensor | None = None

    @property
    def records(self) -> tuple[Tensor, Tensor]:
        """Images and labels that are trained on: the other records, and the canaries whose coin says so."""
        (images, labels), used = self._others, self.coins
        return torch.cat([images, self.images[used]]), torch.cat([labels, self.labels[used]])

    def watch(self, model: nn.Module) -> None:
        """Take note of the untrained network, as an attacker may who knows the seed of its initialisation."""
        if self._coordinates is not None:
            self._start = _first_dense_layer(model, self.images[0].numel()).detach().clone()

    def scores(self, model: nn.Module, inputs: Tensor) -> tuple[Tensor, float]:
        """Scores (m,) from the trained network, greater for what was rather used, and the value above which it was.

        `inputs` (m, C, H, W) are the canaries as the network sees them. A unique coordinate is scored by how
        differently its first-layer weights moved from those of coordinates that no record has, the others by loss.
        """
        if self._coordinates is None:
            model.eval()
            with torch.inference_mode():
                losses = cross_entropy(model(inputs), self.labels.to(inputs.device), reduction="none")
            scores = -losses.double().cpu()
            return scores, float(scores.median())
        assert self._start is not None  # `watch` comes first
        moved = (_first_dense_layer(model, inputs[0].numel()).detach() - self._start).double().cpu()
        moved = moved[:, self._coordinates]
        deviations = (moved - moved[:, -_REFERENCES:].mean(1, keepdim=True)).norm(dim=0)
        return deviations[:-_REFERENCES], 2 * float(deviations[-_REFERENCES:].max())

    def result(self, model: nn.Module, inputs: Tensor, *, delta: float) -> OneRunResult:
        """Guess, and count what is right.

        Where all coins are guessed, a canary counts as used if its score is above the threshold; else those with the
        greatest scores are guessed to be used and as many with the least not to be.
        """
        scores, threshold = self.scores(model, inputs)
        guesses, coins = self.audit.number_of_guesses, self.coins.cpu()
        if guesses == self.audit.canaries:
            correct = int(((scores > threshold) == coins).sum())
        else:
            order = scores.argsort(stable=True)
            half = guesses // 2
            correct = int(coins[order[len(order) - half :]].sum() + (~coins[order[:half]]).sum())
        return OneRunResult(
            canaries=self.audit.canaries,
            guesses=guesses,
            correct=correct,
            delta=delta,
            confidence=self.audit.confidence,
        )

    def state_dict(self) -> dict[str, Any]:
        """What was drawn or noted, for `torch.save`."""
        return {"coins": self.coins, "start": self._start}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with those coins: `records` may be others now."""
        self.coins, self._start = state["coins"], state["start"]

    def _free_coordinates(self, images: Tensor) -> Tensor:
        """Turn the canaries into blank images with one lit coordinate each, which no other record uses; return them.

        They are the coordinates that vary least among the records, and a few beyond them as references.
        """
        needed, there = self.audit.canaries + _REFERENCES, images[0].numel()
        if needed > there:
            raise ValueError(
                f"audit.canaries={self.audit.canaries} unique coordinates and {_REFERENCES} for reference are more "
                f"than the {there} that an image has; at most {there - _REFERENCES} canaries"
            )
        coordinates = images.flatten(1).double().var(0).argsort(stable=True)[:needed]
        coordinates = coordinates.flip(0)  # the references, last, are those that vary least
        others = self._others[0].clone()
        others.flatten(1)[:, coordinates] = 0
        self._others = others, self._others[1]
        self.images.zero_()
        self.images.flatten(1)[torch.arange(self.audit.canaries), coordinates[: self.audit.canaries]] = 255
        return coordinates


def _first_dense_layer(model: nn.Module, inputs: int) -> Tensor:
    """The weight (h, C·H·W) of the first layer, which must be dense. Raises `ValueError` where it is not."""
    layer = next(module for module in model.modules() if list(module.parameters(recurse=False)))
    if not isinstance(layer, nn.Linear) or layer.in_features != inputs:
        raise ValueError(
            f"audit.canary=unique_coordinate needs a dense first layer on the image, got {type(layer).__name__}"
        )
    return layer.weight


def down(value: float) -> str:
    """A lower bound with two decimals, never above the value.

    >>> down(1.999), down(0.57)
    ('1.99', '0.57')
    """
    return str(Decimal(repr(float(value))).quantize(Decimal("0.01"), ROUND_FLOOR))
