"""A live view: draws again and again until the user quits."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.live import Live

from sharepod.cli.console import console
from sharepod.cli.ending import end_in_order

if TYPE_CHECKING:
    from rich.console import RenderableType


def watch(draw: Callable[[], RenderableType], interval_s: float) -> None:
    """Show `draw()` on the whole terminal every `interval_s`, until q or Ctrl-C. Without a terminal show it once."""
    if not console().is_terminal:
        console().print(draw())
        return
    end_in_order()
    live = Live(draw(), console=console(), screen=True, auto_refresh=False)
    with single_keys() as wait_for_key:
        try:
            live.start(refresh=True)
            while wait_for_key(interval_s) not in ("q", "Q", "\x04"):  # Ctrl-D
                live.update(draw(), refresh=True)
        except KeyboardInterrupt:
            return
        finally:
            # Live's own `with` would not restore the screen after a signal that comes before the first picture is out.
            live.stop()


@contextmanager
def single_keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits some seconds for a key and returns it, or "". Restores the terminal at the end."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def wait(seconds: float) -> str:
        """Return the key that is pressed within `seconds`; empty: none is."""
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    try:
        yield wait
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _sleep(seconds: float) -> str:
    """Sleep, and return no key: without a terminal none can come."""
    time.sleep(seconds)
    return ""
