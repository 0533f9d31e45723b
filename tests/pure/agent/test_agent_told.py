"""Test what the agent tells and takes at its bounds: reasons, troubles, messages, NVML's silence, locks, settings."""

import fcntl
import os
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pynvml
import pytest
from agent_doubles import H200, H200_B

from rig.until import until
from sharepod.agent import main
from sharepod.agent.api import plugin, service
from sharepod.agent.api.explain import explain
from sharepod.agent.api.snapshot import SnapshotBuilder, message
from sharepod.agent.devices import inventory, nvml, processes
from sharepod.agent.devices import session as session_module
from sharepod.agent.devices.device import (
    DeviceInfo,
    DeviceLook,
    DeviceProcess,
    DeviceStatus,
    NodeStatus,
    Unlisted,
    matched,
)
from sharepod.agent.devices.lock import NAME, TROUBLES_MAX, HostLock
from sharepod.agent.errors import InvalidInput
from sharepod.agent.metrics.feed import Counters, Look
from sharepod.agent.settings import OPTIONS, Settings
from sharepod.agent.shares import diagnostics
from sharepod.agent.shares.diagnostics import Kind
from sharepod.agent.shares.environ import region_in
from sharepod.agent.shares.ledger import SECOND_NS as S
from sharepod.agent.shares.share import (
    DeviceAsk,
    DeviceTerms,
    DeviceUsage,
    DeviceUuid,
    Diagnostic,
    Handle,
    Share,
    ShareAsk,
    ShareClass,
    ShareId,
    ShareState,
    ShareStatus,
    Terms,
    Turn,
    Usage,
    bytes_text,
)
from sharepod.process.errors import SettingsError
from sharepod.proto import v1_pb2 as pb

A = ShareId("a")
NOBODY = 2**22 + 1
"""No process has this pid."""


def status(name: str = A, terms: Terms | None = None, on: DeviceInfo = H200, **usage: Any) -> ShareStatus:
    """Return a share of one device; the fields are those of its usage."""
    held = DeviceTerms(on.uuid, terms or Terms(30_000, 100_000, 0))
    share = Share(ShareId(name), (held,), ShareClass.STANDARD, f"/x/{name}", 0, name=name)
    return ShareStatus(share, (DeviceUsage(on.uuid, Usage(**usage)),), ())


def test_the_largest_that_is_allowed_is_allowed() -> None:
    asks, labels = (DeviceAsk("", Terms(0, 100_000, 0)),) * 16, {f"label{n}": "x" * 253 for n in range(16)}
    assert len(ShareAsk(asks, labels=labels).devices) == 16
    with pytest.raises(InvalidInput, match="17 labels are more than 16"):
        ShareAsk(asks, labels=labels | {"one": "more"})
    longest = "/" + "x" * 254
    assert region_in(f"SHAREPOD_REGION={longest}".encode()) == longest
    sizes = [bytes_text(n) for n in (1023, 2**10, 3 * 2**19, 2**20, 2**40, 2**41)]
    assert sizes == ["1023 bytes", "1 KiB", "1.50 MiB", "1 MiB", "1 TiB", "2 TiB"]


def test_each_kind_of_trouble_has_its_error_and_is_logged_once_and_damage_when_it_is_ten_times_as_much() -> None:
    errors = {kind: diagnostics.describe(Diagnostic(1, 7, kind, 3), 2)[0] for kind in (*Kind, 99)}
    assert {kind: error for kind, error in errors.items() if error} == {
        Kind.INIT: 3, Kind.DEVICE: 101, Kind.OUTSIDE: 101, Kind.FUNCTION: 500,
    }  # fmt: skip
    assert diagnostics.describe(Diagnostic(1, 7, Kind.DEVICE, 3), 2)[1].endswith("which has 2: take 0 to 1")
    log = diagnostics.DiagnosticLog()

    def lines(*numbers: int, faults: int = 0, fault: str = "", context: int = 0) -> list[object]:
        found = tuple(Diagnostic(number, number, Kind.FULL, 64) for number in numbers)
        one = status(terms=Terms(0, 100_000, 299), faults=faults)
        one = replace(one, diagnostics=found, region_fault=fault)
        return [line.fields.get("pid", line.event) for line in log.step([one], {H200.uuid: context})]

    assert [lines(1), lines(1, 2, 3), lines(1, 2, 3)] == [[1], [2, 3], []]
    assert [n for n in (0, 1, 2, 9, 10, 99, 100) if lines(faults=n)] == [1, 10, 100]
    assert [len(lines(faults=100, fault=fault)) for fault in ("gone", "gone", "", "gone")] == [1, 0, 0, 1]
    assert [len(lines(faults=100, fault="gone", context=n)) for n in (299, 300, 300, 0, 300)] == [0, 1, 0, 0, 1]
    assert [bool(diagnostics.small_cap(cap, 300)) for cap in (0, 1, 299, 300)] == [False, True, True, False]


def reason(used: int, limit: int = 100, state: ShareState = ShareState.WAITING, **fields: Any) -> str:
    """Return why a share waits that has a request of 30 % and has used this much of the last second."""
    held = status(terms=Terms(30_000, limit * 1000, 0), state=state)
    usage = replace(held.usages[0], used_1s_millipercent=used * 1000)
    held = ShareStatus(replace(held.share, **fields), (usage,), ())
    return explain(NodeStatus(0, (held,), (DeviceStatus(H200),)), A)[0].reason


def test_why_a_share_waits_is_told_to_the_per_cent() -> None:
    assert "at or above its request 30 %; the surplus" in reason(98), "no limit holds it back"
    assert "below its request 30 %" in reason(10, limit=60)
    assert "at or above its request 30 %; the surplus" in reason(30)
    assert "at or above its request 30 %, and beyond that batch" in reason(30, share_class=ShareClass.BATCH)
    assert reason(0, state=ShareState.PAUSED, paused=True).startswith("paused by an operator: ")


def test_an_explanation_has_the_others_that_hold_and_the_shares_own_strays() -> None:
    waits = status(state=ShareState.WAITING, memory_used_bytes=5, memory_refusals=2, memory_refused_bytes=7)
    holders = (status(name, on=on, state=ShareState.HOLDING) for name, on in (("b", H200), ("c", H200_B)))
    strays = tuple(DeviceProcess(n, "x", 1, f"/x/{name}", unmetered_cause="it") for n, name in ((7, "a"), (8, "b")))
    devices = DeviceStatus(H200, unmanaged=strays), DeviceStatus(H200_B, unmanaged=strays)
    node = NodeStatus(0, (*holders, waits), devices)
    told = {name: explain(node, ShareId(name))[0] for name in ("a", "b")}
    assert [list(told[name].holder_share_ids) for name in ("a", "b")] == [["b"], []]
    stray = "its process x (7) runs unmetered"
    assert [fact for fact in told["a"].facts if "runs" in fact] == [f"{stray}: it", f"{stray} on device 1: it"]
    assert "memory 5 bytes (no cap)" in told["a"].facts
    assert "2 allocations did not fit under its memory cap, the last of 7 bytes" in told["a"].facts
    assert not any("above its cap" in fact for fact in told["a"].facts)


async def test_what_is_sent_is_complete_to_its_last_value() -> None:
    fewer, more = (NodeStatus(S, (), tuple(map(DeviceStatus, of))) for of in ((H200,), (H200, H200_B)))
    told = message(pb.ReportingNode(name="n"), SnapshotBuilder().build(more), SnapshotBuilder().build(fewer))
    assert (told.node.name, len(told.devices)) == ("n", 1), "all is told anew when a device has gone"
    nothing = plugin.nothing_yet()
    assert {*nothing.starts.values(), *nothing.errors.values(), *nothing.allocate.counts} == {0}
    counters = Counters(answered_ns={"a": S, "b": 3 * S})
    assert [Look(one, 4 * S).lag_s for one in (counters, Counters())] == [3, 0]
    turn = Turn(1, Handle(1), Handle(0), 1, 2, 3, 4, 2, 0, cogranted=False)
    ends = [service._turn(replace(turn, end=end), None, H200.uuid).end for end in range(len(pb.TurnEnd.values()))]
    assert ends == [*pb.TurnEnd.values()[1:], pb.TURN_END_UNSPECIFIED]
    for interval_ns in (10**8, 3600 * 10**9):
        (request := pb.WatchUsageRequest()).interval.FromNanoseconds(interval_ns)
        assert service._interval_ns(request) == interval_ns
    node: Any = SimpleNamespace(turns=lambda after, most: [(turn, None, H200.uuid)] * (most - after), now_ns=lambda: 1)
    most, no_call = pb.ListTurnsRequest(max_turns=16384, after_sequence=16383), Mock()
    assert len((await service.NodeService(node, Mock(), Mock()).ListTurns(most, no_call)).turns) == 1


@pytest.mark.parametrize(
    ("unlisted", "absent", "found"),
    [
        ([(4, ""), (1, "")], [("a", 1, ""), ("b", 0, "")], {"a": 1, "b": 4}),
        ([(1, "x")], [("a", 0, ""), ("b", 1, "")], {"b": 1}),
        ([(1, "")], [("a", 0, "x"), ("b", 1, "y")], {"b": 1}),
        ([(4, "x")], [("a", 0, "")], {"a": 4}),
        ([(4, "")], [("a", 0, "x")], {"a": 4}),
    ],
)
def test_one_address_that_is_not_known_leaves_the_index_and_then_any(
    unlisted: list[tuple[int, str]], absent: list[tuple[str, int, str]], found: dict[str, int]
) -> None:
    infos = [DeviceInfo(DeviceUuid(uuid), index, "", 0, address=address) for uuid, index, address in absent]
    known, _ = matched([Unlisted(place, place, "", address=address) for place, address in unlisted], infos)
    assert {uuid: one.place for uuid, one in known.items()} == found


def test_what_nvml_does_not_tell_of_a_device_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    value = SimpleNamespace(nvmlReturn=pynvml.NVML_SUCCESS, value=SimpleNamespace(uiVal=1))
    answers: dict[str, Any] = {
        "HandleByIndex": "GPU", "MigMode": (0, 1), "UUID": "GPU", "Name": "H200", "PciInfo": SimpleNamespace(busId=""),
        "ComputeRunningProcesses": [SimpleNamespace(pid=NOBODY, usedGpuMemory=None)], "GraphicsRunningProcesses": [],
        "MPSComputeRunningProcesses": [], "ComputeMode": 0, "FieldValues": [value],
        "MemoryInfo": SimpleNamespace(total=9, used=5),
    }  # fmt: skip
    for name, told in answers.items():
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", lambda *_, told=told: told)
    [found] = nvml.list_gpu(0, simulated=True)
    assert isinstance(found, nvml.Handle), "MIG begins with the next reset"
    look = nvml.look_at(found, (), {})
    assert (look.memory_used_bytes, [one.memory_used_bytes for one in look.processes]) == (5, [0])
    assert look.needs_reset
    for answered, action in ((pynvml.NVML_SUCCESS, 0), (pynvml.NVML_ERROR_NOT_SUPPORTED, 1)):
        value.nvmlReturn, value.value.uiVal = answered, action
        assert not nvml.look_at(found, (), {}).needs_reset


def test_nvml_is_opened_anew_ever_more_seldom_only_when_no_gpu_answers_and_closed_without_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, counted = list[str](), [1]
    monkeypatch.setattr(nvml, "open_nvml", lambda _: calls.append("open"))
    monkeypatch.setattr(nvml, "close_nvml", lambda: calls.append("close"))
    monkeypatch.setattr(nvml, "gpu_count", lambda: counted[0])
    session = session_module.Session("")

    def patience() -> int:
        """Return after how many failed looks NVML is opened anew; 0: not within 99."""
        return next((n for n in range(1, 100) if session.looked(H200.uuid, failed=True) is not None), 0)

    assert [patience() for _ in range(6)] == [4, 8, 16, 32, 64, 64]
    session.looked(H200.uuid, failed=False)
    assert patience() == 4
    session.looked(H200.uuid, failed=True)
    counted[0] = 0
    assert (session.close(), session.reopen(), calls[-1]) == ("", "NVML lists no GPU", "close")
    counted[0] = 1
    assert (session.reopen(), calls[-1], patience()) == ("", "open", 8)
    session.looked(H200_B.uuid, failed=False)
    assert patience() == 0, "another GPU is well"
    monkeypatch.setattr(session_module, "CALM_S", 0.01)
    with session.use():
        assert session.close() == session_module.NOT_BACK
    session.forget(H200_B.uuid)
    assert patience() == 1, "looks go on"
    watch = inventory._Watch(session, True, Mock(), Mock(), threading.Event(), Mock(), set())
    before = len(calls)
    for _ in range(99):
        watch.report([DeviceLook(H200.uuid, "lost"), DeviceLook(H200_B.uuid)])
    assert len(calls) == before, "one instance of the GPU is well"
    monkeypatch.setattr(session_module, "CALM_S", 20)
    closing = threading.Thread(target=lambda: calls.append(session.close() or "closed"), daemon=True)
    with session.use():
        closing.start()
        until(lambda: session._barred)
    closing.join(10)
    assert calls[before:] == ["close", "closed"]


def test_a_lock_file_says_the_pid_and_no_more_and_strangers_are_told_up_to_a_bound(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("1234567890123456789\n")  # of an agent that was killed
    with (
        HostLock(tmp_path) as lock,
        (tmp_path / "device").open("w") as device,
        (tmp_path / "other").open("w") as other,
    ):
        assert (tmp_path / NAME).read_text() == f"{os.getpid()}\n"
        for uid in range(TROUBLES_MAX + 2):
            lock._tell("name", 0, uid, "it")
        assert len(lock.troubles) == TROUBLES_MAX
        fcntl.lockf(device, fcntl.LOCK_EX)  # a lock of another kind
        assert processes.holders(os.fstat(device.fileno())) == {}
        fcntl.flock(device, fcntl.LOCK_EX)
        fcntl.lockf(other, fcntl.LOCK_EX)  # it stands before the others in the kernel's list
        assert processes.holders(os.fstat(device.fileno())) == {os.getpid(): os.getuid()}


def test_a_directory_is_the_agents_own_and_not_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = "/dev/shm/".ljust(107 - len("/agent.sock"), "x")
    assert OPTIONS.load({"runtime_directory": longest, "users_socket_mode": "off"}, {}).runtime_directory == longest
    for wrong in ({"runtime_directory": longest + "x"}, {"hook_directory": "/dev/shm/a b"}):
        with pytest.raises(SettingsError, match=r"is 108 bytes long|hook directory '/dev/shm/a b' has a space"):
            OPTIONS.load(wrong, {})
    monkeypatch.setattr(main, "check_on_tmpfs", lambda _: None)
    own, link = (Settings(runtime_directory=str(tmp_path / name)) for name in ("own", "link"))
    main._prepare_runtime_directory(own)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with pytest.raises(SettingsError, match="link belongs to"):
        main._prepare_runtime_directory(link)
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(SettingsError, match="own belongs to"):
        main._prepare_runtime_directory(own)
