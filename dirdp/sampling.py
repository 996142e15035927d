"""PoissonSample (Definition 5): which records enter a step's minibatch."""

from __future__ import annotations

import torch
from torch import Tensor

from dirdp import _validate
from dirdp.randomness import Stream

__all__ = ["PoissonSampler"]


class PoissonSampler:
    """Minibatches B that each of `size` records enters independently with probability `sampling_rate` (q).

    So |B| ~ Binomial(size, q), 0 included: an empty minibatch is a step like any other, never drawn again.

    Raises:
        ValueError: `size` is no integer of at least 1, q lies outside (0, 1], or the stream gives float32
            numbers, whose coarse steps would round q up and so spend more privacy than is counted.

    >>> from dirdp.randomness import SeededStream
    >>> sampler = PoissonSampler(size=50_000, sampling_rate=0.005, stream=SeededStream(0, "sampling"))
    >>> [len(sampler.draw()) for _ in range(4)]  # 250 ± 16
    [215, 259, 258, 266]
    """

    def __init__(self, *, size: int, sampling_rate: float, stream: Stream):
        self.size = _validate.integer("size", size, at_least=1)
        self.sampling_rate = _validate.real("sampling_rate", sampling_rate, above=0, at_most=1)
        if stream.dtype != torch.float64:
            raise ValueError(f"stream must give float64 numbers, got {stream.dtype} on {stream.device}")
        self._stream = stream

    def draw(self) -> Tensor:
        """Indices (|B|,) of a fresh minibatch, int64, increasing, on the stream's device; may be empty."""
        return (self._stream.uniform((self.size,)) < self.sampling_rate).nonzero().squeeze(1)
