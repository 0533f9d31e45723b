"""Test the Events about running programs: the right Event, on the right pod, once or seldom."""

from dataclasses import replace

from sharepod.deviceplugin.reconcile.workload_findings import (
    ATTACH_S,
    DENIED_EVERY_S,
    Note,
    Program,
    Seat,
    WorkloadFindings,
)
from sharepod.kube.pod import Pod
from sharepod.proto import v1_pb2 as pb

GIB = 1 << 30
POD = Pod("uid-1", "default", "pod", phase="Running", running=frozenset({"main", "side"}))


def held(processes: int = 0, **usage: int) -> pb.Share:
    device = pb.DeviceShare(device_uuid="GPU-0", memory_limit_bytes=10 * GIB, usage=pb.Usage(**usage))
    return pb.Share(id="s1", devices=[device], processes=[pb.Process()] * processes)


SHARE = held()
SEAT = Seat("s1", "main", POD, SHARE)
PROGRAM = Program(0, 17, "python3", GIB, "uid-1")


def begun() -> WorkloadFindings:
    """Return a findings that has looked once, at an empty node."""
    findings = WorkloadFindings()
    assert findings.step([], [], 0) == []
    return findings


def denied(count: int) -> Seat:
    return replace(SEAT, share=held(1, memory_refusals=count))


def reasons(notes: list[Note]) -> list[str]:
    return [note.reason for note in notes]


def test_a_program_that_never_uses_cuda_is_a_normal_note_once() -> None:
    findings = begun()
    assert findings.step([SEAT], [], 10) == []
    assert findings.step([SEAT], [], 9 + ATTACH_S) == []
    (note,) = findings.step([SEAT], [], 10 + ATTACH_S)
    assert (note.reason, note.warning, note.pod) == ("NoCudaYet", False, POD)
    assert findings.step([SEAT], [], 1000) == []


def test_one_that_has_used_it_or_ran_before_the_plugin_is_none() -> None:
    findings = begun()
    used = replace(SEAT, share=held(launches=1))
    short = replace(SEAT, share_id="s2", share=held(1))
    findings.step([used, short], [], 0)
    assert findings.step([used, replace(short, share=SHARE)], [], ATTACH_S) == []
    restarted, older = begun(), replace(SEAT, was_there=True)
    assert [restarted.step([older], [], now) for now in (100, 110 + ATTACH_S)] == [[], []]


def test_a_program_of_the_pod_beside_its_share_is_a_warning_to_the_pod_once_its_container_had_time() -> None:
    findings = begun()
    both = [SEAT, replace(SEAT, share_id="s2", container="side")]
    assert findings.step(both, [PROGRAM], 0) == []
    (note,) = findings.step(both, [PROGRAM], ATTACH_S)
    assert (note.reason, note.warning, note.pod) == ("HookNotAttached", True, POD)
    assert "process 17 (python3, 1 GiB) of this pod uses device 0 without a share" in note.message
    assert [one for one in findings.step(both, [PROGRAM], 200) if one.warning] == []
    again = findings.step(both, [PROGRAM, replace(PROGRAM, pid=18)], 201)
    assert reasons(again) == ["HookNotAttached"]


def test_a_program_of_nobody_with_a_share_is_the_nodes_affair_once_for_each() -> None:
    findings = begun()
    stranger = replace(PROGRAM, pod_uid="")
    (note,) = findings.step([], [stranger, replace(stranger, pid=18, name="top", pod_uid="uid-9")], 0)
    assert note.pod is None
    assert note.message.startswith(
        "device 0 is used without a share by process 17 (python3, 1 GiB), process 18 (top, 1 GiB) of pod uid-9:"
    )
    assert findings.step([], [stranger], 10) == []
    findings.step([], [], 20)
    assert reasons(findings.step([], [stranger], 30)) == ["ProcessWithoutShare"]  # another process with that pid
    many = [replace(stranger, pid=pid, device=pid % 2) for pid in range(100, 116)]
    assert [note.message.count("process 1") for note in findings.step([], many, 40)] == [5, 5]


def test_memory_that_is_denied_is_told_at_once_and_then_seldom_with_the_number() -> None:
    findings = begun()
    assert findings.step([denied(0)], [], 0) == []
    (first,) = findings.step([denied(1)], [], 10)
    assert (first.reason, first.warning) == ("MemoryDenied", True)
    assert "1 allocation of device memory denied" in first.message
    assert findings.step([denied(40)], [], 20) == []
    (later,) = findings.step([denied(41)], [], 10 + DENIED_EVERY_S)
    assert "40 allocations of device memory denied" in later.message
    assert findings.step([denied(41)], [], 2 * DENIED_EVERY_S + 20) == []
    assert findings.step([denied(0)], [], 3000) == []  # a new agent counts from 0
    assert "2 allocations" in findings.step([denied(2)], [], 3010)[0].message


def test_what_was_denied_before_the_plugin_began_is_not_told_again() -> None:
    findings = WorkloadFindings()
    assert findings.step([replace(denied(7), was_there=True)], [], 0) == []
    assert "1 allocation " in findings.step([replace(denied(8), was_there=True)], [], 10)[0].message


def test_a_share_that_the_agent_has_lost_is_told_once_while_its_container_runs() -> None:
    findings = begun()
    lost = replace(SEAT, share=None)
    assert findings.step([lost], [], 0) == []
    assert reasons(findings.step([lost], [], 10)) == ["ShareLost"]
    assert findings.step([lost], [], 20) == []
    busy = begun()
    assert [busy.step([replace(lost, is_busy=now == 10)], [], now) for now in (0, 10, 20)] == [[], [], []]
    still = replace(lost, pod=replace(POD, running=frozenset()))
    fresh = begun()
    assert [fresh.step([still], [], now) for now in (0, 10, 20)] == [[], [], []]
