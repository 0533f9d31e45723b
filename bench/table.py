"""The table: one line per bar, as values, and how it is printed and kept. Pure but for `save`."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
HEADINGS = ("what", "bar", "result", "", "no hook", "Gemini's policy")


@dataclass(frozen=True, slots=True)
class Line:
    """One figure, beside its bar if it has one.

    Attributes:
        what: the case in words.
        bar: the bar with its unit, worked out for this case; empty when there is none.
        result: what was measured, in the bar's unit.
        met: None when there is no bar, only a measurement.
        no_hook: the same case without the hook: the device's default time slicing.
        gemini: the same case under Gemini's policy, modelled.
        peers: the same case under each interposer of others, by its name.
        detail: numbers behind the result.
        excusable: it may be missed with a stated reason (hand-off and hardware alone).
        row: key of the row that measured it, for `--only`.
    """

    what: str
    bar: str
    result: str
    met: bool | None = None
    no_hook: str = ""
    gemini: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    excusable: bool = False
    row: str = ""
    peers: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The word in the table."""
        return "" if self.met is None else "met" if self.met else "MISSED"


def missed(lines: Sequence[Line]) -> list[Line]:
    """Return the lines that miss a bar which may not be missed."""
    return [line for line in lines if line.met is False and not line.excusable]


def markdown(lines: Sequence[Line]) -> str:
    """Return the table as aligned Markdown."""
    peers = peer_names(lines)
    cells = [(x.what, x.bar, x.result, x.verdict, x.no_hook, x.gemini, *cells_of(x, peers)) for x in lines]
    return "\n".join(aligned([(*HEADINGS, *peers), *cells]))


def peer_names(lines: Iterable[Line]) -> list[str]:
    """Return the columns of the peers, in the order in which they were given."""
    return [*dict.fromkeys(name for line in lines for name in line.peers)]


def cells_of(line: Line, peers: Sequence[str]) -> list[str]:
    """Return a line's cells in the columns of the peers."""
    return [line.peers.get(name, "") for name in peers]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table whose first row is its headings."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    printed = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return [printed[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *printed[1:]]


def as_json(lines: Sequence[Line], machine: str, settings: dict[str, object]) -> str:
    """Return everything as one JSON document."""
    document = {"machine": machine, "settings": settings, "lines": [dataclasses.asdict(line) for line in lines]}
    return json.dumps(document, indent=1, ensure_ascii=False)


def save(text: str, machine: str) -> Path:
    """Write the JSON document to bench/results/<machine>.json; return the path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{machine}.json"
    path.write_text(text + "\n", encoding="utf-8")
    return path


def micro(ns: float) -> str:
    """Write nanoseconds as microseconds."""
    return f"{ns / 1e3:.1f} µs"


def milli(ns: float) -> str:
    """Write nanoseconds as milliseconds."""
    return f"{ns / 1e6:.1f} ms"
