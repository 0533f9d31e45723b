"""`sharepod demo`: runs three unmodified CUDA programs at 50/30/20 on one GPU; the third joins late."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from sharepod.cli.console import check_writable, show
from sharepod.cli.ending import end_in_order

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sharepod.cli.demo.account import Outcome
    from sharepod.cli.demo.stage import Part, Stage
    from sharepod.cli.render.turns import Turn, Window

_SIMULATED: Final = "1xH200"
_PROGRAMS: Final = (("train", 50, 500), ("serve", 30, 2000), ("late", 20, 100))
"""Name, percentage asked, microseconds per kernel. The kernels differ, so a count of launches would not tell time."""
_SETTLE_S: Final = 0.5
"""The time between a program's start and the window in which it is measured."""
_LOOK_S: Final = 0.25
_FILLED: Final = 95.0
"""Percent of the device's time. Programs that saturate the device use more, unless the host is too busy."""
_PICTURE_NS: Final = 400_000_000
"""The length of the picture's window."""
_PICTURE_COLUMNS: Final = 96
_EXTRA_S: Final = 10.0
"""Programs are told to run for this much longer than the demo: the demo ends them, and none may end before."""


def demo(
    seconds: Annotated[float, typer.Option(min=4, max=600, help="How long the programs run.")] = 18.0,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Use the simulated GPU even if a real one is here.")
    ] = False,
    picture: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Also write the turns as a picture.")] = None,
) -> None:
    """Show three programs sharing one GPU at 50/30/20 percent, one of them a late joiner.

    Uses a real GPU if there is one, else a simulated one. Leaves nothing behind.
    """
    from sharepod.cli.demo.stage import Part, open_stage

    end_in_order()
    if picture is not None:
        check_writable(picture)
    parts = [Part(*row) for row in _PROGRAMS]
    devices = _SIMULATED if simulate or not _real_gpu() else None
    with open_stage(devices) as stage:
        device = stage.node.devices[0].name
        typer.echo(
            f"{device}{' (simulated)' if devices else ''}: three programs ask for 50, 30 and 20 %; the third is late"
        )
        act = Act(stage, parts, seconds)
        alone, together = act.play()
        stage.stop_programs()
        turns = stage.client.turns_after(0)
    source = "ground truth of the simulated GPU" if devices else "SharePod's ledger"
    show(f"\nBefore the third joined: two programs share what nobody asked for ({source})")
    _show_outcome(alone)
    show(f"\nAll three: everyone gets what they asked for ({source})")
    _show_outcome(together)
    _show_turns(turns, act.joined_ns, picture)


def _real_gpu() -> bool:
    """Tell whether a CUDA driver loads and initialises here."""
    from sharepod.cli.commands import checks

    return checks.check_driver({}, simulated=False).status == checks.OK


class Act:
    """The course of the demo: two programs, then three, measured in a window each."""

    def __init__(self, stage: Stage, parts: list[Part], seconds: float) -> None:
        """Take the stage, the programs, of which the last one joins late, and how long the demo runs, in seconds."""
        self._stage = stage
        self._parts = parts
        self._seconds = seconds
        self.joined_ns = 0
        """When the third program had launched for the first time, CLOCK_MONOTONIC; 0: it has not yet."""

    def play(self) -> tuple[Outcome, Outcome]:
        """Run the programs and return what they got: the first two alone, then all three."""
        *early, late = self._parts
        end = time.monotonic() + self._seconds
        for part in early:
            self._stage.start(part, self._seconds + _EXTRA_S)
        alone = self._measure(early, until=end - self._seconds * 2 / 3)  # the first third of the demo
        self._stage.start(late, self._seconds + _EXTRA_S)
        self.joined_ns = time.monotonic_ns()
        return alone, self._measure(self._parts, until=end)

    def _measure(self, parts: list[Part], until: float) -> Outcome:
        """Return what the programs got in a window that begins after `_SETTLE_S` and lasts until `until`.

        `until` is a time of time.monotonic. The window lasts a second at least. Raises CliError if a program ends
        before its end.
        """
        from sharepod.cli.demo.account import outcome

        self._watch(time.monotonic() + _SETTLE_S)
        before = self._stage.read()
        self._watch(max(until, time.monotonic() + 1))
        return outcome({part.name: part.gpu_percent for part in parts}, before, self._stage.read())

    def _watch(self, until: float) -> None:
        """Show the live table until that time of the clock. Raises CliError if a program ends before."""
        from rich.live import Live

        from sharepod.cli.console import console
        from sharepod.cli.render import tables

        with Live(console=console(), auto_refresh=False, transient=True) as live:
            while (left := until - time.monotonic()) > 0:
                if console().is_terminal:
                    live.update(tables.share_table(self._stage.client.list_shares().shares), refresh=True)
                time.sleep(min(_LOOK_S, left))
                self._stage.check()


def _show_turns(turns: list[Turn], joined_ns: int, picture: Path | None) -> None:
    """Show the turns around the moment at which the third program joins. Write them to `picture` if that is given."""
    from sharepod.cli.console import note, write_file
    from sharepod.cli.render.picture import svg
    from sharepod.cli.render.turns import Window

    # The join counts from the grant of the late share's first turn. Half of the picture lies before it.
    joined_ns = next((turn.granted_ns for turn in turns if turn.share == _PROGRAMS[-1][0]), joined_ns)
    window = Window(joined_ns - _PICTURE_NS // 2, joined_ns + _PICTURE_NS // 2)
    show(f"\nThe turns as the third joins, {_PICTURE_NS // 1_000_000} ms:")
    show(_picture(turns, window))
    if picture is not None:
        write_file(picture, svg(turns, window, "Turns on one GPU: 50 %, 30 % and a late 20 %"))
        note(f"the picture is in {picture}")


def _show_outcome(outcome: Outcome) -> None:
    """Show the table of one window, and say so if the programs did not keep the device busy."""
    from sharepod.cli.render import tables

    show(tables.result_table(outcome.shares))
    show(f"Together they used {outcome.used:.1f} % of the device's time; GOT is of that.")
    if outcome.used < _FILLED:
        show("This host was too busy to keep the device filled: try again when it is quiet.")


def _picture(turns: list[Turn], window: Window) -> RenderableType:
    """Return a row of blocks for each program, in the order of `_PROGRAMS`."""
    from rich.text import Text

    from sharepod.cli.console import console
    from sharepod.cli.render.picture import STYLES, text_rows

    text = Text()
    columns = max(20, min(_PICTURE_COLUMNS, console().width - 8))
    order = [name for name, _, _ in _PROGRAMS]
    for share, bar in sorted(text_rows(turns, window, columns), key=lambda row: order.index(row[0])):
        text.append(f"{share:>6} ")
        text.append(f"{bar}\n", style=STYLES[order.index(share)])
    return text
