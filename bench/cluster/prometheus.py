"""Runs a real Prometheus beside a real agent, both set up from the files of daemonset/monitoring, and queries it.

Prometheus is the program of that name in PATH. It listens on the loopback, keeps its samples in memory, and ends with
the `with` block. The commands of that folder's README make the agent's certificate and token.
"""

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rig.closing import Closing
from rig.cluster.apiserver import unused_port
from rig.programs import ProgramFailed

FOLDER = Path(__file__).resolve().parents[2] / "daemonset" / "monitoring"
PROGRAM = "prometheus"
POD_LABELS = {"namespace": "sharepod", "pod": "sharepod-x7x2k", "container": "agent", "endpoint": "metrics"}
"""Labels that Prometheus' operator adds to a target of a PodMonitor, besides the job, the address and relabelings."""
READY_S = 60.0
END_S = 20.0
ANSWER_S = 20.0


def manifest(name: str) -> dict[str, Any]:
    """Return a manifest of the folder."""
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return loaded


def rules() -> str:
    """Return the alerts as a file that Prometheus reads."""
    return yaml.safe_dump(manifest("prometheusrule.yaml")["spec"], sort_keys=False)


class Monitoring:
    """The Secret of the README as files, and the settings of agent and Prometheus for it."""

    def __init__(self, directory: Path, node: str) -> None:
        self._directory = directory
        self._node = node
        self.agent_address = f"127.0.0.1:{unused_port()}"
        readme = (FOLDER / "README.md").read_text(encoding="utf-8")
        block = re.search(r"^ *```\n(.*?)^ *kubectl", readme, re.DOTALL | re.MULTILINE)
        assert block is not None
        subprocess.run(["bash", "-ec", block[1]], cwd=directory, check=True, capture_output=True)
        shutil.copy(directory / "tls.crt", directory / "ca.crt")

    def agent_settings(self) -> dict[str, str]:
        """Return the agent's settings, with the files' paths here and an address of ours."""
        data: dict[str, str] = manifest("settings.yaml")["data"]
        settings = {
            name.removeprefix("SHAREPOD_").lower(): value.replace("/etc/sharepod-metrics", str(self._directory))
            for name, value in data.items()
        }
        return {**settings, "metrics_listen": self.agent_address, "node_name": self._node}

    def configuration(self, interval_s: float) -> dict[str, Any]:
        """Return Prometheus' configuration, as its operator derives it from the PodMonitor."""
        monitor = manifest("podmonitor.yaml")
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        metadata = monitor["metadata"]
        labels = {**POD_LABELS, "__meta_kubernetes_pod_node_name": self._node}
        files = {"ca": endpoint["tlsConfig"]["ca"]["secret"]["key"], "token": endpoint["authorization"]["credentials"]}
        return {
            "global": {"scrape_interval": f"{interval_s:g}s", "evaluation_interval": f"{interval_s:g}s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [
                {
                    "job_name": f"{metadata['namespace']}/{metadata['name']}",
                    "scheme": endpoint["scheme"],
                    "honor_labels": endpoint["honorLabels"],
                    "authorization": {"credentials_file": files["token"]["key"]},
                    "tls_config": {"ca_file": files["ca"], "server_name": endpoint["tlsConfig"]["serverName"]},
                    "static_configs": [{"targets": [self.agent_address], "labels": labels}],
                    "relabel_configs": [
                        {"source_labels": item["sourceLabels"], "target_label": item["targetLabel"]}
                        for item in endpoint["relabelings"]
                    ],
                }
            ],
        }

    def write(self, interval_s: float) -> Path:
        """Write configuration and alerts. Return the configuration's path."""
        (self._directory / "rules.yaml").write_text(rules(), encoding="utf-8")
        path = self._directory / "prometheus.yaml"
        path.write_text(yaml.safe_dump(self.configuration(interval_s)), encoding="utf-8")
        return path


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: its labels, and (seconds since the epoch, value) of each sample."""

    labels: Mapping[str, str]
    samples: Sequence[tuple[float, float]]

    @property
    def value(self) -> float:
        """The last sample's value."""
        return self.samples[-1][1]


class Prometheus(Closing):
    """A Prometheus that scrapes an agent; a context manager."""

    def __init__(self, monitoring: Monitoring, directory: Path, interval_s: float = 1.0) -> None:
        self._configuration = monitoring.write(interval_s)
        self._directory = directory
        self._address = f"127.0.0.1:{unused_port()}"
        self._process: subprocess.Popen[bytes] | None = None
        # The addresses are on the loopback: no proxy from the environment.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def open(self) -> None:
        """Start it, and wait until it answers."""
        if shutil.which(PROGRAM) is None:
            raise ProgramFailed(f"{PROGRAM} is missing: apt install {PROGRAM}")
        command = [
            PROGRAM, f"--config.file={self._configuration}", f"--web.listen-address={self._address}",
            f"--storage.tsdb.path={self._directory / 'tsdb'}", "--log.level=warn",
        ]  # fmt: skip
        log = self._directory / "prometheus.log"
        with log.open("wb") as sink:
            self._process = subprocess.Popen(command, stdout=sink, stderr=sink)
        deadline = time.monotonic() + READY_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ProgramFailed(f"{PROGRAM} does not answer: {log.read_text(errors='replace').strip()}")
            time.sleep(0.1)

    def close(self) -> None:
        """End it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ready(self) -> bool:
        try:
            with self._opener.open(f"http://{self._address}/-/ready", timeout=ANSWER_S):
                return True
        except OSError:
            return False

    def ask(self, path: str, **parameters: object) -> Any:
        """Return the data of an answer of its HTTP API. Raises ProgramFailed with Prometheus' words."""
        query = urllib.parse.urlencode({name: str(value) for name, value in parameters.items()})
        try:
            with self._opener.open(f"http://{self._address}/api/v1/{path}?{query}", timeout=ANSWER_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ProgramFailed(f"{PROGRAM}: {path}?{query}: {json.load(error)['error']}") from None

    def query(self, expression: str, at_s: float | None = None) -> list[Series]:
        """Return an expression's series at a time, by default now; for a range, all its samples."""
        at = {} if at_s is None else {"time": f"{at_s:.3f}"}
        return _series(self.ask("query", query=expression, **at))

    def query_range(self, expression: str, begin_s: float, end_s: float, step_s: float) -> list[Series]:
        """Return an expression's series over time."""
        return _series(self.ask("query_range", query=expression, start=begin_s, end=end_s, step=step_s))


def _series(data: Any) -> list[Series]:
    """Return the series of an answer: one without labels for a scalar."""
    if data["resultType"] == "scalar":
        return [Series({}, (_sample(data["result"]),))]
    return [
        Series(item["metric"], tuple(map(_sample, item["values"] if "values" in item else [item["value"]])))
        for item in data["result"]
    ]


def _sample(pair: Sequence[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])


# ---- the dashboard ----


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel, and the legend of its series."""

    expression: str
    legend: str

    def filled(self, rate_s: float, range_s: float) -> str:
        """Return the expression with its variables filled in, for these times."""
        text = self.expression
        for name, seconds in (("$__rate_interval", rate_s), ("$__range", range_s)):
            text = text.replace(name, f"{round(seconds * 1000)}ms")
        return re.sub(r"\$\w+", ".*", text)

    def title(self, labels: Mapping[str, str]) -> str:
        """Return a series' legend."""
        return re.sub(r"{{ ?(\w+) ?}}", lambda found: labels.get(found[1], ""), self.legend)


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard. Kind, unit and place are Grafana's."""

    title: str
    kind: str
    unit: str
    is_stacked: bool
    place: Mapping[str, int]
    queries: tuple[Query, ...]


def panels() -> list[Panel]:
    """Return the dashboard's panels, including its rows."""
    loaded = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    return [_panel(item) for item in loaded]


def _panel(item: Mapping[str, Any]) -> Panel:
    defaults = item.get("fieldConfig", {}).get("defaults", {})
    return Panel(
        item["title"],
        item["type"],
        defaults.get("unit", ""),
        defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal",
        item["gridPos"],
        tuple(Query(target["expr"], target["legendFormat"]) for target in item.get("targets", ())),
    )
