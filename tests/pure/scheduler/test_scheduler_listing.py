"""Test the input of `sharepod simulate`: kubectl's lists of a cluster, and traces; an error is one clear line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from cluster_world import node_body, pod_body

from sharepod.scheduler.errors import TraceError
from sharepod.scheduler.placement.request import NodeSpec, PodRequest, ShareRequest
from sharepod.scheduler.state.listing import read_nodes, read_pods
from sharepod.scheduler.state.trace import NamedPod, read_timed_pods

GPU = {"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.memory": "143771"}


def written(tmp_path: Path, value: Any) -> Path:
    path = tmp_path / "list.json"
    path.write_text(json.dumps(value))
    return path


def plain_node(name: str, whole: str = "", labels: dict[str, str] | None = None) -> dict[str, Any]:
    allocatable = {"cpu": "8", "memory": "16Gi", **({"nvidia.com/gpu": whole} if whole else {})}
    metadata = {"name": name, "labels": labels or {}}
    return {"kind": "Node", "metadata": metadata, "status": {"allocatable": allocatable}}


def whole_pod(name: str, count: str) -> dict[str, Any]:
    body = pod_body(name, 0)
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": count, "cpu": "4"}}
    return body


def limits(count: str) -> dict[str, Any]:
    return {"resources": {"limits": {"nvidia.com/gpu": count} if count else {}}}


def test_nodes_have_the_devices_that_they_offer_whoever_offers_them(tmp_path: Path) -> None:
    shared = {**node_body("shared", 4), "kind": "Node"}
    shared["metadata"]["labels"] = GPU
    items = [shared, plain_node("whole", "8", GPU), plain_node("none")]
    assert read_nodes(written(tmp_path, {"kind": "List", "items": items})) == [
        NodeSpec("shared", 64_000, 524_288, 4, "NVIDIA-H200", 143_771),
        NodeSpec("whole", 8_000, 16_384, 8, "NVIDIA-H200", 143_771),
        NodeSpec("none", 8_000, 16_384, 0, "", 0),
    ]
    assert len(read_nodes(written(tmp_path, plain_node("alone", "1")))) == 1, "a single one is a list too"
    with pytest.raises(TraceError, match="node none is there twice: give each its own name"):
        read_nodes(written(tmp_path, {"kind": "List", "items": [*items, plain_node("none")]}))


def test_spare_units_are_no_devices_where_a_label_tells_how_many_there_are(tmp_path: Path) -> None:
    spare, part, silent, wrong = (
        {**node_body(name, 8), "kind": "Node"} for name in ("spare", "part", "silent", "wrong")
    )
    spare["metadata"]["labels"] = {"nvidia.com/gpu.count": "4"}
    part["metadata"]["labels"] = {"nvidia.com/gpu.count": "16"}
    wrong["metadata"]["labels"] = {"nvidia.com/gpu.count": "four"}
    nodes = read_nodes(written(tmp_path, {"kind": "List", "items": [spare, part, silent, wrong]}))
    assert {node.name: node.devices for node in nodes} == {"spare": 4, "part": 8, "silent": 8, "wrong": 8}


def test_pods_ask_for_what_they_say_and_those_that_have_ended_for_nothing(tmp_path: Path) -> None:
    ended, refused = pod_body("ended", 50), pod_body("wrong", 30, {"sharepod.io/limit": "10"})
    ended["status"]["phase"] = "Succeeded"
    plain = pod_body("plain", 0)
    del plain["spec"]["containers"][0]["resources"]["limits"]
    bound = pod_body("bound", 40)
    bound["spec"]["nodeName"] = "n1"
    share = pod_body("share", 30, {"sharepod.io/memory": "10Gi"})
    items = [share, whole_pod("whole", "2"), plain, bound, ended, refused]
    told: list[str] = []
    pods = read_pods(written(tmp_path, {"kind": "PodList", "items": items}), told.append)
    assert [(pod.name, pod.request) for pod in pods] == [
        ("default/share", PodRequest(1000, 1024, (ShareRequest(300, mib=10240, limit_milli=1000),))),
        ("default/whole", PodRequest(4000, 0, (ShareRequest(1000, 2),))),
        ("default/plain", PodRequest(1000, 1024)),
        ("default/bound", PodRequest(1000, 1024, (ShareRequest(400, limit_milli=1000),))),
    ]
    [text] = told
    assert text.startswith("default/wrong: sharepod.io/limit 10 % is below the request 30 % of each device")
    with pytest.raises(TraceError, match="no pod of it can be placed"):
        read_pods(written(tmp_path, {"kind": "PodList", "items": [{**refused, "kind": "Pod"}]}))


def test_a_model_is_the_same_for_who_asks_and_for_the_label(tmp_path: Path) -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED", "nvidia.com/gpu.replicas": "4"}
    [node] = read_nodes(written(tmp_path, plain_node("sliced", "8", labels)))
    assert (node.model, node.devices) == ("NVIDIA-A100-SXM4-80GB", 2), "a device is there once, however it is cut"
    body = pod_body("picky", 30, {"sharepod.io/model": "NVIDIA A100-SXM4-80GB,NVIDIA H200"})
    [pod] = read_pods(written(tmp_path, body))
    assert pod.request.models == {"NVIDIA-A100-SXM4-80GB", "NVIDIA-H200"}


@pytest.mark.parametrize(
    ("main", "sidecar", "init", "counts"),
    [
        (["2", "1"], "", "", (2, 1)),
        (["1"], "", "2", (2,)),
        (["2"], "", "1", (2,)),
        (["1"], "1", "2", (1, 1)),
        ([], "", "", ()),
        (["none", "-1", "1" * 30], "", "", ()),
    ],
)
def test_whole_devices_are_those_that_a_pod_has_at_one_time(
    tmp_path: Path, main: list[str], sidecar: str, init: str, counts: tuple[int, ...]
) -> None:
    body = whole_pod("p", "0")
    body["spec"]["containers"] = [{"name": f"c{at}", **limits(count)} for at, count in enumerate(main)]
    body["spec"]["initContainers"] = [
        {"name": "sidecar", "restartPolicy": "Always", **limits(sidecar)}, {"name": "init", **limits(init)},
    ]  # fmt: skip
    [pod] = read_pods(written(tmp_path, body))
    assert tuple(share.devices for share in pod.request.shares) == counts


def test_more_devices_than_can_be_counted_are_told(tmp_path: Path) -> None:
    told: list[str] = []
    [node] = read_nodes(written(tmp_path, plain_node("huge", "20")), told.append)
    assert (node.devices, told) == (16, ["node huge offers 20 devices: 16 of them count"])
    refused: list[str] = []
    items = [whole_pod("wide", "20"), whole_pod("fine", "1")]
    assert len(read_pods(written(tmp_path, {"kind": "List", "items": items}), refused.append)) == 1
    assert refused == ["default/wide: a share on 20 devices: 1 to 16 are possible"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"kind": "List", "items": [{"kind": "Node"', "it is cut off, or no JSON: get it again with kubectl"),
        ('{"kind": "List", "items": []}', "an empty list: is it the right file?"),
        ('{"kind": "PodList", "items": []}', "it has a PodList, Nodes are needed: were the files mixed up?"),
        ('{"kind": "Node", "metadata": {}}', "a node without a name: get it again"),
        ("{" * 100_000, "it is cut off, or no JSON"),
        ("[]", "a list without its kind: get it again with kubectl get nodes -o json"),
        ("apiVersion: v1\nitems:\n", "it is YAML or a table, JSON or CSV is needed: get it again with kubectl"),
        ('{"kind": "Node", "metadata": {"name": "cpu-only"}}', "no node offers sharepod.io/gpu or nvidia.com/gpu: get"),
        ('{"kind": "List", "items": [1, null, "x"]}', "an empty list: is it the right file?"),
        ('{"kind": "\\u001b[31m' + "x" * 5000 + '"}', "it has a '\\x1b[31mxxx"),
        ('{"kind": "Node", "metadata": {"name": "a", "labels": 7}, "status": {"allocatable": [1]}}', "no node offers"),
    ],
)
def test_what_is_no_list_is_one_clear_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "nodes.json"
    path.write_text(text)
    with pytest.raises(TraceError) as error:
        read_nodes(path)
    assert str(error.value).startswith(f"{path}: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert "\x1b" not in str(error.value)
    assert len(str(error.value)) < 400


NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,P100\nn2,8000,32768,0,\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n"
    "whole,12000,16384,1,1000,,LS\nwide,1,2,8,1000,,LS\npart,1,2,1,460,A|B,BE\nnone,3,4,0,0,,LS\n"
)
TIMES = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,qos,creation_time,deletion_time,user,priority,gang_size,gang_min\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_lists_are_read_plain_and_packed(tmp_path: Path) -> None:
    packed = tmp_path / "nodes.csv.gz"
    packed.write_bytes(gzip.compress(NODES.encode()))
    nodes = [NodeSpec("n1", 64_000, 262_144, 2, "P100"), NodeSpec("n2", 8000, 32_768, 0)]
    assert read_nodes(packed) == read_nodes(write(tmp_path / "nodes", NODES)) == nodes
    assert read_pods(write(tmp_path / "pods", PODS)) == [
        NamedPod("whole", PodRequest(12_000, 16_384, (ShareRequest(1000, 1, 0),))),
        NamedPod("wide", PodRequest(1, 2, (ShareRequest(1000, 8, 0),))),
        NamedPod("part", PodRequest(1, 2, (ShareRequest(460, 1, 0),), frozenset("AB"))),
        NamedPod("none", PodRequest(3, 4)),
    ]
    spaced = "\ufeff" + PODS.replace(",", ", ", 6)  # spreadsheets and people write such files
    assert read_pods(write(tmp_path / "spaced", spaced)) == read_pods(write(tmp_path / "pods", PODS))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("gpu_milli,", "milli,"), "line 1: column gpu_milli is missing: name, cpu_milli"),
        (("part,1,2,1,460", "part,1,2,1,-460"), r"line 4: gpu_milli is '-460': a whole number from 0 is needed"),
        (("part,1,2,1,460", "part,1,2,1,1001"), "line 4: a share of 1001 thousandths"),
        (("part,1,2,1,460", "part,1,2,1,0"), "line 4: a share of 0 thousandths"),
        (("wide,1,2,8", "wide,1,2,17"), "line 3: a share on 17 devices: 1 to 16"),
        (("wide,1,2,8", "wide,1e3,2,8"), "line 3: cpu_milli is '1e3'"),
        (("wide,1,2,8", "wide,9999999999,2,8"), "line 3: a pod with 9999999999 thousandths of a processor"),
        (("none,3,4,0,0", "none,3,4,0,junk"), "line 5: gpu_milli is 'junk'"),
        (("wide,1,2,8", f"wide,{'9' * 5000},2,8"), "line 3: cpu_milli is '999999999999'"),
        (("none,3,4,0,0,,LS", "none,3,4"), "line 5: 7 columns are in line 1, not so many here"),
        (("none,3,4,0,0,,LS", "none,3,4,0,0,,LS,x"), "line 5: 7 columns are in line 1"),
        (("whole", '"whole'), "unexpected end of data"),
    ],
)
def test_a_line_that_cannot_be_is_named(tmp_path: Path, change: tuple[str, str], text: str) -> None:
    with pytest.raises(TraceError, match=text):
        read_pods(write(tmp_path / "pods.csv", PODS.replace(*change)))


def test_nodes_are_checked_as_well(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="node n1 is there twice"):
        read_nodes(write(tmp_path / "nodes.csv", NODES.replace("n2", "n1")))
    with pytest.raises(TraceError, match="line 3: a node has no name"):
        read_nodes(write(tmp_path / "nodes.csv", NODES.replace("n2", "")))
    with pytest.raises(TraceError, match="line 2: node n1 with 17 devices"):
        read_nodes(write(tmp_path / "nodes.csv", NODES.replace("262144,2", "262144,17")))


def test_files_that_are_none_are_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file or directory: give a CSV file"):
        read_pods(tmp_path / "nothing")
    with pytest.raises(TraceError, match="Is a directory"):
        read_pods(tmp_path)
    with pytest.raises(TraceError, match="nothing but its first line"):
        read_pods(write(tmp_path / "pods.csv", PODS.splitlines()[0]))
    with pytest.raises(TraceError, match="it is empty: line 1 names the columns name, cpu_milli"):
        read_pods(write(tmp_path / "pods.csv", ""))
    torn = tmp_path / "torn.csv.gz"
    torn.write_bytes(gzip.compress(PODS.encode())[:-12])
    with pytest.raises(TraceError, match=r"torn\.csv\.gz: .*ended"):
        read_pods(torn)
    bytes_of_something = tmp_path / "binary"
    bytes_of_something.write_bytes(b"name,cpu_milli\n\xff\xfe\x00")
    with pytest.raises(TraceError, match="binary"):
        read_pods(bytes_of_something)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("p,1,1,1,100,LS,300,200,,,,", "deletion_time 200 is before creation_time 300"),
        ("p,1,1,1,100,LS,x,200,,,,", "creation_time is 'x'"),
        ("p,1,1,1,100,LS,1,2,,-5,,", "priority is '-5'"),
        ("p,1,1,1,100,LS,1,2,,99999999999,,", "priority is 99999999999: at most 2147483647"),
        ("p,1,1,1,100,LS,1,2,,,0,", "gang_size 0, gang_min 0: give 1 to 4096"),
        ("p,1,1,1,100,LS,1,2,,,2,3", "gang_size 2, gang_min 3"),
        ("p,1,1,1,100,LS,1,2,,,9999,", "gang_size 9999"),
    ],
)
def test_a_line_of_times_that_cannot_be_is_named(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(TraceError, match=f"line 2: {says}"):
        read_timed_pods(tmp_path / "pods.csv", TIMES + line + "\n")
    with pytest.raises(TraceError, match="column creation_time is missing"):
        read_timed_pods(tmp_path / "pods.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,100\n")
