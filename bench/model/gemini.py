"""Gemini's policy in virtual time: a 10 s sliding window, quotas from predicted bursts, no release.

Written from a description of its behaviour, to be beaten on equal programs. One exclusive token a device; the holder
keeps it, idle or not, until it asks again or its quota times out; kernels still running then overlap with the next
holder's (the device divides itself evenly). A burst, once begun, is never held back.
"""

from dataclasses import dataclass, field

from bench.model.policy import NEVER_NS
from bench.model.program import MS, Load, Program, S
from bench.model.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Constants:
    """Its settings, as its launcher sets them.

    Attributes:
        base_quota_ns: the quota while nothing is predicted.
        min_quota_ns: the least quota.
        window_ns: of the usage that decides.
        keep_ns: how long a burst counts in the prediction.
        incomplete_ns: a burst followed by a window shorter than this counts as incomplete: its prediction doubles.
    """

    base_quota_ns: int = 300 * MS
    min_quota_ns: int = 20 * MS
    window_ns: int = 10 * S
    keep_ns: int = 3 * S
    incomplete_ns: int = 2 * MS


@dataclass(slots=True)
class Client:
    """One program as the token's scheduler and the hook see it."""

    load: Load
    quota_ns: int
    granted_ns: int | None = None  # holds the token since
    running: bool = False
    held: list[tuple[int, int]] = field(default_factory=list)  # token intervals
    first: int = 0  # held[:first] lies before the window
    held_ns: int = 0  # sum of held[first:]
    bursts: list[tuple[int, int]] = field(default_factory=list)  # (ended, length), newest last
    burst_began_ns: int = 0
    waiting: bool = False

    @property
    def program(self) -> Program:
        """Its terms."""
        return self.load.program

    def expires_ns(self) -> int:
        """When its token times out."""
        return NEVER_NS if self.granted_ns is None else self.granted_ns + self.quota_ns

    def predicted_ns(self, now_ns: int, keep_ns: int) -> int:
        """Return the longest burst seen lately."""
        self.bursts = [b for b in self.bursts if b[0] > now_ns - keep_ns]
        return max((length for _, length in self.bursts), default=0)

    def forget(self, start_ns: int) -> None:
        """Leave out of the window what ended before it."""
        while self.first < len(self.held) and self.held[self.first][1] <= start_ns:
            self.held_ns -= self.held[self.first][1] - self.held[self.first][0]
            self.first += 1

    def hold(self, begin_ns: int) -> None:
        """Open a token interval."""
        self.held.append((begin_ns, begin_ns))

    def close(self, end_ns: int) -> None:
        """Set the end of the last interval."""
        begin_ns, before_ns = self.held[-1]
        self.held[-1] = (begin_ns, end_ns)
        self.held_ns += end_ns - before_ns

    def held_since(self, start_ns: int) -> int:
        """Return how long it held the token since the start of the window."""
        if self.first == len(self.held):
            return 0
        return self.held_ns - max(0, start_ns - self.held[self.first][0])


class Gemini:
    """Runs programs on one device under that policy."""

    def __init__(self, programs: list[Program], constants: Constants | None = None) -> None:
        self.constants = constants or Constants()
        self.clients = {p.name: Client(Load(p), self.constants.base_quota_ns) for p in programs}
        self.loads = {name: c.load for name, c in self.clients.items()}
        self.timelines = {p.name: Timeline() for p in programs}
        self.now_ns = 0
        self.longest_token_ns = 0
        self._queue: list[str] = []
        self._holder: str | None = None
        self._wake_ns = NEVER_NS

    def run(self, until_ns: int) -> "Gemini":
        """Advance to `until_ns`."""
        while self.now_ns < until_ns:
            self._react()
            self._progress(min(self._next_event(), until_ns))
        return self

    def token_percent(self, name: str, start_ns: int, end_ns: int) -> float:
        """Return the share of all token time in [start, end) that one client held."""
        held = {n: sum(max(0, min(e, end_ns) - max(b, start_ns)) for b, e in c.held) for n, c in self.clients.items()}
        return 100 * held[name] / sum(held.values())

    # -- the device ------------------------------------------------------------------------------------------------

    def _running(self) -> list[Client]:
        return [c for c in self.clients.values() if c.running]

    def _next_event(self) -> int:
        running = self._running()
        times = [NEVER_NS]
        for client in self.clients.values():
            if client.running:
                times.append(self.now_ns + self._chunk_ns(client) * len(running))
            elif not client.waiting:
                times.append(client.load.next_arrival_ns())
            times += [client.program.start_ns, client.program.stop_ns]
        if self._holder is not None:
            times.append(self.clients[self._holder].expires_ns())
        times.append(self._wake_ns)
        return min(t for t in times if t > self.now_ns)

    def _chunk_ns(self, client: Client) -> int:
        """Device work until the client is looked at again: its burst, or one kernel of an endless one."""
        return client.load.left_ns if client.program.synchronises else min(client.program.unit_ns, client.load.left_ns)

    def _progress(self, to_ns: int) -> None:
        """Let the running bursts share the device until `to_ns`."""
        running = self._running()
        start_ns, self.now_ns = self.now_ns, to_ns
        if not running:
            return
        part_ns = (to_ns - start_ns) // len(running)
        for index, client in enumerate(running):
            done_ns = min(part_ns, client.load.left_ns)
            # Drawn one after the other within the interval: only sums over it mean something while they overlap.
            self.timelines[client.program.name].add(start_ns + index * part_ns, start_ns + index * part_ns + done_ns)
            if client.load.done(done_ns, to_ns):
                self._finish_burst(client)
            elif not client.program.synchronises and to_ns >= client.expires_ns():
                client.running = False  # the hook's forced synchronise at the end of the token
            elif to_ns >= client.program.stop_ns:
                client.running = False

    def _finish_burst(self, client: Client) -> None:
        client.running = not client.program.synchronises and client.load.is_ready(self.now_ns)
        client.bursts.append((self.now_ns, self.now_ns - client.burst_began_ns))
        if client.held and client.granted_ns is None:  # it ran past its token: overuse
            client.close(max(client.held[-1][1], self.now_ns))

    # -- the hook --------------------------------------------------------------------------------------------------

    def _react(self) -> None:
        """Let every client and the scheduler do what is due now."""
        if self._holder is not None and self.clients[self._holder].expires_ns() <= self.now_ns:
            self._take_token()
        for name, client in self.clients.items():
            if not client.running and not client.waiting and client.load.is_ready(self.now_ns):
                self._launch(name, client)
        if self._holder is None and self._queue:
            self._grant()

    def _launch(self, name: str, client: Client) -> None:
        """The first launch of a burst."""
        if client.granted_ns is not None:
            elapsed_ns = self.now_ns - client.granted_ns
            predicted_ns = (
                client.predicted_ns(self.now_ns, self.constants.keep_ns) if client.program.synchronises else 0
            )
            if elapsed_ns + predicted_ns < client.quota_ns:
                client.running, client.burst_began_ns = True, self.now_ns
                return
            self._take_token()
        client.waiting = True
        self._queue.append(name)
        self._wake_ns = NEVER_NS

    def _take_token(self) -> None:
        """The holder asks again, or timed out: its record ends."""
        assert self._holder is not None
        client = self.clients[self._holder]
        assert client.granted_ns is not None
        client.close(self.now_ns)
        client.granted_ns = None
        self._holder = None
        if not client.program.synchronises:
            client.running = False

    # -- the scheduler ---------------------------------------------------------------------------------------------

    def _estimate_ns(self, client: Client) -> int:
        predicted_ns = client.predicted_ns(self.now_ns, self.constants.keep_ns)
        if not client.program.synchronises:
            # No synchronise closes its burst: it is as long as the token, and the window after it is nothing.
            return 2 * client.quota_ns if client.held else 0
        gap_ns = client.program.period_ns or client.program.gap_ns
        return 2 * predicted_ns if gap_ns < self.constants.incomplete_ns else predicted_ns

    def _grant(self) -> None:
        name = self._choose()
        if name is None:
            return
        client = self.clients[name]
        self._queue.remove(name)
        estimate_ns = self._estimate_ns(client)
        if estimate_ns == 0:
            client.quota_ns = self.constants.base_quota_ns
        else:
            longest_ns = round(client.program.limit * self.constants.window_ns / 100)
            client.quota_ns = min(max((estimate_ns + client.quota_ns) // 2, self.constants.min_quota_ns), longest_ns)
        self.longest_token_ns = max(self.longest_token_ns, client.quota_ns)
        client.granted_ns = self.now_ns
        client.hold(self.now_ns)
        client.waiting = False
        self._holder = name
        client.running, client.burst_began_ns = client.load.is_ready(self.now_ns), self.now_ns

    def _choose(self) -> str | None:
        """Return the queued client furthest from its target; None: all have used up their limit, sleep."""
        window_ns = min(self.constants.window_ns, self.now_ns)
        start_ns = self.now_ns - window_ns
        for client in self.clients.values():
            client.forget(start_ns)
        head = self.clients[self._queue[0]]
        if head.first == len(head.held):
            return self._queue[0]
        best: tuple[tuple[int, float], str] | None = None
        for name in self._queue:
            client = self.clients[name]
            used_ns = client.held_since(start_ns)
            if client.program.limit * window_ns / 100 - used_ns <= 0:
                continue
            missing_ns = client.program.request * window_ns / 100 - used_ns
            # Relative shortfall, the largest first; satisfied clients after all others, by least absolute usage.
            rank = (0, -missing_ns / (missing_ns + used_ns)) if missing_ns > 0 else (1, float(used_ns))
            if best is None or rank < best[0]:
                best = (rank, name)
        if best is not None:
            return best[1]
        # Sleeps until the oldest record leaves the window, or a new request.
        oldest_ns = min((c.held[c.first][1] for c in self.clients.values() if c.first < len(c.held)), default=start_ns)
        self._wake_ns = oldest_ns + self.constants.window_ns
        return None
