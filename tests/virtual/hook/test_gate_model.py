"""Check a model of the gate: several launching threads, keeper and arbiter over several turns, in every order.

It models one process of one share on one device. Each actor is a small program; its steps are the accesses of gate.c,
keeper.c, region.c and turn.c to shared memory. Here every store is seen at once; `test_turn_model.py` has the stores
that are seen late. Two properties are checked in every state that can be reached:

* safety: no thread sleeps at a grant that has changed; while the arbiter takes the turn for drained, no launch of this
  process starts and none is on the device;
* progress: from every state a way leads to the end, where every launch has been made (or the last turn is over) and
  the device is free.

`Without` takes one measure away at a time: the model must then fail, or it would prove nothing. Deliberate passes (a
deadline, a co-grant) are not modelled: they may run outside a turn.
"""

import enum
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest


class Without(enum.Enum):
    """A measure that the protocol relies on."""

    ENTER_FENCE = enum.auto()
    """The second look at the grant, after a process has said that it enters."""
    LOOK = enum.auto()
    """A thread's check, under the lock, that the turn that it is about to enter is still the present one."""
    SECOND_LOOK = enum.auto()
    """The keeper's check, under the lock, that no thread has entered again, before it says that all has drained."""
    INSIDE = enum.auto()
    """The announce of a launch."""
    WAKE = enum.auto()
    """The arbiter's wake-up after a grant."""
    BELL = enum.auto()
    """The bell of a thread that begins to wait."""


@dataclass(frozen=True, slots=True)
class Thread:
    """A launching thread: gate.c and wait.c."""

    left: int
    """Launches to make."""
    at: str = "start"
    word: int = 0
    """The grant's word as the thread has read it."""
    inside: bool = False
    before: tuple[int, int] = (0, 0)
    """held_turn and drained_turn before this thread tried to enter."""


@dataclass(frozen=True, slots=True)
class State:
    """Everything that the actors see, and the place of each actor in its program."""

    threads: tuple[Thread, ...]
    word: int = 2
    """The grant's word; an odd word is open."""
    entered: int = 0
    held: int = 0
    drained: int = 0
    waiting: int = 0
    bell: bool = False
    locked: bool = False
    launches: int = 0
    in_flight: int = 0
    keeper: str = "look"
    keeper_turn: int = 0
    keeper_launches: int = 0
    arbiter: str = "free"
    """free, holding, draining, or other: the device is another share's."""
    sees_waiting: bool = False
    wakes: bool = False
    """The arbiter has changed the grant and not yet woken the threads that wait for it."""
    turns: int = 0


class Broken(Exception):
    """The protocol allows something that it must not allow."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The protocol, with at most `turns` turns."""

    turns: int
    without: Without | None = None

    # ---- launching threads

    def thread_steps(self, state: State, index: int) -> Iterator[State]:  # noqa: C901 - a program, step by step
        """Yield what thread `index` can do."""
        thread = state.threads[index]

        def to(new: Thread, **changes: object) -> State:
            if new.at == "start":  # from here on, earlier reads do not matter
                new = Thread(new.left)
            threads = (*state.threads[:index], new, *state.threads[index + 1 :])
            return replace(state, threads=threads, **changes)  # type: ignore[arg-type]

        match thread.at:
            case "start" if thread.left:  # announce
                yield to(replace(thread, at="word", inside=self.without is not Without.INSIDE))
            case "word":  # sp_grant_word
                yield to(replace(thread, word=state.word, at="entered"))
            case "entered" if thread.word == state.entered:
                yield to(replace(thread, at="driver"))
            case "entered":
                yield to(replace(thread, at="turn", inside=False))
            case "driver":  # the launch itself, then sp_gate_leave
                if state.arbiter == "other":
                    raise Broken("a launch starts outside its turn")
                done = replace(thread, at="start", inside=False, left=thread.left - 1)
                yield to(done, in_flight=state.in_flight + 1, launches=state.launches + 1)
            case "turn" if state.word & 1:  # sp_wait_turn: the grant is open, enter the turn
                yield to(replace(thread, word=state.word, at="lock"))
            case "turn":  # sp_slot_wait_begin, sp_region_ring
                bell = state.bell or self.without is not Without.BELL
                waiting = replace(thread, word=state.word, at="futex")
                yield to(waiting, waiting=state.waiting + 1, bell=bell)
            case "futex" if state.word == thread.word:  # the kernel compares and sleeps in one step
                yield to(replace(thread, at="asleep"))
            case "futex":
                yield to(replace(thread, at="start"), waiting=state.waiting - 1)
            case "lock" if not state.locked:  # enter_turn
                current = state.word == thread.word or self.without is Without.LOOK
                if state.entered == thread.word or not current:
                    yield to(replace(thread, at="start"))
                else:
                    yield to(replace(thread, at="say", before=(state.held, state.drained)), locked=True)
            case "say":  # sp_slot_publish
                yield to(replace(thread, at="check"), held=thread.word, drained=0)
            case "check":  # sp_slot_enter: behind its fence, is the grant still the same?
                if state.word == thread.word or self.without is Without.ENTER_FENCE:
                    yield to(replace(thread, at="start"), locked=False, entered=thread.word)
                else:
                    held, drained = thread.before if thread.before[0] else (thread.word, thread.word)
                    yield to(replace(thread, at="start"), locked=False, held=held, drained=drained, bell=True)

    # ---- the keeper

    @staticmethod
    def _leave_turn(state: State, then: str, otherwise: str) -> State:
        """Clear `entered`, then look for threads inside; each is either seen inside or sees the cleared word."""
        inside = any(t.inside for t in state.threads)
        return replace(state, entered=0, keeper=otherwise if inside else then)

    def keeper_steps(self, state: State) -> Iterator[State]:
        """Yield what the keeper can do. It never sleeps for ever, so it may look at any time."""
        for new in self._keeper_steps(state):
            yield replace(new, keeper_turn=0, keeper_launches=0) if new.keeper == "look" else new

    def _keeper_steps(self, state: State) -> Iterator[State]:  # noqa: C901 - as above
        holding = state.held != 0 and state.drained != state.held
        turn = state.keeper_turn
        match state.keeper:
            case "look" if holding and not state.locked and state.word != state.held:  # drain
                yield self._leave_turn(replace(state, keeper_turn=state.held), "left", "inside")
            case "look" if holding and not state.locked and not state.in_flight:  # it may park
                seen = replace(state, keeper_turn=state.held, keeper_launches=state.launches)
                yield replace(seen, keeper="parks")
            case "parks" if not state.locked:
                if state.word != turn or state.entered != turn:
                    yield replace(state, keeper="look")
                else:
                    yield self._leave_turn(state, "parked", "stays")
            case "parked" if state.in_flight or state.launches != state.keeper_launches:
                yield replace(state, keeper="stays")
            case "parked":
                yield replace(state, keeper="say")
            case "stays" if not state.locked:  # for the agent it is still the same turn, as it was told nothing else
                again = state.entered == 0 and state.held == turn and state.word == turn
                yield replace(state, keeper="look", entered=turn if again else state.entered)
            case "inside" if state.entered:  # meanwhile the next turn has been granted and entered
                yield replace(state, keeper="look")
            case "inside" if not any(t.inside for t in state.threads):
                yield replace(state, keeper="left")
            case "left" if state.entered:
                yield replace(state, keeper="look")
            case "left" if not state.in_flight:
                yield replace(state, keeper="say")
            case "say" if not state.locked:  # say_drained
                same = state.held == turn and (not state.entered or self.without is Without.SECOND_LOOK)
                told = replace(state, keeper="look")
                yield replace(told, drained=turn, bell=True) if same else told

    # ---- the arbiter

    def _scan(self, state: State) -> tuple[State, bool]:
        """Read the slot: whether a thread waits, and whether the turn that was closed last is still busy."""
        turn = state.word - 1
        busy = state.held == turn and state.drained != turn
        return replace(state, sees_waiting=state.waiting > 0), busy

    def arbiter_steps(self, state: State) -> Iterator[State]:
        """Yield what the arbiter can do: close at any time, look when the bell has rung."""
        if state.wakes:  # sp_wake, before anything else
            woken = tuple(
                replace(t, at="start") if t.at == "asleep" and self.without is not Without.WAKE else t
                for t in state.threads
            )
            up = sum(t.at == "asleep" for t in state.threads) - sum(t.at == "asleep" for t in woken)
            yield replace(state, threads=woken, waiting=state.waiting - up, wakes=False)
            return
        if any(t.at == "asleep" and t.word != state.word for t in state.threads):
            raise Broken("a wake-up is lost")
        match state.arbiter:
            case "free" if state.sees_waiting and state.turns < self.turns:  # sp_grant_open
                opened = replace(state, word=state.word | 1, arbiter="holding", turns=state.turns + 1)
                yield replace(opened, sees_waiting=False, wakes=True)
            case "free" | "other" if state.bell:
                yield self._scan(replace(state, bell=False))[0]
            case "holding":  # sp_grant_close
                closed, busy = self._scan(replace(state, word=(state.word | 1) + 1))
                yield replace(closed, arbiter="draining" if busy else "other", wakes=True)
            case "draining" if state.bell:
                seen, busy = self._scan(replace(state, bell=False))
                yield seen if busy else replace(seen, arbiter="other")
        if state.arbiter == "other":
            if state.in_flight:
                raise Broken("work is on the device outside its turn")
            yield replace(state, arbiter="free")

    def steps(self, state: State) -> Iterator[State]:
        """Yield every state that one step of one actor leads to."""
        for index in range(len(state.threads)):
            yield from self.thread_steps(state, index)
        yield from self.keeper_steps(state)
        yield from self.arbiter_steps(state)
        if state.in_flight:  # the device finishes a kernel
            yield replace(state, in_flight=state.in_flight - 1)


def is_end(gate: Gate, state: State) -> bool:
    """Tell whether the device was given back after all launches, or after the last turn of this run."""
    over = not any(t.left for t in state.threads) or state.turns == gate.turns
    return over and state.arbiter in ("other", "free") and not state.in_flight


def explore(gate: Gate, launches: tuple[int, ...]) -> int:
    """Visit every state reachable with one thread per entry of `launches`; return how many there are.

    Raises Broken if a launch can start or work can run outside a turn, or if a state has no way to the end.
    """
    first = State(tuple(Thread(left) for left in launches))
    came_from: dict[State, list[State]] = {first: []}
    queue = deque([first])
    while queue:
        state = queue.popleft()
        for new in gate.steps(state):
            if new not in came_from:
                came_from[new] = []
                queue.append(new)
            came_from[new].append(state)
    ends = [state for state in came_from if is_end(gate, state)]
    alive = set(ends)
    queue = deque(ends)
    while queue:
        for earlier in came_from[queue.popleft()]:
            if earlier not in alive:
                alive.add(earlier)
                queue.append(earlier)
    if stuck := next((state for state in came_from if state not in alive), None):
        raise Broken(f"no way to the end from {stuck}")
    return len(came_from)


@pytest.mark.early
@pytest.mark.parametrize("launches", [(3,), (1, 1), (2, 1)], ids=str)
def test_no_launch_starts_outside_a_turn_and_everybody_gets_on(launches: tuple[int, ...]) -> None:
    assert explore(Gate(turns=2), launches) > 100


@pytest.mark.parametrize("without", Without)
def test_without_any_one_of_its_measures_the_gate_fails(without: Without) -> None:
    with pytest.raises(Broken):
        explore(Gate(turns=2, without=without), (1, 1))
