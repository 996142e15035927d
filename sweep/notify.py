"""`--notify URL`: one POST when a sweep ends, and one when nothing has come from it for a while. Best effort."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from sweep.campaign import Campaign
from sweep.expand import Trial
from sweep.store import Record

__all__ = ["Notifier", "check_url"]

log = logging.getLogger("sweep")

TIMEOUT_SECONDS = 5.0


def check_url(url: str | None) -> str | None:
    """The URL, if it can be one of a webhook. Raises `ValueError`.

    >>> check_url("ftp://host/hook")
    Traceback (most recent call last):
        ...
    ValueError: --notify ftp://host/hook: expected http://… or https://…
    """
    if url is not None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise ValueError(f"--notify {url}: expected http://… or https://…")
    return url


class Notifier:
    """Within it, a sweep is watched; it hears what a campaign tells its listeners. Without a `url` it does nothing.

    The body is JSON: `event` (ended, failed or stalled), `sweep`, `complete`, `trials` (how many there are), `ends`
    (how many ended how), `seconds_silent`, `host`, `message` if an exception ended the sweep, and `text`, one line that
    chat services show. A webhook that is slow or away costs `TIMEOUT_SECONDS` and one warning, never the sweep.
    """

    def __init__(self, url: str | None, campaign: Campaign, *, sweep: str, trials: int, stall_seconds: float = 1800.0):
        self._url = url
        self._campaign = campaign
        self._sweep = sweep
        self._trials = trials
        self._stall = stall_seconds
        self._last = time.monotonic()
        self._told = False  # of the present silence
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, name="sweep-notify", daemon=True)

    def started(self, trial: Trial, info: Mapping[str, Any]) -> None:
        """Something has come."""
        self._last, self._told = time.monotonic(), False

    def reported(self, trial: Trial, report: Mapping[str, Any]) -> None:
        """Something has come."""
        self._last, self._told = time.monotonic(), False

    def ended(self, trial: Trial, record: Record) -> None:
        """Something has come."""
        self._last, self._told = time.monotonic(), False

    def __enter__(self) -> Notifier:
        if self._url:
            self._watch.start()
        return self

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if not self._url:
            return
        self._over.set()
        self._watch.join(TIMEOUT_SECONDS + 1)
        if error is None:
            self._post("ended")
        else:
            self._post("failed", message=f"{type(error).__name__}: {error}")

    def _look(self) -> None:
        while not self._over.wait(min(self._stall / 10, 30.0)):
            if not self._told and time.monotonic() - self._last >= self._stall:
                self._told = True
                self._post("stalled")

    def _post(self, event: str, **more: Any) -> None:
        try:
            body = self._body(event) | more
            request = urllib.request.Request(
                str(self._url),
                data=json.dumps(body).encode(),
                headers={"Content-Type": "application/json", "User-Agent": "dirdp"},
            )
            urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS).close()
        except Exception as error:
            host = urlsplit(str(self._url)).hostname  # the rest of a webhook's URL is its password
            log.warning("not notified that %s %s: %s: %s", self._sweep, event, host, error)

    def _body(self, event: str) -> dict[str, Any]:
        records = list(self._campaign.records.values())
        ends = Counter(record.end_reason or "running" for record in records)
        silent = round(time.monotonic() - self._last)
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(ends.items()))
        since = f", nothing heard for {silent} s" if event == "stalled" else ""
        return {
            "event": event,
            "sweep": self._sweep,
            "complete": self._campaign.complete,
            "trials": self._trials,
            "ends": dict(ends),
            "seconds_silent": silent,
            "host": socket.gethostname(),
            "text": f"sweep {self._sweep} {event}{since}: {counts or 'no trial yet'} of {self._trials} trials",
        }
