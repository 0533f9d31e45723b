"""The text of a trace, as values: read, checked and written. Pure; README.md beside this file has the grammar."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VERSION = 1
ORIGINS = ("recorded", "synthesised")
STREAM_KINDS = ("legacy", "blocking", "nonblocking")
DIRECTIONS = ("htod", "dtoh", "dtod", "set")
MEMORY_KINDS = ("linear", "managed", "pitched", "async", "host")

VERBS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "cpu": (("ns",),),
    "idle": (("ns",),),
    "every": (("ns",),),
    "launch": (("stream", "kernel"), ("stream", "kernel", "count", "ns")),
    "run": (("stream", "graph"),),
    "record": (("event", "stream"),),
    "wait": (("event", "stream"),),
    "sync-stream": (("stream",),),
    "sync-event": (("event",),),
    "sync-context": ((),),
    "copy": (("stream", "direction", "bytes"),),
    "copy-sync": (("direction", "bytes"),),
    "alloc": (("buffer", "memory", "bytes"),),
    "free": (("buffer",),),
    "begin": (("word",),),
    "end": (("word",),),
}
"""What a line may say, and what its arguments are."""

_CHOICES = {"direction": DIRECTIONS, "memory": MEMORY_KINDS}


class TraceError(ValueError):
    """The text is no trace; the message says which line and why."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel on a grid: how long it runs when it has the device."""

    duration_ns: int
    name: str
    grid: str = "1x1x1"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that a thread does."""

    verb: str
    arguments: tuple[int | str, ...] = ()

    def text(self) -> str:
        """Return its line."""
        return " ".join(map(str, (self.verb, *self.arguments)))


@dataclass(frozen=True, slots=True)
class Repeat:
    """A body that comes `count` times; 0: until the replay is told to stop."""

    count: int
    body: tuple["Item", ...]


Item = Event | Repeat


@dataclass(frozen=True, slots=True)
class Trace:
    """A program as its driver sees it.

    Attributes:
        header: the first line; `name`, `origin` and what they demand are always there.
        kernels, graphs: by their numbers; a graph is its kernels, one after another.
        streams: the kind of each stream, by number.
        threads: what each thread does.
    """

    header: Mapping[str, Any]
    kernels: tuple[Kernel, ...]
    graphs: tuple[tuple[int, ...], ...]
    streams: tuple[str, ...]
    threads: tuple[tuple[Item, ...], ...]

    @property
    def name(self) -> str:
        """What the trace is called."""
        return str(self.header["name"])

    @property
    def origin(self) -> str:
        """`recorded` or `synthesised`."""
        return str(self.header["origin"])

    def graph_ns(self, graph: int) -> int:
        """Return how long a graph runs when it has the device."""
        return sum(self.kernels[kernel].duration_ns for kernel in self.graphs[graph])

    def text(self) -> str:
        """Return the file's content."""
        lines = [json.dumps(self.header, ensure_ascii=False)]
        lines += [f"stream {number} {kind}" for number, kind in enumerate(self.streams)]
        lines += [f"kernel {n} {k.duration_ns} {k.name} {k.grid}" for n, k in enumerate(self.kernels)]
        lines += [f"graph {number} {_counted(nodes)}" for number, nodes in enumerate(self.graphs)]
        for number, thread in enumerate(self.threads):
            lines += [f"thread {number}", *_lines(thread, "")]
        return "\n".join(lines) + "\n"


def events(items: Sequence[Item]) -> Iterator[Event]:
    """Yield the events of `items`, each loop's body once."""
    for item in items:
        if isinstance(item, Event):
            yield item
        else:
            yield from events(item.body)


LONGEST_PERIOD = 512
"""Of a loop that `fold` finds, in items."""


def fold(items: Sequence[Item]) -> tuple[Item, ...]:
    """Return the same, what follows itself written once: greedily, the longest saving at each place first."""
    numbers: dict[Item, int] = {}
    return _folded(items, [numbers.setdefault(item, len(numbers)) for item in items])


def _folded(items: Sequence[Item], ids: Sequence[int]) -> tuple[Item, ...]:
    found: list[Item] = []
    at, end = 0, len(items)
    while at < end:
        saved, period, first = 2, 0, ids[at]
        for length in range(1, min(LONGEST_PERIOD, (end - at) // 2) + 1):
            if ids[at + length] != first:
                continue
            times = 1
            while ids[at : at + length] == ids[at + times * length : at + (times + 1) * length]:
                times += 1
            if (times - 1) * length > saved:
                saved, period = (times - 1) * length, length
        if period:
            body = _folded(items[at : at + period], ids[at : at + period])
            found.append(Repeat(saved // period + 1, body))
            at += saved + period
        else:
            found.append(items[at])
            at += 1
    return tuple(found)


def _counted(nodes: Sequence[int]) -> str:
    parts: list[list[int]] = []
    for node in nodes:
        if parts and parts[-1][0] == node:
            parts[-1][1] += 1
        else:
            parts.append([node, 1])
    return " ".join(f"{node}*{count}" if count > 1 else str(node) for node, count in parts)


def _lines(items: Sequence[Item], indent: str) -> Iterator[str]:
    for item in items:
        if isinstance(item, Event):
            yield indent + item.text()
        else:
            yield f"{indent}repeat {item.count}"
            yield from _lines(item.body, indent + "  ")
            yield f"{indent}again"


def parse(text: str) -> Trace:
    """Return the trace in `text`. Raises TraceError."""
    return _Reader(text).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._at = 0
        self._kernels: list[Kernel] = []
        self._graphs: list[tuple[int, ...]] = []
        self._streams: list[str] = []

    def read(self) -> Trace:
        header = self._header()
        threads: list[list[Item]] = []
        open_loops: list[tuple[int, list[Item]]] = []
        body: list[Item] | None = None
        for line in self._lines[1:]:
            self._at += 1
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if words[0] in {"kernel", "graph", "stream"} and body is None:
                self._declare(words)
            elif words[0] == "thread" and not open_loops:
                self._number(words, 1, len(threads), exact=True)
                body = []
                threads.append(body)
            elif body is None:
                raise self._wrong(f"`{words[0]}` stands before the first thread")
            elif words[0] == "repeat":
                open_loops.append((self._number(words, 1), body))
                body = []
            elif words[0] == "again" and open_loops:
                count, outer = open_loops.pop()
                if not body:
                    raise self._wrong("a loop has a body")
                outer.append(Repeat(count, tuple(body)))
                body = outer
            else:
                body.append(self._event(words))
        if open_loops or not threads:
            raise self._wrong("a loop is not closed" if open_loops else "it has no thread")
        return Trace(
            header, tuple(self._kernels), tuple(self._graphs), tuple(self._streams), tuple(map(tuple, threads))
        )

    def _wrong(self, what: str) -> TraceError:
        return TraceError(f"line {self._at}: {what}")

    def _header(self) -> Mapping[str, Any]:
        self._at = 1
        try:
            header = json.loads(self._lines[0])
        except (IndexError, ValueError):
            raise self._wrong("the header is no JSON") from None
        if not isinstance(header, dict) or header.get("sharepod_trace") != VERSION:
            raise self._wrong(f"this reads traces of version {VERSION}")
        if header.get("origin") not in ORIGINS or not header.get("name"):
            raise self._wrong(f"a header has a name and an origin, {' or '.join(ORIGINS)}")
        needed = ["sources"] if header["origin"] == "synthesised" else ["device", "driver", "command", "date"]
        missing = [word for word in needed if not header.get(word)]
        if missing:
            raise self._wrong(f"a trace that is {header['origin']} says its {', '.join(missing)}")
        return header

    def _number(self, words: Sequence[str], place: int, bound: int | None = None, *, exact: bool = False) -> int:
        text = words[place] if place < len(words) else ""
        if not text.isascii() or not text.isdigit():
            raise self._wrong(f"`{text}` is not a number")
        value = int(text)
        if exact and value != bound:
            raise self._wrong(f"the next number is {bound}, not {value}")
        if bound is not None and not exact and value >= bound:
            raise self._wrong(f"there is no {words[0]} argument of number {value}")
        return value

    def _declare(self, words: Sequence[str]) -> None:
        counts = {"kernel": len(self._kernels), "graph": len(self._graphs), "stream": len(self._streams)}
        self._number(words, 1, counts[words[0]], exact=True)
        if words[0] == "kernel" and len(words) == 5:
            self._kernels.append(Kernel(max(1, self._number(words, 2)), words[3], words[4]))
        elif words[0] == "stream" and len(words) == 3 and words[2] in STREAM_KINDS:
            self._streams.append(words[2])
        elif words[0] == "graph" and len(words) > 2:
            nodes: list[int] = []
            for part in words[2:]:
                kernel, _, count = part.partition("*")
                nodes += [self._number(("kernel", kernel), 1, len(self._kernels))] * int(count or 1)
            self._graphs.append(tuple(nodes))
        else:
            raise self._wrong(f"a {words[0]} is not declared like that")

    def _event(self, words: Sequence[str]) -> Event:
        forms: tuple[tuple[str, ...], ...] = VERBS.get(words[0], ())
        form = next((one for one in forms if len(one) == len(words) - 1), None)
        if form is None:
            raise self._wrong(f"`{' '.join(words)}` is nothing that a thread does")
        bounds = {"stream": len(self._streams), "kernel": len(self._kernels), "graph": len(self._graphs)}
        arguments: list[int | str] = []
        for place, kind in enumerate(form, 1):
            word = words[place]
            if kind in _CHOICES and word not in _CHOICES[kind]:
                raise self._wrong(f"`{word}` is none of {', '.join(_CHOICES[kind])}")
            is_text = kind in _CHOICES or kind == "word"
            arguments.append(word if is_text else self._number(words, place, bounds.get(kind)))
        return Event(words[0], tuple(arguments))
