"""Checkpoints of one trial on the storage: the newest good one is where it goes on after the death of its process."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import Any

from sweep.storage import Storage

__all__ = ["Checkpoints"]

_KEPT = 2  # one more than is needed, should the newest turn out torn


class Checkpoints:
    """The checkpoints of one trial, files named by their step below `storage`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from sweep.storage import Folder
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = Checkpoints(Folder(Path(folder)))
    ...     for step in (10, 20, 30):
    ...         checkpoints.save(step, {"step": step})
    ...     list(checkpoints.newest_first())
    [{'step': 30}, {'step': 20}]
    """

    def __init__(self, storage: Storage):
        self._storage = storage

    def save(self, step: int, content: dict[str, Any]) -> None:
        """Keep `content` (plain values and tensors) as the state after `step` steps; forget the oldest ones."""
        import torch

        buffer = io.BytesIO()
        torch.save(content, buffer)
        data = buffer.getvalue()
        self._storage.write(f"{step:012d}.pt", hashlib.sha256(data).digest() + data)
        for name in self._names()[:-_KEPT]:
            self._storage.delete(name)

    def newest_first(self) -> Iterator[dict[str, Any]]:
        """The contents that are whole, tensors on the CPU; a torn or damaged file is passed over."""
        import torch

        for name in reversed(self._names()):
            data = self._storage.read(name) or b""
            digest, data = data[:32], data[32:]
            if hashlib.sha256(data).digest() == digest:
                yield torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)

    def _names(self) -> list[str]:
        return [name for name in self._storage.names() if name.endswith(".pt") and not name.startswith(".")]
