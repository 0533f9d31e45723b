"""Draw the dashboard of daemonset/monitoring as it looks over a short scenario: `python -m bench.cluster.dashboard`.

A real Prometheus scrapes a real agent while programs run in three pods on a simulated GPU; the pictures are the answers
to the dashboard's own queries, under its titles and legends. What Grafana adds (mouse, zoom, choices) is not there.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.cluster import charts
from bench.cluster.pods import Pod, Pods
from bench.cluster.prometheus import Monitoring, Panel, Prometheus, panels
from bench.entry import Parser, run
from rig.node import Node
from rig.programs import ProgramFailed, fill_command, load_command
from sharepod.cli.errors import CliError
from sharepod.cli.scratch import Scratch

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "images" / "dashboard.svg"
MIB = 1 << 20
STEP_BYTES = 256 * MIB
TRAIN = Pod("train-0", 60, share_class="standard")
SERVE = Pod("serve-0", 30, limit=50, memory_bytes=10 * STEP_BYTES)
NIGHTLY = Pod("nightly-0", 10, share_class="batch")
TABLE_LABELS = ("namespace", "pod", "container", "gpu")
INTERVAL_S = 1.0
RATE_S = 4.0
BEFORE_S, SERVES_S, PAUSED_S, RESUMED_S, RUN_S = 4, 14, 30, 40, 52
"""Seconds after the admission of the three pods: train and batch start, the service starts, batch is paused and
resumed, the end."""


def _play(pods: Pods) -> None:
    """Let train and batch run from the start. The service comes later, and takes more and more memory."""
    for pod in (TRAIN, SERVE, NIGHTLY):
        pods.admit(pod)
    began_ns = time.monotonic_ns()

    def at(seconds: float) -> int:
        return began_ns + round(seconds * 1e9)

    work = load_command("saturate", {"unit": "500us"})
    grow = fill_command("grow", {"bytes": STEP_BYTES, "every": "2s"})
    spans = [(TRAIN, work, BEFORE_S), (NIGHTLY, work, BEFORE_S), (SERVE, work, SERVES_S), (SERVE, grow, SERVES_S)]
    programs = [pods.start(pod, command) for pod, command, _ in spans]
    for program, (_, _, start_s) in zip(programs, spans, strict=True):
        program.go(at(start_s), at(RUN_S))
    for seconds, paused in ((PAUSED_S, True), (RESUMED_S, False)):
        time.sleep(max(0.0, (at(seconds) - time.monotonic_ns()) / 1e9))
        pods.pause(NIGHTLY, paused=paused)
    for program in programs:
        program.result()
    time.sleep(2 * INTERVAL_S)


def _chart(panel: Panel, prometheus: Prometheus, begin_s: float, end_s: float) -> charts.Chart:
    """Ask a panel's queries: over time, or at the end for a panel with one number."""
    lines: list[charts.Line] = []
    for query in panel.queries:
        text = query.filled(RATE_S, end_s - begin_s)
        if panel.kind == "timeseries":
            found = prometheus.query_range(text, begin_s, end_s, INTERVAL_S)
        else:
            found = prometheus.query(text, end_s)
        for series in found:
            title = query.title(series.labels) or "  ".join(series.labels[key] for key in TABLE_LABELS)
            lines.append(charts.Line(title, [(at_s - begin_s, value) for at_s, value in series.samples]))
    return charts.Chart(panel, lines)


def draw() -> str:
    """Play the scenario. Return the picture."""
    scratch = Scratch("sharepod-bench")
    try:
        monitoring = Monitoring(scratch.path, "gpu-node-1")
        with (
            Node(agent_settings=monitoring.agent_settings()) as node,
            Prometheus(monitoring, scratch.path, INTERVAL_S) as prometheus,
        ):
            while not prometheus.query("up == 1"):  # Prometheus looks for its targets every five seconds
                time.sleep(INTERVAL_S / 4)
            begin_s = time.time()
            _play(Pods(node))
            end_s = begin_s + RUN_S - INTERVAL_S
            shown = [_chart(panel, prometheus, begin_s, end_s) for panel in panels()]
    finally:
        scratch.remove()
    return charts.page(shown, end_s - begin_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the picture. Return the exit code."""
    parser = Parser(prog="python -m bench.cluster.dashboard", description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=PICTURE, help="the SVG file to write")
    file: Path = parser.parse_args(arguments).file
    file.write_text(draw(), encoding="utf-8")
    print(f"written: {file}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    run(main, ProgramFailed, CliError, OSError)
