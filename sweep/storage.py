"""Where results lie: a folder of this machine or of a shared file system, or a bucket (s3://, gs://) through pyarrow.

The rest of the package knows files only as names below a `Storage`, so that a sweep runs alike on all of them.
"""

from __future__ import annotations

import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

__all__ = ["Folder", "Storage", "StoreError", "open_storage"]

_BUCKETS = ("s3", "gs", "gcs")
_BESIDE_A_BUCKET = "sweep-results"


class StoreError(OSError):
    """The storage cannot be read or written, or is in use; the message names the file."""


class Storage(ABC):
    """Files below one place, by names such as "trials/0a1b.jsonl". Every method raises `StoreError`.

    `uri` finds the same place again from another process; `local` is the folder of this machine for what people open
    (reports, MLflow's own database): the place itself if it is a folder.
    """

    uri: str
    local: Path

    @abstractmethod
    def below(self, name: str) -> Storage:
        """The storage of the files below `name`."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """What a file holds; None if there is no such file."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Put a file in place, whole or not at all: a reader sees the old content or the new."""

    @abstractmethod
    def create(self, name: str, content: bytes) -> bool:
        """Make a file that is not there yet; return whether that was so. A reader may see it before it is whole."""

    @abstractmethod
    def append(self, name: str, content: bytes) -> None:
        """Add to the end of a file, on disk for certain when this returns. One process alone may append to a file."""

    @abstractmethod
    def names(self, folder: str = "") -> list[str]:
        """Names of the files and folders directly in a folder, sorted; none if it is no folder."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file, or a folder with all below it, if it is there."""

    def __str__(self) -> str:
        return self.uri


def open_storage(where: str | Path) -> Storage:
    """The storage at a path or URI: a folder is created with the first file in it.

    Beside a bucket, what people open lies in the folder sweep-results. Credentials, region and endpoint of a bucket
    are those of its own tools (AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, …),
    or options of the URI as pyarrow reads them, such as `s3://bucket/folder?region=eu-west-1`. Raises `StoreError` for
    another scheme.

    >>> open_storage("s3:/typo")
    Traceback (most recent call last):
    sweep.storage.StoreError: storage s3:/typo: choose a folder, s3://BUCKET/FOLDER or gs://BUCKET/FOLDER
    """
    scheme, found, rest = str(where).partition("://")
    if not found and not str(where).startswith(("s3:/", "gs:/")):
        return Folder(Path(where))
    if scheme == "file":
        return Folder(Path(rest))
    if scheme in _BUCKETS and rest.strip("/"):
        return _bucket(str(where))
    raise StoreError(f"storage {where}: choose a folder, s3://BUCKET/FOLDER or gs://BUCKET/FOLDER")


class Folder(Storage):
    """A folder of this machine or of a file system that it shares.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     storage = Folder(Path(folder))
    ...     storage.below("trials").append("a.jsonl", b"{}")
    ...     storage.read("trials/a.jsonl"), storage.read("trials/b.jsonl"), storage.names()
    (b'{}', None, ['trials'])
    """

    def __init__(self, path: Path):
        self.local = path.absolute()
        self.uri = str(self.local)

    def below(self, name: str) -> Folder:  # noqa: D102
        return Folder(self.local / name)

    def read(self, name: str) -> bytes | None:  # noqa: D102
        with _told(self.local / name, "read"):
            try:
                return (self.local / name).read_bytes()
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:  # noqa: D102
        path = self.local / name
        with self._place_for(path):
            temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
            try:
                _put(temporary, content, mode="xb")
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)

    def create(self, name: str, content: bytes) -> bool:  # noqa: D102
        path = self.local / name
        with self._place_for(path):
            try:
                _put(path, content, mode="xb")
            except FileExistsError:
                return False
        return True

    def append(self, name: str, content: bytes) -> None:  # noqa: D102
        path = self.local / name
        with self._place_for(path):
            _put(path, content, mode="ab")

    def names(self, folder: str = "") -> list[str]:  # noqa: D102
        with _told(self.local / folder, "read"):
            try:
                return sorted(os.listdir(self.local / folder))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def delete(self, name: str) -> None:  # noqa: D102
        path = self.local / name
        with _told(path, "removed"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    @contextmanager
    def _place_for(self, path: Path) -> Iterator[None]:
        """Within, the folder of `path` is there, and errors name the file."""
        with _told(path, "written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield


class _Bucket(Storage):
    """A folder of a bucket. An object appears whole; there is no append and no exclusive creation."""

    def __init__(self, files: FileSystem, root: PurePosixPath, *, uri: str, local: Path):
        self._files, self._root = files, root
        self.uri, self.local = uri, local

    def below(self, name: str) -> _Bucket:
        place, mark, options = self.uri.partition("?")
        uri = f"{place.rstrip('/')}/{name}{mark}{options}"
        return _Bucket(self._files, self._root / name, uri=uri, local=self.local / name)

    def read(self, name: str) -> bytes | None:
        with _told(self._shown(name), "read"):
            try:
                with self._files.open_input_stream(str(self._root / name)) as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        with _told(self._shown(name), "written"), self._files.open_output_stream(str(self._root / name)) as file:
            file.write(content)

    def create(self, name: str, content: bytes) -> bool:
        if self.read(name) is not None:
            return False
        self.write(name, content)
        return self.read(name) == content

    def append(self, name: str, content: bytes) -> None:
        self.write(name, (self.read(name) or b"") + content)

    def names(self, folder: str = "") -> list[str]:
        from pyarrow.fs import FileSelector

        with _told(self._shown(folder), "read"):
            found = self._files.get_file_info(FileSelector(str(self._root / folder), allow_not_found=True))
        return sorted(entry.base_name for entry in found)

    def delete(self, name: str) -> None:
        from pyarrow.fs import FileType

        path = str(self._root / name)
        with _told(self._shown(name), "removed"):
            kind = self._files.get_file_info(path).type
            if kind == FileType.Directory:
                self._files.delete_dir(path)
            elif kind == FileType.File:
                self._files.delete_file(path)

    def _shown(self, name: str) -> str:
        return self.below(name).uri.partition("?")[0]


def _bucket(uri: str) -> _Bucket:
    from pyarrow.fs import FileSystem

    with _told(uri.partition("?")[0], "opened"):
        try:
            files, root = FileSystem.from_uri(uri)
        except ValueError as error:  # pyarrow's ArrowInvalid: an unknown option, no bucket
            raise OSError(str(error)) from error
    return _Bucket(files, PurePosixPath(root), uri=uri, local=Path(_BESIDE_A_BUCKET).absolute())


def _put(path: Path, content: bytes, *, mode: str) -> None:
    """Write and wait until it is on the disk."""
    with path.open(mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _told(what: Path | str, done: str) -> Iterator[None]:
    """Within, an error of the operating system or of a bucket is one line that names the file."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        why = error.strerror or str(error).strip().partition("\n")[0]
        raise StoreError(f"{what} cannot be {done}: {why}") from error
