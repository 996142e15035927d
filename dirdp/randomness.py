"""Streams of random numbers, one for each use of chance, seeded or from the operating system's entropy.

Seeded numbers are for research: whoever knows the seed can recompute the noise. Those from entropy nobody
can, but they too are floats of finite resolution: an exponential stays below 36.8, a normal within ±8.6.
"""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dirdp import _validate

__all__ = ["EntropyStream", "SeededStream", "Stream", "stream"]

_BITS = {torch.float64: 53, torch.float32: 24}


class Stream(ABC):
    """A source of random tensors on `device`, of type `dtype`: float64, but float32 on MPS, which lacks it.

    >>> SeededStream(0, "noise").exponential((2, 3)).shape
    torch.Size([2, 3])
    """

    def __init__(self, device: torch.device | str = "cpu"):
        self.device = torch.device(device)
        self.dtype = torch.float32 if self.device.type == "mps" else torch.float64

    @abstractmethod
    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Uniform on [0, 1), a multiple of 2⁻⁵³ (of 2⁻²⁴ in float32); never 1."""

    @abstractmethod
    def integers(self, high: int, shape: Sequence[int]) -> Tensor:
        """Uniform on 0, …, `high` − 1, int64. Raises `ValueError` if `high` is no integer of at least 1."""

    def exponential(self, shape: Sequence[int]) -> Tensor:
        """Exponential with mean 1: −log(1 − U)."""
        return self.uniform(shape).neg_().log1p_().neg_()

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal, by Box and Muller (1958): √(2E)·cos(2πU)."""
        angle = self.uniform(shape).mul_(2 * math.pi)
        return self.exponential(shape).mul_(2).sqrt_().mul_(angle.cos_())

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """What the numbers still to come depend on, for `torch.save`."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`. Raises `ValueError` if the state is of another kind of stream."""


class SeededStream(Stream):
    """The numbers that (seed, name) stand for, from a generator of its own; on one device always the same.

    The generator is seeded from a 64-bit hash of both. PyTorch's CPU engine keeps 32 bits of it, so among n
    streams two are the same with probability n²/2³³: 4e-7 for sixty.

    Raises:
        ValueError: `seed` is no integer of at least 0, or `name` is empty.

    >>> masks, noise = SeededStream(0, "sampling"), SeededStream(0, "noise")
    >>> bool((masks.uniform((3,)) == noise.uniform((3,))).any())
    False
    >>> saved = noise.state_dict()
    >>> drawn = noise.normal((3,))
    >>> noise.load_state_dict(saved)
    >>> bool((noise.normal((3,)) == drawn).all())
    True
    """

    def __init__(self, seed: int, name: str, *, device: torch.device | str = "cpu"):
        super().__init__(device)
        self.seed = _validate.integer("seed", seed, at_least=0)
        if not name:
            raise ValueError(f"name must not be empty, got {name!r}")
        self.name = name
        self._generator = torch.Generator(self.device).manual_seed(_hash(self.seed, name))

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Uniform on [0, 1)."""
        return torch.rand(shape, generator=self._generator, dtype=self.dtype, device=self.device)

    def normal(self, shape: Sequence[int]) -> Tensor:
        """Standard normal, from the device's own sampler: one operation in place of ten."""
        return torch.randn(shape, generator=self._generator, dtype=self.dtype, device=self.device)

    def integers(self, high: int, shape: Sequence[int]) -> Tensor:
        """Uniform on 0, …, `high` − 1, int64."""
        high = _validate.integer("high", high, at_least=1)
        return torch.randint(high, tuple(shape), generator=self._generator, device=self.device)

    def state_dict(self) -> dict[str, Tensor]:
        """The generator's state, a uint8 tensor on the CPU."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where the state was taken, bit for bit."""
        if set(state) != {"generator"}:
            raise ValueError(f"state must be a seeded stream's, {{'generator': …}}, got keys {sorted(state)}")
        self._generator.set_state(state["generator"].cpu())


class EntropyStream(Stream):
    """Every number from the operating system's entropy; nothing is recorded, nothing can be repeated.

    >>> source = EntropyStream()
    >>> bool((source.uniform((3,)) == source.uniform((3,))).any())
    False
    >>> source.state_dict()
    {}
    """

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """Uniform on [0, 1)."""
        bits = _BITS[self.dtype]
        numbers = np.ldexp((_words(shape) >> (64 - bits)).astype(float), -bits)
        return torch.from_numpy(numbers).to(self.device, self.dtype)

    def integers(self, high: int, shape: Sequence[int]) -> Tensor:
        """Uniform on 0, …, `high` − 1, int64, up to relative differences of `high`·2⁻⁶⁴."""
        high = _validate.integer("high", high, at_least=1)
        return torch.from_numpy((_words(shape) % high).astype(np.int64)).to(self.device)

    def state_dict(self) -> dict[str, Tensor]:
        """Empty: there is nothing to go on from."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with fresh entropy."""
        if state:
            raise ValueError(f"state must be an entropy stream's, {{}}, got keys {sorted(state)}")


def stream(name: str, *, seed: int | None, device: torch.device | str = "cpu") -> Stream:
    """The stream `name` of a run: seeded, or, where `seed` is None, from the operating system's entropy.

    Raises:
        ValueError: `seed` is negative or no integer, or `name` is empty.

    >>> type(stream("noise", seed=None)).__name__, type(stream("noise", seed=0)).__name__
    ('EntropyStream', 'SeededStream')
    """
    return EntropyStream(device) if seed is None else SeededStream(seed, name, device=device)


def _hash(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8])


def _words(shape: Sequence[int]) -> NDArray[np.uint64]:
    """Random 64-bit words of the given shape."""
    return np.frombuffer(os.urandom(8 * math.prod(shape)), dtype=np.uint64).reshape(shape)
