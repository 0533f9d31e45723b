"""Test exact limits, the order of choices, and what must be written, told or forgotten, in each part of the plugin."""

import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from sharepod.deviceplugin.cdi.files import CdiDirectory, nvidia_edits
from sharepod.deviceplugin.cdi.injection import PRELOAD_TEXT, SIMULATED_PATH, Mount, Place, Simulated, edits_of
from sharepod.deviceplugin.core.agent import Agent, NodeView, NoRoom
from sharepod.deviceplugin.core.allocation import AllocationId, Binding
from sharepod.deviceplugin.core.allocation_table import Record
from sharepod.deviceplugin.core.checkpoint import NAME, Store
from sharepod.deviceplugin.core.device_filter import DeviceFilter
from sharepod.deviceplugin.core.placement import Placement
from sharepod.deviceplugin.core.terms import TermsError, read_terms, shown
from sharepod.deviceplugin.core.unit import NOT_BOUND, UnitId, Units
from sharepod.deviceplugin.errors import PluginError
from sharepod.deviceplugin.main import _prepare
from sharepod.deviceplugin.metrics import Counters
from sharepod.deviceplugin.reconcile.annotation_reconciler import AnnotationReconciler
from sharepod.deviceplugin.reconcile.workload_findings import ATTACH_S, Program, Seat, WorkloadFindings
from sharepod.deviceplugin.settings import Settings
from sharepod.kube.pod import Container, Pod
from sharepod.proto import v1_pb2 as pb
from sharepod.proto import v1_pb2_grpc as rpc


def units(*numbers: int) -> frozenset[UnitId]:
    return frozenset(UnitId(f"u{number:04}") for number in numbers)


@pytest.mark.parametrize(
    ("count", "given", "refusal"),
    [
        (30, {"limit": "30"}, ""), (1600, {}, ""), (1601, {}, "16 whole devices: ask for less in one container"),
        (1520, {}, ", or set sharepod.io/devices to 16 for 95 % of each"), (1530, {}, "ask for 1500 or 1600"),
        (1600, {"devices": "16"}, ""), (17, {"devices": "17"}, "give a whole number from 1 to 16"),
        (1600, {"devices": "15"}, "or set sharepod.io/devices to at least 16"),
        (30, {"memory": "1Pi"}, ""), (30, {"memory": str(2**50 + 1)}, "outside 1Mi–1Pi: give a size such as 10Gi"),
        (30, {"model": "x" * 2048}, ""), (30, {"model": "x" * 2049}, "has 2049 characters: at most 2048 are read"),
    ],
)  # fmt: skip
def test_a_limit_itself_is_allowed_and_what_is_beyond_it_refused(
    count: int, given: dict[str, str], refusal: str
) -> None:
    annotations = {f"sharepod.io/{key}": value for key, value in given.items()}
    if refusal:
        with pytest.raises(TermsError) as caught:
            read_terms(annotations, "c", count)
        assert str(caught.value).endswith(refusal)
    else:
        assert read_terms(annotations, "c", count).request_millipercent <= 100_000


def test_an_annotation_counts_behind_those_of_others_and_a_text_is_cut_only_if_it_is_too_long() -> None:
    assert read_terms({"a.example/b": "1", "sharepod.io/limit": "60"}, "c", 30).limit_millipercent == 60_000
    assert (shown("x" * 48), shown("x" * 49)) == (f"'{'x' * 48}'", f"'{'x' * 48}'…")


def test_a_sick_device_takes_out_its_own_units_then_those_it_shares_with_others_then_the_highest_free_ones() -> None:
    def out(own: range, both: range) -> frozenset[UnitId]:
        listed = Units([("a", False), ("b", True)]).all({"a": units(*own, *both), "b": units(*both)})
        return frozenset(unit for unit, healthy in listed if not healthy)

    assert out(range(20), range(20, 50)) == units(*range(50), *range(150, 200))
    assert out(range(60), range(60, 120)) == units(*range(60), *range(80, 120))


# Devices in the order of a node's list: index, percent that is promised, health.
OFFERED = tuple(
    pb.Device(uuid=f"GPU-{index}", index=index, requested_millipercent=promised * 1000, healthy=healthy)
    for index, promised, healthy in ((4, 40, True), (1, 70, True), (0, 70, True), (2, 71, True), (3, 70, False))
)
PART = NodeView(OFFERED, "/hook", "/run/shares", closed=False, environment={}, all_offered=False)


def test_choices_are_neighbours_with_room_the_least_free_first(tmp_path: Path) -> None:
    record = Record(Store(tmp_path))
    nobody: Any = None
    reconciler = AnnotationReconciler(record, nobody, nobody, nobody, limit_percent=100)
    placement = Placement(record, reconciler, DeviceFilter())
    own = record.issue(units(1), AllocationId("own"))
    of_pod = Pod("uid", "default", "p", containers=(Container("a", units=20), Container("b", units=10)))

    def choices(count: int, node: NodeView = PART, **given: str) -> list[str]:
        annotations = {f"sharepod.io/{key.replace('_', '-')}": value for key, value in given.items()}
        asking = replace(of_pod, annotations=annotations)
        found = placement.choices(own, read_terms(annotations, "a", count), asking, node)
        return ["".join(uuid[-1] for uuid in choice) for choice in found]

    assert [choices(30), choices(60, devices="2"), choices(90, devices="3")] == [["0", "1", "4"], ["01", "14"], ["014"]]
    with pytest.raises(NoRoom, match="fits on 3 of the 5 that pods may have"):
        choices(120, devices="4")
    assert [choices(30, device="GPU-0"), choices(30, replace(PART, all_offered=True), device="GPU-9")] == [["0"], ["9"]]
    for refused in ("GPU-3", "GPU-9"):
        with pytest.raises(PluginError, match="not offered on this node"):
            choices(30, device=refused)
    record.claim(own.units, Binding("default", "p", "a", "uid", "uid"))
    record.set_devices(own.id, ("GPU-3",))  # where it was before its device became sick
    assert choices(20, same_device="true") == ["0"]


BINDING = Binding("default", "pod", "main", "uid", "uid")
ID, OTHER = AllocationId("abcdefghjk"), AllocationId("mnpqrstuvw")


def on_disk(directory: Path) -> list[str]:
    return [item.id for item in Record(Store(directory)).all()]


def test_a_plugin_that_stands_by_writes_nothing_and_what_it_does_not_know_is_not_lost(tmp_path: Path) -> None:
    old, new = Record(Store(tmp_path)), Record(Store(tmp_path))
    old.issue(units(1), ID)
    old.active = lambda: False
    old.drop(ID)
    assert on_disk(tmp_path) == [ID]
    new.issue(units(2), OTHER)
    with pytest.raises(PluginError, match="another device plugin serves"):
        old.claim(units(2), BINDING)


def test_what_two_plugins_write_in_turn_stays_until_it_is_dropped(tmp_path: Path) -> None:
    old, new = Record(Store(tmp_path)), Record(Store(tmp_path))
    new.issue(units(2), OTHER)
    old.issue(units(1), ID)
    new.set_devices(OTHER, ("GPU-1",))
    assert on_disk(tmp_path) == [OTHER, ID]
    first = Record(Store(tmp_path))
    assert not first.has_moved(ID, first.moves)
    first.drop(ID)
    assert (first.all(), on_disk(tmp_path)) == (Record(Store(tmp_path)).all(), [OTHER])


def test_what_a_plugin_takes_over_is_all_that_it_knows(tmp_path: Path) -> None:
    old, new = Record(Store(tmp_path)), Record(Store(tmp_path))
    old.issue(units(1), ID)
    assert old.has_moved(ID, 0)
    new.issue(units(2), OTHER)
    old.reload()
    assert not old.has_moved(ID, 0)
    old.drop(OTHER)
    assert on_disk(tmp_path) == [ID]
    new.claim(units(1), BINDING)
    new.set_devices(ID, ("GPU-1",))
    old.issue(units(3), AllocationId("xyz2345678"))  # it learns what the new plugin has written of the other one
    found = old.get(ID)
    assert found is not None
    assert found.devices == ("GPU-1",)


def test_every_change_of_the_taken_units_is_told(tmp_path: Path) -> None:
    record, other, told = Record(Store(tmp_path)), Record(Store(tmp_path)), list[Any]()
    record.changed = lambda: told.append(record.taken())
    since = record.moves
    record.issue(units(1, 2, 3), ID)
    assert record.has_moved(ID, since)
    record.issue(units(1, 2), OTHER)
    record.claim(units(1, 2), BINDING)
    record.set_devices(OTHER, ("GPU-1",))
    assert told[-1] == record.taken() == {NOT_BOUND: units(3), "GPU-1": units(1, 2)}
    record.drop(ID)
    assert told[-1] == {"GPU-1": units(1, 2)}
    assert not record.has_moved(ID, since)
    other.issue(units(9), ID)
    record.reload()
    assert told[-1][NOT_BOUND] == units(9)


def test_every_time_the_disk_is_full_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    record = Record(Store(tmp_path))
    for number in (1, 2):
        (tmp_path / f"{NAME}.new").mkdir()
        record.issue(units(number), AllocationId(str(number)))
        (tmp_path / f"{NAME}.new").rmdir()
        record.save()
    assert [one.message for one in caplog.records] == ["allocations not written", "allocations written again"] * 2


def test_the_devices_come_from_whichever_of_nvidias_files_has_them(tmp_path: Path) -> None:
    for name, kind, device in (("a", "other.com", "0"), ("b", "nvidia.com", "GPU-z"), ("d", "nvidia.com", "0")):
        edits = f"[{{name: '{device}', containerEdits: {{env: [{name}]}}}}]"
        (tmp_path / f"{name}.yaml").write_text(f"{{kind: {kind}/gpu, containerEdits: {{}}, devices: {edits}}}")
    (tmp_path / "c.yaml").write_text("[]")
    assert nvidia_edits([("GPU-a", 0)], [tmp_path]) == [{}, {"env": ["d"]}]


def test_the_simulated_driver_is_mounted_and_the_directory_of_cdi_files_made(tmp_path: Path) -> None:
    place = Place("/shares", "/hook", "/preload", simulated=Simulated("2xH200", "/run/gpus/state", "/simgpu"))
    assert Mount("/simgpu", SIMULATED_PATH) in edits_of(place, "abc", ()).mounts
    CdiDirectory(tmp_path / "run" / "cdi").write("abc", edits_of(place, "abc", ()))
    assert len(list((tmp_path / "run" / "cdi").iterdir())) == 1


def test_the_file_that_loads_the_hook_is_made_and_kept_as_it_should_be(tmp_path: Path) -> None:
    directory = tmp_path / "state" / "of" / "this"
    file = directory / "ld.so.preload"
    for before in (None, "/an/older/hook.so\n"):
        if before:
            file.write_text(before)
        _prepare(Settings("n1", state_directory=directory))
        assert file.read_text() == PRELOAD_TEXT
    inode = file.stat().st_ino
    _prepare(Settings("n1", state_directory=directory))
    assert file.stat().st_ino == inode


# Findings about programs

POD = Pod("uid-1", "default", "pod", phase="Running", running=frozenset({"main", "side"}))


def seat(refusals: int = 0, launches: int = 0) -> Seat:
    usages = pb.Usage(memory_refusals=refusals), pb.Usage(launches=launches)
    return Seat("s1", "main", POD, pb.Share(id="s1", devices=[pb.DeviceShare(usage=usage) for usage in usages]))


def steps(*looks: tuple[float, list[Seat], list[Program]]) -> list[list[str]]:
    findings = WorkloadFindings()
    return [[note.reason for note in findings.step(seats, programs, now)] for now, seats, programs in looks]


def test_findings_are_told_at_their_time_and_not_before_or_again() -> None:
    lost, quiet, beside = replace(seat(), share=None), seat(), Program(0, 17, "python3", 1, "uid-1")
    still = replace(quiet, pod=replace(POD, running=frozenset()))
    young, elsewhere = replace(quiet, share_id="s2", container="side"), replace(beside, pid=18, pod_uid="uid-9")
    assert steps((0, [quiet], []), (10, [lost], []), (20, [quiet], []), (30, [lost], [])) == [[]] * 4
    assert steps((0, [still], []), (10, [quiet], []), (10 + ATTACH_S, [quiet], [])) == [[], [], ["NoCudaYet"]]
    assert steps((0, [seat(launches=1)], []), (ATTACH_S, [quiet], [])) == [[], []]
    assert steps((1000, [seat(1)], []), (1010, [seat(2)], [])) == [["MemoryDenied"], []]
    before = replace(lost, was_there=True)
    assert steps((0, [before], []), (10, [replace(seat(1), was_there=True)], [])) == [[], ["MemoryDenied"]]
    first = (0, [quiet], [beside])
    again = [(at, [young, quiet], [beside]) for at in (ATTACH_S, ATTACH_S + 10)]
    assert steps(first, *again) == [[], ["HookNotAttached"], []]
    assert steps(first, (ATTACH_S, [quiet], [beside, elsewhere]))[1] == ["HookNotAttached", "ProcessWithoutShare"]


# The agent, by its socket


class Refusing(rpc.NodeServiceServicer):
    """An agent that refuses every share with a status, and keeps the cap that was asked for."""

    code, policy = grpc.StatusCode.OK, ""

    def __init__(self) -> None:
        self.memory: list[int] = []

    async def GetNode(self, _request: pb.GetNodeRequest, _context: Any) -> pb.GetNodeResponse:  # noqa: N802 - proto
        return pb.GetNodeResponse(policy=self.policy)

    async def RegisterShare(self, request: pb.RegisterShareRequest, context: Any) -> Any:  # noqa: N802
        self.memory.append(request.devices[0].memory_limit_bytes)
        await context.abort(self.code, "first\nsecond")


async def test_what_the_agent_answers_is_told_as_it_is_meant() -> None:
    served, server, counters = Refusing(), grpc.aio.server(), Counters()  # type: ignore[abstract]
    rpc.add_NodeServiceServicer_to_server(served, server)
    terms = read_terms({"sharepod.io/memory": "10Gi"}, "c", 30)
    with tempfile.TemporaryDirectory(prefix="sp-") as directory:
        server.add_insecure_port(f"unix:{directory}/agent.sock")
        await server.start()
        async with Agent(Path(directory, "agent.sock")) as agent:
            agent.failed = lambda: counters.failed("agent")
            for code, retriable, failures in (
                ("INTERNAL", True, 1), ("INVALID_ARGUMENT", False, 1), ("RESOURCE_EXHAUSTED", True, 1),
            ):  # fmt: skip
                served.code = grpc.StatusCode[code]
                with pytest.raises(PluginError, match=r"^first$") as caught:
                    await agent.register("abc", terms, (), {})
                report = counters.report(serving=True, allocations=0, unbound=0, rival_devices=0)
                assert (caught.value.retriable, report.errors["agent"]) == (retriable, failures)
            assert served.memory == [10 << 30] * 3
            for served.policy in ("open", "closed"):
                assert (await agent.node()).closed == (served.policy == "closed")
        await server.stop(None)


async def test_a_share_keeps_its_cap_on_a_device_that_is_gone_and_its_number_of_devices(tmp_path: Path) -> None:
    agent, terms = Agent(tmp_path / "none.sock"), read_terms({}, "c", 30)
    held = pb.DeviceShare(device_uuid="GPU-9", request_millipercent=30_000, limit_millipercent=100_000)
    held.memory_limit_bytes = 3 << 30
    share = pb.Share(id="abc", devices=[held], share_class=pb.SHARE_CLASS_STANDARD)
    async with agent:
        await agent.update(share, terms, PART)  # nothing differs, so the agent is not asked
        with pytest.raises(PluginError, match="set it back or delete the pod") as caught:
            await agent.update(share, replace(terms, devices=2), PART)
    assert not caught.value.retriable
