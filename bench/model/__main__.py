"""`python -m bench.model [-o json]`: our policy beside a model of Gemini's, in virtual time."""

import json
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from bench.entry import Parser, run
from bench.model.scenarios import SCENARIOS, Scenario


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: the figure that Gemini is known for, its model's, ours, and who is better."""

    scenario: str
    figure: str
    known: float | None
    gemini: float
    sharepod: float
    wins: bool


def compare(scenario: Scenario) -> Row:
    """Run both policies on one scenario; where each can at best get all it asks for, a draw is a win."""
    gemini, ours = scenario.gemini(), scenario.ours()
    wins = ours < gemini if scenario.smaller_wins else ours >= gemini
    known = None if scenario.known is None else round(scenario.known, 3)
    return Row(scenario.name, scenario.figure, known, round(gemini, 3), round(ours, 3), wins)


def show(rows: list[Row]) -> None:
    """Print the rows for people."""
    table = Table("scenario", "figure", title="Policies in virtual time")
    for heading in ("Gemini, known", "Gemini, modelled", "SharePod"):
        table.add_column(heading, justify="right")
    table.add_column("better")
    for row in rows:
        known = "" if row.known is None else f"{row.known:.1f}"
        better = "SharePod" if row.wins else "Gemini"
        table.add_row(row.scenario, row.figure, known, f"{row.gemini:.1f}", f"{row.sharepod:.1f}", better)
    Console().print(table)


def main() -> int:
    """Print the comparison; exit status 1 when Gemini is better anywhere."""
    parser = Parser(prog="python -m bench.model", description=__doc__)
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table", help="for people or machines")
    options = parser.parse_args()
    rows = [compare(scenario) for scenario in SCENARIOS]
    if options.output == "json":
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        show(rows)
    return 0 if all(row.wins for row in rows) else 1


if __name__ == "__main__":
    run(main)
