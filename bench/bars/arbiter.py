"""Measures the machine itself, and the agent's arbiter with many shares on one simulated device."""

import mmap
import os
import time
from pathlib import Path

import grpc

from bench.bars import figures
from bench.bars.bar import AGENT, DECISION
from bench.scale import Scale
from bench.table import Line, micro
from rig.loads import Load, Terms
from rig.node import Node
from rig.programs import chain_ns
from sharepod.proto import v1_pb2, v1_pb2_grpc

SHARES = 64
TURNS_PER_S = 500
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


# ---- the machine ----


def _touch_ns() -> list[float]:
    """Return the cost of touching a page that rested for half a second, beyond that of touching it again."""
    pages = 2048
    memory = bytearray(pages * mmap.PAGESIZE)
    found: list[float] = []
    for _ in range(5):
        time.sleep(0.5)
        began_ns = time.perf_counter_ns()
        memory[:: mmap.PAGESIZE]  # reads one byte of each page
        again_ns = time.perf_counter_ns()
        memory[:: mmap.PAGESIZE]
        first_ns, second_ns = again_ns - began_ns, time.perf_counter_ns() - again_ns
        found.append((first_ns - second_ns) / pages)
    return found


def machine(scale: Scale) -> list[Line]:
    """Measure the machine itself with nothing else running: the delay of bare wake-ups, and the cost of cold memory.

    No row below can be better than these. Some hypervisors take pages away that rest for a moment; a thread that runs
    twice a second then pays for every page again.
    """
    hops = chain_ns(scale.short_s * 600, 500)
    late = sum(hop > 1_000_000 for hop in hops) / len(hops)
    figures_ = f"{micro(figures.median(hops))} / {micro(figures.percentile(hops, 99))} / {max(hops) / 1e6:.1f} ms"
    touch_ns = figures.median(_touch_ns())
    return [
        Line("the machine alone: a bare futex chain, p50 / p99 / longest", "", figures_, None),
        Line("the machine alone: such chains that take more than 1 ms", "", f"{late:.2%}", None),
        Line("the machine alone: a page that rested for 0.5 s", "", micro(touch_ns), None),
    ]


# ---- the arbiter ----


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def node_of(socket: Path) -> v1_pb2.GetNodeResponse:
    """Return the node as its agent describes it."""
    with grpc.insecure_channel(f"unix:{socket}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = v1_pb2_grpc.NodeServiceStub(channel)
        answer: v1_pb2.GetNodeResponse = stub.GetNode(v1_pb2.GetNodeRequest(), timeout=10)
    return answer


def _decisions(socket: Path) -> tuple[int, int]:
    """Return the number of the arbiter's decisions on the first device, and the time that they took."""
    device = node_of(socket).devices[0]
    return device.decisions, device.decision_ns


def arbiter(scale: Scale) -> list[Line]:
    """Measure the arbiter with 64 shares on one device, at about 500 turns a second."""
    period_ms = SHARES * 1000 // TURNS_PER_S
    load = Load(Terms(1), "periodic", {"unit": "500us", "work": "500us", "period": f"{period_ms}ms"})
    with Node() as node:
        programs = [node.start(f"s{i}", load) for i in range(SHARES)]
        start_ns = time.monotonic_ns() + 300_000_000
        end_ns = start_ns + (scale.short_s + 2) * 1_000_000_000
        for place, program in enumerate(programs):
            program.go(start_ns + place * period_ms * 1_000_000 // SHARES, end_ns)
        time.sleep(1.3)  # the programs have then worked for a second
        # The processor time is read innermost: asking for the turns is not the arbiter's work.
        turns_before = len(node.turns())
        first = (cpu_s(node.agent_pid), turns_before, *_decisions(node.socket), time.monotonic())
        time.sleep(scale.short_s)
        last = (cpu_s(node.agent_pid), len(node.turns()), *_decisions(node.socket), time.monotonic())
        for program in programs:
            program.result()
    worked_s, turns, decisions, decision_ns, seconds = (
        after - before for before, after in zip(first, last, strict=True)
    )
    rate = turns / seconds
    percent = worked_s / seconds * 100 * (TURNS_PER_S / rate if rate else float("inf"))
    detail = {"turns_per_s": rate, "cpu_percent": worked_s / seconds * 100, "decisions": decisions}
    what = f"{SHARES} shares on a device"
    scaled = f"{what}, of a core, scaled to {TURNS_PER_S} turns/s ({rate:.0f} measured)"
    return [
        DECISION.line(what, decision_ns / decisions if decisions else float("inf"), detail=detail),
        AGENT.line(scaled, percent, detail=detail),
    ]
