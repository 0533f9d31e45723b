"""Runs nvidia-smi and NVML inside a share: they have to show the share, although they know nothing of it."""

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping

from bench.gpu.host import Host
from bench.gpu.node import Node
from bench.table import Line
from rig.loads import Load, Terms
from rig.programs import ProgramFailed

CAPS_MIB = {"a": 4096, "b": 8192}
SECONDS = 6
PROCESSES = "--query-compute-apps=pid"
STAND_IN = """
import sys, pynvml as nvml
nvml.nvmlInit()
device = nvml.nvmlDeviceGetHandleByUUID(sys.argv[1].partition("=")[2])
if "memory" in sys.argv[2]:
    print(nvml.nvmlDeviceGetMemoryInfo(device).total >> 20)
else:
    print(*(process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(device)), sep="\\n")
"""
"""Asks NVML the same. nvidia-smi itself reads the list of processes from a table inside the library, past NVML's
functions, so it shows what the pid namespace allows. It needs the real driver."""


def _ask(tool: list[str], uuid: str, query: str, environment: Mapping[str, str]) -> list[int]:
    """Return the sorted numbers that a tool prints for a query about the device, run in this environment."""
    command = [*tool, f"--id={uuid}", query, "--format=csv,noheader,nounits"]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise ProgramFailed(f"`nvidia-smi {query}`: exit {done.returncode}: {(done.stderr or done.stdout)[-300:]}")
    return sorted(int(word) for word in done.stdout.split())


def _ask_both(tool: list[str], host: Host, node: Node, query: str) -> dict[str, list[int]]:
    return {name: _ask(tool, host.device.uuid, query, node.inside(name)) for name in CAPS_MIB}


def inside(host: Host) -> list[Line]:
    """Ask for the device's memory and its processes inside each of two shares with a running program."""
    found = shutil.which("nvidia-smi")
    if not host.simulated and found is None:
        return [Line("nvidia-smi inside a share", "", "it is not on this machine")]
    asks = [sys.executable, "-c", STAND_IN]
    tool = asks if host.simulated else [str(found)]
    loads = {
        name: Load(Terms(50, memory_bytes=mib << 20), "saturate", {"unit": "500us"}) for name, mib in CAPS_MIB.items()
    }
    with Node(host) as node:
        programs = node.start(loads, SECONDS)
        now_ns = time.monotonic_ns()
        for program in programs.values():
            program.go(now_ns, now_ns + SECONDS * 1_000_000_000)
        time.sleep(0.5)
        total = _ask_both(tool, host, node, "--query-gpu=memory.total")
        listed = _ask_both(tool, host, node, PROCESSES)
        pids = _ask_both(asks, host, node, PROCESSES) if importlib.util.find_spec("pynvml") else None
        own = {name: [program.pid] for name, program in programs.items()}
        for program in programs.values():
            program.result()
    capped = total == {name: [mib] for name, mib in CAPS_MIB.items()}
    lines = [Line("nvidia-smi inside a share: memory", "its cap", f"{total['a'][0]} and {total['b'][0]} MiB", capped)]
    if pids is None:
        lines.append(Line("NVML inside a share: processes", "its own", "not here: this python3 has no pynvml"))
    else:
        shown = "its own" if pids == own else f"{pids}"
        lines.append(Line("NVML inside a share: processes", "its own", shown, pids == own))
    if not host.simulated:
        lines.append(Line("nvidia-smi inside a share: processes", "", "its own" if listed == own else f"{listed}"))
    return lines
