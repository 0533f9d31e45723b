"""The memory cap: exact to the byte for every kind of allocation, nothing leaked, and cheap beside many others."""

import time

from bench import figures
from bench.costs import noop_driver
from bench.scale import Scale
from bench.table import Line
from rig.loads import Terms
from rig.node import Node
from rig.programs import Program, Result, fill_command

CAP_BYTES = 3 * 2**30 + 4096 * 3
"""Of whole rows, so that an array can be as large as the cap; not of whole grains of a pool."""
ROUNDS = 50
LIVE = 100_000
PAIR_BATCHES = 300


def _run(command: list[str], environment: dict[str, str]) -> Result:
    program = Program("a", command, environment).await_ready()
    program.go(time.monotonic_ns(), time.monotonic_ns() + 60_000_000_000)
    return program.result()


def _pairs(scale: Scale) -> list[Line]:
    """Measure what the hook adds to an allocation and its free beside many, on a driver that does nothing."""
    command = fill_command("pairs", {"live": LIVE, "count": PAIR_BATCHES})
    added: dict[str, list[float]] = {"pair": [], "any": [], "cold": []}
    with Node() as node:
        hooked = node.share_environment("a", Terms(100, memory_bytes=CAP_BYTES)) | noop_driver(node)
        bare = node.environment | noop_driver(node)
        for _ in range(scale.cost_pairs):
            without, beside = (_run(command, environment) for environment in (bare, hooked))
            group = int(beside.other["group"])
            added["pair"].append((figures.median(beside.batch_ns) - figures.median(without.batch_ns)) / group)
            any_ns = (figures.median(result.other["any_ns"]) for result in (beside, without))
            added["any"].append((next(any_ns) - next(any_ns)) / group)
            added["cold"].append(figures.median(without.other["cold_ns"]) / group)
    pair, anywhere, cold = (figures.median(added[name]) for name in ("pair", "any", "cold"))
    what = f"added per allocation and free beside {LIVE:,} others"
    # The second waits for memory: neither what it frees nor where the next one goes is in a cache.
    return [
        Line(what, "≤ 100 ns", f"{pair:.0f} ns", pair <= 100, detail={"pairs_ns": added["pair"]}),
        Line(
            f"{what}: any of them freed",
            "≤ 100 ns and two cache lines from afar",
            f"{anywhere:.0f} ns, of which the lines {cold:.0f} ns",
            anywhere - cold <= 100,
            detail={"pairs_ns": added["any"], "cold_ns": added["cold"]},
        ),
    ]


def caps(scale: Scale) -> list[Line]:
    """Fill a share to its cap by every kind of allocation that the driver has, over and over."""
    with Node() as node:
        environment = node.share_environment("a", Terms(100, memory_bytes=CAP_BYTES))
        result = _run(fill_command("kinds", {"count": ROUNDS}), environment)
        left = node.usage()["a"].devices[0].memory_used_bytes
    lines = []
    for kind, verdict in result.other["kinds"].items():
        lines.append(
            Line(
                f"memory cap: {kind}, filled and freed {ROUNDS} times",
                "exact to the byte",
                verdict,
                None if verdict == "not supported" else verdict == "exact",
                "no cap" if scale.baselines else "",
                detail={"free_bytes": result.other["free_bytes"]},
            )
        )
    lost = int(result.other["lost_bytes"])
    over = int(result.other["free_bytes"]) > CAP_BYTES
    text = f"{lost} B in the program, {left} B in the account"
    lines.append(Line("memory lost after all that", "0 B", text, lost == 0 and left == 0 and not over))
    return [*lines, *_pairs(scale)]
