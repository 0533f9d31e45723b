"""Measures what sharing itself costs: per launch, and per hand-off."""

import dataclasses
import time
from collections.abc import Mapping, Sequence

from bench.bars import figures
from bench.bars.bar import HAND_OFF, IDLE, LAUNCH
from bench.bars.rig import Node, Rig, run, run_once
from bench.table import Line, micro
from rig import programs
from rig.loads import Load, Terms, saturating
from rig.programs import Result

GROUP = 256
COUNTED_NS = 2_000_000_000
NOTHING = "no-op driver"
STREAMS = (1, 2, 64)
"""Numbers of streams. The launches go to the streams in turn."""
NOOP_DRIVER = ("noop_driver.c", "noop/libcuda.so.1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
"""Source, output and compiler flags of the no-op driver."""

# ---- per launch ----


def noop_driver(node: Node) -> dict[str, str]:
    """Return the environment in which a program of the node runs on the no-op driver, as on the node's only device."""
    driver = programs.build(*NOOP_DRIVER)
    uuid = node.uuid.partition("-")[2].replace("-", "")
    return {"LD_LIBRARY_PATH": str(driver.parent), "NOOP_UUID": uuid}


def _per_launch_ns(result: Result) -> float:
    return figures.median(result.batch_ns) / int(result.other["group"])


def _pairs(rig: Rig, command: Sequence[str], *, noop: bool) -> tuple[list[float], list[float]]:
    """Return the added ns per launch of every pair of runs, and the bare ns per launch.

    The two runs of a pair follow each other directly, so a slow phase of the machine affects both.
    """
    added, bare = [], []
    with rig.node() as node:
        own: Mapping[str, str] = noop_driver(node) if noop else {}
        hooked, without = {**node.share("a", Terms(100)), **own}, {**node.environment, **own}
        for _ in range(rig.scale.cost_pairs):
            bare.append(_per_launch_ns(run_once(command, without)))
            added.append(_per_launch_ns(run_once(command, hooked)) - bare[-1])
        limit_ns = time.monotonic_ns() + COUNTED_NS  # a turn counts once it has ended; its process has only just gone
        while not (turned := _turned(node)) and time.monotonic_ns() < limit_ns:
            time.sleep(0.02)
    if not turned:
        raise RuntimeError("the share held no turn: the hook was not there, its cost was not measured")
    return added, bare


def _turned(node: Node) -> bool:
    accounts = node.accounts()
    return not accounts or accounts["a"].turns > 0  # a peer keeps no accounts


def launch(rig: Rig) -> list[Line]:
    """Measure what the hook adds to a launch with an open gate: on an empty driver, and on one with a device."""
    # On the simulated driver the driver's own noise hides the difference: it is shown, not judged.
    options: dict[str, object] = {"unit": "20ns", "group": GROUP}
    own = rig.command("cost", {**options, "count": rig.scale.cost_batches})
    lines = []
    try:
        for streams in STREAMS:
            noop = programs.load_command("cost", {**options, "count": rig.scale.noop_batches, "streams": streams})
            lines.append(_launch_line(NOTHING, streams, *_pairs(rig, noop, noop=True)))
    except (programs.BuildFailed, OSError) as error:
        lines.append(Line(LAUNCH.figure.format(NOTHING), f"≤ {LAUNCH.bound} ns", f"not built: {error}"))
    added, bare = _pairs(rig, own, noop=False)
    return [*lines, _launch_line(rig.driver, 1, added, bare, judged=rig.real)]


def _launch_line(driver: str, streams: int, added: list[float], bare: list[float], *, judged: bool = True) -> Line:
    without = f"(a launch: {figures.median(bare):.1f} ns)"
    detail = {"pairs_ns": added, "bare_ns": bare}
    bar = dataclasses.replace(LAUNCH, excusable=driver != NOTHING)  # the driver's own paths are the hardware's
    case = driver if streams == 1 else f"{driver}, {streams} streams in turn"
    return bar.line(case, figures.median(added), judged=judged, no_hook=without, detail=detail)


# ---- per hand-off ----


def hand_off(rig: Rig) -> list[Line]:
    """Measure holder drained → next share's launch at the driver, against a bare futex chain in the same run."""
    scale = rig.scale
    before = programs.chain_ns(scale.chain_rounds, 1000)
    # Each program synchronises after every kernel and then stays away for longer than the keeper lingers. The
    # others always wait. So every hand-off follows a complete drain, and no lingering holder delays it.
    loads = dict.fromkeys("abcd", Load(Terms(25), "sync", {"unit": "1ms", "gap": "1ms"}))
    drained = [h for h in figures.hand_offs(run(rig, loads, scale.short_steps, log=True).kernels) if h.bubble_ns > 0]
    chain = figures.median([*before, *programs.chain_ns(scale.chain_rounds, 1000)])
    saturated = run(rig, {"a": saturating(50), "b": saturating(50)}, scale.short_steps, log=True)
    bubbles = [h.bubble_ns for h in figures.hand_offs(saturated.kernels)]
    if not drained or not bubbles:
        raise ValueError("no hand-off was seen: the shares never took turns")
    without = None
    if scale.baselines:
        bare = figures.hand_offs(run(rig, loads, scale.bare_steps, hook=False, log=True).kernels)
        bare_ns = [h.bubble_ns for h in bare if h.bubble_ns > 0]
        without = figures.median(bare_ns) if bare_ns else None  # the device's own slices may leave no gap
    released = [h.released_ns for h in drained]
    detail = {"hand_offs": len(drained), "p99": micro(figures.percentile(released, 99)), "chain_p50": micro(chain)}
    overlapped = {"hand_offs": len(bubbles), "p99": micro(figures.percentile(bubbles, 99))}
    idle = figures.median([h.bubble_ns for h in drained])
    return [
        HAND_OFF.line(micro(chain), figures.median(released), bound=HAND_OFF.bound * chain, detail=detail),
        IDLE.line("such a hand-off, p50", idle, judged=False, no_hook=without),
        IDLE.line("an overlapped hand-off, p50, saturated", figures.median(bubbles), judged=False, detail=overlapped),
    ]
