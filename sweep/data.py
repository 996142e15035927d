"""Published data sets, fetched when asked for: the one place that downloads. Trials only ever read.

Addresses and MD5 come from torchvision and medmnist as they are installed. Whoever comes first takes a lock, downloads
beside the place, checks, and renames; the others wait and find the files there. A process that dies leaves no lock and
nothing under a final name. A file that is there already is never replaced.
"""

from __future__ import annotations

import gzip
import http.client
import shutil
import tarfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock

from dirdp import datasets
from dirdp.datasets import DataError, MissingFileError, checksums

__all__ = ["Download", "downloads", "names", "prepare"]

_TIMEOUT = 60  # seconds without a byte
_HEADERS = {"User-Agent": "dirdp"}


@dataclass(frozen=True)
class Download:
    """A file as published, packed or not: where it is, its MD5, and what it becomes under the data root."""

    urls: tuple[str, ...]
    md5: str
    files: tuple[str, ...]


def names() -> list[str]:
    """The data sets that need no file of the user's own, by name."""
    from dirdp.datasets.medical import single_label

    single = [datasets.canonical(f"medmnist:{flag}") for flag in single_label()]
    return list(dict.fromkeys([*(name for name in datasets.names() if ":" not in name), *single]))


def downloads(name: str) -> list[Download]:
    """What a data set is fetched as; nothing for `digits`, which comes with scikit-learn.

    Raises `DataError` for an unknown name, and for the user's own data.

    >>> [download.files for download in downloads("svhn")]
    [('train_32x32.mat',), ('test_32x32.mat',)]
    """
    from medmnist import INFO
    from torchvision.datasets import CIFAR10, MNIST, SVHN, FashionMNIST

    name = datasets.canonical(name)
    kind, _, rest = name.partition(":")
    if kind in ("npz", "folder"):
        raise DataError(f"dataset {name!r} is your own: there is nowhere to fetch it from")
    datasets.info(name)
    if name == "digits":
        return []
    if name in ("mnist", "fashionmnist"):
        source = MNIST if name == "mnist" else FashionMNIST
        return [
            Download(
                tuple(mirror + file for mirror in source.mirrors),
                md5,
                (f"{source.__name__}/raw/{file.removesuffix('.gz')}",),
            )
            for file, md5 in source.resources
        ]
    if name == "cifar10":
        batches = [file for file, _ in (*CIFAR10.train_list, *CIFAR10.test_list)]
        files = tuple(f"{CIFAR10.base_folder}/{file}" for file in (*batches, CIFAR10.meta["filename"]))
        return [Download((CIFAR10.url,), CIFAR10.tgz_md5, files)]
    if name == "svhn":
        return [Download((url,), md5, (file,)) for url, file, md5 in (SVHN.split_list[p] for p in ("train", "test"))]
    entry = INFO[rest or name]
    return [Download((entry["url"],), entry["MD5"], (f"{rest or name}.npz",))]


def prepare(
    name: str, *, root: Path, offline: bool = False, say: Callable[[str], object] = lambda line: None
) -> list[Path]:
    """Make sure that the data set `name` is complete and official under `root`; return the files that were fetched.

    Several processes may ask at once, and `root` may be read-only if all is there. `offline` forbids the network.
    `say` hears what is being fetched. Raises `DataError` for a file that is there and wrong, or cannot be had.
    """
    root = root.absolute()
    wanted = downloads(name)
    try:
        datasets.check(name, root=root)
        return []
    except MissingFileError as missing:
        if offline:
            raise DataError(f"{missing}, but not with --offline: copy it there from where it is") from None
    except DataError as error:
        raise DataError(f"{error}; to fetch the official file, move this one away") from None
    with _lock(root, name):
        scratch = root / f".fetching-{datasets.canonical(name).replace(':', '-')}"
        try:
            fetched = [file for download in wanted for file in _bring(download, root, scratch, say)]
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    datasets.check(name, root=root)
    return fetched


def _lock(root: Path, name: str) -> FileLock:
    """A lock of one data set, which the system frees when its holder dies."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / ".sweep-locks").mkdir(exist_ok=True)
    except OSError as error:
        raise DataError(f"the data folder {root} cannot be written: {error.strerror}") from error
    return FileLock(root / ".sweep-locks" / f"{datasets.canonical(name).replace(':', '-')}.lock")


def _bring(download: Download, root: Path, scratch: Path, say: Callable[[str], object]) -> list[Path]:
    """Put the files of a download that are not there into place; return them."""
    absent = [file for file in download.files if not (root / file).exists()]
    if absent:
        # What lies there was left by a process that died, since we hold the lock.
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        _unpack(_fetch(download, scratch, say), download, scratch)
    for file in absent:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (scratch / file).replace(root / file)
    return [root / file for file in absent]


def _fetch(download: Download, scratch: Path, say: Callable[[str], object]) -> Path:
    """The file as published, from the first address that has it."""
    faults = []
    for url in download.urls:
        say(f"fetching {url}")
        try:
            return _get(url, scratch / f"{Path(urlsplit(url).path).name}.part", md5=download.md5)
        except (OSError, http.client.HTTPException, ValueError) as error:
            faults.append(f"{url}: {error}")
    raise DataError(f"cannot fetch {', '.join(download.files)}: {'; '.join(faults)}")


def _get(url: str, path: Path, *, md5: str) -> Path:
    with urllib.request.urlopen(urllib.request.Request(url, headers=_HEADERS), timeout=_TIMEOUT) as response:
        with path.open("wb") as file:
            shutil.copyfileobj(response, file)
        expected = response.headers.get("Content-Length")
    size = path.stat().st_size
    if expected is not None and size != int(expected):
        raise ValueError(f"expected {expected} bytes, got {size}")
    if (found := checksums.md5(path)) != md5:
        raise ValueError(f"expected MD5 {md5}, got {found} of {size} bytes")
    return path


def _unpack(archive: Path, download: Download, scratch: Path) -> None:
    """Write the files of a download to their names under `scratch`."""
    published = archive.name.removesuffix(".part")
    if published.endswith(".tar.gz"):
        with tarfile.open(archive) as tar:
            for file in download.files:
                tar.extract(file, scratch, filter="data")
        return
    target = scratch / download.files[0]
    target.parent.mkdir(parents=True, exist_ok=True)
    if published.endswith(".gz"):
        with gzip.open(archive) as packed, target.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    else:
        archive.rename(target)
