"""The vendor's own tool inside a share: it has to show the share, though nobody has told it of one."""

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
STAND_IN = """
import sys, pynvml as nvml
nvml.nvmlInit()
device = nvml.nvmlDeviceGetHandleByUUID(sys.argv[1].partition("=")[2])
if "memory" in sys.argv[2]:
    print(nvml.nvmlDeviceGetMemoryInfo(device).total >> 20)
else:
    print(*(process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(device)), sep="\\n")
"""
"""Asks NVML the same where the device is simulated: the tool is of the real driver."""


def _ask(tool: list[str], uuid: str, query: str, environment: Mapping[str, str]) -> list[int]:
    command = [*tool, f"--id={uuid}", query, "--format=csv,noheader,nounits"]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise ProgramFailed(f"`nvidia-smi {query}`: exit {done.returncode}: {(done.stderr or done.stdout)[-300:]}")
    return sorted(int(word) for word in done.stdout.split())


def inside(host: Host) -> list[Line]:
    """Ask for the device's memory and its processes inside each of two shares in which a program works."""
    found = shutil.which("nvidia-smi")
    if not host.simulated and found is None:
        return [Line("nvidia-smi inside a share", "", "it is not on this machine")]
    tool = [sys.executable, "-c", STAND_IN] if host.simulated else [str(found)]
    loads = {
        name: Load(Terms(50, memory_bytes=mib << 20), "saturate", {"unit": "500us"}) for name, mib in CAPS_MIB.items()
    }
    with Node(host) as node:
        programs = node.start(loads, SECONDS)
        now_ns = time.monotonic_ns()
        for program in programs.values():
            program.go(now_ns, now_ns + SECONDS * 1_000_000_000)
        time.sleep(0.5)
        total, pids = (
            {name: _ask(tool, host.device.uuid, query, node.inside(name)) for name in loads}
            for query in ("--query-gpu=memory.total", "--query-compute-apps=pid")
        )
        own = {name: [program.pid] for name, program in programs.items()}
        for program in programs.values():
            program.result()
    capped = total == {name: [mib] for name, mib in CAPS_MIB.items()}
    return [
        Line("nvidia-smi inside a share: memory", "its cap", f"{total['a'][0]} and {total['b'][0]} MiB", capped),
        Line("nvidia-smi inside a share: processes", "its own", "its own" if pids == own else f"{pids}", pids == own),
    ]
