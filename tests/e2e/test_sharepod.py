"""Test SharePod on a cluster: pods get what they ask for, and keep it when parts of SharePod are killed.

The measure is what the simulated devices did, never SharePod's own account.
"""

import time
from collections.abc import Iterator

import pytest
from cluster import Cluster
from kubectl import wait_until
from observer import Looks
from prometheus_client.parser import text_string_to_metric_families
from sharepod_cluster import OURS, Pair, SharePod, container_of, gpu_pod, identity

pytestmark = pytest.mark.releases
STEADY_S = 4.0
BACK_S = 1.0
"""How long a share may be off after the killed part is back."""
NS = 1_000_000_000
TOLERANCE = 0.015
"""As a part of a device, over STEADY_S. `make bench` measures the design's bars, on a quiet machine."""


@pytest.fixture(scope="module")
def pair(sharepod: SharePod) -> Iterator[Pair]:
    """Start two pods that want the whole device, 70 to 30."""
    with sharepod.pods(gpu_pod("seventy", 70), gpu_pod("thirty", 30)) as (seventy, thirty):
        yield Pair(sharepod, seventy, thirty)


@pytest.fixture
def same(pair: Pair) -> Iterator[list[str]]:
    """Yield the ids of the pair's shares; after the test the pair must be unharmed and have the same shares."""
    before = [share.id for share in pair.shares()]
    yield before
    assert pair.unharmed()
    assert [share.id for share in pair.shares()] == before


def assert_exact(pair: Pair, looks: Looks) -> None:
    assert pair.are_divided(looks, 0.7, TOLERANCE), [pair.parts(second) for second in looks.seconds()]
    assert max(sum(pair.ratios(second)) for second in looks.seconds()) > 0.9


def looks_since(pair: Pair, began: float) -> Looks:
    """Return the looks since a time, over at least STEADY_S, as the tolerance does not hold for a single second."""
    time.sleep(max(0.0, began + STEADY_S - time.monotonic()))
    return pair.sharepod.looks_since(began)


def test_two_pods_get_70_and_30_of_one_device(pair: Pair) -> None:
    seventy, thirty = pair.shares()
    assert seventy.devices == thirty.devices
    assert_exact(pair, pair.steady(STEADY_S))


PYTHON_C = ["/opt/sharepod/bin/python", "-c"]
METRICS = """
import time, urllib.request
text = urllib.request.urlopen("http://127.0.0.1:9464/metrics").read().decode()
print(f"# {time.monotonic_ns()}\\n{text}")
"""


def used_seconds(pair: Pair) -> tuple[int, list[float]]:
    """Return the time of the node's monotonic clock, and the used seconds of each pod by the metrics."""
    text = pair.sharepod.agent(*PYTHON_C, METRICS)
    node = pair.sharepod.node()["metadata"]["name"]
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    used = {one.labels["share"]: one for one in samples if one.name == "sharepod_share_used_seconds_total"}
    found = {}
    for info in (one.labels for one in samples if one.name == "sharepod_share_info"):
        if info["pod_uid"] in pair.uids:
            assert {"node": node, "modelName": "NVIDIA H200"}.items() <= info.items()
            assert info["UUID"].startswith("GPU-")
            sample = used[info["share"]]
            assert {"namespace": "default", "container": "main", "gpu": info["gpu"]}.items() <= sample.labels.items()
            found[info["pod_uid"]] = sample.value
    return int(text.split()[1]), [found[uid] for uid in pair.uids]


def test_the_metrics_say_what_the_devices_did(pair: Pair) -> None:
    began_ns, before = used_seconds(pair)
    pair.steady(STEADY_S)
    ended_ns, after = used_seconds(pair)
    looks = pair.sharepod.looks((ended_ns - began_ns) / NS + 5).between(began_ns, ended_ns)
    told = [end - begin for begin, end in zip(before, after, strict=True)]
    assert told == pytest.approx([ratio * looks.span_ns / NS for ratio in pair.ratios(looks)], rel=0.05)


def assert_exact_since_the_agent_is_back(pair: Pair, began: float) -> None:
    """Assert exact shares from BACK_S after the first time since `began` in which no agent answered."""
    pair.steady(BACK_S + STEADY_S)
    looks = pair.sharepod.looks_since(began).all
    gone = [look.now_ns for look in looks if not look.agent]
    assert gone, "the agent was never away"
    back = next(look.now_ns for look in looks if look.now_ns > gone[-1])
    assert_exact(pair, Looks(looks).between(back + round(BACK_S * NS), back + round((BACK_S + STEADY_S) * NS)))


def test_shares_are_exact_again_a_second_after_their_agent_was_killed(pair: Pair, same: list[str]) -> None:
    began = time.monotonic()
    pair.sharepod.kill_container(pair.sharepod.own_pod(), "agent", OURS)
    assert_exact_since_the_agent_is_back(pair, began)


def test_shares_stay_exact_while_the_plugin_is_killed_and_the_next_pod_gets_one(pair: Pair, same: list[str]) -> None:
    began = time.monotonic()
    pair.sharepod.kill_container(pair.sharepod.own_pod(), "device-plugin", OURS)
    wait_until("the node offers devices again", lambda: pair.sharepod.offers(200))
    assert_exact(pair, looks_since(pair, began))
    with pair.sharepod.pods(gpu_pod("after-the-plugin", 10)) as (after,):
        [share] = pair.sharepod.shares(after)
        assert share.devices != pair.shares()[0].devices, "70 and 30 fill the other"


def test_a_killed_container_keeps_its_share_and_is_exact_a_second_after_its_start(pair: Pair) -> None:
    before = pair.shares()
    began = time.monotonic()
    pair.sharepod.kill_container("thirty", "main")
    pair.steady(BACK_S + STEADY_S)
    looks = pair.sharepod.looks_since(began)
    thirty = pair.sharepod.kubectl.get("pod", "thirty")
    pair.pods = (pair.pods[0], thirty)  # later tests must know its new container
    key = f"{thirty['metadata']['uid']}/{identity(container_of(thirty))}"
    running = next(look.now_ns for look in looks.all if any(name.startswith(key) for name in look.used_ns))
    assert_exact(pair, looks.between(running + round(BACK_S * NS), looks.all[-1].now_ns))
    assert pair.shares() == before


def test_a_limit_changes_while_the_pod_runs(pair: Pair, same: list[str]) -> None:
    annotate = pair.sharepod.kubectl
    try:
        annotate("annotate", "--overwrite", "pod", "seventy", "sharepod.io/limit=70")
        annotate("annotate", "--overwrite", "pod", "thirty", "sharepod.io/paused=true")
        seventy, thirty = pair.middle(pair.steady(STEADY_S))
        assert seventy == pytest.approx(0.7, abs=TOLERANCE)
        assert thirty == 0
    finally:
        annotate("annotate", "pod", "seventy", "sharepod.io/limit-")
        annotate("annotate", "pod", "thirty", "sharepod.io/paused-")
    assert_exact(pair, pair.steady(STEADY_S))


EXHAUST = """
import ctypes, time
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuInit(0)
context, address, device = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
cuda.cuDeviceGet(ctypes.byref(device), 0)
cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
held = 0
while not (error := cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(64 << 20))):
    held += 64
print(held, error, flush=True)
time.sleep(36000)
"""


def test_memory_ends_at_the_cap_and_the_others_do_not_notice(pair: Pair, same: list[str]) -> None:
    began = time.monotonic()
    greedy = gpu_pod("greedy", 10, {"sharepod.io/memory": "1Gi"}, container={"command": [*PYTHON_C, EXHAUST]})
    with pair.sharepod.pods(greedy) as (pod,):
        wait_until("the pod's answer", lambda: pair.sharepod.kubectl.logs("greedy") != "")
        assert pair.sharepod.kubectl.logs("greedy").split() == ["1024", "2"]  # CUDA_ERROR_OUT_OF_MEMORY
        [share] = pair.sharepod.shares(pod)
        assert share.memory_refusals == 1
        looks = looks_since(pair, began)
        [held] = {sum(n for key, n in looks.all[-1].memory_bytes.items() if key.startswith(pod["metadata"]["uid"]))}
        assert held == 1 << 30
    assert_exact(pair, looks)


def test_an_upgrade_touches_no_running_pod(pair: Pair, same: list[str]) -> None:
    began = time.monotonic()
    pair.sharepod.kubectl("rollout", "restart", "daemonset/sharepod", f"--namespace={OURS}")
    pair.sharepod.kubectl.rolled_out("daemonset/sharepod", OURS)
    assert_exact_since_the_agent_is_back(pair, began)


def test_shares_stay_exact_while_kubelet_is_killed(own_cluster: Cluster, pair: Pair, same: list[str]) -> None:
    began = time.monotonic()
    before = pair.sharepod.registrations()
    own_cluster.first.kill("kubelet")
    own_cluster.first.start("kubelet")
    # The node keeps saying that it offers devices, but kubelet fails pods for good until it knows the plugin again.
    wait_until("the plugin registered again", lambda: pair.sharepod.registrations() > before)
    wait_until("the node is ready", own_cluster.node_is_ready)
    with pair.sharepod.pods(gpu_pod("after-kubelet", 10)):
        assert_exact(pair, looks_since(pair, began))
