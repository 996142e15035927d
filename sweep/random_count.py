"""Draws the number of trials of a `random_stopping` sweep, once, and keeps it for every later run of it."""

from __future__ import annotations

import random
import secrets

import numpy as np

from sweep.results import Results
from sweep.spec import SpecError, Sweep
from sweep.storage import Storage

__all__ = ["with_drawn_count"]

# What may differ between runs of one search: nothing of it decides which trials there are, or how they end.
_FREE = {"samples", "sampling_seed", "resources", "title", "sizes", "reproduces"}


def with_drawn_count(sweep: Sweep, storage: Storage) -> Sweep:
    """The sweep with the number of its draws in `samples`; any other sweep as it is.

    What is drawn is written down before anything runs, and a later run takes it from there. With `randomness: secure`
    number and seed of the draws come from the operating system's entropy, since the bound takes both to be unknown;
    otherwise the number follows from `sampling_seed`, so that the search can be repeated.

    Raises `SpecError` if an earlier run under this name had another space or law: the bound is about one search, fixed
    in advance.
    """
    if sweep.random_stopping is None:
        return sweep
    if Results.exists(storage, sweep.name):
        earlier = Results.read(storage, sweep.name).sweep
        if earlier.model_dump(exclude=_FREE) != sweep.model_dump(exclude=_FREE):
            raise SpecError(
                f"{sweep.name}: trials.random_stopping is about one search, fixed in advance, and an earlier run under "
                "this name had another space or law; give the new one another file name"
            )
        return sweep.model_copy(update={"samples": earlier.samples, "sampling_seed": earlier.sampling_seed})
    if sweep.trial.get("randomness") == "secure":
        uniform, seed = random.SystemRandom().random, secrets.randbits(63)
    else:
        seed = sweep.sampling_seed
        uniform = np.random.default_rng([seed, 1]).random
    drawn = sweep.model_copy(update={"samples": sweep.random_stopping.law.draw(uniform), "sampling_seed": seed})
    Results.save_sweep(storage.below(sweep.name), drawn)
    return drawn
