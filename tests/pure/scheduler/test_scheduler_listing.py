"""What kubectl prints of a cluster, as lists for `sharepod simulate`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from cluster_world import node_body, pod_body

from sharepod.scheduler.ask import NodeSpec, PodAsk, ShareAsk
from sharepod.scheduler.errors import TraceError
from sharepod.scheduler.listing import read_nodes, read_pods

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
    items = [
        pod_body("share", 30, {"sharepod.io/memory": "10Gi"}),
        whole_pod("whole", "2"),
        plain,
        bound,
        ended,
        refused,
    ]
    told: list[str] = []
    pods = read_pods(written(tmp_path, {"kind": "PodList", "items": items}), told.append)
    assert [(pod.name, pod.ask) for pod in pods] == [
        ("default/share", PodAsk(1000, 1024, (ShareAsk(300, mib=10240, limit_milli=1000),))),
        ("default/whole", PodAsk(4000, 0, (ShareAsk(1000, 2),))),
        ("default/plain", PodAsk(1000, 1024)),
        ("default/bound", PodAsk(1000, 1024, (ShareAsk(400, limit_milli=1000),))),
    ]
    [text] = told
    assert text.startswith("default/wrong: sharepod.io/limit 10 % is below the request 30 % of each device")


def test_a_model_is_the_same_for_who_asks_and_for_the_label(tmp_path: Path) -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED", "nvidia.com/gpu.replicas": "4"}
    [node] = read_nodes(written(tmp_path, plain_node("sliced", "8", labels)))
    assert (node.model, node.devices) == ("NVIDIA-A100-SXM4-80GB", 2), "a device is there once, however it is cut"
    body = pod_body("picky", 30, {"sharepod.io/model": "NVIDIA A100-SXM4-80GB,NVIDIA H200"})
    [pod] = read_pods(written(tmp_path, body))
    assert pod.ask.models == {"NVIDIA-A100-SXM4-80GB", "NVIDIA-H200"}


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
    assert tuple(share.devices for share in pod.ask.shares) == counts


def test_more_devices_than_can_be_counted_are_told(tmp_path: Path) -> None:
    told: list[str] = []
    [node] = read_nodes(written(tmp_path, plain_node("huge", "20")), told.append)
    assert (node.devices, told) == (16, ["node huge offers 20 devices: 16 of them count"])
    refused: list[str] = []
    items = [whole_pod("wide", "20"), whole_pod("fine", "1")]
    assert len(read_pods(written(tmp_path, {"kind": "List", "items": items}), refused.append)) == 1
    assert refused == ["default/wide: a share on 20 devices: 1 to 16 are possible"]


def test_csv_is_read_as_before_and_json_may_be_gziped(tmp_path: Path) -> None:
    csv = tmp_path / "nodes.csv"
    csv.write_text("sn,cpu_milli,memory_mib,gpu,model\nn1,1000,1000,2,A\n")
    assert read_nodes(csv) == [NodeSpec("n1", 1000, 1000, 2, "A")]
    packed = tmp_path / "nodes.json.gz"
    packed.write_bytes(gzip.compress(json.dumps({"kind": "NodeList", "items": [plain_node("a", "1")]}).encode()))
    assert read_nodes(packed)[0].devices == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"kind": "List", "items": [{"kind": "Node"', "it is cut off, or no JSON: get it again with kubectl"),
        ('{"kind": "List", "items": []}', "an empty list: is it the right file?"),
        ('{"kind": "PodList", "items": []}', "it has a PodList, Nodes are needed: were the files mixed up?"),
        ('{"kind": "List", "items": [{"kind": "Pod"}]}', "it has a Pod, Nodes are needed: were the files mixed up?"),
        ('{"kind": "Node", "metadata": {}}', "a node without a name: get it again"),
        ("{" * 100_000, "it is cut off, or no JSON"),
        ("[" * 100_000, "it is cut off, or no JSON"),
        ("[]", "a list without its kind: get it again with kubectl get nodes -o json"),
        ("apiVersion: v1\nitems:\n", "it is YAML or a table, JSON or CSV is needed: get it again with kubectl"),
        ("NAME   STATUS\nn1   Ready\n", "it is YAML or a table, JSON or CSV is needed"),
        ('{"kind": "Node", "metadata": {"name": "cpu-only"}}', "no node offers sharepod.io/gpu or nvidia.com/gpu: get"),
        ('{"kind": "List", "items": [1, null, "x"]}', "an empty list: is it the right file?"),
        ('{"kind": "\\u001b[31m' + "x" * 5000 + '"}', "it has a '\\x1b[31mxxx"),
        ('{"items": "x", "kind": "NodeList"}', "an empty list"),
        ('{"kind": "Node", "metadata": {"name": "a", "labels": 7}, "status": {"allocatable": [1]}}', "no node offers"),
        ('{"kind": "Status", "message": "Unauthorized"}', "it has a Status, Nodes are needed"),
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


def test_a_node_that_is_there_twice_is_named(tmp_path: Path) -> None:
    items = [plain_node("a", "1"), plain_node("b", "1"), plain_node("a", "1")]
    with pytest.raises(TraceError, match="node a is there twice: give each its own name"):
        read_nodes(written(tmp_path, {"kind": "List", "items": items}))


def test_a_list_without_a_pod_that_can_be_placed_is_an_error(tmp_path: Path) -> None:
    refused = {"kind": "List", "items": [{**pod_body("a", 30, {"sharepod.io/limit": "1"}), "kind": "Pod"}]}
    with pytest.raises(TraceError, match="no pod of it can be placed"):
        read_pods(written(tmp_path, refused))
