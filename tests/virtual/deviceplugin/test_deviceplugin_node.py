"""Test reconciler, collector and starts on a node: exact times, what a share is called, what is told or forgotten."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from model_node import Container, ModelNode, NodePod, Plugin
from model_sides import Lag, ModelAgent, ModelApi
from virtual_time import virtually

from sharepod.deviceplugin.core.agent import NodeView, NoRoom
from sharepod.deviceplugin.core.allocation import AllocationId, Binding
from sharepod.deviceplugin.core.allocation_table import Record
from sharepod.deviceplugin.core.checkpoint import Store
from sharepod.deviceplugin.core.terms import PodTerms
from sharepod.deviceplugin.core.unit import UnitId
from sharepod.deviceplugin.errors import PluginError
from sharepod.deviceplugin.v1beta1.kubelet_checkpoint import Recorded
from sharepod.deviceplugin.v1beta1.podresources import Holder, Listing
from sharepod.kube.pod import Container as PodContainer
from sharepod.kube.pod import Pod
from sharepod.proto import v1_pb2 as pb

LONG_AGO = "2026-01-01T00:00:00Z"
OWN = ("default", "plugin")


def units(*numbers: int) -> frozenset[UnitId]:
    return frozenset(UnitId(f"u{number:04}") for number in numbers)


def a_pod(name: str, says: str = "", **sizes: int) -> Pod:
    """Return a running pod: `says` is like "limit=50 devices=2"; names of containers tell their kind: init, side."""
    told = {f"sharepod.io/{word.partition('=')[0]}": word.partition("=")[2] for word in says.split()}
    early = [key for key in sizes if key.startswith(("init", "side"))]
    inits = [
        PodContainer(key, ("initContainers", place), units=sizes[key], stays=not key.startswith("init"))
        for place, key in enumerate(early)
    ]
    late = [PodContainer(key, units=size) for key, size in (sizes or {"main": 3}).items() if key not in early]
    return Pod(f"uid-{name}", *OWN[:1], name, told, {}, tuple(late), tuple(inits), phase="Running")


class Agent(ModelAgent):
    """An agent of three devices, which may be sick, gone or promised to others."""

    def __init__(self, lag: Lag, node: ModelNode) -> None:
        super().__init__(lag, node._lives)
        self.devices = [pb.Device(uuid=f"GPU-{index}", index=index, healthy=True) for index in range(3)]
        self.looks: list[float] = []
        """When all shares were asked for."""

    def promise(self, *percents: int) -> None:
        for device, percent in zip(self.devices, percents, strict=True):
            device.requested_millipercent = percent * 1000

    async def node(self) -> NodeView:
        await self._answer()
        return NodeView(tuple(deepcopy(self.devices)), "/hook", "/run/shares", closed=False, environment={})

    async def shares(self) -> dict[str, pb.Share]:
        self.looks.append(asyncio.get_running_loop().time())
        return await super().shares()

    async def register(
        self, share_id: str, terms: PodTerms, devices: Sequence[str], labels: Mapping[str, str]
    ) -> pb.Share:
        share = await super().register(share_id, terms, devices, labels)
        chosen = list(devices) or [device.uuid for device in self.devices if device.healthy][: terms.devices]
        del share.devices[:]
        share.devices.extend(pb.DeviceShare(device_uuid=uuid, device_index=int(uuid[-1])) for uuid in chosen)
        return share


class Api(ModelApi):
    """An API server that marks the reasons of warnings."""

    async def event(self, pod: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        self.events.append((pod.name, reason + "!" * warning, message))


class Node(ModelNode):
    """A node on which every answer comes at once, and the collector looks at 10, 20 and so on."""

    agent: Agent
    plugin: Plugin

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, 1)
        self.lag.always_s = 0
        self.api, self.agent = Api(self.lag), Agent(self.lag, self)
        self.add_other()

    async def __aenter__(self) -> Self:
        await self.start_plugin()
        await asyncio.sleep(1)
        self.record, self.reconciler = self.plugin.record, self.plugin.allocator._reconciler
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def admit(self, pod: Pod, **given: Iterable[int]) -> dict[str, Container]:
        made = {name: Container(name, 0, name.startswith("init"), units(*numbers)) for name, numbers in given.items()}
        self.pods.append(NodePod(pod, list(made.values()), listed=True, admitted=True))
        self.api.put(pod)
        for one in made.values():
            one.size, one.token = len(one.units), (await self.plugin.allocator.allocate(one.units)).cdi[0][-10:]
        await asyncio.sleep(0.1)
        return made

    async def begin(self, container: Container) -> float:
        """Start a container, and return how long its start took."""
        begun = asyncio.get_running_loop().time()
        await self.plugin.allocator.pre_start(container.units)
        return asyncio.get_running_loop().time() - begun

    async def running(self, pod: Pod, *numbers: int) -> Container:
        """Admit a pod and start its main container."""
        main = (await self.admit(pod, main=numbers or (1, 2, 3)))["main"]
        await self.begin(main)
        return main

    def owes(self) -> bool:
        return self.reconciler.owes

    def told(self, name: str) -> list[str]:
        return [reason for pod, reason, _ in self.api.events if pod == name and reason != "ShareReady"]


# The reconciler


@pytest.mark.parametrize(("late", "heir"), [((), "main"), (("late",), "init")])
@virtually
async def test_an_init_containers_share_passes_to_the_only_container_that_can_have_it(
    tmp_path: Path, late: tuple[str, ...], heir: str
) -> None:
    async with Node(tmp_path) as node:
        await node.running(a_pod("q"), 21, 22, 23)
        pod = a_pod("p", init=3, main=3, own=3, small=2, late=3)
        held = await node.admit(pod, init=(1, 2, 3), main=(1, 2, 3), own=(4, 5, 6), small=(7, 8), late=(9, 10, 11))
        await node.begin(held["init"])
        ended = replace(pod, finished={"init": LONG_AGO})
        node.api.put(ended)
        await node.begin(held["own"])
        node.api.put(replace(ended, running=frozenset({"main", "own", "small", *late})))
        await asyncio.sleep(1)
        item = Record(Store(tmp_path)).get(held["init"].token)
        assert item is not None
        assert item.binding is not None
        assert (item.binding.container, node.agent.held[item.id].labels["container"]) == (heir, heir)


@virtually
async def test_terms_are_applied_at_once_and_once_and_an_error_is_told_each_time_it_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with Node(tmp_path) as node:
        main = await node.running(a_pod("p"))

        def logged() -> list[str]:
            return [one.message for one in caplog.records if one.message.startswith(("terms ch", "share passed"))]

        await asyncio.sleep(30)
        assert logged() == []
        for count in (1, 2):
            node.api.put(a_pod("p", "limit=x"))
            await asyncio.sleep(30)
            assert node.told("p") == ["TermsNotApplied!"] * count
            node.api.put(a_pod("p", f"limit=5{count}"))
            await asyncio.sleep(0.5)
            assert node.agent.terms[main.token].limit_millipercent == 50_000 + count * 1000
            await asyncio.sleep(30)
            assert logged() == ["terms changed"] * count
        node.api.put(a_pod("p", "limit=x"))
        await asyncio.sleep(1)
        (item,) = node.record.all()
        node.reconciler.gave(item, node.agent.terms[main.token], None)
        await asyncio.sleep(12)
        assert node.told("p") == ["TermsNotApplied!"] * 4


@virtually
async def test_an_older_copy_of_a_pod_takes_nothing_back(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        main = await node.running(a_pod("p"))
        (item,), newer = node.record.all(), replace(node.agent.terms[main.token], limit_millipercent=50_000)
        node.reconciler.gave(item, newer, node.api.pods["p"])  # terms that the watch does not show yet
        await asyncio.sleep(30)
        assert node.plugin.allocator._shares.terms(item.id) == newer
        stale = a_pod("p", "limit=60")
        for copy in (stale, a_pod("p", "limit=70")):
            node.api.put(copy)
            await asyncio.sleep(0.5)
        await node.reconciler._apply(stale)  # by a look that began before
        assert node.agent.terms[main.token].limit_millipercent == 70_000


@virtually
async def test_a_share_gets_its_time_back_when_all_its_devices_have_just_enough_whatever_holds_up_others(
    tmp_path: Path,
) -> None:
    async with Node(tmp_path) as node:
        node.plugin.tasks[2].cancel()  # the collector, which would apply the terms too
        _, wrong, two = [
            await node.running(a_pod(name, "devices=2", main=60), *range(number * 100, number * 100 + 60))
            for number, name in enumerate("abc")
        ]
        for says, full in (("devices=2 yield=pause", False), ("devices=2", True)):
            node.agent.full = full
            node.agent.promise(*[100 * full] * 3)
            for name in "bc":
                node.api.put(a_pod(name, says, main=60))
            await asyncio.sleep(0.5)
        node.agent.full = False
        node.api.put(a_pod("b", "devices=x", main=60))
        node.agent.promise(70, 71, 0)
        await asyncio.sleep(3)
        assert node.agent.held[two.token].yielding
        node.agent.promise(70, 70, 0)
        await asyncio.sleep(1.2)
        assert not node.agent.held[two.token].yielding
        assert node.told("c") == ["ShareStaysPaused!", "ShareResumed"]
        assert node.owes()
        node.record.drop(AllocationId(wrong.token))
        node.api.put(a_pod("a", "devices=2 limit=99", main=60))
        await asyncio.sleep(0.1)
        assert not node.owes()
        assert node.told("a") == []


@pytest.mark.parametrize("says", ["yield=pause", "paused=true"])
@virtually
async def test_a_share_is_owed_no_time_that_its_pod_no_longer_wants_or_that_it_has(tmp_path: Path, says: str) -> None:
    async with Node(tmp_path) as node:
        main = await node.running(a_pod("p"))
        for text, full in (("yield=pause", False), ("", True), (says, False)):
            node.agent.full = full
            node.agent.promise(100, 100, 100)
            node.api.put(a_pod("p", text))
            await asyncio.sleep(0.5)
            assert node.owes() == full
        assert node.told("p") == ["ShareStaysPaused!"]
        (item,) = node.record.all()
        node.reconciler.owe(item)
        assert node.owes()
        node.reconciler.gave(item, node.agent.terms[main.token], None)
        assert not node.owes()


# The garbage collector

FINISHED = replace(a_pod("f"), phase="Succeeded")
MIRROR = {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "0123456789abcdef" * 2}
STATIC = replace(a_pod("static"), annotations=MIRROR)
Held = dict[str, tuple[str, tuple[int, ...]]]
"""By id: the pod that an allocation is bound to, empty for none, and its units."""


@pytest.mark.parametrize(
    ("held", "more", "left"),
    [
        pytest.param({"a": ("p", (1,))}, {"shown": [replace(a_pod("p"), uid="uid-next")]}, "", id="a pod of its name"),
        pytest.param({"a": ("p", (1,))}, {"shown": [STATIC], "known": {"static"}}, "a", id="kubelet has just started"),
        pytest.param({"a": ("p", (1,))}, {"shown": [FINISHED], "known": set()}, "", id="kubelet knows none to stay"),
        pytest.param({"a": ("p", (1,)), "b": ("q", (2,))}, {"live": {"uid-p"}}, "a", id="one before it lives"),
        pytest.param(
            {"a": ("", (1,)), "b": ("p", (2,))},
            {"live": {"uid-p"}, "recorded": {"uid-w": (1,)}, "shown": [a_pod("w")]}, "ab", id="it waits, another lives",
        ),
        pytest.param({"a": ("", (1,))}, {"recorded": {"uid-f": (1,)}, "shown": [FINISHED]}, "", id="it will not start"),
        pytest.param({"a": ("", (1,))}, {"recorded": {"uid-x": (1,)}, "unseen": a_pod("x")}, "a", id="a new pod"),
        pytest.param({"a": ("p", (1,))}, {"listed": [(1,)]}, "a", id="kubelet lists it"),
        pytest.param(
            {"a": ("p", (1, 2)), "b": ("q", (1, 2)), "c": ("r", (9,))},
            {"listed": [(1, 2), (9,)], "shown": [a_pod("q"), a_pod("r")]}, "bc", id="its units are another's",
        ),
        pytest.param({"a": ("p", (1, 2)), "b": ("", (1,))}, {"listed": [(1,)]}, "b", id="its units are given anew"),
        pytest.param({"a": ("", (1, 2)), "b": ("", (1, 2, 3))}, {"listed": [(1, 2, 3)]}, "ab", id="both may start"),
        pytest.param(
            {"a": ("", (1, 2)), "b": ("q", (1,))}, {"listed": [(1,)], "shown": [a_pod("q")]}, "b", id="the next started"
        ),
        pytest.param(
            {"a": ("", (1,)), "b": ("q", (2,))}, {"listed": [(1,), (2,)], "shown": [a_pod("q")]}, "ab", id="both listed"
        ),
    ],
)  # fmt: skip
@virtually
async def test_an_allocation_ends_when_every_source_agrees(
    tmp_path: Path, held: Held, more: dict[str, Any], left: str
) -> None:
    async with Node(tmp_path) as node:
        if not (known := more.get("known", {"plugin"})):
            node.api.remove("plugin")
        holders = tuple(Holder("default", "x", "main", units(*numbers)) for numbers in more.get("listed", ()))
        node.listing._listing = lambda: Listing(holders, frozenset(("default", name) for name in known))
        recorded = more.get("recorded", {}).items()
        node.listing.recorded = lambda: tuple(Recorded(uid, "init", units(*numbers)) for uid, numbers in recorded)
        node.processes._live = lambda: frozenset(more.get("live", ()))
        for pod in more.get("shown", ()):
            node.api.put(pod)
        if unseen := more.get("unseen"):
            node.api.pods[unseen.name] = unseen
        await asyncio.sleep(1)
        for name, (pod_name, numbers) in held.items():
            node.record.issue(units(*numbers), AllocationId(name))
            if pod_name:
                uid = f"uid-{pod_name}"
                node.record.claim(units(*numbers), Binding("default", pod_name, "main", uid, uid))
        await asyncio.sleep(90)
        assert "".join(item.id for item in node.record.all()) == left


@pytest.mark.parametrize("sign", ["", "a process", "a program", "a pod", "no name"])
@virtually
async def test_a_share_of_no_allocation_is_released_if_nothing_speaks_for_it(tmp_path: Path, sign: str) -> None:
    async with Node(tmp_path) as node:
        labels = {"namespace": "default", "pod": "s", "container": "main", "pod_uid": "uid-s"}
        share = node.agent.held["stranger"] = pb.Share(id="stranger", labels=labels)
        if sign == "a process":
            node.processes._live = lambda: frozenset({"uid-s"})
        elif sign == "a program":
            share.processes.add()
        elif sign == "a pod":
            node.api.pods["s"] = a_pod("s")
        elif sign:
            del share.labels["container"]
        await asyncio.sleep(12)
        assert bool(node.agent.held) == bool(sign)


@pytest.mark.parametrize("end", ["gone", "Succeeded"])
@pytest.mark.parametrize("forgets_s", [0.1, 3.1])
@virtually
async def test_an_end_is_looked_at_a_moment_later_and_then_every_second_until_it_is_over(
    tmp_path: Path, end: str, forgets_s: float
) -> None:
    async with Node(tmp_path) as node:
        for numbers, name in enumerate("pq"):
            await node.running(a_pod(name), 10 * numbers, 10 * numbers + 1)
        await asyncio.sleep(4)
        if end == "gone":
            node.api.remove("p")
        else:
            node.api.put(replace(a_pod("p"), phase=end))
        await asyncio.sleep(forgets_s)
        del node.pods[0]  # kubelet lists it no more
        await asyncio.sleep(0.4)
        assert len(node.agent.held) == 1
        count = len(node.agent.looks)
        await asyncio.sleep(9)
        assert len(node.agent.looks) == count


@virtually
async def test_the_collector_looks_every_ten_seconds_and_every_second_while_a_share_is_owed_time(
    tmp_path: Path,
) -> None:
    async with Node(tmp_path) as node:
        await asyncio.sleep(104)
        assert node.agent.looks == [10.0 * number for number in range(1, 11)]
        item = node.record.issue(units(1), AllocationId("a"))  # never started, and not on kubelet's list
        await asyncio.sleep(64.9)
        assert node.record.all() == (item,)
        await asyncio.sleep(0.2)
        assert node.record.all() == (), "a minute after the first look that found it"
        node.reconciler.owe(node.record.issue(units(2), AllocationId("b")))
        node.agent.looks.clear()
        await asyncio.sleep(15)
        assert [round(after - at, 3) for at, after in zip(node.agent.looks, node.agent.looks[1:], strict=False)][
            -5:
        ] == [1] * 5


@virtually
async def test_a_source_that_is_away_is_logged_once_each_time_and_what_was_not_written_is_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Node(tmp_path) as node:
        in_the_way = tmp_path / "allocations.json.new"
        in_the_way.mkdir()
        node.record.issue(units(1), AllocationId("a"))
        in_the_way.rmdir()
        await asyncio.sleep(12)
        assert len(Record(Store(tmp_path)).all()) == 1
        for count in (1, 2):
            node.agent.up = False
            await asyncio.sleep(25)
            assert [one.message for one in caplog.records].count("shares are not looked through") == count
            node.agent.up = True
            await asyncio.sleep(20)
        await node.running(a_pod("p"), 4, 5)
        node.plugin.collector.active = lambda: False  # another plugin serves now
        node.api.remove("p")
        node.pods.clear()
        await asyncio.sleep(60)
        assert len(node.agent.held) == 1
        node.plugin.collector.active = lambda: True
        await asyncio.sleep(12)
        assert node.agent.held == {}


@virtually
async def test_a_sidecar_keeps_its_share_when_the_init_container_after_it_has_ended(tmp_path: Path) -> None:
    async with Node(tmp_path) as node:
        pod = a_pod("p", side=3, init=2, main=0)
        held = await node.admit(pod, side=(1, 2, 3), init=(4, 5))
        await node.begin(held["side"])
        await node.begin(held["init"])
        node.api.put(replace(pod, finished={"init": "2100-01-01T00:00:00Z"}))
        await asyncio.sleep(15)
        assert list(node.agent.held) == [held["side"].token]


# Starts


@pytest.mark.parametrize(
    ("change", "says", "on"),
    [
        ("", "devices=2", "01"), ("sick", "devices=2", "02"), ("gone", "devices=2", "02"), ("", "devices=1", "0"),
        ("used", "devices=2", "01"),
    ],
)  # fmt: skip
@virtually
async def test_a_share_moves_at_a_start_if_it_must_and_no_program_has_it(
    tmp_path: Path, change: str, says: str, on: str
) -> None:
    async with Node(tmp_path) as node:
        main = await node.running(a_pod("p", "devices=2", main=60), *range(60))
        share = node.agent.held[main.token]
        if change == "gone":
            del node.agent.devices[1]
        else:
            node.agent.devices[1].healthy = not change
        if change == "used":
            share.processes.add()
        share.devices[0].memory_limit_bytes = 7
        node.api.pods["p"] = a_pod("p", says, main=60)
        await node.begin(main)
        share = node.agent.held[main.token]
        assert "".join(held.device_uuid[-1] for held in share.devices) == on
        assert (share.devices[0].memory_limit_bytes == 7) == (on == "01")


@pytest.mark.parametrize(("slow_s", "says"), [(0, ""), (3, ""), (0, "same-device=true")])
@virtually
async def test_a_start_waits_for_room_as_long_as_kubelet_does_and_takes_what_comes(
    tmp_path: Path, slow_s: float, says: str
) -> None:
    async with Node(tmp_path) as node:
        main = (await node.admit(a_pod("p", says, main=30), main=range(30)))["main"]
        node.listing._lag = lambda: asyncio.sleep(slow_s)  # type: ignore[assignment]
        node.agent.full = not says
        node.agent.promise(71, 71, 71)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(NoRoom, match="fit on no device of this node" if says else "no room"):
            await node.begin(main)
        assert loop.time() - begun == pytest.approx(22 if slow_s else 20, abs=0.01)
        loop.call_later(5.2 + 2 * slow_s, node.agent.promise, 71, 70, 71)
        loop.call_later(5.2 + 2 * slow_s, setattr, node.agent, "full", False)
        assert 5.2 <= await node.begin(main) - 2 * slow_s <= 5.7
        assert node.agent.held[main.token].devices[0].device_uuid == ("GPU-1" if says else "GPU-0")


@pytest.mark.parametrize(
    ("finished", "running", "named"),
    [
        ("", "", "init1"), ("init0 init1", "", "init2"), ("init0", "init1", "init2"), ("init0", "main", "main"),
        ("init0", "side", "init1"), ("init0", "plain", "init1"), ("init0 init1 init2", "", "main"),
    ],
)  # fmt: skip
@virtually
async def test_the_container_that_starts_is_the_first_with_these_units_that_can(
    tmp_path: Path, finished: str, running: str, named: str
) -> None:
    async with Node(tmp_path) as node:
        await node.running(a_pod("q"), 21, 22, 23)
        pod = a_pod("p", init0=2, side=3, init1=3, init2=3, main=3, plain=0)
        held = await node.admit(pod, init0=(1, 2), side=(7, 8, 9), init1=(1, 2, 3), init2=(1, 2, 3), main=(1, 2, 3))
        node.api.put(
            replace(pod, finished=dict.fromkeys(finished.split(), LONG_AGO), running=frozenset(running.split()))
        )
        for _ in range(2):  # kubelet tries a start again
            await node.begin(held["main"])
            assert node.agent.held[held["main"].token].labels["container"] == named


@virtually
async def test_an_init_container_of_more_units_runs_again_and_a_share_keeps_its_name_while_a_program_has_it(
    tmp_path: Path,
) -> None:
    async with Node(tmp_path) as node:
        pod = a_pod("p", init=3, main=2)
        held = await node.admit(pod, init=(1, 2, 3), main=(1, 2))
        await node.begin(held["init"])
        node.api.put(replace(pod, finished={"init": LONG_AGO}))
        await node.begin(held["main"])
        node.listing.recorded = tuple  # kubelet lists only the main container, with some of these units
        await node.begin(held["init"])
        share = node.agent.held[held["init"].token]
        assert share.labels["container"] == "init"
        share.labels["container"] = "before"
        share.processes.add()
        await node.begin(held["init"])
        assert node.agent.held[share.id].labels["container"] == "before"


@pytest.mark.parametrize("late", ["the API server to show pod default/p", "another start of this container",
                                  "the agent to release the share of the container before it"])  # fmt: skip
@virtually
async def test_a_start_that_took_too_long_tells_what_it_waited_for(tmp_path: Path, late: str) -> None:
    async with Node(tmp_path) as node:
        held = await node.admit(a_pod("p", init=3, main=2), init=(1, 2, 3), main=(1, 2))
        await node.begin(held["init"])

        async def never(*_: object, **__: object) -> None:
            await asyncio.sleep(100)

        lock = node.plugin.allocator._shares.alone(AllocationId(held["main"].token))
        if late.startswith("the API"):
            node.api.get = never  # type: ignore[method-assign]
        elif late.startswith("the agent"):
            node.agent.release = never  # type: ignore[method-assign]
        else:
            await lock.acquire()
        with pytest.raises(PluginError, match=f"25 s were not enough, {late} was waited for"):
            await node.begin(held["main"])
        assert node.told("p")[-1] == "ShareNotReady!"


@virtually
async def test_the_share_of_a_start_that_came_meanwhile_is_not_ended_and_an_ended_one_is_forgotten(
    tmp_path: Path,
) -> None:
    async with Node(tmp_path) as node:
        main = await node.running(a_pod("p"))
        (item,), shares, since = node.record.all(), node.plugin.allocator._shares, node.record.moves
        await node.begin(main)
        assert not await shares.end(item, since=since)
        assert node.agent.held
        assert await shares.end(item, since=node.record.moves)
        assert (node.agent.held, shares.terms(item.id), node.record.has_moved(item.id, since)) == ({}, None, False)
