"""The tracking URI: which ones can work, and what has to be there before one is used."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from urllib.parse import urlsplit

from sweep.tracking.errors import TrackingError, one_line

_SCHEMES = ("sqlite", "postgresql", "http", "https")


def default_uri(storage: Path) -> str:
    """Return the tracking URI of a sweep that names none: a SQLite file inside its storage folder (local disk).

    >>> default_uri(Path("/data/sweeps"))
    'sqlite:////data/sweeps/mlflow.db'
    """
    return f"sqlite:///{storage.absolute() / 'mlflow.db'}"


def is_local(uri: str) -> bool:
    """Whether the store is a file of ours."""
    return _scheme(uri) == "sqlite"


def exists(uri: str) -> bool:
    """Whether there is a store to ask: a file that is there, or any server."""
    from sqlalchemy.engine import make_url

    return not is_local(uri) or Path(make_url(uri).database or "").is_file()


def is_server(uri: str) -> bool:
    """Whether the store is behind an MLflow server."""
    return _scheme(uri) in ("http", "https")


def shown(uri: str) -> str:
    """The URI without a password."""
    return re.sub(r"//[^/@]*@", "//", uri)


def check_uri(uri: str, storage: Path) -> None:
    """Raise `TrackingError` for a URI whose scheme cannot work; the advice names the default below `storage`."""
    scheme = _scheme(uri)
    if scheme in ("", "file"):
        folder = urlsplit(uri).path or uri
        raise TrackingError(
            f"tracking URI {uri!r} is a folder, which MLflow no longer writes to; use {default_uri(storage)} "
            f"(old runs: mlflow migrate-filestore --source {folder} --target {default_uri(storage)})"
        )
    if scheme not in _SCHEMES:
        raise TrackingError(
            f"tracking URI {shown(uri)!r} has the unknown scheme {scheme!r}; valid: {', '.join(_SCHEMES)}"
        )


def prepare_sqlite(uri: str) -> None:
    """Create the file and switch it to a write-ahead log, which lasts: a call takes 5 ms instead of 24."""
    from sqlalchemy.engine import make_url

    path = make_url(uri).database
    if not path or path == ":memory:":
        raise TrackingError(f"tracking URI {uri!r} names no file; use sqlite:////folder/mlflow.db")
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        connection.close()
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(f"cannot open the tracking database {path}: {one_line(error)}") from error


def _scheme(uri: str) -> str:
    return urlsplit(uri).scheme.split("+")[0]  # postgresql+psycopg names dialect and driver
