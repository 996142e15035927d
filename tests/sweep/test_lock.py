"""The lock: one driver at a time, and no waiting for a dead one."""

import json
import os
import subprocess
import sys
import time

import pytest

from sweep import lock as module
from sweep.lock import Lock
from sweep.storage import Folder, StoreError


@pytest.fixture
def storage(tmp_path):
    return Folder(tmp_path)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(module, "EXPIRY_SECONDS", 0.3)


def holder(storage, **changes):
    """Another driver's lock, on another host and with a fresh heartbeat if nothing else is said."""
    lock = {"host": "node7", "pid": 123, "heartbeat": time.time(), "beats": 0, "token": "another"} | changes
    storage.write("lock.json", json.dumps(lock).encode())


def a_dead_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_second_is_refused_with_host_process_and_heartbeat(storage):
    said = rf"process {os.getpid()} on {module.socket.gethostname()}, last heartbeat 0 s ago; .*--force-unlock"
    with Lock(storage), pytest.raises(StoreError, match=said), Lock(storage):
        pytest.fail("two at once")


def test_it_is_free_afterwards(storage):
    for _ in range(2):
        with Lock(storage):
            pass
    assert storage.names() == []


def test_it_is_free_after_an_error(storage):
    with pytest.raises(ZeroDivisionError), Lock(storage):
        _ = 1 / 0
    assert storage.names() == []


def test_another_host_with_a_heartbeat_is_alive(storage):
    holder(storage)
    with pytest.raises(StoreError, match="process 123 on node7"), Lock(storage):
        pytest.fail("two at once")


def test_a_dead_process_of_this_host_is_no_obstacle(storage):
    holder(storage, host=module.socket.gethostname(), pid=a_dead_process())
    started = time.monotonic()
    with Lock(storage) as lock:
        lock.check()
    assert time.monotonic() - started < 2


def test_a_container_that_starts_again_with_the_same_process_id(storage):
    holder(storage, host=module.socket.gethostname(), pid=os.getpid())
    with Lock(storage) as lock:
        lock.check()


def test_another_host_without_a_heartbeat_has_expired(storage, quick):
    holder(storage, heartbeat=time.time() - 1)
    with Lock(storage) as lock:
        lock.check()


def test_a_clock_that_is_late_does_not_kill_the_living(storage, quick, monkeypatch):
    """The other host's clock is a minute behind, but its heartbeat goes on."""
    holder(storage, heartbeat=time.time() - 60)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: holder(storage, heartbeat=time.time() - 60, beats=1))
    with pytest.raises(StoreError, match="process 123 on node7"), Lock(storage):
        pytest.fail("two at once")


def test_a_torn_lock_expires(storage, quick):
    storage.write("lock.json", b'{"host": "no')
    with Lock(storage) as lock:
        lock.check()


def test_the_heartbeat_goes_on(storage, quick):
    with Lock(storage):
        first = json.loads(storage.read("lock.json"))
        time.sleep(0.5)
        later = json.loads(storage.read("lock.json"))
    assert later["beats"] >= first["beats"] + 2 and later["heartbeat"] > first["heartbeat"]


def test_who_is_forced_out_notices(storage, quick):
    with Lock(storage) as first:
        with Lock(storage, force=True) as second:
            until = time.monotonic() + 5
            while first._lost is None and time.monotonic() < until:
                time.sleep(0.02)
            with pytest.raises(StoreError, match=rf"taken over: process {os.getpid()} .*this run ends here"):
                first.check()
            second.check()
        first_left = storage.names()
    assert first_left == []


def test_who_is_forced_out_leaves_the_lock_to_the_other(storage, quick):
    first = Lock(storage)
    with first, Lock(storage, force=True):
        first.__exit__(None, None, None)
        assert storage.read("lock.json") is not None
