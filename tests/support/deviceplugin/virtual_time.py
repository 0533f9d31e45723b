"""An event loop with a clock that jumps to the next timer that is due, so that minutes of waiting take no time."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

Given = ParamSpec("Given")


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everything waits for something that will not happen"
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time for programs without threads and sockets."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run_virtually(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, and cancel what it leaves."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work)


def virtually(test: Callable[Given, Coroutine[Any, Any, None]]) -> Callable[Given, None]:
    """Make a coroutine a test that runs in virtual time."""

    @functools.wraps(test)
    def run(*given: Given.args, **named: Given.kwargs) -> None:
        run_virtually(test(*given, **named))

    return run
