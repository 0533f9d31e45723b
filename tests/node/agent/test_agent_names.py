"""A device has one agent, by a name in the kernel's socket namespace: no stranger keeps root's agent from it."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.agent import python
from sharepod.agent.errors import AgentUnavailable
from sharepod.agent.lock import HostLock

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
        with pytest.raises(AgentUnavailable, match="device 3 belongs to another agent on this host: use that one"):
            second.claim_device(key, 3)
        second.claim_device(f"{key}0", 4)
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
            with pytest.raises(AgentUnavailable, match="device 3 belongs to another agent"):
                second.claim_device(key, 3)
        with pytest.raises(AgentUnavailable, match="device 3 belongs to another agent"):  # the plain name is free now
            third.claim_device(key, 3)


@root_only
def test_an_agent_of_roots_is_heeded_also_where_it_only_holds_the_name(tmp_path: Path, key: str) -> None:
    (lock,) = locks(tmp_path, "lock")
    with held(key, 0), lock, pytest.raises(AgentUnavailable):
        lock.claim_device(key, 0)
