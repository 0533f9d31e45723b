"""Test that dashboard, alerts and scraping name only series that docs/metrics.md has, and with its labels."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
from manifests import OBJECTS, named, one, pod_of

from bench.cluster import prometheus
from rig import REPO_ROOT
from sharepod.agent.settings import OPTIONS as AGENT
from sharepod.process.options import Options
from sharepod.scheduler.settings import OPTIONS as SCHEDULER
from sharepod.webhook.settings import OPTIONS as WEBHOOK

OF_PROMETHEUS = {"up": {"job", "instance"}}
ENDS = {"histogram": ("_bucket", "_sum", "_count")}


def documented() -> dict[str, set[str]]:
    """Return the labels of each series that the manuals list, with the labels that the PodMonitors add for a target."""
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
DASHBOARD = json.loads((prometheus.FOLDER / "dashboard.json").read_text())
RULES = [rule for group in prometheus.manifest("prometheusrule.yaml")["spec"]["groups"] for rule in group["rules"]]
QUERIES = [
    *[(rule["alert"], rule["expr"], " ".join(rule["annotations"].values())) for rule in RULES],
    *[(panel.title, query.expression, query.legend) for panel in prometheus.panels() for query in panel.queries],
]


def selectors(node: object) -> Iterator[promql.VectorSelector]:
    """Yield the selectors of an expression."""
    if isinstance(node, promql.VectorSelector):
        yield node
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        if (inner := getattr(node, name, None)) is not None:
            yield from selectors(inner)
    for inner in getattr(node, "args", None) or ():
        yield from selectors(inner)


@pytest.mark.parametrize(("title", "query", "text"), QUERIES)
def test_every_query_is_one_over_series_and_labels_that_exist(title: str, query: str, text: str) -> None:
    for variable, duration in (("$__rate_interval", "5m"), ("$__range", "1h")):
        query = query.replace(variable, duration)
    found = list(selectors(promql.parse(query)))
    assert found, title
    shared = set.intersection(*(SERIES[selector.name] for selector in found))
    for selector in found:
        assert {matcher.name for matcher in selector.matchers.matchers} <= SERIES[selector.name]
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"\b(?:by|on|ignoring|group_left) ?\(([^)]*)\)", query))))
    assert grouped <= shared
    shown = set(re.findall(r"{{ ?(?:\$labels\.)?(\w+) ?}}", text)) - {"value"}
    assert shown <= (grouped or shared)


def test_the_variables_of_the_dashboard_are_labels_of_series_that_exist() -> None:
    names = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((\w+)(?:{.*})?, (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
            assert label in SERIES[series]
    used = set(re.findall(r"\$(\w+)", " ".join(query for _, query, _ in QUERIES)))
    assert used <= names | {"__rate_interval", "__range"}


@pytest.mark.parametrize(
    ("name", "folder", "options"),
    [("agent", "default", AGENT), ("scheduler", "gates", SCHEDULER), ("webhook", "compatibility", WEBHOOK)],
)
def test_a_process_is_scraped_with_tls_and_a_token_at_the_port_where_its_settings_have_it_listen(
    name: str, folder: str, options: Options[Any]
) -> None:
    """Check the manifests; test_prometheus.py shows the labels and answers of an agent's scrape."""
    ours = OBJECTS["monitoring"]
    suffix = "" if name == "agent" else f"-{name}"
    [monitor] = [
        item for item in ours if item["kind"] == "PodMonitor" and item["metadata"]["name"] == f"sharepod{suffix}"
    ]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    pod, settings = pod_of(folder), one(ours, "ConfigMap", f"sharepod{suffix}-metrics")
    assert endpoint["scheme"] == "https"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    process = named(pod["spec"]["containers"], name)
    assert {"configMapRef": {"name": settings["metadata"]["name"], "optional": True}} in process["envFrom"]
    given = {item["name"]: item["value"] for item in process["env"] if "value" in item}
    found = options.load({}, {**given, **settings["data"]})
    assert found.metrics_listen.endswith(f":{named(process['ports'], endpoint['port'])['containerPort']}")
    assert named(pod["spec"]["volumes"], "metrics")["secret"]["optional"] is True
    folders = {Path(file).parent for file in (found.metrics_tls_certificate, found.metrics_token_file)}
    assert folders == {Path(named(process["volumeMounts"], "metrics")["mountPath"])}
