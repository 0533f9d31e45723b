"""Gemini's policy in virtual time: the figures of the bench's column, as its real hook does not run on today's glibc.

This is written from a description of its behaviour. A device has one exclusive token. A 10 s sliding window of token
time decides which client gets it. A quota says for how long; it follows from the bursts seen so far. The holder keeps
the token, idle or not, until it asks again or the quota times out. A burst that has begun is never held back: it then
shares the device evenly with the next holder's bursts. All programs here synchronise after each burst.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

from rig.virtual.policy import NEVER_NS
from rig.virtual.program import MS, Load, Program, S
from rig.virtual.timeline import Timeline

BASE_QUOTA_NS = 300 * MS
MIN_QUOTA_NS = 20 * MS
WINDOW_NS = 10 * S
KEEP_NS = 3 * S
"""How long a burst counts in the prediction."""


@dataclass(slots=True)
class _Client:
    """One program, as the token's scheduler and the hook see it."""

    load: Load
    timeline: Timeline = field(default_factory=Timeline)
    quota_ns: int = BASE_QUOTA_NS
    granted_ns: int | None = None
    running: bool = False
    waiting: bool = False
    held: list[tuple[int, int]] = field(default_factory=list)
    """Intervals in which it held the token."""
    bursts: list[tuple[int, int]] = field(default_factory=list)
    """The end and the length of each burst."""
    began_ns: int = 0

    def expires_ns(self) -> int:
        return NEVER_NS if self.granted_ns is None else self.granted_ns + self.quota_ns

    def predicted_ns(self, now_ns: int) -> int:
        """Return the longest recent burst."""
        self.bursts = [burst for burst in self.bursts if burst[0] > now_ns - KEEP_NS]
        return max((length for _, length in self.bursts), default=0)

    def held_since(self, start_ns: int) -> int:
        """Return how long it has held the token since `start_ns`. Forget earlier intervals."""
        self.held = [span for span in self.held if span[1] > start_ns]
        return sum(end - max(begin, start_ns) for begin, end in self.held)


class Gemini:
    """Runs programs on one device under Gemini's policy."""

    def __init__(self, programs: list[Program]) -> None:
        self.clients = {program.name: _Client(Load(program)) for program in programs}
        self.now_ns = 0
        self._queue: list[str] = []
        self._holder: _Client | None = None
        self._wake_ns = NEVER_NS

    def run(self, until_ns: int) -> "Gemini":
        """Advance to `until_ns`."""
        while self.now_ns < until_ns:
            self._react()
            self._progress(min(self._next_event(), until_ns))
        return self

    def _next_event(self) -> int:
        """Return when something changes next: a token times out, a program comes or goes, a burst arrives or ends."""
        running = sum(client.running for client in self.clients.values())
        times = [self._wake_ns, self._holder.expires_ns() if self._holder else NEVER_NS]
        for client in self.clients.values():
            times += [client.load.program.start_ns, client.load.program.stop_ns]
            if client.running:
                times.append(self.now_ns + client.load.left_ns * running)
            elif not client.waiting:
                times.append(client.load.next_arrival_ns())
        return min(time for time in times if time > self.now_ns)

    def _progress(self, to_ns: int) -> None:
        """Let the running bursts share the device until `to_ns`."""
        running = [client for client in self.clients.values() if client.running]
        start_ns, self.now_ns = self.now_ns, to_ns
        part_ns = (to_ns - start_ns) // len(running) if running else 0
        for index, client in enumerate(running):
            done_ns = min(part_ns, client.load.left_ns)
            # Recorded one after the other in the interval: while they overlap only sums over the interval have a
            # meaning.
            client.timeline.add(start_ns + index * part_ns, start_ns + index * part_ns + done_ns)
            if client.load.done(done_ns, to_ns):
                client.running = False
                client.bursts.append((to_ns, to_ns - client.began_ns))
                if client.granted_ns is None and client.held:  # the burst outlasted its token
                    client.held[-1] = (client.held[-1][0], max(client.held[-1][1], to_ns))

    def _react(self) -> None:
        """Let every client and the scheduler do what is due now."""
        if self._holder is not None and self._holder.expires_ns() <= self.now_ns:
            self._take_token(self._holder)
        for name, client in self.clients.items():
            if not client.running and not client.waiting and client.load.is_ready(self.now_ns):
                self._launch(name, client)
        if self._holder is None and self._queue:
            self._grant()

    def _launch(self, name: str, client: _Client) -> None:
        """Launch a burst if the quota leaves time for it; else let the client ask again."""
        if client.granted_ns is not None:
            if self.now_ns - client.granted_ns + client.predicted_ns(self.now_ns) < client.quota_ns:
                client.running, client.began_ns = True, self.now_ns
                return
            self._take_token(client)
        client.waiting = True
        self._queue.append(name)
        self._wake_ns = NEVER_NS

    def _take_token(self, client: _Client) -> None:
        client.held[-1] = (client.held[-1][0], self.now_ns)
        client.granted_ns = self._holder = None

    def _grant(self) -> None:
        """Give the token to the client that is chosen, if any.

        Its quota is the mean of its last quota and the predicted burst, from MIN_QUOTA_NS to its limit.
        """
        name = self._choose()
        if name is None:
            return
        client = self.clients[name]
        predicted_ns = client.predicted_ns(self.now_ns)
        limit_ns = round(client.load.program.limit * WINDOW_NS / 100)
        wanted_ns = (predicted_ns + client.quota_ns) // 2 if predicted_ns else BASE_QUOTA_NS
        client.quota_ns = min(max(wanted_ns, MIN_QUOTA_NS), limit_ns)
        self._queue.remove(name)
        client.held.append((self.now_ns, self.now_ns))
        client.granted_ns, client.waiting, self._holder = self.now_ns, False, client
        client.running, client.began_ns = client.load.is_ready(self.now_ns), self.now_ns

    def _choose(self) -> str | None:
        """Return the queued client furthest from its target; None, and a time to wake, if all are at their limits."""
        window_ns = min(WINDOW_NS, self.now_ns)
        used_ns = {name: client.held_since(self.now_ns - window_ns) for name, client in self.clients.items()}
        ranks: dict[str, tuple[int, float]] = {}
        for name in self._queue:
            program, used = self.clients[name].load.program, used_ns[name]
            missing_ns = program.request * window_ns / 100 - used
            if program.limit * window_ns / 100 > used or not self.clients[name].held:
                # The least rank wins: the largest relative shortfall. Satisfied clients come after all others.
                ranks[name] = (0, -missing_ns / (missing_ns + used)) if missing_ns > 0 else (1, float(used))
        if ranks:
            return min(ranks, key=lambda name: ranks[name])
        self._wake_ns = WINDOW_NS + min(client.held[0][1] for client in self.clients.values() if client.held)
        return None


def _bursts(name: str, request: float, limit: float = 100, *, start_ns: int = 0) -> Program:
    return Program(name, request, limit, work_ns=10 * MS, gap_ns=3 * MS, start_ns=start_ns)


def _join_pause_ms() -> float:
    run = Gemini([_bursts("first", 50), _bursts("joiner", 50, start_ns=30 * S)]).run(60 * S)
    return run.clients["first"].timeline.longest_pause_ns(30 * S, 60 * S) / MS


def _limit_pause_ms() -> float:
    run = Gemini([_bursts("only", 50, 50)]).run(60 * S)
    return run.clients["only"].timeline.longest_pause_ns(20 * S, 60 * S) / MS


def _trainer_keeps() -> float:
    duties = [Program(f"duty{number}", 12.5, work_ns=1 * MS, period_ns=50 * MS) for number in range(4)]
    run = Gemini([_bursts("trainer", 50), *duties]).run(40 * S)
    return run.clients["trainer"].timeline.busy_between(10 * S, 40 * S) / (30 * S) / (10 / 13)


FIGURES: dict[str, Callable[[], float]] = {
    "stall, ms": _join_pause_ms,
    "limit, ms": _limit_pause_ms,
    "trainer keeps": _trainer_keeps,
}


@functools.cache
def gemini(figure: str) -> float:
    """Return one of FIGURES. Raises KeyError for an unknown one."""
    return FIGURES[figure]()
