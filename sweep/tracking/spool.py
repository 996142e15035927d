"""The spool: events that wait on disk for a store that is away."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sweep.tracking.events import Event


class Spool:
    """Events on disk, one JSON object a line; they go once all are sent, for sending twice does no harm."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._read_bytes = 0

    def append(self, events: Sequence[Event]) -> None:
        """Add events, on disk for certain when this returns."""
        lines = "".join(f"\n{json.dumps(asdict(event))}" for event in events)  # starts anew after a torn line
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())

    def read(self) -> list[Event]:
        """All events that are whole."""
        with self._lock:
            data = self.path.read_bytes() if self.path.exists() else b""
        self._read_bytes = len(data)
        return [event for line in data.splitlines() if (event := _parsed(line))]

    def forget(self) -> None:
        """Remove what was read, unless more has come."""
        with self._lock:
            if self.path.exists() and self.path.stat().st_size == self._read_bytes:
                self.path.unlink()


def _parsed(line: bytes) -> Event | None:
    """The event of a spool line; None for a line that a crash left torn."""
    try:
        return Event(**json.loads(line))
    except (ValueError, TypeError):
        return None
