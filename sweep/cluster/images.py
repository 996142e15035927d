"""What the name of a container image says of the Ray and the Python in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import ray

__all__ = ["Image"]

_FLOATING = {"latest", "nightly"}
_OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True)
class Image:
    """An image by its name; `ray` and `python` are as exact as the tag is, None where it does not say."""

    name: str
    tag: str | None
    pinned: bool
    ray: str | None
    python: str | None

    @classmethod
    def parse(cls, name: str) -> Image:
        """Read a name such as rayproject/ray:2.60.0-py311-gpu.

        >>> image = Image.parse("rayproject/ray:2.60.0-py311-gpu")
        >>> image.ray, image.python, image.pinned
        ('2.60.0', '3.11', True)
        >>> Image.parse("registry:5000/team/sweep:ray2.60.0-python3.11.9").python
        '3.11.9'
        >>> Image.parse("rayproject/ray:nightly-py311").pinned
        False
        """
        plain, _, digest = name.partition("@")
        repository, _, tag = plain.rpartition("/")[2].partition(":")
        python = re.search(r"(?:^|[-_.])py(?:thon)?-?3\.?(\d{1,2})(?:\.(\d+))?", tag)
        number = re.search(r"(?:^|[-_])(?:ray-?)?(\d+\.\d+\.\d+)(?:$|[-_])", tag)
        of_ray = number[1] if number and "ray" in f"{repository}{tag}" else None  # else it is the image's own version
        version = ".".join(part for part in ("3", *python.groups()) if part) if python else None
        pinned = bool(digest) or (bool(tag) and not _FLOATING & set(re.split(r"[-_.]", tag)))
        return cls(name, tag or None, pinned, of_ray, version)

    def faults(self) -> list[str]:
        """What is wrong with the image on its own, or for the Ray installed here."""
        found = []
        if not self.pinned:
            found.append(f"image {self.name} is not pinned: it can change from one node to the next; name a full tag")
        if self.ray is not None and self.ray != ray.__version__:
            found.append(f"image {self.name} has Ray {self.ray}; here is Ray {ray.__version__}, and the two must agree")
        if self.python is not None and tuple(map(int, self.python.split("."))) < _OLDEST_PYTHON:
            oldest = ".".join(map(str, _OLDEST_PYTHON))
            found.append(f"image {self.name} has Python {self.python}; the project needs {oldest} or newer")
        return found

    def difference(self, other: Image) -> str:
        """How two different images may not fit: the first of Ray, Python and the name that differs."""
        for what, mine, theirs in (("Ray", self.ray, other.ray), ("Python", self.python, other.python)):
            if mine != theirs:
                return f"{what} {mine or 'unknown'} and {what} {theirs or 'unknown'} must not meet in one cluster"
        return "pin one image for all nodes"
