"""Whether the files of a data set are those that its publisher made: there, whole, and the same to the bit."""

from __future__ import annotations

import hashlib
import pickle
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from dirdp.datasets import DataError, MissingFileError

__all__ = ["PublishedFile", "check", "md5"]


@dataclass(frozen=True)
class PublishedFile:
    """A file and what its publisher, or its format, says of it.

    `size` is in bytes. `runs_code` marks a pickle: reading it can run whatever its author wrote, so that no other file
    may ever take its place.
    """

    path: Path
    size: int | None = None
    md5: str | None = None
    runs_code: bool = False


def check(name: str, files: Iterable[PublishedFile], *, allow_unofficial: bool = False) -> bool:
    """Whether some file of the data set `name` is not the published one; only `allow_unofficial` lets that pass.

    Raises `MissingFileError` for a file that is not there and `DataError` for one that is truncated or another, each
    with path, what was expected and what was found.
    """
    files = list(files)
    for file in files:
        if not file.path.is_file():
            raise MissingFileError(
                f"dataset {name!r}: expected the file {file.path}, found none; `sweep data prepare {name}` fetches it"
            )
    faults = [(file, fault) for file in files if (fault := _fault(file))]
    for file, fault in faults:
        message = f"dataset {name!r}: {file.path} {fault}"
        if file.runs_code:
            raise DataError(f"{message}; it is a pickle, which is read only if it is the official one")
        if not allow_unofficial:
            hint = "" if fault.startswith("is truncated") else "; `allow_unofficial: true` uses it all the same"
            raise DataError(message + hint)
    return bool(faults)


def md5(path: Path) -> str:
    """MD5 of a file, in hexadecimal digits: 0.2 s for 30 MB, once in a process for as long as the file stays as it is.

    MD5 is what the publishers print. It tells a damaged file from a whole one, not a forged one from a real one.
    """
    stat = path.stat()
    return _md5(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _md5(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _fault(file: PublishedFile) -> str | None:
    """What is wrong with a file that exists, in words that follow its path."""
    size = file.path.stat().st_size
    if file.size is not None and size < file.size:
        return f"is truncated: expected {file.size} bytes, found {size}"
    kind = "pickle" if file.runs_code else "zip archive"
    if _breaks_off(file, size):
        return f"is truncated: expected a complete {kind}, found {size} bytes that break off"
    if file.size is not None and size > file.size:
        return f"is not the official file: expected {file.size} bytes, found {size}"
    if file.md5 is not None and md5(file.path) != file.md5:
        return f"is not the official file: expected MD5 {file.md5}, found {md5(file.path)}"
    return None


def _breaks_off(file: PublishedFile, size: int) -> bool:
    """Whether the end is missing of a pickle, or of what begins as a zip archive, which an .npz is."""
    with file.path.open("rb") as source:
        if file.runs_code:
            source.seek(max(0, size - 1))
            return source.read() != pickle.STOP
        return source.read(2) == b"PK" and not zipfile.is_zipfile(source)
