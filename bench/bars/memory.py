"""Measures the memory cap: exact to the byte for every kind of allocation, no leak, and cheap beside many others."""

from bench.bars import figures
from bench.bars.bar import ALLOCATION
from bench.bars.costs import noop_driver
from bench.bars.rig import Rig, run_once
from bench.table import Line
from rig.loads import Terms
from rig.programs import fill_command

LIVE = 100_000
PAIR_BATCHES = 300


def caps(rig: Rig) -> list[Line]:
    """Fill a share to its cap by every kind of allocation that the driver has, over and over."""
    rounds = rig.scale.memory_rounds
    with rig.node() as node:
        share = node.share("a", Terms(100, memory_bytes=rig.cap_bytes))
        result = run_once(rig.memory_command(rounds), share)
        left = node.accounts()["a"].memory_used_bytes
    lost, seen = int(result.other["lost_bytes"]), int(result.other["free_bytes"])
    without = "no cap" if rig.scale.baselines else ""
    lines = []
    for kind, verdict in result.other["kinds"].items():
        what = f"memory cap: {kind}, filled and freed {rounds} times"
        met = None if verdict == "not supported" else verdict == "exact"
        lines.append(Line(what, "exact to the byte", verdict, met, without))
    text = f"{lost} B in the program, {left} B in the account"
    met = lost == 0 and left == 0 and seen <= rig.cap_bytes
    detail = {"free_bytes": seen, "cap_bytes": rig.cap_bytes}
    return [*lines, Line("memory lost after all that", "0 B", text, met, detail=detail)]


def beside_many(rig: Rig) -> list[Line]:
    """Measure what the hook adds to an allocation and its free beside many others, on a driver that does nothing."""
    command = fill_command("pairs", {"live": LIVE, "count": PAIR_BATCHES})
    added: dict[str, list[float]] = {"pair": [], "any": [], "cold": []}
    with rig.node() as node:
        own = noop_driver(node)
        hooked = {**node.share("a", Terms(100, memory_bytes=rig.cap_bytes)), **own}
        bare = {**node.environment, **own}
        for _ in range(rig.scale.cost_pairs):
            without, beside = (run_once(command, environment) for environment in (bare, hooked))
            group = int(beside.other["group"])
            added["pair"].append((figures.median(beside.batch_ns) - figures.median(without.batch_ns)) / group)
            beside_ns, without_ns = (figures.median(result.other["any_ns"]) for result in (beside, without))
            added["any"].append((beside_ns - without_ns) / group)
            added["cold"].append(figures.median(without.other["cold_ns"]) / group)
    pair, anywhere, cold = (figures.median(added[name]) for name in ("pair", "any", "cold"))
    what = f"{LIVE:,}"
    # The second figure includes waits for memory: the freed entry and the next one's place are in no cache.
    return [
        ALLOCATION.line(what, pair, detail={"pairs_ns": added["pair"]}),
        Line(
            f"{ALLOCATION.figure.format(what)}: any of them freed",
            f"≤ {ALLOCATION.bound} ns and two cache lines from afar",
            f"{anywhere:.0f} ns, of which the lines {cold:.0f} ns",
            ALLOCATION.met(anywhere - cold),
            detail={"pairs_ns": added["any"], "cold_ns": added["cold"]},
        ),
    ]
