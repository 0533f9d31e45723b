"""Lists that cannot be are refused with their line, and nothing of them is used."""

import gzip
from pathlib import Path

import pytest

from sharepod.scheduler.ask import NodeSpec, PodAsk, ShareAsk
from sharepod.scheduler.errors import TraceError
from sharepod.scheduler.trace import NamedPod, read_nodes, read_pods

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,P100\nn2,8000,32768,0,\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n"
    "whole,12000,16384,1,1000,,LS\nwide,1,2,8,1000,,LS\npart,1,2,1,460,A|B,BE\nnone,3,4,0,0,,LS\n"
)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_lists_are_read_plain_and_packed(tmp_path: Path) -> None:
    packed = tmp_path / "nodes.csv.gz"
    packed.write_bytes(gzip.compress(NODES.encode()))
    nodes = [NodeSpec("n1", 64_000, 262_144, 2, "P100"), NodeSpec("n2", 8000, 32_768, 0)]
    assert read_nodes(packed) == read_nodes(write(tmp_path / "nodes", NODES)) == nodes
    assert read_pods(write(tmp_path / "pods", PODS)) == [
        NamedPod("whole", PodAsk(12_000, 16_384, (ShareAsk(1000, 1, 0),))),
        NamedPod("wide", PodAsk(1, 2, (ShareAsk(1000, 8, 0),))),
        NamedPod("part", PodAsk(1, 2, (ShareAsk(460, 1, 0),), frozenset("AB"))),
        NamedPod("none", PodAsk(3, 4)),
    ]


def test_what_spreadsheets_and_people_write_is_read(tmp_path: Path) -> None:
    spaced = "\ufeff" + PODS.replace(",", ", ", 6)
    assert read_pods(write(tmp_path / "spaced", spaced)) == read_pods(write(tmp_path / "pods", PODS))


def test_a_list_without_models_is_for_any(tmp_path: Path) -> None:
    text = "\n".join(",".join(line.split(",")[:5]) for line in PODS.splitlines())
    assert all(not pod.ask.models for pod in read_pods(write(tmp_path / "pods", text)))


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
