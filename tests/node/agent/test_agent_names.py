"""Test that a device has one agent, by a name in the socket namespace and a lock; no user can block root's agent."""

import contextlib
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.agent import python
from sharepod.agent.devices.lock import NAME, HostLock
from sharepod.agent.errors import AgentUnavailable

root_only = pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")

HOLDER = """
import os, signal, socket, sys
os.setgroups([]), os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
names = [socket.socket(socket.AF_UNIX) for _ in range(2)]
names[0].bind(b"\\0sharepod/device/" + sys.argv[1].encode())
names[1].bind(b"\\0sharepod/device/" + sys.argv[1].encode() + b"/1")
print("ready", flush=True)
signal.pause()
"""


@contextlib.contextmanager
def held(key: str, uid: int) -> Iterator[None]:
    with python({}, "-c", HOLDER, key, str(uid)) as (_, line):
        assert line == "ready\n"
        yield


@pytest.fixture
def key() -> str:
    return f"GPU-{uuid.uuid4()}"


def locks(tmp_path: Path, *names: str) -> Iterator[HostLock]:
    for name in names:
        (tmp_path / name).mkdir()
        yield HostLock(tmp_path / name)


def test_two_agents_of_different_directories_find_each_other(tmp_path: Path, key: str) -> None:
    first, second = locks(tmp_path, "first", "second")
    with first, second:
        first.claim_device(key, 3)
        where = re.escape(f"device 3 belongs to another agent on this host (pid {os.getpid()}, in {tmp_path}/")
        with pytest.raises(AgentUnavailable, match=f"{where}.*: use that one, or stop it with `kill {os.getpid()}`"):
            second.claim_device(key, 3)
        second.claim_device(f"{key}0", 4)
        (other,) = locks(tmp_path, "other")
        with other, pytest.raises(AgentUnavailable, match="another agent"):
            other.claim_device(key, 3)
        first.claim_device(f"{key}1", 5)  # what failed has left nothing behind
        (tmp_path / "first" / NAME).unlink()
        told = f"in {tmp_path}/first, which has been removed): stop it with `kill {os.getpid()}`: nothing reaches it"
        with pytest.raises(AgentUnavailable, match=re.escape(told)):
            second.claim_device(key, 3)
    (third,) = locks(tmp_path, "third")
    with third:
        third.claim_device(key, 3)


@root_only
def test_a_stranger_that_holds_the_name_keeps_no_agent_of_roots_away_and_hides_none(
    tmp_path: Path, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = locks(tmp_path, "first", "second", "third")
    with first, second, third:
        with held(key, 65534):
            first.claim_device(key, 3)
            assert [(one.uid, one.index) for one in caplog.records] == [(65534, 3)] * 2  # type: ignore[attr-defined]
            [trouble] = first.troubles  # two names of one user
            told, _, remedy = trouble.rpartition(": ")
            assert told.startswith("name of a device is a stranger's (device 3, user 65534)")
            assert remedy == "`ss -xlp | grep sharepod/device` shows it; end its process"
            with pytest.raises(AgentUnavailable, match="device 3 belongs to another agent"):
                second.claim_device(key, 3)
        with pytest.raises(AgentUnavailable, match="device 3 belongs to another agent"):  # the plain name is free now
            third.claim_device(key, 3)


@root_only
def test_an_agent_of_roots_is_heeded_also_where_it_only_holds_the_name(tmp_path: Path, key: str) -> None:
    (lock,) = locks(tmp_path, "lock")
    with held(key, 0), lock, pytest.raises(AgentUnavailable):
        lock.claim_device(key, 0)


LOCKER = """
import fcntl, os, signal, sys
file = open(sys.argv[1])
os.setgroups([]), os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
fcntl.flock(file, fcntl.LOCK_EX)
print("ready", flush=True)
signal.pause()
"""


def test_a_lock_on_a_file_of_the_device_is_seen_where_the_name_is_not(tmp_path: Path, key: str) -> None:
    first, second, third = locks(tmp_path, "first", "second", "third")
    (file := tmp_path / "device").touch()
    with second:
        with first:
            first.claim_device(key, 3, file)
            first.claim_device(f"{key}0", 4, file)  # a MIG instance of the same GPU
            with pytest.raises(AgentUnavailable, match="device 3 belongs to another agent on this host"):
                second.claim_device(f"{key}1", 3, file)
        second.claim_device(f"{key}2", 3, file)
        with third:
            third.claim_device(f"{key}3", 3, tmp_path / "nowhere")


@root_only
@pytest.mark.parametrize("uid", [0, 65534])
def test_a_stranger_that_locks_the_file_keeps_no_agent_of_roots_away(
    tmp_path: Path, key: str, uid: int, caplog: pytest.LogCaptureFixture
) -> None:
    (lock,) = locks(tmp_path, "lock")
    (file := tmp_path / "device").touch()
    refused = contextlib.nullcontext() if uid else pytest.raises(AgentUnavailable, match="device 3 belongs to")
    with python({}, "-c", LOCKER, str(file), str(uid)) as (_, line), lock:
        assert line == "ready\n"
        with refused:
            lock.claim_device(key, 3, file)
        assert [(one.uid, one.index) for one in caplog.records] == [(uid, 3)] * bool(uid)  # type: ignore[attr-defined]
        assert len(lock.troubles) == bool(uid)
        assert all(f"`lslocks` shows it, by {file}; end its process" in text for text in lock.troubles)
