"""Which state of the project this is."""

from __future__ import annotations

import hashlib
import importlib.metadata
from functools import lru_cache
from importlib import resources
from pathlib import Path

__all__ = ["project_version"]


@lru_cache
def project_version() -> str:
    """The project's version, and a checksum of its code, since two states of it may bear one version.

    Files count by their place inside the packages, wherever those are installed.
    """
    digest = hashlib.sha256()
    for module in ("dirdp", "sweep"):
        root = Path(str(resources.files(module)))
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{module}/{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    try:
        version = importlib.metadata.version("dirdp")
    except importlib.metadata.PackageNotFoundError:  # run from its folder
        version = "uninstalled"
    return f"{version}+{digest.hexdigest()[:12]}"
