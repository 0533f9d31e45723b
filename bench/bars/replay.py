"""Replays traces of real programs: what the hook costs them alone, and what they get from each other in shares.

Every line says whether its traces are recorded or synthesised. A solo figure is from the same replay on a device of its
own, without the hook.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bench.bars import figures
from bench.bars.bar import BILL, END_TO_END, KEPT, LATENCY, SHARE_ERROR, THROUGHPUT
from bench.bars.rig import Run, run, run_once
from bench.bars.shares import bill_error
from bench.bars.simulated import SimulatedRig
from bench.scale import FULL, Scale
from bench.table import Line, milli
from rig.loads import MS, SECOND, Load, Terms
from rig.programs import Result, build

FOLDER = Path(__file__).resolve().parent.parent / "traces"
SAID_BY_ORIGIN = {"synthesised": ("sources",), "recorded": ("device", "driver", "command", "date")}
"""The fields that a header needs, besides the name."""
TRAINING, SERVER, LOOP = "training", "server", "launch-bound"
ALONE_NS = 1_200_000_000
ALONE_PAIRS = 5
SPLITS = ((50.0, 50.0), (70.0, 30.0))
PAIRS = ((TRAINING, TRAINING), (TRAINING, LOOP), (TRAINING, SERVER), (SERVER, LOOP))


def command(trace: str | Path, **options: object) -> list[str]:
    """Return the command that replays a trace, given by its name here or by its path."""
    path = trace if isinstance(trace, Path) else FOLDER / f"{trace}.trace"
    program = build("replay.c", "replay")
    return [str(program), str(path), *(f"{name}={value}" for name, value in options.items()), "wait=1"]


@dataclass(frozen=True, slots=True)
class Trace:
    """The facts about a trace that a bar needs. programs/replay.c reads the rest."""

    origin: str
    """`recorded` or `synthesised`."""
    longest_kernel_ns: int


def parse(text: str) -> Trace:
    """Read a trace's header and its kernels. Raises ValueError when the header does not tell the trace's origin."""
    header = json.loads(text.partition("\n")[0])
    needed = SAID_BY_ORIGIN.get(header.get("origin"))
    if header.get("sharepod_trace") != 1 or needed is None:
        raise ValueError(f"a trace is of version 1, and its origin is {' or '.join(SAID_BY_ORIGIN)}")
    missing = [word for word in ("name", *needed) if not header.get(word)]
    if missing:
        raise ValueError(f"a trace that is {header['origin']} says its {', '.join(missing)}")
    kernels = [line.split() for line in text.splitlines() if line.startswith("kernel ")]
    return Trace(header["origin"], max(int(duration_ns) for _, _, duration_ns, *_ in kernels))


@functools.cache
def load(name: str) -> Trace:
    """Return one of the traces that are kept here."""
    return parse((FOLDER / f"{name}.trace").read_text(encoding="utf-8"))


def origin(*names: str) -> str:
    """Return the origins of these traces, for a line of the table."""
    return ", ".join(sorted({load(name).origin for name in names}))


class ReplayRig(SimulatedRig):
    """The simulated GPU for loads with a trace's name as their mode."""

    @classmethod
    def of(cls, rig: SimulatedRig) -> Self:
        """Return the same rig for traces, at full scale: a trace runs for as long as it is told."""
        return cls(FULL, rig.gpu_settings, rig.peer, rig.profile)

    def command(self, mode: str, options: Mapping[str, object]) -> list[str]:
        """Return the command that replays a trace."""
        return command(mode, **options)


# ---- alone ----


def pace_ns(result: Result) -> float:
    """Return the figure that a program is judged by: the median request of a server, else time per device time of work.

    The latter covers the whole run, with the drain of what is in flight at its end.
    """
    marks = result.other["marks"]
    if "request" in marks:
        return float(marks["request"]["p50_ns"])
    return (result.end_ns - result.start_ns) / result.work_ns * MS


def overhead(rig: ReplayRig, name: str, pairs: int) -> Line:
    """Measure a trace alone, alternately with and without the hook, so that a slow phase of the machine hits both."""
    ratios, bare = [], []
    with rig.node() as node:
        hooked = node.share("a", Terms(100))
        for pair in range(pairs):
            order = [(False, node.environment), (True, hooked)]
            found = {
                with_hook: pace_ns(run_once(command(name), environment, ALONE_NS))
                for with_hook, environment in (order if pair % 2 else order[::-1])
            }
            ratios.append((found[True] / found[False] - 1) * 100)
            bare.append(found[False])
        turns = node.accounts()["a"].turns
    if turns == 0:
        raise RuntimeError("the share held no turn: the hook was not there, its cost was not measured")
    detail = {"pairs_percent": ratios, "bare_pace_ns": bare}
    return END_TO_END.line(f"{name} ({origin(name)})", figures.median(ratios), detail=detail)


# ---- pairs ----


def _names(pair: tuple[str, str], split: tuple[float, float]) -> str:
    return f"{pair[0]} {split[0]:.0f} and {pair[1]} {split[1]:.0f} ({origin(*pair)})"


def _shares(pair: tuple[str, str], split: tuple[float, float]) -> dict[str, Load]:
    return {owner: Load(Terms(part), name) for owner, name, part in zip("ab", pair, split, strict=True)}


def _kept(done: Run, pair: tuple[str, str], solo: Mapping[str, float]) -> list[float]:
    """Return, for each of a pair, the part of its solo throughput that it has, by the device time that it got."""
    return [figures.utilisation(done.samples, [owner]) / solo[name] for owner, name in zip("ab", pair, strict=True)]


def _in_words(parts: Sequence[float]) -> str:
    return f"{sum(parts):.3f} ({' + '.join(f'{part:.3f}' for part in parts)})"


def _saturated(rig: ReplayRig, scale: Scale, solo: Mapping[str, float]) -> list[Line]:
    """Measure two training loops. Both always have work, so each is due its request, and pays for it."""
    pair, unit_ns = (TRAINING, TRAINING), load(TRAINING).longest_kernel_ns
    bare = run(rig, _shares(pair, (50, 50)), 4, hook=False) if scale.baselines else None
    lines = []
    for split in SPLITS:
        done = run(rig, _shares(pair, split), scale.short_s)
        what, targets = _names(pair, split), {"a": split[0] / 100, "b": split[1] / 100}
        errors = figures.share_errors(done.samples, targets, 1)
        bound = max(SHARE_ERROR.bound, (done.quantum_ns + unit_ns) / SECOND * 100)
        without = f"{max(figures.share_errors(bare.samples, targets, 1)):.1f} pp" if bare else ""
        detail = {"median_pp": figures.median(errors), "quantum": milli(done.quantum_ns)}
        lines.append(SHARE_ERROR.line(f"1 s: {what}", max(errors), bound=bound, no_hook=without, detail=detail))
        lines.append(BILL.line(what, bill_error(done), bound=BILL.under(rig.profile), detail=done.bill))
        kept = _kept(done, pair, solo)
        without = _in_words(_kept(bare, pair, solo)) if bare else ""
        title, bound = f"sum of throughputs ÷ alone: {what}", THROUGHPUT.under(rig.profile)
        lines.append(Line(title, f"≥ {bound}", _in_words(kept), THROUGHPUT.met(sum(kept), bound), without))
    return lines


def _mixed(rig: ReplayRig, scale: Scale, solo: Mapping[str, float]) -> list[Line]:
    """Measure pairs in which a trace often waits for its host: only shown, as no share is due what it does not use."""
    lines = []
    for pair in PAIRS[1:]:
        bare = _in_words(_kept(run(rig, _shares(pair, (50, 50)), 3, hook=False), pair, solo)) if scale.baselines else ""
        for split in SPLITS:
            done = run(rig, _shares(pair, split), 3)
            bills = " and ".join(f"{done.bill_errors[owner]:+.1f} %" for owner in "ab")
            text = f"{_in_words(_kept(done, pair, solo))}, billed {bills}"
            what = f"each one's throughput ÷ alone, and the sum: {_names(pair, split)}"
            lines.append(Line(what, "", text, None, bare, detail=done.bill))
    return lines


# ---- the server's latency ----


def _latency(rig: ReplayRig, scale: Scale) -> list[Line]:
    """Measure the server's p99 as a latency share beside a training loop, relative to its solo p99 without the hook."""
    seconds = max(8, min(16, scale.requests // 150))
    server = Load(Terms(50, share_class="latency"), SERVER)
    beside = {"server": server, "training": Load(Terms(50), TRAINING)}

    solo = run(rig, {"server": server}, seconds, hook=False)
    shared = run(rig, beside, seconds)
    bare = run(rig, beside, seconds, hook=False)
    lines = []
    for mark in ("request", "token"):
        alone, found, ns = _mark(solo, mark), _mark(shared, mark), _mark(bare, mark)["p99_ns"]
        ratio, without = found["p99_ns"] / alone["p99_ns"], ns / alone["p99_ns"]
        # Tokens follow each other without a pause: their bar is that they wait no longer than without the hook.
        bound = LATENCY.bound if mark == "request" else without
        what = f"{mark}s of the server, a latency share beside training ({origin(SERVER, TRAINING)})"
        notes = [f"({milli(found['p99_ns'])})", f"{LATENCY.text(without)} ({milli(ns)})"]
        detail = {"solo": alone, "shared": found}
        lines.append(LATENCY.line(what, ratio, bound=bound, note=notes[0], no_hook=notes[1], detail=detail))
    what = f"training beside it keeps, of what is left ({origin(SERVER, TRAINING)})"
    return [*lines, KEPT.line(what, _left_kept(shared), no_hook=_left_kept(bare))]


def _mark(done: Run, mark: str) -> dict[str, float]:
    found: dict[str, float] = done.results["server"].other["marks"][mark]
    return found


def _left_kept(done: Run) -> float:
    left = 1 - figures.utilisation(done.samples, ["server"])
    return figures.utilisation(done.samples, ["training"]) / left


def traces(rig: SimulatedRig) -> list[Line]:
    """Measure everything about the traces that are kept here."""
    scale, place = rig.scale, ReplayRig.of(rig)
    names = (TRAINING, SERVER, LOOP)
    lines = [overhead(place, name, min(scale.cost_pairs, ALONE_PAIRS)) for name in names]
    alone = {name: run(place, {"a": Load(Terms(100), name)}, 3, hook=False) for name in names}
    solo = {name: figures.utilisation(done.samples, ["a"]) for name, done in alone.items()}
    return [*lines, *_saturated(place, scale, solo), *_mixed(place, scale, solo), *_latency(place, scale)]
