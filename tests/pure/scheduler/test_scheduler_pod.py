"""Test how the scheduler reads pods, nodes and rules of queues: texts of tenants and operators, and quantities."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharepod.scheduler.controller.gang_annotations import Gang, read_gang
from sharepod.scheduler.controller.queues import Queue, Queues, read_queues
from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.placement.request import PodRequest, ShareRequest
from sharepod.scheduler.state.node import Node, read_node
from sharepod.scheduler.state.pod import Pod, device_annotations, read_pod


def body(containers: list[dict[str, Any]], annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "p", "namespace": "team", "uid": "u1", "annotations": annotations or {},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"containers": containers, "priority": 7, **spec},
        "status": {"phase": "Pending"},
    }  # fmt: skip


def container(name: str = "main", units: int = 0, cpu: str = "0", memory: str = "0", **more: Any) -> dict[str, Any]:
    resources: dict[str, Any] = {"requests": {"cpu": cpu, "memory": memory}}
    if units:
        resources["limits"] = {"sharepod.io/gpu": str(units)}
    return {"name": name, "resources": resources, **more}


def read(*arguments: Any, **more: Any) -> Pod:
    pod = read_pod(body(*arguments, **more))
    assert pod is not None
    return pod


def test_a_pod_with_one_share_is_read_whole() -> None:
    pod = read(
        [container("main", 30, "1500m", "2Gi")],
        {"sharepod.io/limit": "60", "sharepod.io/memory": "10Gi", "sharepod.io/class": "latency",
         "sharepod.io/model": "NVIDIA H200, NVIDIA A100", "sharepod.io/device-affinity": "a",
         "sharepod.io/device-anti-affinity": "b.c"},
    )  # fmt: skip
    share = ShareRequest(300, mib=10240, share_class="latency", limit_milli=600)
    assert pod.request == PodRequest(1500, 2048, (share,), frozenset({"NVIDIA H200", "NVIDIA A100"}))
    assert (pod.affinity, pod.anti_affinity) == ("a", "b.c")
    assert (pod.containers, pod.priority, pod.title) == (("main",), 7, "team/p")
    assert (pod.chosen, pod.refusal, pod.node, pod.ended, pod.deleting) == ((), "", "", False, False)


def test_shares_of_a_pod_may_be_beside_one_another_and_on_several_devices() -> None:
    pod = read(
        [container("a", 20), container("plain", 0, "1"), container("b", 40), container("c", 200)],
        {"sharepod.io/a.same-device": "true", "sharepod.io/b.same-device": "true"},
    )
    found = [(share.milli, share.devices, share.beside) for share in pod.request.shares]
    assert found == [(200, 1, None), (400, 1, 0), (1000, 2, None)]
    assert pod.containers == ("a", "b", "c")


def test_an_init_container_makes_its_successors_share_large_enough_for_both() -> None:
    pod = read([container("main", 30)], initContainers=[container("load", 50)])
    assert [share.milli for share in pod.request.shares] == [500]
    assert pod.early == (("load", 0),)
    sidecar = read([container("main", 30)], initContainers=[container("log", 20, restartPolicy="Always")])
    assert [share.milli for share in sidecar.request.shares] == [300, 200]
    assert sidecar.early == ()
    # A sidecar holds its devices while a later init container runs; an earlier init container can still use them.
    both = [container("log", 60, restartPolicy="Always"), container("load", 60)]
    before, after = (read([container("main", 10)], initContainers=init) for init in (both, both[::-1]))
    assert ([share.milli for share in before.request.shares], before.early) == ([600, 600], (("load", 0),))
    assert ([share.milli for share in after.request.shares], after.early) == ([100, 600], (("load", 1),))
    for cap, caps in (("load", (2048, 300)), ("main", (2048, 500))):  # one has a cap, the other a part of the memory
        capped = read(
            [container("main", 30)], {f"sharepod.io/{cap}.memory": "2Gi"}, initContainers=[container("load", 50)]
        )
        (share,) = capped.request.shares
        assert (share.mib, share.part_milli) == caps
        assert (share.mib_of(1024), share.mib_of(20_000)) == (2048, max(2048, 20 * caps[1]))
    wide = read([container("main", 30)], initContainers=[container("load", 200)])
    assert [(share.milli, share.devices) for share in wide.request.shares] == [(300, 1), (1000, 2)]
    assert wide.containers == ("main", "")


def test_what_a_pod_takes_of_its_node_is_what_kube_scheduler_counts() -> None:
    init = [
        container("first", 0, "4", "1Gi"),
        container("log", 0, "500m", "100Mi", restartPolicy="Always"),
        container("second", 0, "1", "3Gi"),
    ]
    pod = read([container("a", 0, "1", "1Gi"), container("b", 0, "1", "1Gi")], initContainers=init,
               overhead={"cpu": "100m", "memory": "50Mi"})  # fmt: skip
    assert (pod.request.cpu_milli, pod.request.memory_mib) == (4000 + 100, 3 * 1024 + 100 + 50)
    limited = read([{"name": "a", "resources": {"limits": {"cpu": "2"}}}])
    assert limited.request.cpu_milli == 2000, "a limit is a request where none is given"


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        ({"sharepod.io/limit": "20"}, "limit 20 % is below the request 30 %"),
        ({"sharepod.io/klass": "batch"}, "unknown annotation"),
        ({"sharepod.io/model": "A100,,H100"}, "sharepod.io/model is 'A100,,H100': give names of models"),
        ({"sharepod.io/model": "x" * 2000}, "sharepod.io/model has 2000 characters: at most 1024"),
        ({"sharepod.io/device-affinity": "a b"}, "sharepod.io/device-affinity is 'a b': give one word"),
        ({"sharepod.io/device-anti-affinity": "-"}, "sharepod.io/device-anti-affinity is '-': give one word"),
        ({"sharepod.io/device": "0"}, "names '0', no UUID of a device"),
        ({"sharepod.io/yield": "yes"}, "sharepod.io/yield is 'yes', neither limit nor pause"),
        ({"sharepod.io/main.yield": "pause"}, "is for one container: write sharepod.io/yield"),
    ],
)
def test_what_cannot_be_is_refused_and_its_processors_count(annotations: dict[str, str], says: str) -> None:
    pod = read([container("main", 30, "2")], annotations)
    assert says in pod.refusal
    assert pod.request == PodRequest(2000)


def test_more_shares_than_can_be_placed_are_refused() -> None:
    pod = read([container(f"c{number}", 10) for number in range(9)])
    assert pod.refusal == "9 containers hold shares: at most 8 of a pod can be placed"


def test_a_pod_that_yields_asks_for_what_it_asked_before() -> None:
    plain = read([container("main", 30)], {"sharepod.io/limit": "80"})
    assert plain.yields == ""
    for how in ("limit", "pause"):
        pod = read([container("main", 30)], {"sharepod.io/limit": "80", "sharepod.io/yield": how})
        assert (pod.yields, pod.request, pod.refusal) == (how, plain.request, "")


def test_chosen_devices_are_written_so_that_they_are_read_again() -> None:
    two = read([container("a", 30), container("b", 200)], {"sharepod.io/old.device": "GPU-9"})
    assert two.refusal, "an annotation for a container that is not there"
    one = read([container("a", 30)], initContainers=[container("load", 10)])
    written = device_annotations(one, (("GPU-1",),))
    assert written == {"sharepod.io/device": "GPU-1"}
    again = read([container("a", 30)], {key: str(text) for key, text in written.items()},
                 initContainers=[container("load", 10)])  # fmt: skip
    assert again.chosen == (("GPU-1",),)
    assert device_annotations(again, (("GPU-2",),)) == {"sharepod.io/device": "GPU-2"}
    several = read([container("a", 30), container("b", 200)], {"sharepod.io/a.device": "GPU-9"})
    written = device_annotations(several, (("GPU-1",), ("GPU-2", "GPU-3")))
    assert written == {"sharepod.io/a.device": "GPU-1", "sharepod.io/b.device": "GPU-2,GPU-3"}
    moved = read([container("a", 30)], {"sharepod.io/a.device": "GPU-9"})
    assert device_annotations(moved, (("GPU-1",),)) == {"sharepod.io/device": "GPU-1", "sharepod.io/a.device": None}


KEYS = st.sampled_from(
    ["metadata", "spec", "status", "name", "uid", "namespace", "containers", "resources", "limits", "cpu"]
)
OBJECTS = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda item: st.lists(item, max_size=3) | st.dictionaries(KEYS, item),
)


@given(OBJECTS)
@settings(deadline=None)
def test_no_object_makes_the_reader_fail(item: object) -> None:
    read_pod(item)
    read_node(item)
    read_pod({"metadata": {"uid": "u", "name": "n", "namespace": "s"}, "spec": item})


def test_a_node_is_read_with_what_pods_may_have_of_it() -> None:
    allocatable = {"cpu": "63900m", "memory": "500Gi", "sharepod.io/gpu": "800"}
    node = {"metadata": {"name": "n1"}, "status": {"allocatable": allocatable}}
    assert read_node(node) == Node("n1", 63900, 512000, 800)
    assert read_node({"metadata": {"name": "n2"}}) == Node("n2", 0, 0, 0)
    assert read_node({"metadata": {}}) is None


P = "sharepod.io/"


def test_a_gang_is_read_with_all_that_it_says() -> None:
    least = {P + "gang": "train", P + "gang-size": "8"}
    more = {P + "gang-min": "4", P + "gang-timeout": "2h", P + "gang-restart": "whole"}
    assert read_gang(least) == Gang("train", 8, 8, 600, "never")
    assert read_gang(least | more) == Gang("train", 8, 4, 7200, "whole")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"gang": "g"}, "say how many pods"),
        ({"gang-size": "2"}, "name the gang"),
        ({"gang": "g", "gang-size": "0"}, "from 1 to 4096"),
        ({"gang": "g", "gang-size": "4097"}, "from 1 to 4096"),
        ({"gang": "g", "gang-size": "-1"}, "from 1 to 4096"),
        ({"gang": "g", "gang-size": "2.5"}, "from 1 to 4096"),
        ({"gang": "g", "gang-size": "9" * 5000}, "from 1 to 4096"),
        ({"gang": "g", "gang-size": "4", "gang-min": "5"}, "at most the size"),
        ({"gang": "g", "gang-size": "4", "gang-min": "0"}, "from 1 to 4096"),
        ({"gang": "g/h", "gang-size": "4"}, "one word"),
        ({"gang": "", "gang-size": "4"}, "one word"),
        ({"gang": "g", "gang-size": "4", "gang-timeout": "soon"}, "give a time"),
        ({"gang": "g", "gang-size": "4", "gang-restart": "yes"}, "never or whole"),
    ],
)
def test_a_gang_that_cannot_be_is_one_clear_error(given: dict[str, str], says: str) -> None:
    with pytest.raises(PlacementError, match=says) as error:
        read_gang({P + key: value for key, value in given.items()})
    assert len(str(error.value)) < 250
    assert "\n" not in str(error.value)


def test_queues_have_the_rules_that_are_given_and_the_rest_of_the_default() -> None:
    text = """
default: {longest-wait: 30m, idle: 1h}
team-a: {weight: 2, cap: 12.5, longest-run: 7d, overrun: end}
team-b: {idle: none, cap: none}
"""
    queues = read_queues({"queues.yaml": text})
    assert queues.default == Queue(longest_wait_s=1800.0, idle_s=3600.0)
    assert queues.of("team-a") == Queue(2.0, 12_500, 1800.0, 604_800.0, "end", 3600.0)
    assert queues.of("team-b") == Queue(longest_wait_s=1800.0)
    assert queues.of("other") == queues.default
    assert read_queues({}) == read_queues({"queues.yaml": ""}) == Queues()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: {weight: 0}", "above 0"),
        ("a: {weight: -1}", "above 0"),
        ("a: {weight: .nan}", "above 0"),
        ("a: {weight: true}", "above 0"),
        ("a: {cap: -1}", "from 0"),
        ("a: {cap: many}", "from 0"),
        ("a: {longest-wait: none}", "give a time"),
        ("a: {longest-run: 5}", "give a time"),
        ("a: {overrun: kill}", "yield or end"),
        ("a: {share: 2}", "no rule: give weight"),
        ("a: 5", "give rules"),
        ("[a, b]", "give a queue's name"),
        ("a: {", "line 1"),
        ("!!python/object/apply:os.system [true]", "no YAML"),
    ],
)
def test_rules_that_cannot_be_are_one_clear_error(text: str, says: str) -> None:
    with pytest.raises(PlacementError, match=says) as error:
        read_queues({"queues.yaml": text})
    assert "\n" not in str(error.value)
