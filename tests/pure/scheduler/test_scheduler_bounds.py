"""Test what the scheduler reads, computes and says, with values that are exactly at a bound, or just beyond it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster_world import Agent, World, node_body, pod_body, read, row_of
from reference import check_placements

from sharepod.proto import v1_pb2 as pb
from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.explain.explanation import explain
from sharepod.scheduler.explain.summary import summarise
from sharepod.scheduler.feed.usage_reader import _MEMORY_MAX, MESSAGE_MAX, TEXT_MAX, WAITED_MAX, read_report
from sharepod.scheduler.gate_metrics import SYSTEM_PRIORITY, band_of
from sharepod.scheduler.placement.constraints import Requirement, Taint, Toleration
from sharepod.scheduler.placement.decision import judge, refusal_text
from sharepod.scheduler.placement.mix import Mix, kinds_of
from sharepod.scheduler.placement.native import Place, Snapshot, Verdict
from sharepod.scheduler.placement.policy import Policy
from sharepod.scheduler.placement.request import NodeSpec, PodRequest, ShareRequest
from sharepod.scheduler.simulation.job_run import JobRun, Step, Task
from sharepod.scheduler.simulation.replay import Placed, arrivals, replay, unknown_models
from sharepod.scheduler.simulation.waits import device_s, stopped_s, used_part, waits
from sharepod.scheduler.state.cluster import Cluster
from sharepod.scheduler.state.node_index import NodeIndex
from sharepod.scheduler.state.node_info import links_of
from sharepod.scheduler.state.pod import NODE, Pod
from sharepod.scheduler.state.trace import NamedPod, TimedPod, read_timed_pods
from sharepod.scheduler.state.usage import (
    DEVICES_MAX,
    SHARES_MAX,
    DeviceFacts,
    DeviceNumbers,
    NodeFacts,
    Report,
    UsageBook,
)

P = "sharepod.io/"


def device(index: int, *peers: int, numa: int = -1) -> DeviceFacts:
    return DeviceFacts(index, f"GPU-n1-{index}", "H200", 80 * 2**30, True, "", True, numa, peers)


def on_n1(world: World, number: int, units: int, **annotations: str) -> str:
    """Bind a pod to n1, the younger the higher its number."""
    body = pod_body(f"p{number}", units, {P + key: text for key, text in annotations.items()})
    body["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{number:02}Z"
    body["spec"]["nodeName"] = "n1"
    return str(world.create(body))


def resources(units: int) -> dict[str, Any]:
    return {"resources": {"limits": {P + "gpu": str(units)}}}


def test_a_new_snapshot_is_made_for_new_models_only_and_a_node_of_one_too_many_is_refused_alone() -> None:
    world, view = World({}), Cluster("binpack")

    def report(name: str, model: str, devices: int = 1) -> None:
        world.nodes.setdefault(name, node_body(name, devices))
        use = world.agents.setdefault(name, Agent(name, devices)).use()
        assert use is not None
        modelled = (replace(one, facts=replace(one.facts, model=model)) for one in use.devices)
        world.tell(view, "node", name)
        view.set_use(name, replace(use, devices=tuple(modelled)))

    names = [f"m{number:02}" for number in range(1, 33)]
    report("m01", "m01")
    view.advance(0.0)
    for name, model in (*zip(names, names, strict=True), ("again", "m01")):
        report(name, model)
    view.advance(0.0)
    index = view.node_index
    assert all(map(view.row, [*names, "again"]))
    for name, model, devices in (("new", "m00", 1), ("again", "m00", 1), ("bare", "", 0)):
        report(name, model, devices)
    for _ in range(3 * 64):  # the place of a node that has gone is given to the next
        report("passes", "m05")
        view.advance(0.0)
        place = index.index("passes")
        view.remove_node("passes")
        view.advance(0.0)
    assert view.node_index is index
    assert (index.name(place), view.row("new"), view.row("again")) == ("", None, None)
    assert all(map(view.row, [*names, "bare"]))
    assert index.names() == sorted(node.name for node in view.snapshot.nodes) == sorted([*names, "bare"])
    assert (view.snapshot.devices["m05"], view.snapshot.free_milli["m05"]) == (1, 1000)
    specs = {f"n{number}": NodeSpec(f"n{number}", 1, 1, 1, "A") for number in range(700)}
    for made in (1, 650):
        first, more = (dict([*specs.items()][:count]) for count in (made, made + 50))
        assert NodeIndex(first).have_place(more), "it has room for some more"


@pytest.mark.parametrize(
    ("facts", "masks", "pair"),
    [
        ([device(4, 7, 5), device(5, 6, 5), device(6, 5, 9), device(7, 4)], [8, 4, 2, 1], (0, 3)),
        ([device(n, 0, 1, 2, 3, numa=n % 3) for n in range(4)], [14, 13, 11, 7], (0, 3)),
        ([device(0), device(1)], [0, 0], (0, 1)),
    ],
)
def test_devices_with_links_of_both_ends_on_one_memory_node_go_together(
    facts: list[DeviceFacts], masks: list[int], pair: tuple[int, int]
) -> None:
    assert links_of(facts) == masks
    view = World({"n1": 4}).replica()
    use = view.use("n1")
    assert use is not None
    view.set_use("n1", replace(use, devices=tuple(replace(use.devices[0], facts=one) for one in facts)))
    view.advance(0.0)
    ranking = judge(view, read(pod_body("p", 200)), ["n1"]).ranking
    assert ranking is not None
    assert ranking.devices(0) == (pair,)


def test_pods_of_which_no_device_is_known_keep_to_their_device_affinity() -> None:
    world = World({"n1": 2})
    assert world.start(on_n1(world, 0, 50, memory="1Gi", device="GPU-n1-0"))
    for number, (word, space) in enumerate((("x", "default"), ("x", "default"), ("x", "team"), ("y", "default")), 1):
        uid = on_n1(world, number, 10, memory="1Gi", **{"device-anti-affinity": word})
        world.pods[uid]["metadata"]["namespace"] = space
    pair = on_n1(world, 5, 15)
    body = world.pods[pair]
    body["metadata"]["annotations"] = {P + f"{name}.same-device": "true" for name in "ab"} | {P + "memory": "1Gi"}
    [container] = body["spec"]["containers"]
    body["spec"]["containers"] = [{**container, "name": name} for name in "ab"]
    row = row_of(world.replica(), "n1")
    assert [row.places.get(f"uid-p{number}") for number in range(1, 6)] == [((0,),), ((1,),), ((0,),), ((0,),), None]
    assert row.homeless == {pair}


def test_a_share_counts_where_any_of_its_containers_has_it_and_a_choice_that_is_wrong_in_part_is_none() -> None:
    world = World({"n1": 2})
    first, gone = on_n1(world, 0, 10), on_n1(world, 1, 30)
    wrong = on_n1(world, 2, 200, memory="1Gi", device="GPU-n1-1,GPU-x")
    world.pods[first]["spec"]["initContainers"] = [{"name": "load", **resources(50)}]
    view, agent = world.replica(), world.agents["n1"]
    agent.shares = {uid: (world.pod(uid), ("GPU-n1-1",)) for uid in (gone, first)}
    use = agent.use()
    assert use is not None
    names = {first: "load", gone: "main"}
    shares = (
        replace(one, terms=replace(one.terms, container=names[one.terms.pod_uid])) for one in use.devices[1].shares
    )
    small = replace(use.devices[0], facts=replace(use.devices[0].facts, memory_total_bytes=40 * 2**30))
    view.set_use("n1", replace(use, devices=(small, replace(use.devices[1], shares=tuple(shares)))))
    view.remove_pod(gone)
    view.advance(world.now_s)
    row = row_of(view, "n1")
    assert (dict(row.places), sorted(row.presumed), sorted(row.homeless)) == ({first: ((1,),)}, [wrong], [wrong])
    assert (row.device_mib, row.free_milli) == (40 * 1024, (1000, 500))


def test_the_numbers_of_the_metrics_are_those_of_the_nodes_that_report() -> None:
    world = World({"n1": 1, "n2": 2, "n3": 1})
    on_n1(world, 0, 90, device="GPU-n1-0")
    cluster, book = world.replica(), UsageBook()
    for name, at_s in (("n1", 980.0), ("n2", 990.0), ("n3", 900.0)):
        book.apply(name, Report(NodeFacts(name, "0")), at_s)
    cluster.remove_node("n3")
    found = summarise(cluster, book, 1000.0, ready=True, streams=3, stream_ends={})
    assert (found.nodes_by_state, found.devices, found.lag_s) == ({"reporting": 2, "silent": 1}, 3, 20.0)
    assert [found.left, found.wasted] == pytest.approx([2.1, 0.1]), "no expected pod is as small as what is left of n1"


def test_neighbours_are_told_with_what_they_used() -> None:
    world = World({"n1": 1})
    uids = [on_n1(world, number, 30 + number, device="GPU-n1-0") for number in range(2)]
    assert all(map(world.start, uids))
    world.agents["n1"].used = {"p1": 25_900}
    cluster = world.replica()
    [place] = explain(cluster, world.pod(uids[0])).there
    assert [(one.asked_percent, one.used_percent) for one in place.shares] == [(31, 25)]


def run(*changes: tuple[float, int, int], began: float | None, ended: float | None = None, **more: Any) -> JobRun:
    given: dict[str, Any] = {"name": "t", "user": "", "priority": 0, "request": PodRequest(shares=(ShareRequest(500),)),
                             "run_s": 9.0, "arrive_s": 10.0, "size": 2, "least": 2} | more  # fmt: skip
    return JobRun(Task(**given), began, ended, 1, 2, 3.0, steps=[Step(*change) for change in changes])


def test_what_became_of_the_tasks_of_a_play_is_summed_up_exactly() -> None:
    steps = ((15, 2, 1000), (20, 0, 0), (22, 2, 1000), (30, 0, 0), (35, 1, 500), (40, 2, 1000))
    stops, paused = run(*steps, began=15, ended=60), run((12, 2, 1000), (70, 0, 0), began=12, arrive_s=12.0)
    partly = run((20, 1, 500), (50, 2, 1000), (60, 0, 0), (65, 2, 1000), began=50, ended=85, arrive_s=20.0, priority=5)
    runs = [stops, paused, partly, run(began=None, arrive_s=90.0)]
    assert [stopped_s(one, 100.0) for one in runs] == [10, 30, 5, 0]
    assert [device_s(one, 100.0) for one in runs] == [35.5, 58, 45, 0]
    assert [device_s(one, 100.0, 36.0) for one in runs] == [13.5, 24, 8, 0]
    assert used_part(runs, 2, 100.0) == (35.5 + 58 + 45) / (2 * 80)
    assert (used_part([stops], 2, 100.0), used_part([], 2, 100.0)) == (0, 0)
    high, low = waits(runs, 100.0)
    assert (high.priority, high.tasks, high.longest_s, high.stopped_longest_s) == (5, 1, 30, 5)
    assert (low.priority, low.tasks, low.unstarted, low.paused, low.evicted, low.lost_device_s) == (0, 3, 1, 3, 6, 9)
    assert (low.median_s, low.p95_s, low.longest_s, low.stopped_longest_s) == (5, 10, 10, 30)
    [many] = waits([run(began=10.0 + number) for number in range(20)], 100.0)
    assert (many.median_s, many.p95_s, many.p99_s, many.longest_s) == (9, 18, 19, 19)


@pytest.mark.parametrize("arrive", [2.0, None])
def test_a_replay_tells_of_each_hundredth_of_the_devices_and_its_numbers_add_up(arrive: float | None) -> None:
    nodes = [NodeSpec(f"n{number}", 16_000, 65_536, 4, "AB"[number % 2]) for number in range(4)]
    pods = [NamedPod(f"share{n}", PodRequest(1000, 512, (ShareRequest(300, mib=0),))) for n in range(20)]
    pods += [NamedPod(f"2 GPU{n}", PodRequest(1000, 1, (ShareRequest(1000, 2, 0),), frozenset("BC"))) for n in range(9)]
    pods += [NamedPod("CPU", PodRequest(2000, 1024, (), frozenset("D")))]
    told: list[Placed] = []
    outcome = replay(nodes, pods, "binpack", arrive=arrive, seed=3, tell=told.append)
    came = list(arrivals(pods, arrive and arrive * 16_000, 3))
    asked = [sum(pod.request.milli for pod in came[: number + 1]) / 16_000 for number in range(len(came))]
    hundredths = int(asked[-1] * 100)
    assert (len(came) == len(pods), len(outcome.points)) == (arrive is None, hundredths + (arrive is None))
    for number, point in enumerate(outcome.points[:hundredths], 1):
        assert point.arrived == next(one for one in asked if one * 100 >= number)
    last = outcome.points[-1]
    assert (outcome.at(0.5), outcome.at(9.9)) == (outcome.points[49], last)
    assert last.allocated == pytest.approx(sum(one.milli * len(one.devices) for one in told) / 16_000)
    bad = [one.pod for one in told if not one.node]
    sizes = {size: [sum(name.startswith(size) for name in of) for of in (bad, [pod.name for pod in came])]
             for size in ("2 GPU", "CPU", "share")}  # fmt: skip
    assert (last.failed, last.insisting) == (tuple((size, *of) for size, of in sizes.items()), tuple(sizes["2 GPU"]))
    check_placements(nodes, pods, told)
    assert unknown_models(nodes, pods) == ["C", "D"]


def test_times_and_gangs_of_a_list_are_read_with_what_stands_for_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    head = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,qos,creation_time,deletion_time,user,priority,gang_size,gang_min\n"
    )
    path.write_text(head + "a,1,2,0,0,LS,999999999999,999999999999,,,,\nb,1,2,0,0,BE,5,, team ,2147483647,4096,1\n"
                           "c,1,2,0,0,,5,6,,7,3,\n")  # fmt: skip
    plain, late = PodRequest(1, 2), 999_999_999_999
    assert read_timed_pods(path) == [
        TimedPod(NamedPod("a", plain), "LS", 1000, late, late, 1, 1),
        TimedPod(NamedPod("b", plain), "team", 2**31 - 1, 5, None, 4096, 1),
        TimedPod(NamedPod("c", plain), "", 7, 5, 6, 3, 3),
    ]


def with_containers(*units: int, init: tuple[int, ...] = (), **annotations: str) -> Pod:
    body = pod_body("p", 0, {P + key.replace("_", "."): text for key, text in annotations.items()})
    body["spec"]["containers"] = [{"name": f"c{number}", **resources(one)} for number, one in enumerate(units)]
    body["spec"]["initContainers"] = [{"name": f"i{number}", **resources(one)} for number, one in enumerate(init)]
    return read(body)


def test_of_several_containers_the_largest_lends_its_devices_and_one_choice_alone_is_none() -> None:
    for units, lent in (((30, 50, 50), 1), ((50, 30, 20), 0)):
        pod = with_containers(*units, init=(60,), i0_memory="4Gi", **{f"c{lent}_memory": "2Gi"})
        assert (pod.early, pod.request.shares[lent].milli, pod.request.shares[lent].mib) == ((("i0", lent),), 600, 4096)
    assert with_containers(10, 10, c0_device="GPU-1").chosen == ()
    assert with_containers(10, 10, c0_device="GPU-1", c1_device="GPU-2").chosen == (("GPU-1",), ("GPU-2",))
    assert len(with_containers(*[10] * 8).request.shares) == 8
    assert [one.cpu_milli for one in kinds_of(replace(with_containers(10, 10).request, cpu_milli=4000))] == [2000, 2000]
    body = pod_body("p", 10, {NODE: "n1"}, cpu="99999999999")
    assert (read(body).destined, read(body).request.cpu_milli) == ("n1", 2**31 - 1)
    for key, value in (("nodeName", "n2"), ("schedulingGates", [{"name": P + "gate"}])):
        there = pod_body("p", 10, {NODE: "n1"})
        there["spec"][key] = value
        assert read(there).destined == ""
    sizes = [PodRequest(), with_containers(100, 30).request, with_containers(100, 200).request]
    assert [one.size for one in sizes] == ["CPU", "share", "3 GPU"]


@pytest.mark.parametrize(
    ("operator", "value"), [("Gt", "5"), ("Gt", "x"), ("Lt", "5"), ("Near", "4"), ("Near", "6"), ("Gt", "")]
)
def test_a_number_that_is_not_beyond_the_other_or_is_none_fulfils_nothing(operator: str, value: str) -> None:
    assert not Requirement("rank", operator, (value,)).holds({"rank": "5"})


@pytest.mark.parametrize("toleration", [("other", "Exists", "", ""), ("", "", "only", ""), ("gpu", "", "", "")])
def test_a_toleration_of_another_taint_covers_nothing(toleration: tuple[str, str, str, str]) -> None:
    assert not Toleration(*toleration).covers(Taint("gpu", "only", "NoSchedule"))


@pytest.mark.parametrize(
    ("shares", "verdict", "text"),
    [
        ([ShareRequest(300)], Verdict.NO_TIME, "no device with 30 percent left"),
        ([ShareRequest(1000)], Verdict.NO_TIME, "no device free"),
        ([ShareRequest(1000, 2)], Verdict.NO_TIME, "fewer than 2 devices free"),
        ([ShareRequest(300, 2)], Verdict.NO_TIME, "fewer than 2 devices with 30 percent left on each"),
        ([ShareRequest(300), ShareRequest(10)], Verdict.NO_TIME, "its devices have no room for 2 shares together"),
        ([ShareRequest(10), ShareRequest(300, 3)], Verdict.FEW_DEVICES, "fewer than 3 healthy devices are offered"),
        ([ShareRequest(300)], Verdict.FEW_DEVICES, "no healthy device is offered"),
        ([ShareRequest(300)], Verdict.NO_DEVICE_MEMORY, "no device with 30 percent left and memory in proportion"),
        ([ShareRequest(300, mib=2048)], Verdict.NO_DEVICE_MEMORY, "no device with 30 percent left and 2 GiB of memory"),
        ([ShareRequest(300, mib=1, memory_milli=300)], Verdict.NO_DEVICE_MEMORY,
         "no device with 30 percent left and memory in proportion"),
        ([ShareRequest(300)], Verdict.NO_MEMORY, "not enough memory beside the pods that are to come"),
        ([ShareRequest(300)], Verdict.NO_MODEL, "its devices are of no model that the pod takes"),
    ],
)  # fmt: skip
def test_why_a_node_cannot_take_a_pod_is_said_in_words(shares: list[ShareRequest], verdict: Verdict, text: str) -> None:
    pod = read(pod_body("p", 30))
    assert refusal_text(replace(pod, request=PodRequest(shares=tuple(shares))), verdict) == text
    if verdict is Verdict.FEW_DEVICES:
        apart = replace(pod, anti_affinity="a", request=PodRequest(shares=tuple(shares)))
        assert refusal_text(apart, verdict) == text + " that device affinity allows"


@pytest.mark.parametrize(("act"), [
    lambda it: it.rank_array(PodRequest(), Policy("fgd", it, Mix.of([])).native, [-1, 0]),
    lambda it: it.take(PodRequest(shares=(ShareRequest(10),)), Place(0, ((-1,),))),
    lambda it: it.set_use(0, 2, busy_milli=0, waited_milli=0, latency_milli=0, limits_milli=0),
    lambda it: it.set_use(0, -1, busy_milli=0, waited_milli=0, latency_milli=0, limits_milli=0),
])  # fmt: skip
def test_an_index_below_the_first_or_behind_the_last_is_refused(act: Any) -> None:
    with pytest.raises(PlacementError):
        act(Snapshot([NodeSpec("n", 1, 1, 2, "A")]))


def test_an_agent_may_report_the_largest_values_and_no_larger_ones() -> None:
    text, name, many = "x" * TEXT_MAX, "a" * 10, DEVICES_MAX - 1
    top = dict.fromkeys(("used_1s_millipercent", "used_1m_millipercent", "used_15m_millipercent"), 100_000)
    share = pb.ReportedShare(
        id=name, share_class=pb.SHARE_CLASS_BATCH, request_millipercent=1000, limit_millipercent=1000
    )
    whole = pb.ReportedShare(id=name, share_class=pb.SHARE_CLASS_BATCH, limit_millipercent=100_000)
    device = pb.ReportedDevice(index=many, uuid=text, model=text, memory_total_bytes=_MEMORY_MAX, numa_node=4096)
    numbers = pb.DeviceNumbers(memory_used_bytes=_MEMORY_MAX, waited_1m_millipercent=WAITED_MAX, **top)
    message = pb.ReportUsageRequest(
        devices=[device] * DEVICES_MAX,
        device_numbers=[numbers, *[pb.DeviceNumbers()] * many],
        shares=[whole, *[share] * (SHARES_MAX - 1)],
        share_numbers=[pb.ShareNumbers(share_id=name, used_1m_millipercent=100_000, waited_1m_millipercent=100_000)],
    )
    report = read_report(message.SerializeToString())
    assert (len(report.devices), len(report.device_numbers), len(report.shares)) == (many + 1, many + 1, SHARES_MAX)
    assert report.device_numbers[0][1] == DeviceNumbers(_MEMORY_MAX, 100_000, 100_000, 100_000, WAITED_MAX)
    del message.shares[:]
    message.shares.append(pb.ReportedShare(id=name, share_class=pb.SHARE_CLASS_BATCH, limit_millipercent=999))
    with pytest.raises(PlacementError, match="limit 999"):
        read_report(message.SerializeToString())
    with pytest.raises(PlacementError, match="that are no ReportUsageRequest"):
        read_report(bytes(MESSAGE_MAX))
    assert [band_of(one) for one in (SYSTEM_PRIORITY - 1, SYSTEM_PRIORITY)] == ["positive", "system"]
