"""Test ledger, health, foreign processes and explain as pure functions in virtual time."""

import asyncio
import errno
from dataclasses import replace
from pathlib import Path
from typing import Any, Never
from unittest.mock import Mock

import grpc
import pynvml
import pytest
from agent_doubles import H200, H200_B, MemoryArbiter
from hypothesis import given
from hypothesis import strategies as st

from sharepod.agent.api.explain import explain
from sharepod.agent.api.service import answer
from sharepod.agent.devices import health
from sharepod.agent.devices.device import MPS_REASON, DeviceLook, DeviceProcess, DeviceStatus, NodeStatus
from sharepod.agent.devices.monitor import Devices
from sharepod.agent.devices.nvml import XidEvents
from sharepod.agent.devices.unmanaged import UnmanagedProcesses, unmetered_cause
from sharepod.agent.errors import UnknownShare
from sharepod.agent.shares import ledger
from sharepod.agent.shares.environ import names_mps, region_in
from sharepod.agent.shares.ledger import MINUTE_NS, SECOND_NS, Account
from sharepod.agent.shares.registry import Registry
from sharepod.agent.shares.share import (
    DeviceTerms,
    DeviceUsage,
    DeviceUuid,
    Process,
    Share,
    ShareClass,
    ShareId,
    ShareState,
    ShareStatus,
    Terms,
    Usage,
    bytes_text,
    percent_text,
)

MS = 1_000_000


def test_a_counter_that_falls_starts_the_account_anew() -> None:
    account = Account()
    for second in range(180):
        account.add(second * SECOND_NS, (10 + second) * SECOND_NS)
    account.add(180 * SECOND_NS, 0)
    account.validate()
    for window_ns in (SECOND_NS, MINUTE_NS, 15 * MINUTE_NS):
        assert account.rate_millipercent(181 * SECOND_NS, SECOND_NS // 2, window_ns) == 50_000


@given(st.lists(st.tuples(st.integers(1, 3_000), st.integers(0, 1_000)), max_size=300))
def test_an_account_stays_small_and_its_rate_within_the_steepest_step(steps: list[tuple[int, int]]) -> None:
    account, now, used = Account(), 0, 0
    account.add(0, 0)
    for wait_ms, percent_x10 in steps:
        now += wait_ms * MS
        used += wait_ms * MS * percent_x10 // 1000
        account.add(now, used)
        account.validate()
        for window in (SECOND_NS, MINUTE_NS):
            assert 0 <= account.rate_millipercent(now, used, window) <= 100_000


def look(**fields: object) -> DeviceLook:
    return DeviceLook(H200.uuid, **fields)  # type: ignore[arg-type]


def test_application_errors_leave_a_device_healthy_but_are_counted() -> None:
    verdict = health.step(health.Health(), look(xids=(13, 31, 43)), 0)
    assert verdict.healthy
    assert verdict.xids_seen == 3


def verdict_after(*seen: tuple[int, DeviceLook]) -> health.Health:
    """Return the verdict after looks at these seconds."""
    verdict = health.Health()
    for second, one in seen:
        verdict = health.step(verdict, one, second * SECOND_NS)
    return verdict


def test_a_critical_xid_stays_as_long_as_no_reset_is_seen() -> None:
    fatal = (0, look(xids=(62,)))
    well = [(second, look()) for second in range(1, 3600, 60)]
    silent = (5, look(error="NVML: Timeout"))  # the device is there, but it did not answer
    for seen in ([fatal, *well], [fatal, silent, *well], [fatal, (5, look(xids=(13,))), *well]):
        assert verdict_after(*seen).reason == "Xid 62"


@pytest.mark.parametrize(
    "down", [look(error="NVML: GPU is lost", gone=True), look(needs_reset=True)], ids=["gone", "asks-for-reset"]
)
def test_a_critical_xid_is_over_when_the_device_that_was_down_has_answered_for_the_probation(down: DeviceLook) -> None:
    fatal = [(0, replace(down, xids=(79,))), (5, down)]
    assert verdict_after(*fatal).reason == "Xid 79"
    assert verdict_after(*fatal, (14, look())).reason == "Xid 79"
    assert verdict_after(*fatal, (14, look()), (15, look())).healthy
    again = [*fatal, (8, look(xids=(48,)))]  # a fatal Xid after the reset needs another reset
    assert verdict_after(*again, (20, look()), (3600, look())).reason == "Xid 48"


def test_a_device_that_has_not_been_looked_at_is_unhealthy_until_it_has_answered_for_the_probation() -> None:
    verdict = health.overdue(health.Health(), 12 * SECOND_NS)
    assert verdict.reason == "it could not be looked at for 10 s: NVML does not come back"
    assert health.overdue(verdict, 13 * SECOND_NS).reason == verdict.reason
    assert not health.step(verdict, look(), 20 * SECOND_NS).healthy
    assert health.step(verdict, look(), 23 * SECOND_NS).healthy
    assert health.overdue(health.Health(fault="NVML: GPU is lost"), 0).reason == "NVML: GPU is lost"


def test_while_a_device_is_released_nobody_looks_and_none_of_them_hangs(tmp_path: Path) -> None:
    registry = Registry(MemoryArbiter(), tmp_path, [H200, H200_B])
    devices, late_ns = Devices(registry, Mock(), ()), health.OVERDUE_NS + SECOND_NS
    devices.begin(0)
    devices.release(H200.uuid)
    devices.notice_hanging(late_ns)
    devices.looked([look()], late_ns)  # the result of a look that began before
    reasons = [room.health_reason for room in registry.rooms().values()]
    assert reasons == ["released by an operator: `sharepod device resume 0` takes it back", ""]
    devices.resume(H200.uuid, late_ns)
    devices.notice_hanging(late_ns + SECOND_NS)
    assert [room.health_reason for room in registry.rooms().values()] == [health.TAKEN_BACK, ""], "no look yet"
    devices.notice_hanging(2 * late_ns)
    assert all(room.health_reason for room in registry.rooms().values()), "and now they are overdue"


@pytest.mark.parametrize(("why", "asked"), [("NotSupported", 1), ("FunctionNotFound", 1), ("GpuIsLost", 2)])
def test_of_events_that_do_not_exist_a_device_is_asked_once_and_a_lost_one_again(
    monkeypatch: pytest.MonkeyPatch, why: str, asked: int
) -> None:
    made, freed = iter("ab"), list[str]()

    def refuse(*_: object) -> None:
        raise getattr(pynvml, f"NVMLError_{why}")()

    monkeypatch.setattr(pynvml, "nvmlEventSetCreate", lambda: next(made))
    monkeypatch.setattr(pynvml, "nvmlDeviceRegisterEvents", refuse)
    monkeypatch.setattr(pynvml, "nvmlEventSetFree", freed.append)
    events = XidEvents(None)
    events.subscribe()
    events.subscribe()
    assert freed == ["a", "b"][:asked]


def test_a_device_that_does_not_answer_or_needs_a_reset_is_unhealthy() -> None:
    verdict = health.step(health.Health(), look(error="NVML: GPU is lost"), 0)
    assert verdict.reason == "NVML: GPU is lost"
    verdict = health.step(verdict, look(needs_reset=True), 60 * SECOND_NS)
    assert not verdict.healthy
    assert not health.step(verdict, look(), 69 * SECOND_NS).healthy
    assert health.step(verdict, look(), 70 * SECOND_NS).healthy


def test_only_a_named_pipe_directory_sends_a_program_to_mps() -> None:
    assert names_mps(b"A=1\0CUDA_MPS_PIPE_DIRECTORY=/x\0")
    assert not names_mps(b"A=1\0CUDA_MPS_PIPE_DIRECTORY=\0XCUDA_MPS_PIPE_DIRECTORY=/x\0")


def test_a_process_that_attaches_within_the_grace_is_not_foreign() -> None:
    finder = UnmanagedProcesses([])
    process = DeviceProcess(7, "python", 100)
    assert finder.step(H200.uuid, [process], set(), 0) == []
    assert finder.step(H200.uuid, [process], {7}, SECOND_NS) == []
    assert finder.step(H200.uuid, [process], {7}, 9 * SECOND_NS) == []


def test_a_process_of_a_share_that_runs_unmetered_is_told_once_with_its_cause_and_counted_apart() -> None:
    finder = UnmanagedProcesses([])
    seen = [DeviceProcess(7, "python", 100, "/x"), DeviceProcess(8, "python", 100)]
    causes = {7: unmetered_cause(errno.ENOENT)}
    found = [found for second in range(10) for found in finder.step(H200.uuid, seen, {}, second * SECOND_NS, causes)]
    assert [(f.process.pid, f.process.unmetered_cause[:19]) for f in found] == [(7, "its region is gone,"), (8, "")]
    assert (finder.seen(H200.uuid), finder.unmetered_seen(H200.uuid)) == (2, 1)


def test_each_state_of_a_region_is_another_cause() -> None:
    assert unmetered_cause(0).startswith("it has not attached: ")
    anew = ": register the share anew, and start it there"
    assert unmetered_cause(errno.EPROTO) == f"its region has another ABI or is damaged{anew}"
    assert unmetered_cause(errno.EACCES) == f"its region cannot be read (EACCES){anew}"
    assert len({unmetered_cause(error) for error in (0, errno.ENOENT, errno.EPROTO, errno.EIO)}) == 4


@pytest.mark.parametrize(
    ("environment", "region"),
    [
        (b"A=1\0SHAREPOD_REGION=/dev/shm/r\0B=2\0", "/dev/shm/r"),
        (b"SHAREPOD_REGION=/one\0SHAREPOD_REGION=/two\0", "/one"),
        (b"SHAREPOD_REGION=/cut/at/the/en", "/cut/at/the/en"),
        (b"XSHAREPOD_REGION=/no\0A=SHAREPOD_REGION=/no\0", ""),
        (b"SHAREPOD_REGION=/a\nline\0", ""),
        (b"SHAREPOD_REGION=\x1b[31m/red\0", ""),
        (b"SHAREPOD_REGION=/" + b"x" * 255, ""),
        (b"", ""),
    ],
)
def test_of_a_tenants_environment_only_a_short_printable_region_is_taken(environment: bytes, region: str) -> None:
    assert region_in(environment) == region


@given(st.binary(max_size=600))
def test_no_environment_breaks_the_agent_or_its_log(environment: bytes) -> None:
    for text in (region_in(environment), region_in(b"SHAREPOD_REGION=" + environment)):
        assert text.isprintable()
        assert len(text) <= 255


def held(
    name: str,
    state: ShareState,
    used: int,
    request: int = 30,
    limit: int = 100,
    share_class: ShareClass = ShareClass.STANDARD,
    processes: int = 1,
) -> ShareStatus:
    terms = DeviceTerms(H200.uuid, Terms(request * 1000, limit * 1000, 0))
    share = Share(ShareId(name), (terms,), share_class, "/x", 0, name=name)
    usage = DeviceUsage(H200.uuid, Usage(state=state), used * 1000, used * 1000)
    return ShareStatus(share, (usage,), tuple(Process(n, n, 0, 0) for n in range(processes)))


def reason(status: ShareStatus, *others: ShareStatus, health_reason: str = "") -> str:
    node = NodeStatus(0, (status, *others), (DeviceStatus(H200, health_reason=health_reason),))
    (explanation,) = explain(node, status.share.id)
    assert "\n" not in explanation.reason
    return explanation.reason


HOLDER = held("trainer", ShareState.HOLDING, 70)
WAITING, BATCH = ShareState.WAITING, ShareClass.BATCH


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (held("a", WAITING, 10), "waits for its turn while trainer holds device 0: it has had 10 % of the last"),
        (held("a", WAITING, 40), "at or above its request 30 %"),
        (held("a", WAITING, 40, limit=40), "its limit is 40 %: raise the limit to let it use more"),
        (held("a", WAITING, 0, share_class=BATCH), "below its request 30 %, so it is among the next"),
        (
            held("a", WAITING, 40, share_class=BATCH),
            "above its request 30 %, and beyond that batch runs when no other share waits",
        ),
        (
            held("a", WAITING, 0, request=0, share_class=BATCH),
            "batch without a request runs when no other share waits",
        ),
        (held("a", WAITING, 0, request=0), "best effort without a request runs when no other share waits"),
        (held("a", ShareState.DRAINING, 0), "its turn is over and its last work still runs"),
        (held("a", ShareState.HOLDING, 0), "runs: it holds the turn"),
        (held("a", ShareState.IDLE, 0), "idle: its processes have submitted no work"),
        (held("a", ShareState.IDLE, 0, processes=0), "idle: no process has attached; start the program with the hook"),
    ],
)
def test_explain_says_why(status: ShareStatus, expected: str) -> None:
    assert expected in reason(status, HOLDER)


def test_explain_names_the_device_that_a_gang_waits_for() -> None:
    status = held("a", WAITING, 10)
    other = replace(H200, uuid=DeviceUuid("GPU-1"), index=1)
    status = replace(status, usages=(replace(status.usages[0], gang_device=other.uuid),))
    (explanation,) = explain(NodeStatus(0, (status, HOLDER), (DeviceStatus(H200), DeviceStatus(other))), ShareId("a"))
    assert explanation.reason.startswith("waits for device 1 of its gang")


def test_explain_tells_of_mps() -> None:
    assert "is of no use to shares: MPS serves it" in reason(held("a", WAITING, 0), health_reason=MPS_REASON)


def test_quantities_read_well() -> None:
    assert [percent_text(n) for n in (30_000, 12_500, 1, 0, 100_000)] == ["30 %", "12.5 %", "0.001 %", "0 %", "100 %"]
    assert [bytes_text(n) for n in (5, 2**30, 3 * 2**29)] == ["5 bytes", "1 GiB", "1.50 GiB"]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [(UnknownShare("no share x"), "NOT_FOUND", "no share x"), (KeyError("y"), "INTERNAL", "the agent failed")],
)
def test_a_refusal_is_answered_as_it_is_and_a_defect_as_one(error: Exception, code: str, text: str) -> None:
    class Call:
        async def abort(self, code: grpc.StatusCode, details: str) -> Never:
            raise ConnectionAbortedError(code.name, details)

    def fails() -> None:
        raise error

    call: Any = Call()
    with pytest.raises(ConnectionAbortedError, match=f"{code}.*{text}"):
        asyncio.run(answer(call, "GetShare", fails))


@pytest.mark.parametrize(("dead", "live", "now"), [(2, 0, 0), (0, 2, 2), (3, 2, 4), (5, 1, 0)])
def test_passes_of_dead_and_live_processes_never_fall_over_an_adoption(dead: int, live: int, now: int) -> None:
    before, told = Usage(launches=100, passed=dead + live), Usage(launches=50, passed=now)
    [earlier] = ledger.carried([before], 50, [told])
    assert ledger.total(earlier, told).passed == max(dead + live, now)
