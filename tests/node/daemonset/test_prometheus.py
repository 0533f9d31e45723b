"""Test a real Prometheus on a real agent, both set up by the manifests, while programs run on simulated GPUs."""

import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.cluster import prometheus
from bench.cluster.pods import Pod, Pods
from bench.cluster.prometheus import Monitoring, Panel, Prometheus, Query, Series
from rig import REPO_ROOT
from rig.node import Node
from rig.programs import Program, fill_command, load_command
from rig.until import until

INTERVAL_S = 1.0
RUN_S = 14
RATE_S = 8.0
MIB = 1 << 20
TRAIN = Pod("train-0", 70)
SERVE = Pod("serve-0", 30)
IDLE = Pod("idle-0", 10, limit=20, device="1", namespace="team-b")
PAUSED = Pod("paused-0", 20, share_class="batch", device="1", namespace="team-b")
STEP_BYTES = 16 * MIB
GREEDY = Pod("greedy-0", 10, memory_bytes=4 * STEP_BYTES + 4096, device="1", namespace="team-b")
PODS = (TRAIN, SERVE, IDLE, PAUSED, GREEDY)
PANELS = [panel for panel in prometheus.panels() if panel.queries]
SATURATED = load_command("saturate", {"unit": "500us"})


@dataclass
class Watched:
    """A node that was watched for a while, and the Prometheus that watched it."""

    pods: Pods
    prometheus: Prometheus
    measured_s: float
    """A time shortly before the programs ended, in seconds since the epoch."""

    def one(self, expression: str) -> Series:
        [found] = self.prometheus.query(expression, self.measured_s)
        return found


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="sharepod-test-", dir="/dev/shm"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def monitoring(directory: Path) -> Monitoring:
    if shutil.which(prometheus.PROGRAM) is None:
        pytest.skip("Prometheus is needed: apt install prometheus")
    return Monitoring(directory, "n1")


@pytest.fixture(scope="module")
def watched(monitoring: Monitoring, directory: Path) -> Iterator[Watched]:
    settings = {**monitoring.agent_settings(), "keep_series": "10"}
    with Node("2xH200", agent_settings=settings) as node, Prometheus(monitoring, directory, INTERVAL_S) as prometheus:
        pods = Pods(node)
        for pod in PODS:
            pods.admit(pod)
        pods.pause(PAUSED)
        for pod in PODS:  # before any program has called CUDA
            zero = f'sharepod_share_used_seconds_total{{pod="{pod.name}"}} == 0'
            until(lambda zero=zero: prometheus.query(zero), zero)
        programs = [pods.start(pod, SATURATED) for pod in (TRAIN, SERVE, PAUSED)]
        greedy = pods.start(GREEDY, fill_command("grow", {"bytes": STEP_BYTES, "every": "500ms"}))
        yield _watch(pods, prometheus, [*programs, greedy])


def _watch(pods: Pods, prometheus: Prometheus, programs: list[Program]) -> Watched:
    start_ns = time.monotonic_ns() + 100_000_000
    for program in programs:
        program.go(start_ns, start_ns + RUN_S * 1_000_000_000)
    time.sleep(RUN_S - 1)
    measured_s = time.time()
    train, serve, paused, greedy = programs
    for program in (train, serve, greedy):
        program.result()
    pods.pause(PAUSED, paused=False)
    paused.result()
    time.sleep(2 * INTERVAL_S)
    return Watched(pods, prometheus, measured_s)


# ---- the scrape


def test_the_agent_is_scraped_with_tls_and_a_token_and_shown_to_nobody_else(watched: Watched) -> None:
    [target] = watched.prometheus.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    assert target["scrapeUrl"].startswith("https://")
    assert watched.one('up{job="sharepod/sharepod"}').value == 1
    address = target["labels"]["instance"]
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(f"https://{address}/metrics", timeout=10)


def test_series_have_the_labels_of_the_pod_that_holds_the_share_not_of_the_agents(watched: Watched) -> None:
    labels = dict(watched.one('sharepod_share_request_ratio{pod="serve-0"}').labels)
    expected = {key: SERVE.labels[key] for key in ("namespace", "pod", "container")} | {"gpu": "0", "node": "n1"}
    assert expected.items() <= labels.items()
    assert not [name for name in labels if name.startswith("exported_")]
    device = watched.one('sharepod_device_healthy{gpu="0"}').labels
    assert (device["namespace"], device["pod"]) == ("sharepod", prometheus.POD_LABELS["pod"])


def test_a_join_with_the_information_adds_what_a_series_does_not_repeat(watched: Watched) -> None:
    page = (prometheus.FOLDER.parent.parent / "docs" / "metrics.md").read_text()
    [join] = re.findall(r"^    (sharepod_share_used_ratio .*)$", page, re.MULTILINE)
    found = {one.labels["pod"]: one.labels for one in watched.prometheus.query(join, watched.measured_s)}
    assert set(found) == {pod.name for pod in PODS}
    assert found[PAUSED.name]["class"] == "batch"
    assert found[SERVE.name]["UUID"].startswith("GPU-")
    [info] = watched.prometheus.query('sharepod_share_info{pod="serve-0"}', watched.measured_s)
    assert (info.labels["pod_uid"], info.labels["modelName"]) == (SERVE.labels["pod_uid"], "NVIDIA H200")


# ---- what it says


@pytest.mark.parametrize(
    ("panel", "query"),
    [(panel, query) for panel in PANELS for query in panel.queries],
    ids=lambda item: item.title if isinstance(item, Panel) else item.expression.partition("{")[0],
)
def test_every_query_of_the_dashboard_has_data_and_legends(watched: Watched, panel: Panel, query: Query) -> None:
    found = watched.prometheus.query(query.filled(RATE_S, RUN_S), watched.measured_s)
    pods = {one.labels["pod"] for one in found if "share" in one.labels}
    assert found
    if pods:
        capped = {GREEDY.name} if "memory_limit" in query.expression else None
        assert pods == (capped or {pod.name for pod in PODS})
    legends = [query.title(one.labels) for one in found]
    if query.legend:
        assert len(set(legends)) == len(legends)
        assert all(legend.strip("/ ") == legend for legend in legends), legends


# ---- alerts


def test_an_allocation_that_is_refused_raises_its_alert(watched: Watched) -> None:
    fired = watched.prometheus.query('max_over_time(ALERTS{alertname="SharePodMemoryRefused"}[1m])')
    assert [one.labels["pod"] for one in fired] == [GREEDY.name]


def unit_test(case: dict[str, Any], rule: dict[str, Any]) -> dict[str, Any]:
    """Return a case of alerts.yaml as a unit test of promtool; texts that the case omits come from the rule."""

    def alert(one: dict[str, Any]) -> dict[str, Any]:
        said = {key: one.get(key, text) for key, text in rule["annotations"].items()}
        return {"exp_labels": one["labels"], "exp_annotations": said}

    checks = [
        {"eval_time": at, "alertname": case["alert"], "exp_alerts": [alert(one) for one in firing]}
        for at, firing in case["at"].items()
    ]
    series = [{"series": name, "values": values} for name, values in case["series"].items()]
    return {"name": case["case"], "interval": "1m", "input_series": series, "alert_rule_test": checks}


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is needed: apt install prometheus")
    (tmp_path / "rules.yaml").write_text(prometheus.rules())
    rules = {rule["alert"]: rule for group in yaml.safe_load(prometheus.rules())["groups"] for rule in group["rules"]}
    cases = yaml.safe_load((REPO_ROOT / "tests" / "support" / "daemonset" / "alerts.yaml").read_text())
    for fires in (True, False):
        assert {case["alert"] for case in cases if fires in map(bool, case["at"].values())} == set(rules)
    tests = [unit_test(case, rules[case["alert"]]) for case in cases]
    written = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(written))
    for command in (["promtool", "check", "rules", "rules.yaml"], ["promtool", "test", "rules", "alerts.yaml"]):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


# ---- the bill


def test_the_manuals_expression_has_the_time_of_jobs_that_are_shorter_than_a_scrapes_interval(watched: Watched) -> None:
    page = (REPO_ROOT / "docs" / "metrics.md").read_text()
    [bill] = re.findall(r"^    (sharepod_spent_seconds_total\n +- .*)$", page, re.MULTILINE)
    used_s = 0.0
    for number in range(4):
        job = Pod(f"job-{number}", 5, device="1", namespace="team-d")
        watched.pods.admit(job)
        program = watched.pods.start(job, SATURATED)
        start_ns = time.monotonic_ns() + 50_000_000
        program.go(start_ns, start_ns + int(INTERVAL_S * 2e8))
        program.result()
        used_s += watched.pods.release(job)
    assert used_s > 0.1
    expression = (
        f'sum by (namespace) ({bill}) and on (namespace) sharepod_spent_shares_total{{namespace="team-d"}} == 4'
    )
    # The last job is counted from its start on: so the first scrape that counts four may have only a part of its time.

    def found() -> list[float]:
        return [one.value for one in watched.prometheus.query(expression)]

    until(lambda: found() == pytest.approx([used_s], abs=1e-6), lambda: f"{used_s} s used, billed: {found()}")


# ---- the end of a pod; this test makes its own pod, so it may run at any time


def test_a_pods_series_go_with_it(watched: Watched) -> None:
    pod = Pod("short-0", 5, device="1", namespace="team-c")
    series = f'{{__name__=~"sharepod_share_.*",pod="{pod.name}"}}'
    watched.pods.admit(pod)
    until(lambda: watched.prometheus.query(series), series)
    assert len(watched.prometheus.query(series)) == len(watched.prometheus.query(series.replace("short", "idle")))
    watched.pods.release(pod)
    requests = series.replace(".*", "request_ratio")
    until(lambda: not watched.prometheus.query(requests), requests)
    until(lambda: not watched.prometheus.query(series), series)
