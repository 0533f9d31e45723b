"""The dashboard, the alerts and the scraping: they name what docs/metrics.md has, and nothing else."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from kustomize import render
from manifests import ADDITIONS, INSTALLS

from rig import REPO_ROOT
from sharepod.process.options import Options
from sharepod.scheduler.settings import OPTIONS as SCHEDULER_OPTIONS
from sharepod.webhook.settings import OPTIONS as WEBHOOK_OPTIONS

FOLDER = ADDITIONS["monitoring"]
OF_PROMETHEUS = {"up": {"job", "instance"}}
ENDS = {"histogram": ("_bucket", "_sum", "_count")}
Object = dict[str, Any]


def documented() -> dict[str, set[str]]:
    """Return the labels of each series that the manuals list, with those that the PodMonitors add to a target's."""
    found: dict[str, set[str]] = {}
    for page, of_target in (("metrics.md", "node"), ("scheduler-metrics.md", "pod"), ("webhook-metrics.md", "pod")):
        labels: set[str] = set()
        for line in (REPO_ROOT / "docs" / page).read_text().splitlines():
            if line.startswith("## "):
                labels = {of_target}
            elif line.startswith("Labels: "):
                labels = {of_target, *re.findall(r"`(\w+)`", line)}
            elif row := re.match(r"\| `(\w+)` \| (\w+) \| (.*)", line):
                beside = set(re.findall(r"`(\w+)`", row[3].partition("Labels beside: ")[2]))
                for end in ENDS.get(row[2], ("",)):
                    found[row[1] + end] = labels | beside | ({"le"} if end == "_bucket" else set())
    return found


SERIES = documented() | OF_PROMETHEUS
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES = [
    rule
    for group in yaml.safe_load((FOLDER / "prometheusrule.yaml").read_text())["spec"]["groups"]
    for rule in group["rules"]
]
QUERIES = [
    *[(rule["alert"], rule["expr"], " ".join(rule["annotations"].values())) for rule in RULES],
    *[
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in PANELS
        for target in panel["targets"]
    ],
]  # fmt: skip


def selectors(node: object) -> Iterator[promql.VectorSelector]:
    """Yield what an expression selects."""
    if isinstance(node, promql.VectorSelector):
        yield node
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        if (inner := getattr(node, name, None)) is not None:
            yield from selectors(inner)
    for inner in getattr(node, "args", None) or ():
        yield from selectors(inner)


def test_the_manual_is_read() -> None:
    assert "sharepod_share_used_seconds_total" in SERIES
    assert "gpu" in SERIES["sharepod_device_healthy"]


@pytest.mark.parametrize(("title", "query", "text"), QUERIES)
def test_every_query_is_one_over_series_and_labels_that_exist(title: str, query: str, text: str) -> None:
    for variable, duration in (("$__rate_interval", "5m"), ("$__range", "1h")):
        query = query.replace(variable, duration)
    found = list(selectors(promql.parse(query)))
    assert found, title
    shared = set.intersection(*(SERIES[one.name] for one in found))
    for one in found:
        assert {matcher.name for matcher in one.matchers.matchers} <= SERIES[one.name]
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"\b(?:by|on|ignoring|group_left) ?\(([^)]*)\)", query))))
    assert grouped <= shared
    shown = set(re.findall(r"{{ ?(?:\$labels\.)?(\w+) ?}}", text)) - {"value"}
    assert shown <= (grouped or shared)


def test_no_two_panels_overlap_and_each_has_its_own_number() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_variables_of_the_dashboard_are_labels_of_series_that_exist() -> None:
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((\w+)(?:{.*})?, (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
            assert label in SERIES[series]
    used = set(re.findall(r"\$(\w+)", " ".join(query for _, query, _ in QUERIES)))
    assert used <= names | {"__rate_interval", "__range"}


def test_every_alert_says_how_bad_it_is_and_what_to_look_at() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}


def of_monitoring(kind: str) -> list[Object]:
    return [item for item in render(FOLDER) if item["kind"] == kind]


def test_the_agents_port_is_scraped_under_the_labels_of_the_holder() -> None:
    [monitor] = [item for item in of_monitoring("PodMonitor") if item["metadata"]["name"] == "sharepod"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
    assert endpoint["scheme"] == "https"
    assert endpoint["relabelings"] == [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}]
    [daemonset] = [item for item in render(INSTALLS["default"]) if item["kind"] == "DaemonSet"]
    template = daemonset["spec"]["template"]
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    assert selected <= template["metadata"]["labels"].items()
    [agent] = [item for item in template["spec"]["containers"] if item["name"] == "agent"]
    [port] = agent["ports"]
    assert port["name"] == endpoint["port"]
    [settings] = [item for item in render(FOLDER) if item["metadata"]["name"] == "sharepod-metrics"]
    assert settings["data"]["SHAREPOD_METRICS_LISTEN"].endswith(f":{port['containerPort']}")
    maps = [source["configMapRef"] for source in agent["envFrom"]]
    assert {"name": "sharepod-metrics", "optional": True} in maps
    mounted = {Path(mount["mountPath"]) for mount in agent["volumeMounts"]}
    for key in ("TLS_CERTIFICATE", "TLS_KEY", "TOKEN_FILE"):
        assert Path(settings["data"][f"SHAREPOD_METRICS_{key}"]).parent in mounted


@pytest.mark.parametrize(
    ("name", "container", "folder", "options"),
    [
        ("scheduler", "scheduler", "gates", SCHEDULER_OPTIONS),
        ("webhook", "webhook", "compatibility", WEBHOOK_OPTIONS),
    ],
)
def test_the_port_is_scraped_with_tls_and_a_token(
    name: str, container: str, folder: str, options: Options[Any]
) -> None:
    objects = {item["kind"]: item for item in render(FOLDER) if name in item["metadata"]["name"]}
    [endpoint] = objects["PodMonitor"]["spec"]["podMetricsEndpoints"]
    [deployment] = [item for item in render(FOLDER.parent / folder) if item["kind"] == "Deployment"]
    template = deployment["spec"]["template"]
    selected = objects["PodMonitor"]["spec"]["selector"]["matchLabels"].items()
    assert selected <= template["metadata"]["labels"].items()
    [process] = [item for item in template["spec"]["containers"] if item["name"] == container]
    [port] = [item for item in process["ports"] if item["name"] == endpoint["port"]]
    assert endpoint["scheme"] == "https"
    settings = objects["ConfigMap"]
    assert {"configMapRef": {"name": settings["metadata"]["name"], "optional": True}} in process["envFrom"]
    given = {item["name"]: item["value"] for item in process["env"]}
    found = options.parse([], {**given, **settings["data"]})
    assert found.metrics_listen.endswith(f":{port['containerPort']}")
    [mount] = [item for item in process["volumeMounts"] if item["name"] == "metrics"]
    [volume] = [item for item in template["spec"]["volumes"] if item["name"] == "metrics"]
    assert volume["secret"]["optional"] is True
    assert {Path(name).parent for name in (found.metrics_tls_certificate, found.metrics_token_file)} == {
        Path(mount["mountPath"])
    }
