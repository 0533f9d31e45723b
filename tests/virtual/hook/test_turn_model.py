"""Check a model of leaving a turn: launching thread, keeper and agent in every order, with stores that are seen late.

Each thread is a list of the steps of gate.c, keeper.c and region.c that touch a shared word. A store waits in its
thread's buffer; from there it reaches memory in any order that the architecture allows (stores to one word in order, a
release after all stores before it). Every interleaving is visited. Whenever the agent takes the turn for drained:

* no work of the turn is on the device, and
* no launch under the turn starts later.

The model without any one of the barriers breaks this, so it can tell that each barrier is needed.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

T = 1  # the word of the open turn; 2 is closed
WORDS = ("word", "entered", "inside", "report", "owner")
Registers = dict[str, Any]
Step = tuple[Any, ...]


def launcher(launches: int, enter_fence: bool, announce_fence: bool) -> list[Step]:
    """Return the steps of gate.c and wait.c: sp_gate_enter, enter_turn, the driver's call, sp_gate_leave."""
    return [
        ("at", "again"),
        ("store", "inside", lambda r: 1),
        *([("fence",)] if announce_fence else []),
        ("load", "word", "w"),
        ("load", "entered", "e"),
        ("if", lambda r: r["w"] == r["e"], "go"),
        ("release", "inside", lambda r: 0),
        ("load", "word", "w"),
        ("if", lambda r: r["w"] != T, "end"),  # the thread waits at the closed gate
        ("lock",),
        ("load", "entered", "e"),
        ("if", lambda r: r["e"] == r["w"], "unlock"),
        ("load", "report", "before"),
        ("store", "report", lambda r: (r["w"], 0)),
        *([("fence",)] if enter_fence else []),
        ("load", "word", "now"),
        ("if", lambda r: r["now"] != r["w"], "late"),
        ("release", "entered", lambda r: r["w"]),
        ("at", "unlock"),
        ("unlock",),
        ("if", lambda r: True, "again"),
        ("at", "late"),
        ("store", "report", lambda r: r["before"] if r["before"][0] else (r["w"], r["w"])),
        ("unlock",),
        ("if", lambda r: True, "end"),
        ("at", "go"),
        ("launch",),
        ("release", "inside", lambda r: 0),
        ("count",),
        ("if", lambda r: r["count"] < launches, "again"),
        ("at", "end"),
    ]


def keeper(barrier: str) -> list[Step]:
    """Return the steps of keeper.c: drain when the grant is closed, park when idle."""

    def leave() -> list[Step]:
        return [
            ("lock",),
            ("load", "entered", "e"),
            ("store", "entered", lambda r: 0),
            *([(barrier,)] if barrier else []),
            ("load", "inside", "i"),
        ]

    return [
        ("at", "look"),
        ("load", "report", "r"),
        ("load", "word", "w"),
        ("if", lambda r: r["r"][0] == 0 or r["r"][0] == r["r"][1], "look"),
        ("if", lambda r: r["w"] != r["r"][0], "drain"),
        ("choose", "look"),
        *leave(),  # park
        ("if", lambda r: r["i"], "stay"),
        ("unlock",),
        ("if", lambda r: r["work"], "back"),
        ("if", lambda r: True, "say"),
        ("at", "stay"),
        ("release", "entered", lambda r: r["e"]),
        ("unlock",),
        ("if", lambda r: True, "look"),
        ("at", "back"),
        ("lock",),
        ("load", "entered", "e"),
        ("load", "report", "r"),
        ("load", "word", "w"),
        ("if", lambda r: r["e"] != 0 or r["r"][0] != T or r["w"] != T, "unlock"),
        ("release", "entered", lambda r: T),
        ("at", "unlock"),
        ("unlock",),
        ("if", lambda r: True, "look"),
        ("at", "drain"),
        *leave(),
        ("unlock",),
        ("at", "wait"),
        ("load", "entered", "e"),
        ("if", lambda r: r["e"] != 0, "look"),
        ("if", lambda r: not r["i"], "marked"),
        ("load", "inside", "i"),
        ("if", lambda r: True, "wait"),
        ("at", "marked"),
        ("if", lambda r: r["work"], "marked"),
        ("load", "entered", "e"),
        ("if", lambda r: r["e"] != 0, "look"),
        ("at", "say"),
        ("lock",),
        ("load", "report", "r"),
        ("load", "entered", "e"),
        ("if", lambda r: r["r"] != (T, 0) or r["e"] != 0, "unlock"),
        ("store", "report", lambda r: (T, T)),
        ("if", lambda r: True, "unlock"),
    ]


def agent(close_fence: bool) -> list[Step]:
    """Return the steps of turn.c: sp_turn_close, then wait for the drain."""
    return [
        ("release", "word", lambda r: T + 1),
        *([("fence",)] if close_fence else []),
        ("at", "read"),
        ("load", "report", "r"),
        ("if", lambda r: r["r"][0] == T and r["r"][1] != T, "read"),
        ("drained",),
    ]


class State(NamedTuple):
    """The whole model at one instant, as plain values, so that states can be compared."""

    memory: tuple[Any, ...]
    buffers: tuple[tuple[tuple[str, Any, bool], ...], ...]
    at: tuple[int, ...]
    registers: tuple[tuple[tuple[str, Any], ...], ...]
    work: bool = False
    drained: bool = False


class Broken(Exception):
    """The agent took the turn for drained too early."""


class Model:
    """The programs of all threads, and the states that one state leads to."""

    def __init__(self, programs: list[list[Step]]) -> None:
        self._labels = [{s[1]: n for n, s in enumerate(program) if s[0] == "at"} for program in programs]
        self._programs = programs

    def next(self, state: State) -> Iterator[State]:
        """Yield every state that is one step away. Raises Broken."""
        if state.work:
            yield state._replace(work=False)  # the device finishes
        for thread in range(len(self._programs)):
            yield from self._drains(state, thread)
            if state.at[thread] < len(self._programs[thread]):
                yield from self._step(state, thread)

    def _drains(self, state: State, thread: int) -> Iterator[State]:
        buffer = state.buffers[thread]
        for place, (word, _, release) in enumerate(buffer):
            if (release and place) or any(word == earlier for earlier, _, _ in buffer[:place]):
                continue
            yield self._reach(state, thread, place)

    def _reach(self, state: State, thread: int, place: int) -> State:
        word, value, _ = state.buffers[thread][place]
        memory = tuple(value if name == word else old for name, old in zip(WORDS, state.memory, strict=True))
        buffer = state.buffers[thread][:place] + state.buffers[thread][place + 1 :]
        return state._replace(memory=memory, buffers=self._put(state.buffers, thread, buffer))

    def _flush(self, state: State, thread: int) -> State:
        while state.buffers[thread]:
            state = self._reach(state, thread, 0)
        return state

    @staticmethod
    def _put(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
        return (*values[:place], value, *values[place + 1 :])

    def _step(self, state: State, thread: int) -> Iterator[State]:
        step = self._programs[thread][state.at[thread]]
        on = state._replace(at=self._put(state.at, thread, state.at[thread] + 1))
        yield from getattr(self, f"_{step[0]}")(on, thread, *step[1:])

    def _at(self, state: State, thread: int, label: str) -> Iterator[State]:
        if label in ("again", "look", "read", "end"):  # from here on, earlier reads do not matter
            kept = {name: value for name, value in state.registers[thread] if name == "count"}
            state = self._registers(state, thread, kept)
        yield state

    def _store(self, state: State, thread: int, word: str, value: Any, *, release: bool = False) -> Iterator[State]:
        entry = (word, value(dict(state.registers[thread])), release)
        yield state._replace(buffers=self._put(state.buffers, thread, (*state.buffers[thread], entry)))

    def _release(self, state: State, thread: int, word: str, value: Any) -> Iterator[State]:
        yield from self._store(state, thread, word, value, release=True)

    def _load(self, state: State, thread: int, word: str, register: str) -> Iterator[State]:
        own = [value for name, value, _ in state.buffers[thread] if name == word]
        value = own[-1] if own else state.memory[WORDS.index(word)]
        yield self._registers(state, thread, {**dict(state.registers[thread]), register: value})

    def _if(self, state: State, thread: int, condition: Any, label: str) -> Iterator[State]:
        taken = condition({**dict(state.registers[thread]), "work": state.work})
        yield self._to(state, thread, label) if taken else state

    def _choose(self, state: State, thread: int, label: str) -> Iterator[State]:
        yield state
        yield self._to(state, thread, label)

    def _to(self, state: State, thread: int, label: str) -> State:
        return state._replace(at=self._put(state.at, thread, self._labels[thread][label]))

    def _fence(self, state: State, thread: int) -> Iterator[State]:
        yield self._flush(state, thread)

    def _membarrier(self, state: State, thread: int) -> Iterator[State]:
        for other in range(thread + 1):  # threads of this process; the agent, which comes last, is another process
            state = self._flush(state, other)
        yield state

    def _lock(self, state: State, thread: int) -> Iterator[State]:
        unlocking = any(word == "owner" for word, _, _ in state.buffers[thread])
        owner = WORDS.index("owner")
        if not unlocking and state.memory[owner] is None:
            yield state._replace(memory=self._put(state.memory, owner, thread))

    def _unlock(self, state: State, thread: int) -> Iterator[State]:
        yield from self._store(state, thread, "owner", lambda r: None, release=True)

    def _count(self, state: State, thread: int) -> Iterator[State]:
        registers = dict(state.registers[thread])
        yield self._registers(state, thread, {**registers, "count": registers.get("count", 0) + 1})

    def _launch(self, state: State, thread: int) -> Iterator[State]:
        if state.drained:
            raise Broken(f"thread {thread} launches after the drain")
        yield state._replace(work=True)

    def _drained(self, state: State, thread: int) -> Iterator[State]:
        if state.work:
            raise Broken(f"thread {thread} takes the turn for drained while work runs")
        yield state._replace(drained=True)

    def _registers(self, state: State, thread: int, registers: Registers) -> State:
        return state._replace(registers=self._put(state.registers, thread, tuple(sorted(registers.items()))))


STARTS = {"entered": (T, (T, 0)), "granted": (0, (0, 0)), "parked": (0, (T, T))}


def visit(
    start: str,
    launches: int,
    *,
    barrier: str = "membarrier",
    announce: bool = False,
    enter: bool = True,
    close: bool = True,
) -> int:
    """Visit every state reachable from a start; return how many there are. Raises Broken."""
    programs = [launcher(launches, enter, announce), keeper(barrier), agent(close)]
    entered, report = STARTS[start]
    count = len(programs)
    first = State((T, entered, 0, report, None), ((),) * count, (0,) * count, ((),) * count)
    model, seen, left = Model(programs), {first}, [first]
    ends = 0
    while left:
        state = left.pop()
        ends += state.drained
        for after in model.next(state):
            if after not in seen:
                seen.add(after)
                left.append(after)
    assert ends > 0  # otherwise the turn could never end
    return len(seen)


@pytest.mark.early
@pytest.mark.parametrize("start", STARTS)
def test_a_turn_that_is_taken_for_drained_is(start: str) -> None:
    assert visit(start, 2 if start == "parked" else 1) > 1000


def test_a_kernel_without_membarrier_is_served_by_a_fence_at_each_launch() -> None:
    assert visit("entered", 1, barrier="fence", announce=True) > 1000


@pytest.mark.early
@pytest.mark.parametrize(
    ("start", "missing"),
    [
        ("entered", {"barrier": ""}),
        ("entered", {"barrier": "fence"}),
        ("parked", {"enter": False}),
        ("parked", {"close": False}),
    ],
    ids=["membarrier", "fence of the announce", "fence of sp_slot_enter", "fence of sp_grant_close"],
)
def test_without_any_one_of_the_barriers_a_launch_slips_out_of_its_turn(start: str, missing: dict[str, Any]) -> None:
    with pytest.raises(Broken):
        visit(start, 2, **missing)
