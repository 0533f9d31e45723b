"""Test what an operator is told of a share's programs: a sentence for each kind of trouble, the remedy last."""

import pytest
from agent_doubles import H200

from sharepod.agent.shares import diagnostics
from sharepod.agent.shares.diagnostics import Kind
from sharepod.agent.shares.share import (
    DeviceTerms,
    DeviceUsage,
    Diagnostic,
    Share,
    ShareClass,
    ShareId,
    ShareStatus,
    Terms,
    Usage,
)


def status(*found: Diagnostic, faults: int = 0, region_fault: str = "") -> ShareStatus:
    share = Share(ShareId("abc"), (DeviceTerms(H200.uuid, Terms(1000, 1000, 0)),), ShareClass.STANDARD, "", 0, name="a")
    usage = DeviceUsage(H200.uuid, Usage(faults=faults))
    return ShareStatus(share, (usage,), (), diagnostics=found, region_fault=region_fault)


@pytest.mark.parametrize(
    ("kind", "detail", "says", "remedy"),
    [
        (Kind.INIT, 100, "got CUDA error 100", "take devices from the list that the share was given"),
        (Kind.INIT, 999, "got CUDA error 999", "look at nvidia-smi and dmesg"),
        (Kind.DEVICE, 3, "it asked for device 3 of its share, which has one", "take number 0"),
        (Kind.FUNCTION, 0, "it called cuX, which the driver lacks", "upgrade the driver, or build for its CUDA"),
        (Kind.OUTSIDE, 3, "got CUDA error 101", "take devices from the list that the share was given"),
        (Kind.DRIVER, 0, "lacks cuX", "upgrade the driver"),
        (Kind.FULL, 64, "all 64 slots of its share are taken", "end some programs of the share, or give it its own"),
        (Kind.KEEPER, 11, "helper thread could not be started (errno 11)", "raise the limit of processes"),
        (Kind.CROWDED, 1024, "from more than 1024 threads or streams", "use fewer, or more processes"),
        (Kind.RINGS, 1000000, "rang the doorbell over 1000000 times in a second", "of the share and end it"),
        (Kind.LOCKS, 50, "the agent spent 50 ms a second on them", "of the share and end it"),
        (Kind.VERSION, 11020, "the driver is for CUDA 11.2", "upgrade the driver"),
    ],
)
def test_each_trouble_of_a_program_is_told_with_its_remedy_last(
    kind: Kind, detail: int, says: str, remedy: str
) -> None:
    [text] = diagnostics.troubles(status(Diagnostic(1, 7, kind, detail, "cuX")))
    assert text.startswith("share a: its process 7")
    assert says in text
    assert text.rpartition(": ")[2].endswith(remedy)


def test_of_a_kind_the_last_one_is_told_and_damage_once() -> None:
    crowded = (Diagnostic(n, n, Kind.CROWDED, n) for n in (1, 2))
    found = diagnostics.troubles(status(*crowded, faults=9, region_fault="its region is gone"))
    assert ["process 2" in found[0], "its region is gone" in found[1], "9 values or files" in found[2]] == [True] * 3
    assert len(found) == 3
    assert diagnostics.troubles(status()) == []
