"""What sharing itself costs: per launch, and per hand-off."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from bench import figures
from bench.gpu.host import Host
from bench.gpu.node import Node
from bench.table import Line, micro
from rig import programs
from rig.loads import Load, Terms, saturating
from rig.programs import Program, Result

GROUP = 256
COUNTED_NS = 2_000_000_000


def _per_launch_ns(result: Result) -> float:
    return figures.median(result.batch_ns) / int(result.other["group"])


def _run(command: Sequence[str], environment: Mapping[str, str]) -> float:
    program = Program("a", command, environment)
    try:
        program.await_ready().go(time.monotonic_ns(), time.monotonic_ns() + 60_000_000_000)
        return _per_launch_ns(program.result())
    finally:
        program.kill()


def _pairs(host: Host, cost: Callable[[Mapping[str, str]], float], own: Mapping[str, str]) -> tuple[float, float, int]:
    """Return the median added ns per launch, the median bare ns, and how many turns the share had.

    The two runs of a pair follow each other at once, so that a slow phase of the machine hits both.
    """
    added, bare = [], []
    with Node(host) as node:
        hooked = {**node.share("a", Terms(100)), **own}
        for _ in range(host.scale.cost_pairs):
            without = cost({**node.environment, **own})
            added.append(cost(hooked) - without)
            bare.append(without)
        limit_ns = time.monotonic_ns() + COUNTED_NS  # a turn counts when it has ended, and its process is just gone
        while not (turns := node.usage()["a"]["turns"]) and time.monotonic_ns() < limit_ns:
            time.sleep(0.02)
    if not turns:
        raise RuntimeError("the share held no turn: the hook was not there, its cost was not measured")
    return figures.median(added), figures.median(bare), turns


def launch(host: Host) -> list[Line]:
    """Measure what the hook adds to a launch while the gate is open: on this driver, and on one that is empty."""
    options: dict[str, object] = {"unit": "20ns", "group": GROUP, "count": host.scale.cost_batches}
    command = [*host.probe("cost", **options), "wait=1"]
    added, bare, turns = _pairs(host, lambda environment: _run(command, environment), {})
    host.facts["cuLaunchKernel_bare_ns"] = bare
    what = "added per launch, gate open: this driver"
    without = f"(a launch: {bare:.0f} ns)"
    lines = [Line(what, "≤ 20 ns", f"{added:.1f} ns", added <= 20, without, detail={"turns": turns}, excusable=True)]
    try:
        lines.append(_launch_on_nothing(host))
    except (subprocess.CalledProcessError, OSError) as error:
        lines.append(Line("added per launch, gate open: a driver that does nothing", "≤ 20 ns", f"not built: {error}"))
    return lines


def _launch_on_nothing(host: Host) -> Line:
    driver = programs.build("noop_driver.c", "noop/libcuda.so.1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    uuid = host.device.uuid.partition("-")[2].replace("-", "")
    own = {"LD_LIBRARY_PATH": str(driver.parent), "NOOP_UUID": uuid}
    command = programs.load_command("cost", {"unit": "20ns", "group": GROUP, "count": host.scale.noop_batches})
    added, bare, turns = _pairs(host, lambda environment: _run(command, environment), own)
    what = "added per launch, gate open: a driver that does nothing"
    return Line(what, "≤ 20 ns", f"{added:.1f} ns", added <= 20, f"(a launch: {bare:.1f} ns)", detail={"turns": turns})


def hand_off(host: Host) -> list[Line]:
    """Measure holder drained → next share's launch at the driver, against a bare futex chain in the same run."""
    rounds = host.scale.chain_rounds
    before = programs.chain_ns(rounds, 1000)
    # Each synchronises after every kernel and is then away for longer than the keeper lingers, and the others always
    # wait: every hand-off follows a drain that was complete, and no wish to keep the turn delays it.
    away = Load(Terms(25), "sync", {"unit": "1ms", "gap": "1ms"})
    with Node(host) as node:
        run = node.run(dict.fromkeys("abcd", away), host.scale.short_steps)
    passed = [h for h in figures.hand_offs(run.kernels) if h.bubble_ns > 0]
    chain = figures.median([*before, *programs.chain_ns(rounds, 1000)])
    with Node(host) as node:
        deep = node.run({"a": saturating(50), "b": saturating(50)}, host.scale.short_steps)
    bubbles = [h.bubble_ns for h in figures.hand_offs(deep.kernels)]
    with Node(host, hook=False) as node:
        bare = node.run(dict.fromkeys("abcd", away), host.scale.bare_steps)
    without = [h.bubble_ns for h in figures.hand_offs(bare.kernels) if h.bubble_ns > 0]
    if not passed or not bubbles:
        raise ValueError("no hand-off was seen: the shares never took turns")
    bar, released = 1.5 * chain, figures.median([h.released_ns for h in passed])
    detail = {
        "hand_offs": len(passed),
        "p99": micro(figures.percentile([h.released_ns for h in passed], 99)),
        "note": "the launch is stamped when it has returned: its own cost is included",
    }
    idle = figures.median([h.bubble_ns for h in passed])
    idle_bare = micro(figures.median(without)) if without else ""
    return [
        Line(
            f"drained → next launch released, p50 (bare chain {micro(chain)})",
            f"≤ {micro(bar)}",
            micro(released),
            released <= bar,
            detail=detail,
            excusable=True,
        ),
        Line("device idle at such a hand-off, p50", "", micro(idle), None, idle_bare),
        Line(
            "device idle at an overlapped hand-off, p50, saturated",
            "",
            micro(figures.median(bubbles)),
            None,
            detail={"hand_offs": len(bubbles), "p99": micro(figures.percentile(bubbles, 99))},
        ),
    ]
