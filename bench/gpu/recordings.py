"""The traces of three real programs, recorded on this GPU and left beside the results; a dry run records replays."""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.gpu.census import find_cupti
from bench.gpu.frameworks import command, missing
from bench.gpu.host import Host
from bench.gpu.record import convert, read_kernels, read_log
from bench.gpu.report import Line
from bench.traces.format import Trace, TraceError
from rig.programs import ProgramFailed, build

NAMES = ("training", "server", "launch-bound")
SECONDS = 3.0
TIMEOUT_S = 40.0


def _replay(host: Host, name: str) -> list[str]:
    path = Path(__file__).resolve().parents[1] / "traces" / f"{name}.trace"
    seconds = f"seconds={300 if host.simulated else 3000}ms"
    return [str(build("replay.c", "replay", "-lpthread")), str(path), seconds, "warm=50ms"]


def _record(host: Host, name: str, cupti: Path | None) -> Trace:
    """Run a program under the recorder and return its trace. Raises ProgramFailed, TraceError, OSError."""
    log, report = host.directory / f"{name}.log", host.directory / f"{name}.cupti"
    own = {"LD_PRELOAD": str(host.built.record), "RECORD_LIBRARY": str(host.built.record), "RECORD_OUTPUT": str(log)}
    if cupti is not None:
        own |= {"CUDA_INJECTION64_PATH": str(host.built.cupti), "CUPTI_LIBRARY": str(cupti), "RECORD_EVENTS": "0"}
        own |= {"CUPTI_KERNELS": "1", "CUPTI_REPORT": str(report)}
    run = _replay(host, name) if host.simulated else command(f"record-{name}", SECONDS)
    environment: Mapping[str, str] = {**host.environment, **own}
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if done.returncode:
        raise ProgramFailed(f"{name}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    if "not_here" in told:
        raise ProgramFailed(told["not_here"])
    launches: Sequence[Sequence[int]] | None = None
    if cupti is not None:
        launches = read_kernels(report.with_name(f"{report.name}.kernels").read_text(encoding="utf-8"))
    driver = "simulated" if host.simulated else ""
    what = " ".join(Path(word).name for word in run)
    return convert(read_log(log.read_text(encoding="utf-8")), name, what, driver, time.strftime("%Y-%m-%d"), launches)


def record(host: Host) -> list[Line]:
    """Record the three programs; with CUPTI's durations where it saw the same launches, else by pairs of events."""
    absent = [] if host.simulated else missing(("torch",))
    if absent:
        return [Line("traces recorded", "", "not here: this python3 has no torch")]
    cupti = None if host.simulated else find_cupti()
    lines = []
    for name in NAMES:
        why = ""
        try:
            trace = _record(host, name, cupti)
        except (TraceError, OSError) as error:
            if cupti is None:
                raise
            why = f"; not by CUPTI: {error}"
            trace = _record(host, name, None)
        path = (host.directory if host.simulated else host.results) / f"{name}.trace"
        path.write_text(trace.text(), encoding="utf-8")
        text = f"{len(trace.kernels)} kernels, {len(trace.graphs)} graphs, {path.stat().st_size} bytes"
        lines.append(Line(f"trace recorded: {name}", "", f"{text}, by {trace.header['durations']}{why}"))
    return lines
