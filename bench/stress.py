"""`python -m bench.stress`: thousands of random schedules, judged by the simulated device's own log.

A round is a node of one or two devices with random shares: some latency, some batch, some limited, some on both
devices, some of several processes. Their programs do random things in several threads (storm.c), what is correct and
unexpected among them (hazards.h), and one in ten ends with a kernel that faults; programs of different shares wait for
each other inside kernels; one tenant in three rounds does its worst to its own region (hostile.c); shares join and
leave, and processes are killed at random moments.
Then:

* kernels that started outside every turn of their share: 0, but for deliberate passes and for what was launched in a
  turn, waited for more than the device, and is in the account as run beside others;
* lost wake-ups (a program waits while its devices idle): 0;
* turns lost to SIGKILL (the same, after a kill): 0;
* deadlocks (a program that does not end): 0.
"""

import random
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.bars import figures
from bench.entry import Parser, duration, run
from rig.loads import Terms
from rig.node import Node
from rig.programs import Program, ProgramFailed, hostile_command, load_command, storm_command
from rig.truth import Held, Kernel
from sharepod.cli.errors import CliError
from sharepod.cli.render.turns import Turn

IDLE_BOUND_NS = 150_000_000
"""If a device idles for longer than this beside a waiting program, a wake-up was lost: the drain bound is 100 ms."""
CLOCK_NS = 1000
"""The accuracy of a turn's end, which is the device's time mapped to the host's clock. A launch needs 3 µs to reach the
device, so a launch that slipped out of its turn starts later than this."""
AROUND_NS = 5_000_000
"""A fault's text tells what the devices did from this long before a kernel to this long after."""
EXIT_NS = 2_000_000
"""A killed process may go on launching for this long, until the signal has reached it."""
DEATH_NS = 30_000_000
"""For up to about 10 ms, its exit included, the simulated device still runs the work of a dead process."""
STOOD_NS = 10_000_000
"""For a unit of varying length, such as a kernel that spins, the account only estimates the time that it ran beside
other work: the estimate may be half of the device's time for the unit, or up to this much less."""
END_TIMEOUT_S = 20.0
ROUND_S = 4.0
LOG_KERNELS = 1_000_000
SPIN_ROUNDS = 4000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a stress run found. All but the first three are faults."""

    episodes: int = 0
    kernels: int = 0
    kills: int = 0
    passed: int = 0
    """Kernels that started outside a turn and that the hook counts as deliberately passed."""
    outside: tuple[str, ...] = ()
    lost_wake_ups: tuple[str, ...] = ()
    lost_turns: tuple[str, ...] = ()
    deadlocks: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """Every fault in words."""
        return (*self.outside, *self.lost_wake_ups, *self.lost_turns, *self.deadlocks)

    def __add__(self, other: "Verdict") -> "Verdict":
        return Verdict(*(getattr(self, name) + getattr(other, name) for name in Verdict.__slots__))


@dataclass(frozen=True, slots=True)
class Member:
    """A share of one round and its programs."""

    name: str
    terms: Terms
    environment: dict[str, str]
    programs: list[Program] = field(default_factory=list)

    @property
    def devices(self) -> tuple[int, ...]:
        """The indices of its devices."""
        return tuple(map(int, self.terms.devices))


class Round:
    """One node full of random shares."""

    def __init__(self, node: Node, dice: random.Random, devices: int) -> None:
        self._node, self._dice, self._devices = node, dice, devices
        self._directory = node.directory
        self._members: list[Member] = []
        self._kills: list[tuple[int, str]] = []
        self._words: list[Path] = []
        self._stop_ns = time.monotonic_ns() + round(ROUND_S * 1e9)

    def run(self) -> Verdict:
        """Start the programs, kill and join at random, wait for all, and judge."""
        for _ in range(self._dice.randint(2, 4)):
            self._join()
        if self._dice.random() < 0.7:
            self._join_ring()
        if self._dice.random() < 0.35:
            hostile = self._register((str(self._dice.randrange(self._devices)),), 40)
            self._start(hostile, hostile_command(self._dice.randint(1, 10**9)))
        while time.monotonic_ns() < self._stop_ns:
            time.sleep(self._dice.uniform(0.02, 0.4))
            action = self._dice.random()
            if action < 0.4:
                self._kill()
            elif action < 0.7 and len(self._members) < 9:
                self._join()
            elif action < 0.8:
                self._pause()
        verdict = self._end()
        time.sleep(0.3)  # the last turns drain
        return verdict if verdict.deadlocks else self._judge(verdict)

    # ---- actions ----

    def _join(self) -> None:
        """Add a share on all devices or on one, with one or two storm programs in it."""
        devices = (
            tuple(map(str, range(self._devices)))
            if self._dice.random() < 0.4
            else (str(self._dice.randrange(self._devices)),)
        )
        member = self._register(devices, self._dice.choice([100, 100, 100, 40]))
        for _ in range(self._dice.choice([1, 1, 2])):
            seed, threads = self._dice.randint(1, 10**9), self._dice.randint(1, 3)
            self._start(member, storm_command(seed, threads, len(devices), faults=self._dice.random() < 0.1))

    def _register(self, devices: tuple[str, ...], limit: float) -> Member:
        """Add a share of a random class and request."""
        share_class = self._dice.choice(["standard", "standard", "latency", "batch"])
        terms = Terms(self._dice.randint(1, 10), limit, share_class, devices=devices)
        name = f"share{len(self._members)}"
        member = Member(name, terms, self._node.share_environment(name, terms))
        self._members.append(member)
        return member

    def _start(self, member: Member, command: Sequence[str]) -> None:
        program = self._node.add(member.name, command, member.environment)
        program.go(time.monotonic_ns(), self._stop_ns)
        member.programs.append(program)

    def _join_ring(self) -> None:
        """Start two shares with kernels that wait for each other, on any devices: neither may be kept out for ever."""
        words = self._directory / f"words{len(self._words)}"
        self._words.append(words)
        for rank in range(2):
            options = {"unit": "50us", "ranks": 2, "rank": rank, "words": words, "count": SPIN_ROUNDS, "gap": "2ms"}
            member = self._register((str(self._dice.randrange(self._devices)),), 100)
            self._start(member, load_command("spin", options))

    def _kill(self) -> None:
        """Kill a random program, unless fewer than three run."""
        living = [(m.name, p) for m in self._members for p in m.programs if p.running()]
        if len(living) < 3:
            return
        owner, victim = self._dice.choice(living)
        self._kills.append((time.monotonic_ns(), owner))
        victim.kill()
        self._release_rings()

    def _pause(self) -> None:
        """Pause a random share for a moment."""
        member = self._dice.choice(self._members)
        self._node.client.pause(member.name)
        time.sleep(self._dice.uniform(0.01, 0.1))
        self._node.client.resume(member.name)

    def _release_rings(self) -> None:
        """Release the partner of a killed rank: the program itself would otherwise make it wait for ever."""
        for words in self._words:
            with words.open("r+b") as file:  # in place: truncation would make processes that map the file fault
                file.write(b"\1" * words.stat().st_size)

    # ---- judgement ----

    def _end(self) -> Verdict:
        """Wait for the end of all programs that were not killed. One that does not end is a deadlock."""
        verdict = Verdict(kills=len(self._kills))
        for member in self._members:
            for program in member.programs:
                if program.killed:
                    continue
                try:
                    program.result(END_TIMEOUT_S)
                except ProgramFailed as error:
                    verdict += Verdict(deadlocks=(str(error),))
                    self._release_rings()
        return verdict

    def _judge(self, verdict: Verdict) -> Verdict:
        """Add to the verdict what the device's log shows.

        A kernel outside its share's turns is no fault if the hook counts it as passed. One that was launched in a turn
        is no fault either, if the share's account has its time as run beside other work (within STOOD_NS).
        """
        kernels, usage = self._node.kernels(), self._node.usage()
        verdict += Verdict(kernels=len(kernels), episodes=sum(map(self._episodes, self._members)))
        turns = self._node.held()
        outside: dict[str, list[Kernel]] = {}
        for kernel in figures.outside_turns(kernels, turns, CLOCK_NS):
            if not self._left_behind(kernel):
                outside.setdefault(kernel.owner, []).append(kernel)
        for owner, found in outside.items():
            beside_ns = sum(device.usage.beside_ns for device in usage[owner].devices)
            deliberate = sum(device.usage.passed for device in usage[owner].devices)
            not_launched, ran_ns = _by_launch(found, turns)
            verdict += Verdict(passed=min(deliberate, len(not_launched)))
            if len(not_launched) > deliberate or ran_ns > 2 * beside_ns + STOOD_NS:
                first, strange = (not_launched or found)[0], len(not_launched)
                text = (
                    f"{owner}: {len(found)} kernels outside its turns, of which {strange} were not launched in one"
                    f" and {deliberate} passed; the rest had the device for {ran_ns} ns, {beside_ns} told; {first}"
                )
                text += _around(first, kernels, self._node.turns())
                verdict += Verdict(outside=(text,))
        for member in self._members:
            verdict += self._waits(member, kernels)
        return verdict

    def _left_behind(self, kernel: Kernel) -> bool:
        """Tell whether a killed process may have launched this: the device still runs its work for a while."""
        return any(
            owner == kernel.owner
            and kernel.submitted_ns <= kill + EXIT_NS
            and kill <= kernel.started_ns <= kill + DEATH_NS
            for kill, owner in self._kills
        )

    @staticmethod
    def _episodes(member: Member) -> int:
        fields = [p.result().other for p in member.programs if not p.killed]
        return sum(int(f.get("episodes", f.get("rounds", 0))) for f in fields)

    def _waits(self, member: Member, kernels: Sequence[Kernel]) -> Verdict:
        """Return the wake-ups that a share's programs lost, and the turns if a program was killed during the wait."""
        if member.terms.limit < 100:
            return Verdict()  # its limit rightly keeps it off an idle device
        verdict = Verdict()
        own = [kernel for kernel in kernels if kernel.device in member.devices]
        for program in member.programs:
            slow = () if program.killed else program.result().other.get("slow", ())
            waits = list(zip(slow[::2], slow[1::2], strict=True))  # begin and end of each, in turn
            for began, ended in figures.lost_wake_ups(own, waits, IDLE_BOUND_NS):
                text = f"{member.name} waited {(ended - began) / 1e6:.0f} ms from {began} beside an idle device"
                if any(began <= kill <= ended for kill, _ in self._kills):
                    verdict += Verdict(lost_turns=(text,))
                else:
                    verdict += Verdict(lost_wake_ups=(text,))
        return verdict


def _covered_ns(spans: Iterable[tuple[int, int]]) -> int:
    """Return how long at least one of these intervals lasted."""
    covered = reached = 0
    for begin, end in sorted(spans):
        covered += max(end - max(begin, reached), 0)
        reached = max(reached, end)
    return covered


def _by_launch(outside: Sequence[Kernel], turns: Sequence[Held]) -> tuple[list[Kernel], int]:
    """Divide an owner's kernels that started outside its turns, by whether they were launched in one.

    Return those that were not, and how long the others had the device until the owner's next turn, in ns.
    """
    launches = [replace(kernel, started_ns=kernel.submitted_ns) for kernel in outside]
    stray = {id(launch) for launch in figures.outside_turns(launches, turns, CLOCK_NS)}
    ran: dict[int, list[tuple[int, int]]] = {}
    for kernel, launch in zip(outside, launches, strict=True):
        if id(launch) in stray:
            continue
        granted = [t.granted_ns for t in turns if (t.owner, t.device) == (kernel.owner, kernel.device)]
        next_ns = min((grant_ns for grant_ns in granted if grant_ns > kernel.started_ns), default=kernel.ended_ns)
        had_ns = min(kernel.busy_ns, next_ns - kernel.started_ns)
        ran.setdefault(kernel.device, []).append((kernel.started_ns, kernel.started_ns + had_ns))
    ran_ns = sum(map(_covered_ns, ran.values()))
    return [kernel for kernel, launch in zip(outside, launches, strict=True) if id(launch) in stray], ran_ns


def _around(kernel: Kernel, kernels: Sequence[Kernel], turns: Sequence[Turn]) -> str:
    """Describe what all devices did around a kernel's start, in microseconds before and after it."""
    low, high = kernel.started_ns - AROUND_NS, kernel.started_ns + AROUND_NS
    lines = [
        (turn.granted_ns, f"{turn.share} turn until {turn.closed_ns} {turn.reason}, drained {turn.drained_ns} {turn}")
        for turn in turns
        if turn.drained_ns > low and turn.granted_ns < high
    ]
    lines += [
        (k.started_ns, f"{k.owner} kernel on {k.device} until {k.ended_ns}, submitted {k.submitted_ns}")
        for k in kernels
        if k.ended_ns > low and k.started_ns < high
    ]
    return "".join(f"\n  {begin} {what}" for begin, what in sorted(lines))


def stress(seconds: float, seed: int, preload: Sequence[str] = ()) -> Verdict:
    """Run rounds until `seconds` are over. The same seed gives the same shares and programs.

    `preload` are libraries that programs get instead of the hook.
    """
    dice, verdict, began = random.Random(seed), Verdict(), time.monotonic()
    while time.monotonic() - began < seconds and not verdict.faults:
        devices = dice.choice([1, 2])
        settings = {"overcommit": "true"}
        with Node(f"{devices}xH200", log_kernels=LOG_KERNELS, agent_settings=settings, preload=preload) as node:
            verdict += Round(node, dice, devices).run()
    return verdict


def main() -> int:
    """Print the findings. Exit with 1 if there is a fault."""
    parser = Parser(prog="python -m bench.stress", description=__doc__)
    parser.add_argument("--seconds", type=duration, default=60, help="how long to run")
    parser.add_argument("--seed", type=int, default=None, help="to run the same again")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    verdict = stress(options.seconds, seed)
    print(
        f"seed {seed}: {verdict.episodes} episodes, {verdict.kernels} kernels, {verdict.kills} kills, "
        f"{verdict.passed} deliberate passes, {len(verdict.faults)} faults"
    )
    for fault in verdict.faults:
        print(fault, file=sys.stderr)
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    run(main, ProgramFailed, CliError, OSError)
