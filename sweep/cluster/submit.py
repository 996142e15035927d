"""`sweep submit`: hand a sweep to a running cluster as a Ray job, with the code it needs and nothing else."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from sweep.spec import shipped

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

__all__ = ["SubmitError", "follow", "package", "size_line", "submit"]

LIMIT = 50 * 2**20
"""Bytes that a package may have: Ray sends it to every node."""

_CODE = {"dirdp": (".py",), "sweep": (".py", ".csv"), "search_spaces": (".py", ".yaml")}
_NO_STORAGE = "give sweep submit --storage, or set SWEEP_STORAGE on the nodes: a job has no folder that stays"


class SubmitError(ValueError):
    """The cluster does not take the job, or the package is too large; the message is one line."""


def package(name: str, *, include: Iterable[Path] = ()) -> dict[str, Path]:
    """The files a job of the search space `name` needs, by the place they have in its folder.

    This project's code as it is here, the search space if it is a file of the user's, and what `include` names: files
    and whole folders such as one's own network. Raises `SubmitError` for a path that is not there.

    >>> "search_spaces/figure2.yaml" in package("figure2")
    True
    """
    files: dict[str, Path] = {}
    for module, suffixes in _CODE.items():
        root = Path(str(resources.files(module)))
        files |= {
            f"{module}/{path.relative_to(root).as_posix()}": path
            for path in sorted(root.rglob("*"))
            if path.suffix in suffixes
        }
    if name not in shipped():
        files[Path(name).name] = Path(name)
    for path in include:
        if not path.exists():
            raise SubmitError(f"--include {path}: no such file or folder")
        inside = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        files |= {
            str(PurePosixPath(path.resolve().name) / p.relative_to(path).as_posix()) if path.is_dir() else path.name: p
            for p in inside
            if "__pycache__" not in p.parts
        }
    return files


def size_line(files: Mapping[str, Path]) -> str:
    """How large a package is. Raises `SubmitError` with its largest files if it is over the limit."""
    sizes = {name: path.stat().st_size for name, path in files.items()}
    total = sum(sizes.values())
    if total > LIMIT:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        shown = ", ".join(f"{files[name]} ({_mib(sizes[name])})" for name in largest)
        raise SubmitError(
            f"the package has {_mib(total)}, more than {_mib(LIMIT)}; the largest: {shown}; data belong on the nodes"
        )
    return f"package: {len(files)} files, {_mib(total)}"


def submit(
    name: str,
    *,
    address: str,
    options: Sequence[str] = (),
    storage: str | None = None,
    files: Mapping[str, Path],
    client: Callable[..., JobSubmissionClient] | None = None,
) -> str:
    """Submit `sweep run NAME --address auto OPTIONS` to the cluster whose dashboard is at `address`; return the job.

    `storage` is a folder that all nodes share; without it the nodes' SWEEP_STORAGE holds. Raises `SubmitError` if the
    cluster does not answer or does not know our token.
    """
    run = Path(name).name if name not in shipped() else name
    words = ["python", "-m", "sweep", "run", run, "--address", "auto", *options]
    entrypoint = shlex.join([*words, *(["--storage", storage] if storage else [])])
    if storage is None:
        entrypoint = f': "${{SWEEP_STORAGE:?{_NO_STORAGE}}}" && {entrypoint}'
    with _answers(address), tempfile.TemporaryDirectory(prefix="sweep-submit-") as folder:
        for place, path in files.items():
            (Path(folder) / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, Path(folder) / place)
        return (client or connect)(address).submit_job(
            entrypoint=entrypoint, runtime_env={"working_dir": folder}, metadata={"sweep": name}
        )


def follow(job: str, *, address: str, say: Callable[[str], Any]) -> str:
    """Pass on what a job prints until it ends; return its status: SUCCEEDED, FAILED or STOPPED."""
    with _answers(address):
        jobs = connect(address)

        async def pass_on() -> None:
            async for lines in jobs.tail_job_logs(job):
                say(lines)

        asyncio.run(pass_on())
        return str(jobs.get_job_status(job).value)


def connect(address: str) -> JobSubmissionClient:
    """Connect to a cluster's dashboard, with the token that is found where Ray looks for one."""
    from ray.job_submission import JobSubmissionClient

    token, _ = _token()
    return JobSubmissionClient(address, headers={"Authorization": f"Bearer {token}"} if token else {})


def _token() -> tuple[str | None, str]:
    """The token for clusters, and where it is from, in Ray's order; none where authentication is switched off."""
    if os.environ.get("RAY_AUTH_MODE") == "disabled":
        return None, "RAY_AUTH_MODE=disabled"
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token, "RAY_AUTH_TOKEN"
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    try:
        return path.read_text(encoding="utf-8").strip() or None, str(path)
    except OSError:
        return None, str(path)


@contextmanager
def _answers(address: str) -> Any:
    """Within, what goes wrong with the cluster is one line that says what to do."""
    from ray.exceptions import AuthenticationError

    try:
        yield
    except AuthenticationError as error:
        token, source = _token()
        fault = f"does not know the token from {source}" if token else f"asks for a token, and {source} has none"
        raise SubmitError(
            f"the cluster at {address} {fault}; print the cluster's with `ray get-auth-token` on its head and put it "
            "into RAY_AUTH_TOKEN or ~/.ray/auth_token"
        ) from error
    except (ConnectionError, RuntimeError) as error:
        said = " ".join(str(error).split())
        if "Failed to connect" in said or isinstance(error, ConnectionError):
            said = "no Ray dashboard answers there; is it http://HEAD:8265, and the port forwarded (`ray dashboard`)?"
        raise SubmitError(f"--address {address}: {said}") from error


def _mib(size: float) -> str:
    return f"{size / 2**20:.1f} MiB"
