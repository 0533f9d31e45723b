"""How long it takes to lock a process, to take its memory off the device, and to bring both back."""

import os
import time

from bench.gpu.host import Host
from bench.gpu.process import ask_once
from bench.gpu.report import Line, milli
from rig.programs import Program, ProgramFailed

HOST_PART = 0.6
"""Of the host's free memory: a checkpoint moves the device's into it."""


def _host_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _one(host: Host, size_gb: float) -> Line:
    size = int(size_gb * 1e9) // 4 * 4
    title = f"checkpoint of {size_gb:g} GB"
    room = min(host.free_bytes() - (1 << 30), int(_host_bytes() * HOST_PART))
    if size > room:
        return Line(title, "", f"not done: {room / 1e9:.0f} GB are free on device and host")
    program = Program("hold", [*host.probe("hold", bytes=size), "wait=1"], host.environment)
    try:
        program.await_ready()
        found = ask_once(host.probe("checkpoint", pid=program.pid), host.environment, 60 + 2 * size_gb)
        if "error" in found:
            return Line(title, "", f"refused: {found['error']}", None, "", found)
        program.go(time.monotonic_ns(), time.monotonic_ns() + 1)
        intact = program.result().other["intact"]
    finally:
        program.kill()
    store, load = (size / found[f"{step}_ns"] for step in ("checkpoint", "restore"))
    lock, unlock = milli(found["lock_ns"]), milli(found["unlock_ns"])
    text = f"lock {lock}, out {store:.1f} GB/s, back {load:.1f} GB/s, unlock {unlock}"
    return Line(title, "intact", f"{text}{'' if intact else ', MEMORY LOST'}", bool(intact), "", found)


def checkpoint(host: Host) -> list[Line]:
    """Checkpoint processes of growing size, the smallest first."""
    lines = []
    for size_gb in host.scale.checkpoint_gb:
        try:
            lines.append(_one(host, size_gb))
        except ProgramFailed as error:  # a larger one would fare no better
            lines.append(Line(f"checkpoint of {size_gb:g} GB", "", f"failed: {error}"))
            break
    return lines
