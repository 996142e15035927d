"""What may go wrong with MLflow, and whether it is worth another attempt."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec

log = logging.getLogger("sweep")

_P = ParamSpec("_P")


class TrackingError(ValueError):
    """The tracking store cannot work as configured: one clear line, before Ray starts."""


def is_final(error: Exception) -> bool:
    """Whether trying again cannot help: the server understood and said no, or something is not installed."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        return 400 <= error.get_http_status_code() < 500 and error.get_http_status_code() not in (408, 429)
    return isinstance(error, (ImportError, FileNotFoundError, PermissionError))


def is_refusal(error: Exception) -> bool:
    """Whether these data can never be written. Unlike a refused value, a refused login may come right."""
    denied = getattr(error, "error_code", None) in ("UNAUTHENTICATED", "PERMISSION_DENIED")
    return is_final(error) and not denied


def unless_refused(call: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> None:
    """Call, and go on without what MLflow refuses for good: it must not hold up what comes behind it."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        if not is_refusal(error):
            raise
        _warn_once(f"MLflow refused a value, which is left out: {one_line(error)}")


@functools.lru_cache(maxsize=100)
def _warn_once(message: str) -> None:
    log.warning("%s", message)


def explained(error: Exception) -> str:
    """The error in one line, with the way out where we know it."""
    if isinstance(error, ImportError) and "psycopg" in str(error):
        return "the PostgreSQL driver is missing; pip install 'dirdp[postgres]'"
    return one_line(error)


def one_line(error: Exception) -> str:
    """The first line of the error's message, cut; its type if there is none."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:300]
