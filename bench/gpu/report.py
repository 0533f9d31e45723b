"""The report: rows of lines, printed and saved one by one, so that a run which is cut off loses nothing."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.table import Line, aligned, cells_of, columns_beside

MEASURED, FAILED, SKIPPED = "measured", "failed", "skipped"
HEADINGS = ("what", "bar", "with SharePod", "", "without")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the bench: its lines, or why it has none."""

    key: str
    title: str
    state: str
    seconds: float = 0.0
    reason: str = ""
    """Why a row failed or was skipped."""
    lines: Sequence[Line] = ()


@dataclass
class Report:
    """All results so far."""

    machine: str
    about: Mapping[str, Any]
    """The device and the settings of the run."""
    rows: list[Row] = field(default_factory=list)
    profile: Mapping[str, int] = field(default_factory=dict)
    """The settings that make a simulated GPU like this one: SIMGPU_PROFILE takes the file."""

    @property
    def missed(self) -> list[Line]:
        """The missed bars that must not be missed."""
        return [line for row in self.rows for line in row.lines if line.met is False and not line.excusable]

    @property
    def failed(self) -> list[Row]:
        """The rows that were tried and gave no result."""
        return [row for row in self.rows if row.state == FAILED]

    def as_json(self) -> str:
        """Return one JSON document."""
        document = {
            "machine": self.machine,
            "profile": self.profile,
            **self.about,
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }
        return json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n"

    def markdown(self) -> str:
        """Return the tables."""
        peers = columns_beside(line for row in self.rows for line in row.lines)
        cells = [(*HEADINGS, *peers)]
        for row in self.rows:
            cells += [(x.what, x.bar, x.result, x.verdict, x.no_hook, *cells_of(x, peers)) for x in row.lines]
            if row.state != MEASURED:
                cells.append((row.title, "", f"{row.state}: {_one_line(row.reason)}", "", "", *([""] * len(peers))))
        about = [f"* {name}: {_in_words(value)}" for name, value in self.about.items() if name != "scale"]
        text = [f"# {self.machine}", "", *about, ""]
        text += [*aligned(cells), ""]
        if self.profile:
            values = [(name, str(value)) for name, value in self.profile.items()]
            text += ["## profile", "", *aligned([("property of the simulated GPU", "measured"), *values]), ""]
        return "\n".join(text)

    def save(self, directory: Path) -> tuple[Path, Path]:
        """Write the JSON and the table, completely or not at all. Return their paths."""
        directory.mkdir(parents=True, exist_ok=True)
        paths = directory / f"{self.machine}.json", directory / f"{self.machine}.md"
        for path, text in zip(paths, (self.as_json(), self.markdown()), strict=True):
            partial = path.with_name(f".{path.name}.partial")
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        return paths


def _in_words(value: object) -> str:
    return "; ".join(f"{name}: {part}" for name, part in value.items()) if isinstance(value, Mapping) else str(value)


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")
