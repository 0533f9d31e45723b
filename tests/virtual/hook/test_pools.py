"""Test that memory pools are charged exactly what they hold while several threads allocate from them."""

import ctypes
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hooklab import HOOK, C, load_c

MIB = 1 << 20
SOURCES = ("memory/pool.c", "memory/pool_table.c", "memory/account.c", "memory/allocation_table.c")
NEVER = ("sp_slot_context_memory", "sp_share_memory_limit", "sp_share_memory_shown")
ALLOCATIONS = 200_000
ACTIONS = ("ask", "ask", "go on", "go on", "go on", "free", "refuse")
GRAPHS = 0
"""The pool that graphs allocate from; the others are 1, 2 and 3."""


class Growth(ctypes.Structure):
    """The fields of struct sp_growth."""

    _fields_ = (("pool", ctypes.c_void_p), ("bytes", ctypes.c_uint64), ("growth", ctypes.c_uint64))


class Allocation(ctypes.Structure):
    """The fields of struct sp_allocation, for an allocation of a pool."""

    _fields_ = (
        ("key", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("owner", ctypes.c_uint64),
        ("references", ctypes.c_uint32),
        ("device", ctypes.c_int16),
        ("kind", ctypes.c_uint16),
    )


@dataclass(eq=False)
class Asked:
    """An allocation under way in a thread: asked of the hook, then made by the driver, then told to the hook."""

    number: int
    growth: Growth
    allocated: bool = False
    busy: bool = False
    """Its thread is in a call of the hook."""


@dataclass
class World:
    """A share's pools on a device, and the threads that allocate from them."""

    library: ctypes.CDLL
    cap: int
    grain: int = 32 * MIB
    asked: list[Asked] = field(default_factory=list)
    live: dict[int, list[int]] = field(default_factory=lambda: {number: [] for number in range(4)})
    """For each pool, the sizes that the driver has allocated from it."""

    def __post_init__(self) -> None:
        self.library.sp_pool_of.restype = ctypes.c_void_p
        for name in ("begin", "begin_whole", "grown"):
            getattr(self.library, f"sp_pool_{name}").restype = ctypes.c_bool
        self.held = (ctypes.c_uint64 * 4).in_dll(self.library, "held")
        self.kept = (ctypes.c_uint64 * 4).in_dll(self.library, "kept")
        ctypes.c_int64.in_dll(self.library, "cap").value = self.cap

    @property
    def account(self) -> int:
        return ctypes.c_int64.in_dll(self.library, "account").value

    def pool(self, number: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.library.sp_pool_of(0, ctypes.c_void_p(number)))

    def grown_by(self, number: int, size: int) -> int:
        """Return by how much the driver's pool grows for another allocation."""
        unused = self.held[number] - sum(self.live[number])
        return 0 if size <= unused else -(-(size - unused) // self.grain) * self.grain

    def ask(self, number: int, size: int) -> Asked | None:
        """Begin an allocation; return None if the hook refuses it."""
        pool, growth = self.pool(number), Growth()
        begin = self.library.sp_pool_begin if number else self.library.sp_pool_begin_whole
        if not begin(ctypes.byref(growth), pool, ctypes.c_uint64(size)):
            return None
        growth.bytes = size
        self.asked.append(Asked(number, growth))
        return self.asked[-1]

    def allocate(self, asked: Asked) -> None:
        """Let the driver allocate."""
        self.held[asked.number] += self.grown_by(asked.number, asked.growth.bytes)
        self.live[asked.number].append(asked.growth.bytes)
        asked.allocated = True
        self.used()

    @property
    def trimmed(self) -> bool:
        """Return whether the cap is so low that the hook trims pools while other threads allocate from them."""
        return self.cap < 100_000 * MIB

    def used(self) -> None:
        for number, sizes in self.live.items():
            self.kept[number] = -(-sum(sizes) // self.grain) * self.grain

    def undo(self, asked: Asked) -> None:
        self.asked.remove(asked)
        if asked.number == GRAPHS:
            asked.growth.bytes = 0
        self.library.sp_pool_undone(ctypes.byref(asked.growth), ctypes.c_bool(asked.allocated))

    def tell(self, asked: Asked) -> None:
        """Tell the hook that the driver has allocated; give back what does not fit, as the hook's caller does."""
        graphs_bytes, asked.growth.bytes = asked.growth.bytes, asked.growth.bytes * (asked.number != GRAPHS)
        asked.busy = True
        if self.library.sp_pool_grown(ctypes.byref(asked.growth)) or asked.number == GRAPHS:
            self.asked.remove(asked)
        else:
            self.live[asked.number].remove(graphs_bytes)
            self.used()
            self.undo(asked)

    def free(self, number: int, size: int) -> None:
        self.live[number].remove(size)
        self.used()
        if number != GRAPHS:
            taken = Allocation(owner=self.pool(number).value, bytes=size, device=0)
            self.library.sp_pool_freed(ctypes.byref(taken))

    def synchronize(self) -> None:
        """Wait for the device: then the driver's pools may give back unused memory."""
        for number in range(1, 4):
            self.held[number] = self.kept[number]
        self.library.sp_pools_look()


@pytest.fixture
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    sources = [C / "pools.c", *(HOOK / name for name in SOURCES)]
    return load_c(tmp_path_factory.mktemp("pools") / "pools.so", *sources, never=NEVER)


def step(world: World, dice: random.Random, actions: Sequence[str] = ACTIONS) -> None:
    """Let one thread go on."""
    number = dice.choice([GRAPHS, 1, 1, 1, 2, 3])
    size = dice.randrange(1, 90) * MIB if number != GRAPHS else dice.randrange(1, 4) * world.grain
    going_on = [asked for asked in world.asked if not asked.busy]
    match dice.choice(actions):
        case "ask" if len(world.asked) < 4:
            world.ask(number, size)
        case "go on" if going_on:
            asked = dice.choice(going_on)
            (world.tell if asked.allocated else world.allocate)(asked)
        case "free" if world.live[number] and not any(asked.number == number for asked in world.asked):
            world.free(number, dice.choice(world.live[number]))
        case "refuse" if waiting := [asked for asked in going_on if not asked.allocated]:
            world.undo(dice.choice(waiting))
        case "synchronize":
            world.synchronize()


def play(world: World, dice: random.Random, actions: Sequence[str] = ACTIONS) -> None:
    """Let threads allocate and free in a random order, until no allocation is under way."""
    for _ in range(dice.randrange(1, 60)):
        step(world, dice, actions)
        # What a pool gives back under an allocation that counted on it is not charged until that has been told.
        assert world.account >= sum(world.held) or world.trimmed or "synchronize" in actions
    while world.asked:
        asked = world.asked[0]
        if not asked.allocated:
            world.allocate(asked)
        world.tell(asked)


@pytest.mark.parametrize("cap_mib", [200, 1000, 100_000])
def test_pools_are_charged_what_they_hold_in_any_order_of_threads(library: ctypes.CDLL, cap_mib: int) -> None:
    dice, world = random.Random(cap_mib), World(library, cap_mib * MIB)
    for _ in range(400):
        play(world, dice)
        assert world.account == sum(world.held)
        world.synchronize()
        assert world.account == sum(world.held)


@pytest.mark.parametrize("seed", range(4))
def test_what_other_threads_do_while_the_driver_is_asked_is_charged_in_the_end(library: ctypes.CDLL, seed: int) -> None:
    dice, world, depth = random.Random(seed), World(library, 100_000 * MIB), 0
    others, errors = (*ACTIONS, "synchronize", "synchronize"), list[Exception]()

    @ctypes.CFUNCTYPE(None)
    def meanwhile() -> None:
        nonlocal depth
        if depth < 3 and dice.randrange(2):
            depth += 1
            try:
                step(world, dice, others)
            except Exception as error:  # noqa: BLE001 - ctypes would drop it
                errors.append(error)
            depth -= 1

    place = ctypes.c_void_p.in_dll(library, "meanwhile")
    for _ in range(300):
        place.value = ctypes.cast(meanwhile, ctypes.c_void_p).value
        play(world, dice, others)
        place.value = None
        assert not errors
        assert world.account == sum(world.held)
        world.synchronize()
        assert world.account == sum(world.held)


def mapped_bytes() -> int:
    """Return what this process has mapped without a file behind it."""
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ranges = [fields[0].split("-") for fields in maps if fields[4] == "0"]
    return sum(int(end, 16) - int(begin, 16) for begin, end in ranges)


def test_a_table_that_grows_gives_back_the_smaller_one(library: ctypes.CDLL) -> None:
    library.sp_allocations_lock.restype = ctypes.c_void_p
    before = mapped_bytes()
    for number in range(1, ALLOCATIONS + 1):
        assert library.sp_allocations_room()
        table = ctypes.c_void_p(library.sp_allocations_lock())
        library.sp_allocations_insert(table, ctypes.byref(Allocation(key=number, bytes=1)))
        library.sp_allocations_unlock(table)
    rows = 2 * 2 ** (ALLOCATIONS - 1).bit_length()  # half of the rows are empty
    assert mapped_bytes() - before < 1.5 * rows * ctypes.sizeof(Allocation)


def whole(world: World, number: int, size: int) -> Asked:
    """Allocate from a pool."""
    asked = world.ask(number, size)
    assert asked is not None
    world.allocate(asked)
    world.tell(asked)
    return asked


def counts(library: ctypes.CDLL, name: str) -> list[int]:
    return list((ctypes.c_int * 4).in_dll(library, name))


def test_what_a_pool_held_before_it_was_known_is_charged(library: ctypes.CDLL) -> None:
    world = World(library, 1000 * MIB)
    world.held[1] = 64 * MIB
    world.pool(1)
    assert world.account == 64 * MIB
    world.pool(1)
    assert world.account == 64 * MIB


def test_a_pool_that_has_grown_by_less_than_usual_is_expected_to_do_so_again(library: ctypes.CDLL) -> None:
    world = World(library, 40 * MIB, grain=2 * MIB)
    assert world.ask(1, 41 * MIB) is None
    whole(world, 1, 4 * MIB)
    assert world.account == 4 * MIB
    assert world.ask(1, 36 * MIB) is not None
    assert world.account == 40 * MIB


def test_a_pool_grows_by_whole_grains_for_what_it_has_not_unused(library: ctypes.CDLL) -> None:
    world = World(library, 1000 * MIB)
    for size, account in ((32 * MIB, 32), (1, 64), (32 * MIB - 1, 64), (32 * MIB + 1, 128)):
        whole(world, 1, size)
        assert world.account == account * MIB


def test_a_pool_that_is_being_destroyed_is_not_asked_and_one_that_stays_is(library: ctypes.CDLL) -> None:
    world = World(library, 100 * MIB)
    whole(world, 1, 30 * MIB)
    world.free(1, 30 * MIB)
    library.sp_pool_closing(ctypes.c_void_p(1))
    asked, trimmed = counts(library, "questions")[1], counts(library, "trims")[1]
    world.library.sp_pools_look()
    library.sp_pools_shrink(0)
    assert (counts(library, "questions")[1], counts(library, "trims")[1]) == (asked, trimmed)
    library.sp_pool_stays(ctypes.c_void_p(1))
    library.sp_pools_shrink(0)
    assert (counts(library, "questions")[1] - asked, counts(library, "trims")[1] - trimmed) == (2, 1)
    assert world.account == sum(world.held) == 0


def test_a_pool_whose_destruction_was_left_by_a_jump_is_asked_again(library: ctypes.CDLL) -> None:
    world = World(library, 1000 * MIB)
    whole(world, 1, 30 * MIB)
    library.sp_pool_closing(ctypes.c_void_p(1))
    whole(world, 1, 30 * MIB)
    assert world.account == sum(world.held) == 64 * MIB


def test_a_destroyed_pool_is_charged_until_its_last_allocation_is_freed(library: ctypes.CDLL) -> None:
    world = World(library, 1000 * MIB)
    for _ in range(2):
        whole(world, 1, 32 * MIB)
    owner = world.pool(1).value
    library.sp_pool_closing(ctypes.c_void_p(1))
    library.sp_pool_destroyed(ctypes.c_void_p(1))
    asked = counts(library, "questions")[1]
    for left in (64, 0):
        library.sp_pool_freed(ctypes.byref(Allocation(owner=owner, bytes=32 * MIB, device=0)))
        assert world.account == left * MIB
    assert counts(library, "questions")[1] == asked
    world.held[1] = 5 * MIB  # another pool gets the handle
    assert world.pool(1).value == owner  # and its entry
    assert world.account == 5 * MIB


def test_what_a_driver_does_not_tell_is_charged_as_it_was_reserved_and_corrected_later(library: ctypes.CDLL) -> None:
    world = World(library, 1000 * MIB)
    whole(world, 1, 30 * MIB)
    untold = ctypes.c_int.in_dll(library, "untold")
    untold.value = 1
    whole(world, 1, 40 * MIB)
    world.held[1] = 200 * MIB
    world.library.sp_pools_look()
    assert world.account == (32 + 64) * MIB
    untold.value = 0
    world.library.sp_pools_look()
    assert world.account == 200 * MIB


def test_graphs_take_their_memory_again_only_if_a_context_had_it(library: ctypes.CDLL) -> None:
    world, trimmed = World(library, 1000 * MIB), ctypes.c_uint64.in_dll(library, "graphs_trimmed")
    whole(world, GRAPHS, 32 * MIB)
    whole(world, 1, 32 * MIB)
    library.sp_pools_look()
    asked, before = counts(library, "questions"), trimmed.value
    library.sp_pools_context_gone()
    assert (trimmed.value, world.account) == (before, 64 * MIB)
    assert counts(library, "questions") == [asked[GRAPHS] + 1, *asked[1:]]  # of other pools nothing has changed
    world.held[GRAPHS] = 0
    library.sp_pools_context_gone()
    assert (trimmed.value, world.account) == (before + 1, 32 * MIB)


def test_questions_leave_the_programs_errno_alone(library: ctypes.CDLL) -> None:
    with_errno = ctypes.CDLL(library._name, use_errno=True)
    world = World(library, 64 * MIB)
    whole(world, 1, 30 * MIB)
    world.free(1, 30 * MIB)
    for call in (
        lambda: with_errno.sp_pools_look(),
        lambda: with_errno.sp_memory_reserve(0, ctypes.c_uint64(65 * MIB)),
        lambda: with_errno.sp_pool_closing(ctypes.c_void_p(1)),
    ):
        ctypes.set_errno(7)
        call()
        assert ctypes.get_errno() == 7


def test_an_account_knows_what_was_reserved_committed_and_taken(library: ctypes.CDLL) -> None:
    world, taken = World(library, 100), Allocation()
    library.sp_memory_reserve.restype = library.sp_memory_take.restype = ctypes.c_bool
    assert not library.sp_memory_take(0, ctypes.c_uint64(5), ctypes.byref(taken))
    assert library.sp_memory_reserve(0, ctypes.c_uint64(100))
    assert not library.sp_memory_reserve(0, ctypes.c_uint64(1))
    library.sp_memory_rollback(0, ctypes.c_uint64(40))
    assert world.account == 60
    library.sp_memory_commit(ctypes.byref(Allocation(key=5, bytes=60, device=0)))
    assert world.account == 60
    assert library.sp_memory_take(0, ctypes.c_uint64(5), ctypes.byref(taken))
    assert not library.sp_memory_take(0, ctypes.c_uint64(5), ctypes.byref(Allocation()))
    assert (taken.key, taken.bytes) == (5, 60)
    library.sp_memory_uncharge(ctypes.byref(taken))
    assert world.account == 0
