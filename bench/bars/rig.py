"""The bars' interface to a node with shares, simulated or on a real GPU, and the truth about a run on it.

A rig makes nodes. The bars know no difference between the two rigs but the attributes here. Standard library alone: a
machine with a real GPU has nothing else.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench.bars import figures
from bench.scale import Scale
from rig.loads import MS, SECOND, Load, Terms
from rig.programs import Program, Result
from rig.truth import Held, Kernel, Sample

START_DELAY_NS = 100 * MS
"""The time between the go and the first launch, so that all programs begin together."""
SHORTEST_QUANTUM_NS = 2.0 * MS


@dataclass(frozen=True, slots=True)
class Account:
    """The arbiter's counts for one share."""

    used_ns: int
    turns: int
    memory_used_bytes: int
    passed: int = 0
    """Launches that were deliberately let through without a turn."""


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run."""

    samples: Sequence[Sample]
    """The device time used, by the ground truth, at every step after the settling."""
    results: Mapping[str, Result]
    used_ns: Mapping[str, int]
    """What each owner should be billed for: the truth at the very end, when all has drained."""
    accounts: Mapping[str, Account] = field(default_factory=dict)
    """By share; empty without the hook."""
    kernels: Sequence[Kernel] = ()
    """The device's log, ordered by begin; empty unless it was asked for."""
    held: Sequence[Held] = ()
    """Every turn, as an interval of the device's log, widened by the error of the clocks' map."""
    quanta_ns: Sequence[int] = ()
    """Lengths of the turns that ended with their quantum."""
    detail: Mapping[str, Any] = field(default_factory=dict)

    @property
    def quantum_ns(self) -> float:
        """The median length of the turns that ended with their quantum; the policy's shortest quantum if none did."""
        return figures.median(self.quanta_ns) if self.quanta_ns else SHORTEST_QUANTUM_NS

    @property
    def bill(self) -> dict[str, object]:
        """What each owner was billed, and what it should have been billed."""
        charged = {owner: account.used_ns for owner, account in self.accounts.items()}
        return {"charged_ns": charged, "used_ns": self.used_ns}

    @property
    def bill_errors(self) -> dict[str, float]:
        """How far each bill is above the truth, in percent of the truth."""
        used = self.used_ns.items()
        return {owner: (self.accounts[owner].used_ns / ns - 1) * 100 if ns else 100.0 for owner, ns in used}


class Node(Protocol):
    """One node with shares on one device; the same node without the hook is the baseline."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of a program without a share."""

    @property
    def uuid(self) -> str:
        """The device's UUID."""

    def share(self, name: str, terms: Terms) -> Mapping[str, str]:
        """Make a share; return the environment of its programs. Without the hook: the bare one."""

    def start(self, loads: Mapping[str, Load], seconds: float, /) -> dict[str, Program]:
        """Start a program per load, each in a share of its own. They are ready, and work for at most `seconds`."""

    def collect(self, first_ns: int, steps: int) -> Run:
        """Return what happened: samples from `first_ns` on, a step apart, and the rest once all programs have ended."""

    def accounts(self) -> Mapping[str, Account]:
        """Return the arbiter's present counts, by share."""


class Rig(Protocol):
    """A place to measure."""

    @property
    def scale(self) -> Scale:
        """The lengths of all measurements."""

    @property
    def driver(self) -> str:
        """The name of a driver with a device here."""

    @property
    def real(self) -> bool:
        """Whether this is a real GPU: then launches are judged, and every kernel is in the log."""

    @property
    def profile(self) -> str:
        """How kind the simulated device is; empty on a real GPU."""

    @property
    def cap_bytes(self) -> int:
        """The cap of a share that is filled to the byte."""

    def node(self, *, hook: bool = True, log: bool = False) -> AbstractContextManager[Node]:
        """Return a fresh node. `log`: the run needs its kernels."""

    def command(self, mode: str, options: Mapping[str, object]) -> list[str]:
        """Return the command of a load program."""

    def memory_command(self, rounds: int) -> list[str]:
        """Return the command of a program that fills a share by every kind of allocation."""


def run(
    rig: Rig, loads: Mapping[str, Load], steps: int, *, hook: bool = True, log: bool = False, length_ns: int = 0
) -> Run:
    """Run all loads together on a node of their own for `steps` sampling steps after the settling.

    `length_ns` is how long they work, if that is longer.
    """
    scale = rig.scale
    length_ns = max(length_ns, 2 * scale.settle_ns + steps * scale.step_ns)
    with rig.node(hook=hook, log=log) as node:
        programs = node.start(loads, length_ns / 1e9)
        begin_ns = time.monotonic_ns() + START_DELAY_NS
        for program in programs.values():
            program.go(begin_ns, begin_ns + length_ns)
        return node.collect(begin_ns + scale.settle_ns, steps)


def run_once(command: Sequence[str], environment: Mapping[str, str], length_ns: int = 60 * SECOND) -> Result:
    """Run one program to its end, for at most `length_ns`. Return its result."""
    program = Program("a", command, environment)
    try:
        program.await_ready()
        begin_ns = time.monotonic_ns() + MS
        program.go(begin_ns, begin_ns + length_ns)
        return program.result()
    finally:
        program.kill()
