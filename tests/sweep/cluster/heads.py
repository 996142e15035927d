"""A Ray head of a test's own, as a process that the test ends."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ray

RAY = Path(sys.executable).with_name("ray")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def address(port):
    """Where a head of this machine is found: Ray itself takes the loopback address for this one."""
    return f"{ray.util.get_node_ip_address()}:{port}"


@contextlib.contextmanager
def ray_head(*arguments, port=None, environment=None, cwd=None):
    """Run `ray start --head` in a process group of its own; yield host:port. Nothing else on the machine is touched."""
    port = port or free_port()
    folder = tempfile.mkdtemp(prefix="ray")  # short, since Ray's socket paths have a length limit
    command = [RAY, "start", "--head", "--block", f"--port={port}", f"--temp-dir={folder}", *arguments]
    defaults = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    head = subprocess.Popen(
        [*map(str, command)],
        env=os.environ | defaults | (environment or {}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=cwd,
    )
    try:
        yield address(port)
    finally:
        head.terminate()  # it ends the processes it started
        with contextlib.suppress(subprocess.TimeoutExpired):
            head.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(condition, seconds):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.2)
