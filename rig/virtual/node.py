"""One device under `agent/policy/` in virtual time: turns, kernels that cannot be interrupted, hand-offs, early yield.

This models the arbiter's rules, but is simpler than the arbiter. Hand-offs never overlap: each costs `handoff_ns` of an
idle device. There is no co-grant, and a share has one process. What the model lacks would only improve the figures.
"""

from dataclasses import dataclass

from rig.virtual.policy import NEVER_NS, Policy, Rule, ShareClass
from rig.virtual.program import US, Load, Program
from rig.virtual.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Settings:
    """The costs of a node.

    Attributes:
        handoff_ns: from one holder's drain to the next one's first kernel.
        linger_ns: how long an idle turn lasts before it is given back.
        queued_ns: predicted work that may be in flight when a gate closes, at most a quantum. It still runs then.
        queued_latency_ns: the same if a latency share is present.
    """

    handoff_ns: int = 50 * US
    linger_ns: int = 100 * US
    queued_ns: int = 1000 * US
    queued_latency_ns: int = 200 * US


@dataclass(frozen=True, slots=True)
class Turn:
    """One finished turn."""

    name: str
    granted_ns: int
    drained_ns: int
    quantum_ns: int
    rule: Rule


class Node:
    """Runs programs on one device until a given time, and records what happened."""

    def __init__(self, programs: list[Program], settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.policy = Policy()
        self.loads = {p.name: Load(p) for p in programs}
        self.timelines = {p.name: Timeline() for p in programs}
        self.turns: list[Turn] = []
        self.now_ns = 0
        self._share_of: dict[str, int] = {}
        self._name_of: dict[int, str] = {}
        self._holder: str | None = None
        latency = any(p.share_class is ShareClass.LATENCY for p in programs)
        self._queued_ns = self.settings.queued_latency_ns if latency else self.settings.queued_ns

    @property
    def busy_ns(self) -> int:
        """Device time that all programs got."""
        return sum(t.busy_ns for t in self.timelines.values())

    def run(self, until_ns: int) -> "Node":
        """Advance to `until_ns`; may be called again."""
        while self.now_ns < until_ns:
            self._arrive(self.now_ns)
            choice = self.policy.next(self.now_ns)
            if choice.share is None:
                self.now_ns = min(self._next_event(), choice.retry_ns, until_ns)
                continue
            self._turn(choice.share, choice.quantum_ns, choice.rule, until_ns)
        return self

    # -- events of others ------------------------------------------------------------------------------------------

    def _next_event(self) -> int:
        """When the next program other than the holder joins, leaves or gets work."""
        times = [NEVER_NS]
        for name, load in self.loads.items():
            if name not in self._share_of and self.now_ns < load.program.stop_ns:
                times.append(load.program.start_ns)
            elif name in self._share_of and name != self._holder:
                times += [load.program.stop_ns, load.next_arrival_ns()]
        return min(t for t in times if t > self.now_ns)

    def _arrive(self, now_ns: int) -> list[int]:
        """Let programs join, leave and begin to wait, as they do by `now_ns`. Return the shares that begin to wait.

        The holder is left out.
        """
        began = []
        for name, load in self.loads.items():
            program = load.program
            if name not in self._share_of and program.start_ns <= now_ns < program.stop_ns:
                share = self.policy.add(now_ns, program.request, program.limit, program.share_class)
                assert share >= 0
                self.policy.unit(share, program.unit_ns)
                self._share_of[name], self._name_of[share] = share, name
            share = self._share_of.get(name, -1)
            if share < 0 or name == self._holder:
                continue
            if now_ns >= program.stop_ns:
                self.policy.remove(now_ns, share)
                del self._share_of[name], self._name_of[share]
            elif load.is_ready(now_ns) and not self.policy.share(share).waiting:
                self.policy.wait(now_ns, share)
                began.append(share)
        return began

    def _others_wait(self, share: int) -> bool:
        return any(self.policy.share(s).waiting for s in self._name_of if s != share)

    # -- a turn ----------------------------------------------------------------------------------------------------

    def _turn(self, share: int, quantum_ns: int, rule: Rule, until_ns: int) -> None:
        """Run one turn, from its grant to its drain. While no other share waits, it lasts several quanta.

        It ends when its program has had no work for `linger_ns`, when a quantum is over and another share waits, when
        its limit closes the gate, or at `until_ns`. After the gate has closed, queued work still runs.
        """
        name = self._holder = self._name_of[share]
        load = self.loads[name]
        self.now_ns += self.settings.handoff_ns
        granted_ns = quantum_start_ns = billed_ns = self.now_ns
        close_ns = granted_ns + quantum_ns
        busy_until_ns = granted_ns  # with the turn's kernels
        while True:
            event_ns = max(min(close_ns, self._next_event(), until_ns), self.now_ns)
            busy_until_ns, given_back_ns = self._work(load, busy_until_ns, event_ns)
            if given_back_ns is not None:  # the program ran out of work
                self.now_ns = given_back_ns
                break
            self.now_ns = event_ns
            close_ns = self._shorten(share, quantum_start_ns, close_ns)
            if event_ns >= until_ns and event_ns < close_ns:  # the run ends within a quantum
                break
            if event_ns < close_ns:
                continue
            if not self._others_wait(share):  # the turn goes on with another quantum, unless the limit forbids it
                self._bill_and_end(share, event_ns, event_ns - billed_ns, wants_more=True)
                billed_ns = event_ns
                choice = self.policy.next(event_ns)
                if choice.share == share:
                    quantum_start_ns, close_ns = event_ns, event_ns + choice.quantum_ns
                    if event_ns >= until_ns:
                        break
                    continue
                assert choice.share is None
                busy_until_ns, _ = self._work(load, busy_until_ns, event_ns + min(self._queued_ns, quantum_ns))
                drained_ns = max(busy_until_ns, event_ns)
                # The share's limit closed the gate: its residue is charged after the turn.
                self.policy.charge(drained_ns, share, drained_ns - billed_ns)
                self._finish(name, granted_ns, drained_ns, quantum_ns, rule)
                return
            busy_until_ns, _ = self._work(load, busy_until_ns, event_ns + min(self._queued_ns, quantum_ns))
            break
        drained_ns = max(busy_until_ns, self.now_ns)
        self._arrive_until(drained_ns)
        self._bill_and_end(share, drained_ns, drained_ns - billed_ns, wants_more=load.is_ready(drained_ns))
        self._finish(name, granted_ns, drained_ns, quantum_ns, rule)

    def _shorten(self, share: int, quantum_start_ns: int, close_ns: int) -> int:
        """Let other programs arrive. Return when the gate now closes: at `close_ns`, or earlier if some begin to wait.

        It closes at once if one of them preempts the holder. Else it closes after the quantum that the holder would get
        now: a longer one may have been granted when no share waited.
        """
        began = self._arrive(self.now_ns)
        if any(self.policy.preempts(self.now_ns, waiter, share) for waiter in began):
            return self.now_ns
        if began:
            return min(close_ns, max(self.now_ns, quantum_start_ns + self.policy.quantum(self.now_ns, share)))
        return close_ns

    def _finish(self, name: str, granted_ns: int, drained_ns: int, quantum_ns: int, rule: Rule) -> None:
        """Record the turn. The device has no holder from its drain on."""
        self.turns.append(Turn(name, granted_ns, drained_ns, quantum_ns, rule))
        self.now_ns = drained_ns
        self._holder = None

    def _arrive_until(self, until_ns: int) -> None:
        """Let others begin to wait at their own times while the holder drains."""
        while (event_ns := self._next_event()) <= until_ns:
            self.now_ns = event_ns
            self._arrive(event_ns)
        self.now_ns = until_ns

    def _bill_and_end(self, share: int, now_ns: int, used_ns: int, *, wants_more: bool) -> None:
        """Bill `used_ns` to the share and end its turn. With `wants_more` it waits for the next one."""
        self.policy.charge(now_ns, share, used_ns)
        if wants_more:
            self.policy.wait(now_ns, share)
        self.policy.end(now_ns, share)

    def _work(self, load: Load, busy_until_ns: int, until_ns: int) -> tuple[int, int | None]:
        """Start kernels before `until_ns` on the device, which is busy until `busy_until_ns`.

        Returns the new `busy_until_ns`, and when the turn is given back because the program ran out of work. None: it
        did not run out of work before `until_ns`.
        """
        timeline = self.timelines[load.program.name]
        unit_ns = load.program.unit_ns
        stop_ns = min(until_ns, load.program.stop_ns)
        while True:
            if not load.is_ready(busy_until_ns):
                arrival_ns = max(load.next_arrival_ns(), busy_until_ns)
                yield_ns = busy_until_ns + self.settings.linger_ns
                if min(arrival_ns, yield_ns) >= until_ns:
                    return busy_until_ns, None
                if yield_ns <= arrival_ns:
                    return busy_until_ns, yield_ns
                busy_until_ns = arrival_ns
                continue
            if busy_until_ns >= stop_ns:
                return busy_until_ns, None
            kernels = -(-(stop_ns - busy_until_ns) // unit_ns)  # those that begin before stop_ns: rounded up
            work_ns = min(kernels * unit_ns, load.left_ns)
            timeline.add(busy_until_ns, busy_until_ns + work_ns)
            busy_until_ns += work_ns
            load.done(work_ns, busy_until_ns)
