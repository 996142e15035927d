"""The lock on a sweep: one driver at a time, wherever it runs, and no waiting for one that is dead."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from types import TracebackType
from typing import Any

from sweep.storage import Storage, StoreError

__all__ = ["Lock"]

_FILE = "lock.json"
BEAT_SECONDS = 10.0
EXPIRY_SECONDS = 60.0
_held: set[str] = set()  # tokens of this process


class Lock:
    """Within the context the sweep on `storage` is this process's; another driver is refused before it begins.

    The holder writes a heartbeat into lock.json every `BEAT_SECONDS`. The lock of a dead driver is taken over: at once
    where its process is gone from this same host, else once no heartbeat has come for `EXPIRY_SECONDS`. With `force`
    it is taken from a living one too, which then stops at its next report.

    A bucket cannot create a file exclusively, so two drivers that start on one within the same instant find out by the
    first heartbeat, not before.
    """

    def __init__(self, storage: Storage, *, force: bool = False):
        self._storage = storage
        self._force = force
        self._token = uuid.uuid4().hex
        self._beats = 0
        self._lost: str | None = None
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="sweep-lock", daemon=True)

    def __enter__(self) -> Lock:
        """Take the lock. Raises `StoreError` if a living driver has it, naming its host and process."""
        holder = self._read()
        if holder is not None and not self._force and not self._is_dead(holder):
            raise StoreError(
                f"the sweep in {self._storage} is being run by process {_shown(holder)}; wait for it or end it, or, if "
                "you know that it is dead, --force-unlock"
            )
        if holder is not None:
            self._storage.delete(_FILE)
        if not self._storage.create(_FILE, self._content()):
            raise StoreError(f"the sweep in {self._storage} was taken by another process just now: {self._rival()}")
        _held.add(self._token)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lock back, unless another driver has taken it."""
        self._released.set()
        self._thread.join()
        _held.discard(self._token)
        try:
            if self._lost is None and self._is_mine():
                self._storage.delete(_FILE)
        except StoreError:
            pass  # the storage is gone, and the lock with it; what ended the run is the error to show

    def check(self, *, look: bool = False) -> None:
        """Raise `StoreError` if another driver has taken the lock, as the last heartbeat saw it, or as a `look` shows.

        A driver that was suspended may have been taken over long before its next heartbeat.
        """
        if look and self._lost is None and not self._is_mine():
            self._lost = self._rival()
        if self._lost is not None:
            raise StoreError(f"the sweep in {self._storage} was taken over: {self._lost}; this run ends here")

    def _beat(self) -> None:
        while not self._released.wait(BEAT_SECONDS):
            try:
                if not self._is_mine():
                    self._lost = self._rival()
                    return
                self._beats += 1
                self._storage.write(_FILE, self._content())
            except StoreError:
                pass  # the storage is away for now; a report that cannot be written ends the run

    def _is_mine(self) -> bool:
        holder = self._read()
        return holder is not None and holder.get("token") == self._token

    def _rival(self) -> str:
        holder = self._read()
        return f"process {_shown(holder)}" if holder else "its lock is gone"

    def _is_dead(self, holder: dict[str, Any]) -> bool:
        if holder.get("host") == socket.gethostname():
            # A container that starts again has the same host and often the same process ids.
            mine = holder["pid"] == os.getpid()
            if (mine and holder["token"] not in _held) or not _runs(holder["pid"]):
                return True
        if time.time() - holder.get("heartbeat", 0) < EXPIRY_SECONDS:
            return False
        # By its clock it has expired, but clocks differ: see for ourselves that no heartbeat comes.
        time.sleep(1.5 * BEAT_SECONDS)
        return self._read() == holder

    def _content(self) -> bytes:
        mine = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "heartbeat": time.time(),
            "beats": self._beats,
            "token": self._token,
        }
        return json.dumps(mine).encode()

    def _read(self) -> dict[str, Any] | None:
        """The holder; empty if the file is torn, None if there is none."""
        content = self._storage.read(_FILE)
        if content is None:
            return None
        try:
            return dict(json.loads(content))
        except ValueError:
            return {}


def _shown(holder: dict[str, Any]) -> str:
    ago = max(0.0, time.time() - holder.get("heartbeat", time.time()))
    return f"{holder.get('pid', '?')} on {holder.get('host', '?')}, last heartbeat {ago:.0f} s ago"


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # another user's
    return True
