"""Test that the tables of bench/README.md show the newest result that is kept."""

import json
from pathlib import Path

from bench.table import Line


def test_the_readme_shows_every_line_of_the_kept_result_as_it_was_measured(repo_root: Path) -> None:
    bench = repo_root / "bench"
    shown = (bench / "README.md").read_text(encoding="utf-8").splitlines()
    (kept,) = (bench / "results").glob("sim-*.json")
    missing = []
    for fields in json.loads(kept.read_text(encoding="utf-8"))["lines"]:
        line = Line(**fields)
        row = f"| {line.what} | {line.bar} | {line.result} | {line.verdict} |"
        if not any(each.startswith(row) for each in shown):
            missing.append(row)
    assert missing == []
