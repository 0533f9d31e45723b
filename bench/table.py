"""The table: one line per bar, as values, and how it is printed and saved. Pure but for `save`."""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
HEADINGS = ("what", "bar", "result", "", "no hook", "Gemini's policy")


@dataclass(frozen=True, slots=True)
class Line:
    """One figure, with its bar if it has one.

    Attributes:
        what: the case in words.
        bar: the bar with its unit, computed for this case; empty: there is none.
        result: the measured figure, in the bar's unit.
        met: None: there is no bar, only a measurement.
        no_hook: the same case without the hook: the device's default time slicing.
        gemini: the same case under Gemini's policy, modelled.
        beside: the same case under other profiles, and under each interposer of others, by name.
        detail: the numbers behind the result.
        excusable: it may be missed with a stated reason (only the hand-off and hardware).
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
    beside: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The verdict's word in the table."""
        return "" if self.met is None else "met" if self.met else "MISSED"


def missed(lines: Sequence[Line]) -> list[Line]:
    """Return the lines that miss a bar which must not be missed."""
    return [line for line in lines if line.met is False and not line.excusable]


def markdown(lines: Sequence[Line]) -> str:
    """Return the table as aligned Markdown."""
    columns = columns_beside(lines)
    cells = [(x.what, x.bar, x.result, x.verdict, *cells_of(x, columns), x.no_hook, x.gemini) for x in lines]
    return "\n".join(aligned([(*HEADINGS[:4], *columns, *HEADINGS[4:]), *cells]))


def beside(lines: Sequence[Line], name: str, under: Sequence[Line], missing: str = "") -> list[Line]:
    """Return the lines of a row with another column, from the row's lines under the profile or peer `name`.

    `missing` is the reason if there are no such lines.
    """
    results = {_case(line): " ".join([line.result, *(["MISSED"] if line.met is False else [])]) for line in under}
    without = "not measured" if under else " ".join(missing.split())[:200].replace("|", "/")
    return [
        dataclasses.replace(line, beside={**line.beside, name: results.get(_case(line), without)}) for line in lines
    ]


def _case(line: Line) -> str:
    """Return the case of a line, without the figures of its run."""
    return re.sub(r" \([^()]*\)|, \d+ requests", "", line.what)


def columns_beside(lines: Iterable[Line]) -> list[str]:
    """Return the columns beside the result, in the order in which they were measured."""
    return [*dict.fromkeys(name for line in lines for name in line.beside)]


def cells_of(line: Line, columns: Sequence[str]) -> list[str]:
    """Return a line's cells in these columns."""
    return [line.beside.get(name, "") for name in columns]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table; its first row is the headings."""
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
