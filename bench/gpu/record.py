"""From what record.c has written down to a trace. Pure but for `main`, so that it can be tested on a log made by hand.

    python3 -m bench.gpu.record LOG [--kernels FILE] [--name NAME] [--command TEXT] [--driver TEXT] >NAME.trace

How long the host computed and slept between two calls is the median over all such pairs that follow each other; a
kernel's duration is the median over its launches on that grid. So a trace is what usually happens, and the rare long
gap is lost. What then repeats is written as loops, and what a program does until its end as an endless one.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.entry import Parser
from bench.figures import median
from bench.traces.format import Event, Item, Kernel, Repeat, Trace, TraceError, fold

LEGACY, OWN = 0, 2
"""Stream handles with a meaning; the thread's own default stream is replayed as a blocking one."""
SLEPT_NS = 50_000
"""Time away from the processor below this is no sleep: a preemption, or the clocks' own steps."""
COMPUTED_NS = 200
LEAST_REPEATS = 3
ALLOCATIONS = ("linear", "managed", "pitched", "async", "host")


@dataclass(frozen=True, slots=True)
class Call:
    """One line of the log."""

    thread: int
    verb: str
    begin_ns: int
    end_ns: int
    cpu_ns: int
    """What the thread computed since its last call."""
    duration_ns: int | None
    """On the device, of work that was timed."""
    arguments: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Log:
    """What record.c wrote."""

    header: Mapping[str, Any]
    names: Mapping[int, str]
    calls: Sequence[Call]


def read_log(text: str) -> Log:
    """Return the log in `text`. Raises TraceError."""
    lines = text.splitlines()
    try:
        header = json.loads(lines[0])
        version = header["record"]
        names: dict[int, str] = {}
        calls: list[Call] = []
        for line in lines[1:]:
            words = line.split(" ")
            if words[0] == "name":
                names[int(words[1])] = "_".join(words[2:])
                continue
            thread, begin, end, cpu, duration, a, b, c = map(int, (words[0], *words[2:]))
            calls.append(Call(thread, words[1], begin, end, cpu, duration if duration >= 0 else None, (a, b, c)))
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise TraceError(f"this is no log of record.c: {error}") from None
    if version != 1:
        raise TraceError("line 1: this reads logs of version 1")
    return Log(header, names, calls)


def read_kernels(text: str) -> list[list[int]]:
    """Return the durations of the kernels of each launch, in the order of the launches, from CUPTI's records."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for line in text.splitlines():
        launch, begin_ns, end_ns = map(int, line.split())
        found[launch].append((begin_ns, end_ns))
    return [[end - begin for begin, end in sorted(found[launch])] for launch in sorted(found)]


def rounded(ns: float) -> int:
    """Return a time to three digits, and not finer than 100 ns: equal things shall look equal."""
    step = max(100, int(10 ** max(0, len(str(int(ns))) - 3)))
    return max(0, round(ns / step) * step)


# ---- what repeats ----


def repetition(tokens: Sequence[object]) -> tuple[int, int]:
    """Return where the end of `tokens` begins to repeat itself, and its period; (length, 0) when it does not.

    The last, incomplete round belongs to it. The longest such end wins, of at least LEAST_REPEATS rounds.
    """
    reverse = list(reversed(tokens))
    border = [0] * len(reverse)  # of each prefix: the longest that is also its end
    for at in range(1, len(reverse)):
        length = border[at - 1]
        while length and reverse[at] != reverse[length]:
            length = border[length - 1]
        border[at] = length + (reverse[at] == reverse[length])
    for length in range(len(reverse), 0, -1):
        period = length - border[length - 1]
        if length >= LEAST_REPEATS * period:
            return len(tokens) - length, period
    return len(tokens), 0


def steady(tokens: Sequence[object]) -> tuple[int, int]:
    """Return the same where a program does something else at its end: up to a tenth of it is left out."""
    best = (len(tokens), 0)
    for cut in range(0, max(1, len(tokens) // 10), max(1, len(tokens) // 200)):
        begin, period = repetition(tokens[: len(tokens) - cut])
        if period and len(tokens) - cut - begin > (len(tokens) // 2):
            return begin, period
        best = best if best[1] else (begin, period)
    return best


# ---- one thread ----


@dataclass
class _Step:
    """A call as the trace has it, and the host's time before it."""

    token: tuple[int | str, ...]
    cpu_ns: float = 0.0
    idle_ns: float = 0.0


def _gaps(before_ns: int, call: Call) -> tuple[float, float]:
    gap = max(0, call.begin_ns - before_ns)
    idle = gap - min(gap, call.cpu_ns)
    return (gap - idle, idle) if idle >= SLEPT_NS else (gap, 0.0)


def _usual(steps: Sequence[_Step]) -> list[_Step]:
    """Return the steps, each with the median gaps of all that have its token after the same one."""
    alike: dict[tuple[object, object], list[_Step]] = defaultdict(list)
    before: object = None
    for step in steps:
        alike[before, step.token].append(step)
        before = step.token
    gaps = {
        pair: (median([one.cpu_ns for one in found]), median([one.idle_ns for one in found]))
        for pair, found in alike.items()
    }
    usual, before = [], None
    for step in steps:
        usual.append(_Step(step.token, *gaps[before, step.token]))
        before = step.token
    return usual


def _items(steps: Iterable[_Step]) -> list[Item]:
    found: list[Item] = []
    for step in steps:
        cpu_ns, idle_ns = rounded(step.cpu_ns), rounded(step.idle_ns)
        if idle_ns >= SLEPT_NS:
            found.append(Event("idle", (idle_ns,)))
        verb, *arguments = step.token
        if verb == "launch":
            found.append(Event("launch", (*arguments, 1, cpu_ns)))
            continue
        if cpu_ns >= COMPUTED_NS:
            found.append(Event("cpu", (cpu_ns,)))
        found.append(Event(str(verb), tuple(arguments)))
    return found


def _loops(raw: Sequence[_Step]) -> tuple[Item, ...]:
    """Return what a thread did, its steady state as an endless loop."""
    steps = _usual(raw)
    begin, period = steady([step.token for step in steps])
    if not period:
        return fold(_items(steps))
    marks = [place for place in range(period) if steps[begin + place].token[0] == "begin"]
    begin += marks[0] if marks else 0
    body = _items(steps[begin + period : begin + 2 * period])  # the first round follows something else
    if not marks:
        body = [Event("begin", ("iteration",)), *body, Event("end", ("iteration",))]
    return (*fold(_items(steps[:begin])), Repeat(0, fold(body)))


# ---- the whole ----


@dataclass
class _Tables:
    """What handles are in the trace."""

    names: Mapping[int, str]
    streams: dict[int, int] = field(default_factory=dict)
    kernels: dict[tuple[str, str], int] = field(default_factory=dict)
    graphs: dict[int, int] = field(default_factory=dict)
    events: dict[int, int] = field(default_factory=dict)
    buffers: dict[int, int] = field(default_factory=dict)
    freed: list[int] = field(default_factory=list)

    @staticmethod
    def number(table: dict[int, int], handle: int) -> int:
        return table.setdefault(handle, len(table))

    def kernel(self, function: int, grid: int) -> int:
        x, y, z = grid & 0xFFFFFFFF, grid >> 32 & 0xFFFF, grid >> 48
        name = self.names.get(function, "kernel")[:80]
        return self.kernels.setdefault((name, f"{x}x{y}x{z}"), len(self.kernels))

    def allocate(self, handle: int) -> int:
        number = self.freed.pop() if self.freed else len(self.buffers)
        self.buffers[handle] = number
        return number

    def stream_kinds(self) -> tuple[str, ...]:
        return tuple(
            "legacy" if handle == LEGACY else "blocking" if handle == OWN else self.names.get(handle, "blocking")
            for handle in self.streams
        )


class _Converter:
    def __init__(self, log: Log, launches: Sequence[Sequence[int]] | None) -> None:
        self._log = log
        self._tables = _Tables(log.names)
        self._durations: dict[int, list[int]] = defaultdict(list)  # by kernel
        self._runs: dict[int, list[int]] = defaultdict(list)  # by executable graph: whole launches
        self._nodes: dict[int, list[int]] = {}  # by executable graph
        self._node_ns: dict[int, list[Sequence[int]]] = defaultdict(list)  # by executable graph, per launch
        self._steps: dict[int, list[_Step]] = defaultdict(list)
        self._after_ns: dict[int, int] = {}
        self._captured: list[int] = []
        self._graph_nodes: dict[int, list[int]] = {}
        self._launches = self._matched(launches)

    def _matched(self, launches: Sequence[Sequence[int]] | None) -> Sequence[Sequence[int]] | None:
        """Return CUPTI's launches if they are as many as ours: then the n-th is the n-th."""
        ours = sum(call.verb in {"launch", "run"} for call in self._log.calls)
        if launches is not None and len(launches) != ours:
            raise TraceError(f"CUPTI saw {len(launches)} launches of kernels, the recorder {ours}: they do not match")
        return launches

    def convert(self, header: Mapping[str, Any]) -> Trace:
        seen = 0
        for call in self._log.calls:
            parts: Sequence[int] | None = None
            if call.verb in {"launch", "run"}:
                parts = self._launches[seen] if self._launches is not None else None
                seen += 1
            self._take(call, parts)
        kernels = [Kernel(self._kernel_ns(number), *what) for what, number in self._tables.kernels.items()]
        graphs = [self._graph(exec_, kernels) for exec_ in self._tables.graphs]
        threads = [_loops(steps) for steps in self._steps.values() if len(steps) > 1]
        if not threads:
            raise TraceError("the log has no call that a trace could hold")
        return Trace(header, tuple(kernels), tuple(graphs), self._tables.stream_kinds(), tuple(threads))

    def _take(self, call: Call, parts: Sequence[int] | None) -> None:
        token = self._token(call, parts)
        before_ns = self._after_ns.get(call.thread, call.begin_ns)
        if token is None:
            # Making a graph, or what a capture took in: not replayed, and no gap of the next call.
            self._after_ns[call.thread] = call.end_ns
            return
        cpu_ns, idle_ns = _gaps(before_ns, call)
        self._steps[call.thread].append(_Step(token, cpu_ns, idle_ns))
        self._after_ns[call.thread] = call.end_ns

    def _token(self, call: Call, parts: Sequence[int] | None) -> tuple[int | str, ...] | None:
        tables, (a, b, c) = self._tables, call.arguments
        match call.verb:
            case "launch":
                kernel = tables.kernel(b, c)
                duration = parts[0] if parts else call.duration_ns
                if duration is not None:
                    self._durations[kernel].append(duration)
                return ("launch", tables.number(tables.streams, a), kernel)
            case "captured":
                if c:  # a grid: what else is captured is a copy, and of no length
                    self._captured.append(tables.kernel(b, c))
                return None
            case "capture":
                self._captured = []
                return None
            case "captured-as":
                self._graph_nodes[b] = self._captured
                return None
            case "instantiate":
                self._nodes[b] = list(self._graph_nodes.get(c, ()))
                return None
            case "run":
                graph = tables.number(tables.graphs, b)
                if parts:
                    self._node_ns[b].append(parts)
                elif call.duration_ns is not None:
                    self._runs[b].append(call.duration_ns)
                return ("run", tables.number(tables.streams, a), graph)
            case _:
                return self._plain(call)

    def _plain(self, call: Call) -> tuple[int | str, ...] | None:
        tables, (a, b, c), verb = self._tables, call.arguments, call.verb
        if verb in {"htod", "dtoh", "dtod", "set"}:
            return ("copy", tables.number(tables.streams, a), verb, b)
        if verb in {"htod-sync", "dtoh-sync"}:
            return ("copy-sync", verb.removesuffix("-sync"), b)
        if verb in {"record", "wait"}:
            return (verb, tables.number(tables.events, b), tables.number(tables.streams, a))
        if verb == "stream":
            return ("sync-stream", tables.number(tables.streams, a))
        if verb == "event":
            return ("sync-event", tables.number(tables.events, a))
        if verb == "context":
            return ("sync-context",)
        if verb in ALLOCATIONS:
            return ("alloc", tables.allocate(b), verb, c)
        if verb == "free":
            number = tables.buffers.pop(b, None)
            if number is not None:
                tables.freed.append(number)
            return None if number is None else ("free", number)
        return (verb, self._log.names.get(a, "mark"))

    def _kernel_ns(self, kernel: int) -> int:
        known = self._durations.get(kernel)
        return max(100, rounded(median(known))) if known else 0

    def _graph(self, exec_: int, kernels: list[Kernel]) -> tuple[int, ...]:
        """Return an executable graph's kernels, so long that in all they are as long as its launches were."""
        nodes = self._nodes.get(exec_) or []
        by_launch = self._node_ns.get(exec_, [])
        if by_launch:
            length = max(map(len, by_launch))
            whole = [one for one in by_launch if len(one) == length]
            lengths = [median([one[place] for one in whole]) for place in range(length)]
            named = [kernels[node] for node in nodes] if len(nodes) == length else [Kernel(1, "node")] * length
        else:
            named = [kernels[node] for node in nodes] or [Kernel(1, "graph")]
            known = [kernel.duration_ns for kernel in named if kernel.duration_ns]
            usual = median(known) if known else 1.0
            weights = [kernel.duration_ns or usual for kernel in named]
            total = median(self._runs[exec_]) if self._runs.get(exec_) else sum(weights)
            lengths = [weight * total / sum(weights) for weight in weights]
        found = []
        for kernel, ns in zip(named, lengths, strict=True):
            node = Kernel(max(100, rounded(ns)), kernel.name, kernel.grid)
            if node not in kernels:
                kernels.append(node)
            found.append(kernels.index(node))
        return tuple(found)


def convert(
    log: Log, name: str, command: str, driver: str, date: str, launches: Sequence[Sequence[int]] | None = None
) -> Trace:
    """Return the trace of a log. `launches`: what CUPTI saw of each, instead of the log's own pairs of events.

    Raises TraceError.
    """
    header = {
        "sharepod_trace": 1,
        "name": name,
        "origin": "recorded",
        "what": f"{name}, recorded",
        "device": log.header["device"],
        "driver": driver or f"CUDA {log.header['cuda'] / 1000:.1f}",
        "command": command,
        "date": date,
        "durations": "pairs of events" if launches is None else "CUPTI",
        "lost": log.header["lost"],
    }
    trace = _Converter(log, launches).convert(header)
    if any(kernel.duration_ns <= 0 for kernel in trace.kernels):
        kernels = tuple(k if k.duration_ns else Kernel(1000, k.name, k.grid) for k in trace.kernels)
        return Trace(header, kernels, trace.graphs, trace.streams, trace.threads)
    return trace


def main() -> int:
    """Convert a log and print the trace; return the exit code."""
    parser = Parser(
        prog="python3 -m bench.gpu.record", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", type=Path)
    parser.add_argument("--kernels", type=Path, help="CUPTI's kernels, as cupti.c writes them")
    parser.add_argument("--name", default="recorded")
    parser.add_argument("--command", default="not told")
    parser.add_argument("--driver", default="")
    options = parser.parse_args()
    try:
        launches = read_kernels(options.kernels.read_text(encoding="utf-8")) if options.kernels else None
        log = read_log(options.log.read_text(encoding="utf-8"))
        date = time.strftime("%Y-%m-%d")
        print(convert(log, options.name, options.command, options.driver, date, launches).text(), end="")
    except (OSError, TraceError) as error:
        print(f"{options.log}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
