"""Measures the bill for work on several streams, alone and beside a share that is always busy."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from bench.bars.bar import BILL_ABOVE, KEPT
from bench.bars.figures import median
from bench.bars.rig import START_DELAY_NS
from bench.bars.simulated import SimulatedRig
from bench.scale import FULL
from bench.table import Line
from rig.loads import SECOND, Load, Terms
from rig.programs import streams_command

NEIGHBOUR = Load(Terms(50), "saturate", {"unit": "500us", "depth": 8, "warm": 3})


@dataclass(frozen=True, slots=True)
class Case:
    """A program of streams.c. `processes` of it run in one share."""

    what: str
    options: Mapping[str, object]
    processes: int = 1
    beside: bool = False
    gpu: Mapping[str, str] = field(default_factory=dict)
    """Settings of the simulated GPU."""
    devices: tuple[str, ...] = ("0",)
    """The devices of the program's share. The busy share has the first."""


TINY: Mapping[str, object] = {"units": "5us", "bursts": 10}
PAIR: Mapping[str, object] = {"kinds": "nn", "units": "200us", "bursts": 2}
BURSTS: Mapping[str, object] = {"kinds": "nnnn", "units": "20us", "bursts": 10, "sync": "context", "gap": "300us"}
MIXED: Mapping[str, object] = {"kinds": "nnn", "units": "5us,100us,2ms", "bursts": "100,10,1", "sync": "behind"}
KINDS: Mapping[str, object] = {"kinds": "lbn", "units": "100us,50us,200us", "bursts": 2}
THREADS: Mapping[str, object] = {"kinds": "p", "threads": 4, "units": "50us", "bursts": 8, "gap": "200us"}
FORK: Mapping[str, object] = {"kinds": "nnn", "units": "100us,300us,200us", "fork": 1}
GRAPHS: Mapping[str, object] = {"kinds": "nn", "units": "50us,30us", "graph": 10, "bursts": 2}
SLOW_COPIES = {"SIMGPU_PCIE_MB_S": "1000"}
"""They make a copy take 4 ms. Work that waits for the copy must not be billed for that time."""
BEHIND: Mapping[str, object] = {"units": "500us"}


def _behind(beside: bool) -> Iterator[Case]:
    """Yield programs with kernels that wait for what takes no device time."""
    for what, before in (
        ("an upload", "upload"),
        ("a download", "download"),
        ("a host function of 5 ms", "function"),
        ("a word after 5 ms", "word"),
    ):
        options = {**BEHIND, "before": before}
        yield Case(f"kernels of 500 µs, each behind {what}", options, beside=beside, gpu=SLOW_COPIES)
    far = {**BEHIND, "before": "device"}
    yield Case("a pipeline over two devices", far, beside=beside, devices=("0", "1"))


LOOP: Mapping[str, object] = {**BEHIND, "before": "upload"}
LINKS: Mapping[str, Mapping[str, str]] = {"at 25 GB/s": {}, "at 1 GB/s": SLOW_COPIES}
LOOPS = replace(KEPT, bound=0.95)
PAIRS, LOOPS_S = 3, 4
CASES = (
    Case("one stream, synchronised after ten 5 µs kernels", TINY),
    Case("2 streams, synchronised each round", PAIR),
    Case("4 streams, bursts of 20 µs kernels", BURSTS),
    Case("3 streams, kernels of 5 µs, 100 µs, 2 ms", MIXED),
    Case("legacy, blocking and non-blocking", KINDS),
    Case("4 threads with streams of their own", THREADS),
    Case("fork and join by events", FORK),
    Case("graphs on 2 streams", GRAPHS),
    Case("one stream, synchronised after ten 5 µs kernels", TINY, beside=True),
    Case("2 streams, synchronised each round", PAIR, beside=True),
    Case("fork and join by events", FORK, beside=True),
    Case("3 streams, kernels of 5 µs, 100 µs, 2 ms", MIXED, beside=True),
    Case("legacy, blocking and non-blocking", KINDS, beside=True),
    Case("3 processes in one share, 2 streams each", PAIR, processes=3, beside=True),
    # The device's changes between these processes are billed, but are no work in the device's own account.
    Case(
        "3 processes in one share, and the device changes between them for nothing",
        PAIR,
        processes=3,
        beside=True,
        gpu={"SIMGPU_DRAIN_SWITCH_US": "0", "SIMGPU_SWITCH_US": "0"},
    ),
    *(case for beside in (False, True) for case in _behind(beside)),
)


def bill_errors(rig: SimulatedRig, case: Case, seconds: float) -> dict[str, float]:
    """Return how far each share's bill is above the device's work for it, in percent of that work."""
    place = replace(rig, scale=FULL, gpu_settings={**rig.gpu_settings, **case.gpu}, devices=f"{len(case.devices)}xH200")
    with place.node() as node:
        environment = node.share("a", Terms(50, devices=case.devices))
        command = streams_command(case.options)
        programs = [node.add("a", command, environment) for _ in range(case.processes)]
        if case.beside:
            programs += node.start({"b": NEIGHBOUR}, seconds).values()
        start_ns = time.monotonic_ns() + START_DELAY_NS
        for program in programs:
            program.go(start_ns, start_ns + round(seconds * 1e9))
        for program in programs:
            program.result()
        time.sleep(0.05)  # the last turns drain
        return node.collect(time.monotonic_ns(), 0).bill_errors


def _rounds(rig: SimulatedRig, gpu: Mapping[str, str], *, hook: bool) -> float:
    """Return how many rounds a second two loops of an upload and a kernel do together."""
    length_ns = LOOPS_S * SECOND
    with replace(rig, gpu_settings={**rig.gpu_settings, **gpu}).node(hook=hook) as node:
        command = streams_command(LOOP)
        programs = [node.add(owner, command, node.share(owner, Terms(50))) for owner in "ab"]
        start_ns = time.monotonic_ns() + START_DELAY_NS
        for program in programs:
            program.go(start_ns, start_ns + length_ns)
        return sum(int(program.result().other["rounds"]) for program in programs) / length_ns * 1e9


def loops(rig: SimulatedRig) -> list[Line]:
    """Measure two loops of an upload and a kernel, each in its own share, relative to the same without the hook."""
    lines = []
    for what, gpu in LINKS.items():
        # The two runs of a pair follow each other directly, so a slow phase of the machine affects both.
        pairs = [[_rounds(rig, gpu, hook=hook) for hook in (True, False)] for _ in range(PAIRS)]
        kept = median([hooked / bare for hooked, bare in pairs])
        lines.append(LOOPS.line(f"two loops of a 4 MiB upload {what} and a 500 µs kernel ÷ no hook", kept))
    return lines


def measure(rig: SimulatedRig) -> list[Line]:
    """Measure the bill of every case in a short run, and what waiting programs lose."""
    lines = loops(rig)
    for case in CASES:
        errors = bill_errors(rig, case, rig.scale.short_s)
        where = "beside a busy share" if case.beside else "alone"
        worst = max(errors.values(), key=abs)
        bound, detail = BILL_ABOVE.under(rig.profile), {"percent": errors}
        lines.append(BILL_ABOVE.line(f"{where}: {case.what}", worst, bound=bound, detail=detail))
    return lines
