"""Test the metrics that a real agent serves, read back with the parser of prometheus_client."""

import errno
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from agent_doubles import H200, MemoryArbiter, ask, identity
from agent_fixtures import failed_start
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from rig import REPO_ROOT
from rig.agent import MakeAgent, RunningAgent, free_port, metered, program, python, scrape, usage
from rig.until import until
from sharepod.agent.devices.device import DeviceStatus, NodeStatus
from sharepod.agent.metrics import feed, plugin
from sharepod.agent.metrics.collector import (
    DEVICE_LABELS,
    DEVICE_ROWS,
    SHARE_INFO_LABELS,
    SHARE_LABELS,
    SHARE_ROWS,
    TABLES,
    NodeMetrics,
    manual,
)
from sharepod.agent.native import NativeArbiter
from sharepod.agent.shares.registry import Registry
from sharepod.agent.shares.share import (
    HAND_OFF_BOUNDS_NS,
    TURN_BOUNDS_NS,
    Handle,
    Histogram,
    ShareState,
    Usage,
)
from sharepod.process.metrics import HistogramRow
from sharepod.process.metrics_server import Pages
from sharepod.proto import v1_pb2 as pb

INFO_NAME = "sharepod_share_info"
HISTOGRAMS = WAITS_NAME, TURNS_NAME = "sharepod_share_turn_wait_seconds", "sharepod_share_turn_seconds"
HAND_OFFS_NAME = "sharepod_device_hand_off_seconds"
HISTOGRAM_LINES = len(TURN_BOUNDS_NS) + 3
SHARE_LINES = sum(HISTOGRAM_LINES if isinstance(row, HistogramRow) else 1 for row in SHARE_ROWS)
ALL_TABLES = (*TABLES, *plugin.TABLES, *feed.TABLES)
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
"""The Accept header that Prometheus sends."""
COPIES_AND_LAUNCHES = """
import sys
from rig.driver import *
function, address = kernel(start(), "k_1ms"), c_uint64()
ok(cuda.cuMemAlloc_v2(byref(address), c_size_t(4096)))
for _ in range(5):
    ok(cuda.cuMemcpyHtoD_v2(address, bytes(4096), c_size_t(4096)))
for _ in range(50):
    ok(launch(function))
ok(cuda.cuCtxSynchronize())
print("done", flush=True)
sys.stdin.read()
"""
POD = {
    "namespace": "team-a", "pod": "train-0", "container": "main", "pod_uid": "0b7f9a44-5d0a-4c5e-9d0c-2b5c7c1e2f3a",
    "owner": "Job/train",
}  # fmt: skip


def read(text: str) -> dict[str, Metric]:
    """Return the metrics by name; a name that comes twice is an error."""
    found: dict[str, Metric] = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        assert name not in found
        found[name] = family
    return found


def of_share(text: str, share: str) -> dict[str, list[Sample]]:
    """Return the samples of one share by metric name."""
    found = {name: [s for s in m.samples if s.labels.get("share") == share] for name, m in read(text).items()}
    return {name: samples for name, samples in found.items() if samples}


def counters(text: str, share: str) -> dict[str, float]:
    """Return the counters of a share that has one device."""
    found = of_share(text, share)
    return {name: found[name][0].value for name in found if name.endswith("_total")}


def test_every_metric_of_the_manual_is_served_as_valid_openmetrics_too(make_agent: MakeAgent) -> None:
    address = f"127.0.0.1:{free_port()}"
    agent = make_agent("--metrics-listen", address).start()
    assert agent.stub.GetNode(pb.GetNodeRequest()).metrics_address == address
    share = agent.register(30, labels=POD).share
    families = re.findall(r"^# TYPE (\S+)", scrape(address), re.MULTILINE)
    assert families == [row.name for table in ALL_TABLES for row in table.rows]
    asked = urllib.request.Request(f"http://{address}/metrics", headers={"Accept": OPENMETRICS})
    with urllib.request.urlopen(asked, timeout=5) as answer:  # noqa: S310 - of the loopback
        found = {one.name: one for one in openmetrics_families(answer.read().decode())}
    kinds = {"sharepod_share": "info", "sharepod_share_turns": "counter", WAITS_NAME: "histogram"}
    assert {name: found[name].type for name in kinds} == kinds
    assert [one.labels["share"] for one in found["sharepod_share"].samples] == [share.id]


def spent_of(text: str) -> dict[tuple[str, str, str], float]:
    """Return the device time used by namespace, workload and user."""
    samples = read(text)["sharepod_spent_seconds_total"].samples
    return {(s.labels["namespace"], s.labels["owner"], s.labels["user"]): s.value for s in samples}


def test_a_job_that_begins_and_ends_between_two_scrapes_is_seen(make_agent: MakeAgent) -> None:
    address = f"127.0.0.1:{free_port()}"
    agent = make_agent("--metrics-listen", address, "--keep-series", "4").start()
    ids = []
    for labels in (POD, {}):
        with python({"PATH": os.environ["PATH"]}, "-c", "print(1, flush=True); input()") as (owner, _):
            answer = agent.register(30, name="short", labels=labels, owner_pid=owner.pid)
            with python(metered(answer), "-c", COPIES_AND_LAUNCHES):
                until(lambda: usage(agent, "short").launches == 50)
        until(lambda: not agent.shares())
        ids.append(answer.share.id)
    text = scrape(address)
    assert [counters(text, one)["sharepod_share_launches_total"] for one in ids] == [50, 50]
    spent = spent_of(text)
    used = [counters(text, one)["sharepod_share_used_seconds_total"] for one in ids]
    assert spent == {("team-a", POD["owner"], ""): used[0], ("", "", pwd.getpwuid(os.getuid()).pw_name): used[1]}
    assert min(used) > 0
    gauges = {row.name for row in SHARE_ROWS if row.kind == "gauge"}
    assert not any(of_share(text, one).keys() & gauges for one in ids), "as if they were still there"
    assert "namespace=team-a pod=train-0" in next(line for line in agent.log().splitlines() if "share ended" in line)
    until(lambda: ids[1] not in scrape(address), timeout_s=10)
    assert spent_of(scrape(address)) == spent
    agent.stop(signal.SIGKILL)
    agent.start()
    assert spent_of(scrape(address)) == spent
    agent.stop()
    assert not (agent.directory / "checkpoint.json").exists(), "a planned stop without shares leaves nothing"


@pytest.mark.parametrize("ends", ["before the scrape", "after it", "not"])
def test_no_counter_of_a_share_falls_when_the_agent_is_killed(make_agent: MakeAgent, ends: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    agent = make_agent("--metrics-listen", address).start()
    answer, other = agent.register(30, name="a", device="0"), agent.register(30, name="b", device="0")
    with program(metered(other)):
        killed_thrice(agent, address, answer, ends)


def killed_thrice(agent: RunningAgent, address: str, answer: pb.RegisterShareResponse, ends: str) -> None:
    """Kill the agent three times, each time with a program in the share that waits for another share."""
    for number in range(1, 4):
        with python(metered(answer), "-c", COPIES_AND_LAUNCHES) as (process, _):
            until(lambda: usage(agent, "a").launches == number * 50)  # noqa: B023 - it is called at once
            if ends == "before the scrape":
                process.kill()
                until(lambda: usage(agent, "a").processes == 0)
            before = counters(scrape(address), answer.share.id)
            if ends == "after it":
                process.kill()
                until(lambda: usage(agent, "a").processes == 0)
            agent.stop(signal.SIGKILL)
            agent.start()
            after = counters(scrape(address), answer.share.id)
            assert {name: value for name, value in after.items() if value < before[name]} == {}
    assert after["sharepod_share_waited_seconds_total"] > 0
    assert after["sharepod_share_launches_total"] == 3 * 50
    assert after["sharepod_share_host_to_device_copies_total"] == 3 * 5


def test_the_manual_of_the_metrics_is_current() -> None:
    assert (REPO_ROOT / "docs" / "metrics.md").read_text() == manual()


def test_a_taken_metrics_address_is_named(make_agent: MakeAgent) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        agent = make_agent("--metrics-listen", address)
        code, output = failed_start(agent)
    assert code == 1
    assert output == (
        f"sharepod agent: metrics address {address}: Address already in use: "
        "choose another with --metrics-listen, or off\n"
    )
    assert not agent.directory.exists()


def test_a_scrape_is_of_now(make_agent: MakeAgent) -> None:
    address = f"127.0.0.1:{free_port()}"
    make_agent("--metrics-listen", address).start()
    seen = []
    for _ in range(6):
        found = re.search(r"^sharepod_device_decisions_total{.*} (\S+)$", scrape(address), re.MULTILINE)
        assert found
        seen.append(float(found[1]))
        time.sleep(0.25)
    # An idle arbiter decides ten times a second, so the values are fresher than the checkpoint's, which is seconds old.
    assert all(later > earlier for earlier, later in pairwise(seen)), seen


def test_every_series_of_a_share_names_its_pod_is_zero_until_its_first_call_and_goes_with_it(
    make_agent: MakeAgent,
) -> None:
    address = f"127.0.0.1:{free_port()}"
    flags = ("--node-name", "gpu-node-7", "--policy", "closed", "--keep-series", "0")
    agent = make_agent("--metrics-listen", address, *flags).start()
    of_pod = agent.register(30, 60, 2**30, device="1", name="a", labels=POD).share
    alone = agent.register(30, 60, 2**30, device="1").share
    device = agent.stub.GetNode(pb.GetNodeRequest()).devices[1]
    terms = {
        "sharepod_share_request_ratio": 0.3,
        "sharepod_share_limit_ratio": 0.6,
        "sharepod_share_memory_limit_bytes": 2.0**30,
        "sharepod_share_region_usable": 1.0,
        INFO_NAME: 1.0,
    }
    text = scrape(address)
    for share, pod in ((of_pod, {key: POD[key] for key in ("namespace", "pod", "container")}), (alone, {})):
        found = of_share(text, share.id)
        assert set(found) == {row.name for row in SHARE_ROWS}
        for name, samples in found.items():
            assert {sample.value for sample in samples} == {terms.get(name, 0.0)}, name
        [info] = found.pop(INFO_NAME)
        expected = {"share": share.id, "gpu": "1", **pod}
        for samples in found.values():
            for sample in samples:
                assert {key: value for key, value in sample.labels.items() if key != "le"} == expected
        assert info.labels == expected | {
            "node": "gpu-node-7", "name": share.name, "class": "standard", "pod_uid": POD["pod_uid"] if pod else "",
            "UUID": device.uuid, "modelName": device.name, "policy": "closed",
        }  # fmt: skip
        assert set(info.labels) <= {*SHARE_LABELS, *SHARE_INFO_LABELS}
    (sample,) = (s for s in read(text)[DEVICE_ROWS[0].name].samples if s.labels["gpu"] == "1")
    assert set(sample.labels) == set(DEVICE_LABELS)
    assert (sample.labels["UUID"], sample.labels["modelName"]) == (device.uuid, device.name)

    agent.stub.PauseShare(pb.PauseShareRequest(share="a"))
    agent.stub.UpdateShare(pb.UpdateShareRequest(share="a", share_class=pb.SHARE_CLASS_BATCH))
    found = of_share(scrape(address), of_pod.id)
    assert found["sharepod_share_paused"][0].value == 1
    assert found[INFO_NAME][0].labels["class"] == "batch"
    agent.stub.ReleaseShare(pb.ReleaseShareRequest(share="a"))
    assert of_pod.id not in scrape(address)


def test_two_programs_at_work_show_what_they_used_and_how_long_they_waited(make_agent: MakeAgent) -> None:
    address = f"127.0.0.1:{free_port()}"
    agent = make_agent("--metrics-listen", address).start()
    first, second = (agent.register(50, device="0", labels=POD | {"container": name}) for name in ("a", "b"))

    def value(name: str, share: str) -> float:
        return float(of_share(scrape(address), share)[name][0].value)

    with program(metered(first)), program(metered(second)):
        for answer in (first, second):
            share = answer.share.id
            until(lambda share=share: value("sharepod_share_turns_total", share) >= 20)
            until(lambda share=share: value("sharepod_share_used_ratio", share) > 0)
            until(lambda share=share: value("sharepod_share_used_last_second_ratio", share) > 0)
            assert value("sharepod_share_hook_attached", share) == 1
    for answer in (first, second):
        share = answer.share.id
        until(lambda share=share: value("sharepod_share_hook_attached", share) == 0)
        found = of_share(scrape(address), share)  # now nothing changes any more
        assert found["sharepod_share_used_seconds_total"][0].value > 0
        totals = {name: _of_histogram(found[name], found["sharepod_share_turns_total"][0].value) for name in HISTOGRAMS}
        # A share waits for its turns, and perhaps at its end for a turn that it did not get.
        assert 0 < totals[WAITS_NAME] <= found["sharepod_share_waited_seconds_total"][0].value
        # Turns of two shares may overlap during a drain; the used time is then divided between them.
        assert totals[TURNS_NAME] >= found["sharepod_share_used_seconds_total"][0].value * 0.99
    [hand_offs] = [
        s for s in read(scrape(address))[HAND_OFFS_NAME].samples if s.name.endswith("_count") and s.labels["gpu"] == "0"
    ]
    assert hand_offs.value > 0


def test_the_launches_of_a_turn_that_does_not_end_are_counted_meanwhile(agent: RunningAgent) -> None:
    # Work is always queued behind the running kernel and no other share wants the device, so the turn does not end.
    command = [sys.executable, "-m", "sharepod.cli.demo.program", "--seconds", "60", "--kernel-us", "2000"]
    with subprocess.Popen(command, env=metered(agent.register(50, name="steady")), stdout=subprocess.DEVNULL) as busy:
        try:
            until(lambda: usage(agent, "steady").launches > 100)
            before, turns = usage(agent, "steady").launches, usage(agent, "steady").turns
            until(lambda: usage(agent, "steady").launches > before + 200)
            assert usage(agent, "steady").turns == turns
        finally:
            busy.kill()


def _of_histogram(samples: list[Sample], count: float) -> float:
    """Return the sum of a histogram that must have this count."""
    buckets = [s.value for s in samples if s.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    ends = {s.name.rpartition("_")[2]: s.value for s in samples if not s.name.endswith("_bucket")}
    assert buckets[-1] == ends["count"] == count
    return ends["sum"]


def test_turns_waits_and_hand_offs_are_counted_by_the_bounds_that_python_knows() -> None:
    with closing(NativeArbiter()) as arbiter:
        assert tuple(arbiter._lib.sp_turn_bounds_ns) == TURN_BOUNDS_NS
        assert tuple(arbiter._lib.sp_hand_off_bounds_ns) == HAND_OFF_BOUNDS_NS


class Still:
    """A node that takes its status from a registry; it has no event loop to ask."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.identity = identity(Path())

    def status_from_thread(self) -> NodeStatus:
        return NodeStatus(0, self._registry.statuses((), 0), (DeviceStatus(H200),))


def test_every_number_of_the_account_is_in_the_row_that_is_named_for_it(tmp_path: Path) -> None:
    arbiter = MemoryArbiter()
    registry = Registry(arbiter, tmp_path, [H200])
    share = registry.register(ask(30, 60, memory=2**30), unix_ns=1, now_ns=0)
    arbiter.usages[Handle(1)] = [
        Usage(
            used_ns=1_500_000_000, charged_ns=2_500_000_000, estimated_ns=500_000_000, waited_ns=4_500_000_000,
            overrun_ns=250_000_000, turns=7, launches=8, passed=9, cogrants=10, faults=11, memory_used_bytes=12,
            memory_overhead_bytes=-13, memory_refused_bytes=14, memory_refusals=15, processes=16,
            state=ShareState.WAITING, host_to_device_bytes=17, device_to_host_bytes=18, host_to_device_copies=19,
            device_to_host_copies=20, beside_ns=125_000_000,
        )
    ]  # fmt: skip
    counts = (5, 0, 3, *(0,) * (len(TURN_BOUNDS_NS) - 4), 1, 2)
    arbiter.turn_times[Handle(1), 0] = Histogram(counts, 2_500_000_000), Histogram()
    arbiter.region_errors[share.directory] = errno.EPROTO
    registry.check_regions()
    text = Pages(NodeMetrics(Still(registry))).answer("")[1].decode()  # type: ignore[arg-type]
    found = of_share(text, share.id)
    values = {name.removeprefix("sharepod_share_"): samples[0].value for name, samples in found.items()}
    del values["turn_wait_seconds"], values["turn_seconds"], values["used_ratio"], values["used_last_second_ratio"]
    assert values == {
        "used_seconds_total": 1.5, "charged_seconds_total": 2.5, "estimated_seconds_total": 0.5,
        "waited_seconds_total": 4.5, "overrun_seconds_total": 0.25, "turns_total": 7, "launches_total": 8,
        "passed_launches_total": 9, "cogrants_total": 10, "faults_total": 11, "memory_refusals": 15,
        "request_ratio": 0.3, "limit_ratio": 0.6, "memory_used_bytes": 12, "memory_limit_bytes": 2**30,
        "memory_overhead_bytes": -13, "processes": 16, "hook_attached": 1, "region_usable": 0, "waiting": 1,
        "paused": 0, "yielding": 0, "info": 1, "host_to_device_bytes_total": 17,
        "device_to_host_bytes_total": 18, "host_to_device_copies_total": 19, "device_to_host_copies_total": 20,
        "beside_seconds_total": 0.125,
    }  # fmt: skip
    waits = found[WAITS_NAME]
    by_bound = {s.labels["le"]: s.value for s in waits if s.name.endswith("_bucket")}
    assert [by_bound[bound] for bound in ("0.0001", "0.001", "0.002", "0.5", "1.0", "+Inf")] == [5, 5, 8, 8, 9, 11]
    assert {s.name.rpartition("_")[2]: s.value for s in waits[-2:]} == {"count": 11, "sum": 2.5}
