"""Test times and limits of the registration with kubelet, of its lists, and of what is told of devices and programs."""

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from memory_allocator import A, B, MemoryAllocator
from model_sides import Lag, ModelApi
from virtual_time import virtually

from rig.cluster.apiserver import ApiServer, pod
from sharepod.deviceplugin.cdi.files import CdiDirectory
from sharepod.deviceplugin.core.agent import NodeView
from sharepod.deviceplugin.core.allocation import AllocationId, Binding
from sharepod.deviceplugin.core.allocation_table import Record
from sharepod.deviceplugin.core.checkpoint import Store
from sharepod.deviceplugin.core.shares import Shares
from sharepod.deviceplugin.core.unit import UnitId, Units
from sharepod.deviceplugin.errors import PluginError
from sharepod.deviceplugin.main import Plugin, _node
from sharepod.deviceplugin.metrics import Counters
from sharepod.deviceplugin.reconcile.annotation_reconciler import AnnotationReconciler
from sharepod.deviceplugin.reconcile.pods import Pods
from sharepod.deviceplugin.reconcile.processes import HostProcesses, live_pods
from sharepod.deviceplugin.reconcile.workload_monitor import WorkloadMonitor
from sharepod.deviceplugin.settings import Settings
from sharepod.deviceplugin.v1beta1.registration import Registration, State, _socket_at
from sharepod.deviceplugin.v1beta1.service import PluginService
from sharepod.kube.client import ApiUnavailable
from sharepod.kube.informer import Pace
from sharepod.kube.pod import Pod
from sharepod.proto import deviceplugin_pb2 as plugin_pb
from sharepod.proto import v1_pb2 as pb


def units(*numbers: int) -> frozenset[UnitId]:
    return frozenset(UnitId(f"u{number:04}") for number in numbers)


# The start of the plugin

# Devices in the order of a node's list: index, percent that is promised, health.
OFFERED = tuple(
    pb.Device(uuid=f"GPU-{index}", index=index, requested_millipercent=promised * 1000, healthy=healthy)
    for index, promised, healthy in ((4, 40, True), (1, 70, True), (0, 70, True), (2, 71, True), (3, 70, False))
)
PART = NodeView(OFFERED, "/hook", "/run/shares", closed=False, environment={}, all_offered=False)


class Told:
    """A node for tests of its operator's Events, and an agent that may be away."""

    def __init__(self) -> None:
        self.events: list[tuple[str, bool]] = []
        self.view: NodeView | None = PART

    def node_event(self, reason: str, _message: str, *, warning: bool = False) -> None:
        self.events.append((reason, warning))

    async def node(self) -> NodeView:
        if self.view is None:
            raise PluginError("away")
        return self.view

    async def shares(self) -> dict[str, pb.Share]:
        return {name: pb.Share(id=name) for name in ("beside", "quiet")}


@virtually
async def test_the_operator_is_told_once_of_sick_devices_and_of_their_recovery(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: Any = Told()
    told.view = None
    asyncio.get_running_loop().call_later(9, setattr, told, "view", PART)
    plugin = Plugin(Settings("n1"), await _node(told))
    assert [one.message for one in caplog.records] == ["waiting for the agent"]
    service = PluginService(MemoryAllocator(), Units([(A, True)]))
    looking = asyncio.create_task(plugin.look_for_ever(told, service, told))
    await asyncio.sleep(5)
    told.view = replace(PART, devices=PART.devices[:4])
    await asyncio.sleep(5)
    looking.cancel()
    assert told.events == [("SharePodDevicesUnhealthy", True), ("SharePodDevicesHealthy", False)]


# Kubelet


@pytest.fixture
def directory() -> Iterator[Path]:
    """Return a directory with kubelet's socket; its path is short enough for a socket's name to follow."""
    with tempfile.TemporaryDirectory(prefix="sp-") as made:
        Path(made, "kubelet.sock").touch()
        yield Path(made)


class Offline(Registration):
    """A registration without its network: kubelet answers with `error`, or accepts if that is None."""

    def __init__(self, directory: Path, error: Exception | None = None) -> None:
        self.service = PluginService(MemoryAllocator(), Units([(A, True)]))
        super().__init__(self.service, directory)
        self.error, self.tried = error, list[float]()

    async def _serve(self) -> None:
        if isinstance(self.error, OSError):
            raise self.error
        self.path.touch()
        self._own = _socket_at(self.path)

    async def _register(self) -> None:
        self.tried.append(asyncio.get_running_loop().time())
        if self.error:
            raise self.error

    def check(self, since: int, *gaps: float) -> None:
        found = [after - at for at, after in zip(self.tried[since:], self.tried[since + 1 :], strict=False)]
        assert [gap for gap, due in zip(found, gaps, strict=True) if not due <= gap < due + 0.65] == []


def refused() -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(grpc.StatusCode.UNKNOWN, grpc.aio.Metadata(), grpc.aio.Metadata(), "no")


@virtually
async def test_the_delay_between_registrations_doubles_to_its_limit_and_a_new_kubelet_has_none(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Offline(directory, refused()) as registration:
        await asyncio.sleep(100)
        registration.check(0, 0.5, 1, 2, 4, 8, 16, 30, 30)
        Path(directory, "new").touch()
        Path(directory, "new").rename(directory / "kubelet.sock")
        await asyncio.sleep(1)
        registration.check(9, 0.5)
    assert [one.message for one in caplog.records] == ["kubelet refused the registration"]


@virtually
async def test_a_kubelet_that_does_not_read_is_registered_with_less_and_less_often_until_it_has_read_for_long(
    directory: Path,
) -> None:
    async with Offline(directory) as registration:
        await asyncio.sleep(20)
        registration.check(0, 5.5, 6, 7)
        for watched_s, times in ((20, {8: 4, 3: 5}), (40, {21: 8})):
            stream: Any = registration.service.ListAndWatch(plugin_pb.Empty(), None)  # type: ignore[arg-type]
            await anext(stream)
            before = len(registration.tried)
            await asyncio.sleep(watched_s)
            assert len(registration.tried) == before
            await stream.aclose()
            for later_s, count in times.items():
                await asyncio.sleep(later_s)
                assert len(registration.tried) == count


@pytest.mark.parametrize(("listens", "at_s"), [(True, 5.0), (False, 4.2)])
@virtually
async def test_a_plugin_that_stands_by_steps_in_after_exactly_so_many_looks_at_which_nobody_serves(
    directory: Path, listens: bool, at_s: float
) -> None:
    taken: list[float] = []
    async with Offline(directory) as registration:
        registration.taking_over = lambda: taken.append(asyncio.get_running_loop().time())
        await asyncio.sleep(1.1)
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(f"{directory}/other")
            if listens:
                other.listen(100)
            Path(directory, "other").rename(registration.path)
            await asyncio.sleep(1 if listens else 0)
        await asyncio.sleep(0.15)
        assert registration.state is State.STANDING_BY
        await asyncio.sleep(5)
    assert taken == [pytest.approx(at_s, abs=0.05)]


@virtually
async def test_at_its_end_a_plugin_leaves_the_socket_that_has_just_replaced_its_own(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Offline(directory) as registration:
        await asyncio.sleep(1.1)
        Path(directory, "other").touch()
        Path(directory, "other").rename(registration.path)
    assert registration.path.exists()
    async with Offline(directory, OSError("no socket can be made")) as registration:
        await asyncio.sleep(1)
    assert caplog.records[-1].__dict__["cause"] == f"{registration.path}: no socket can be made"


def test_the_path_of_a_socket_may_have_107_bytes() -> None:
    service = PluginService(MemoryAllocator(), Units([(A, True)]))
    assert Registration(service, Path("/" + "x" * 76)).state is State.WAITING
    with pytest.raises(PluginError, match="choose a shorter directory") as caught:
        Registration(service, Path("/" + "x" * 77))
    assert not caught.value.retriable


@virtually
async def test_changes_that_follow_each_other_are_one_list_and_times_are_those_of_the_calls() -> None:
    counters, context = Counters(), None
    service = PluginService(MemoryAllocator(), Units([(A, True)]), counters=counters)
    stream: Any = service.ListAndWatch(plugin_pb.Empty(), context)  # type: ignore[arg-type]
    assert len((await anext(stream)).devices) == 100
    answer = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    service.show(Units([(A, False)]))
    await asyncio.sleep(0.05)
    service.show(Units([(A, True), (B, True)]))
    assert len((await answer).devices) == 200
    await stream.aclose()
    await service.Allocate(plugin_pb.AllocateRequest(container_requests=[{"devices_ids": ["u0001"]}]), context)  # type: ignore[list-item,arg-type]
    await service.PreStartContainer(plugin_pb.PreStartContainerRequest(devices_ids=["u0001"]), context)  # type: ignore[arg-type]
    report = counters.report(serving=True, allocations=0, unbound=0, rival_devices=0)
    assert max(report.allocate.sum_ns, report.pre_start.sum_ns) < 5e9


async def test_the_pods_that_are_not_over_are_asked_for_and_only_by_names_that_can_be(tmp_path: Path) -> None:
    pace = Pace(first_s=0.01, last_s=0.1, watch_s=20)
    async with ApiServer() as server, Pods(server.access(tmp_path), "n1", pace) as pods:
        for name, phase in (("a", "Running"), ("b", "Succeeded"), ("c", "Pending")):
            server.put(pod(name, phase=phase))
        assert await pods.uids() == {"uid-default-a", "uid-default-c"}
        server.faults.refuse(403)
        with pytest.raises(ApiUnavailable):
            await pods.uids()
        before = server.requests.total()
        for namespace, name in (("default", "x/y"), ("..", "a")):
            assert await pods.get(namespace, name) is None
        assert server.requests.total() == before
        counters = Counters()
        pods.failed = lambda: counters.failed("api_server")
        server.faults.refuse(500)
        async with contextlib.aclosing(pods.watch()) as changes:
            async for _ in changes:
                break
        report = counters.report(serving=True, allocations=0, unbound=0, rival_devices=0)
        assert report.errors["api_server"] == 1


def test_a_process_that_ended_meanwhile_hides_none_after_it(tmp_path: Path) -> None:
    for pid in range(1, 80):
        (tmp_path / str(pid)).mkdir()
        if pid % 2:
            (tmp_path / str(pid) / "cgroup").write_text(f"0::/kubepods/pod{pid:032x}/x\n")
        else:
            (tmp_path / f"name{pid}").mkdir()
    assert len(live_pods(tmp_path)) == 40


# Programs


@pytest.mark.parametrize("stands_by_s", [0, 15])
@virtually
async def test_programs_are_told_by_the_plugin_that_serves_to_their_pods_and_a_lost_agent_after_half_a_minute(
    tmp_path: Path, stands_by_s: float
) -> None:
    told, api = Told(), ModelApi(Lag(1))
    record = Record(Store(tmp_path))
    for number, (name, devices) in enumerate((("beside", "0"), ("quiet", "0"), ("starting", ""), ("unknown", "0"))):
        item = record.issue(units(number), AllocationId(name))
        record.claim(item.units, Binding("default", name, "main", f"{number}" * 32, f"{number}" * 32))
        record.set_devices(item.id, tuple(f"GPU-{one}" for one in devices))
    (tmp_path / "17").mkdir()
    (tmp_path / "17" / "cgroup").write_text(f"0::/kubepods/pod{'0' * 32}/x\n")
    program = pb.ForeignProcess(pid=17, name="python3")
    view = replace(PART, devices=(pb.Device(uuid="GPU-0", foreign_processes=[program]),))
    told.view = view
    sides: Any = told
    shares = Shares(record, sides, CdiDirectory(tmp_path / "cdi"))
    reconciler = AnnotationReconciler(record, shares, sides, api, limit_percent=100)
    notes: list[str] = []
    monitor = WorkloadMonitor(
        record,
        shares,
        reconciler,
        sides,
        api,
        HostProcesses(tmp_path, tmp_path),
        lambda note: notes.append(note.reason),
    )
    monitor.active, api.listed = lambda: not stands_by_s, bool(stands_by_s)
    looking = asyncio.create_task(monitor.look_for_ever())
    await asyncio.sleep(stands_by_s)
    monitor.active, api.listed = lambda: True, False
    await asyncio.sleep(30 - stands_by_s)
    api.listed = True
    for number, name in enumerate(("beside", "quiet", "starting")):
        uid = f"{number}" * 32
        reconciler._pods[uid] = Pod(uid, "default", name, running=frozenset({"main"}))
    await asyncio.sleep(145)
    assert (notes, [event[:2] for event in api.events]) == ([], [("beside", "HookNotAttached")])
    told.view = None
    await asyncio.sleep(34.9)
    assert notes == []
    await asyncio.sleep(0.2)
    assert notes == ["SharePodAgentUnreachable"]
    looking.cancel()
