"""A node for one measurement: the arbiter alone, its shares, and probes that run under them.

The same node without the hook is the baseline: the device's own time slicing. What happened is read from the device's
log, never from the arbiter.
"""

import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench import figures
from bench.gpu import spans
from bench.gpu.host import Host
from bench.gpu.process import Asked
from bench.gpu.spans import ClockMap, Span, Tick
from rig.loads import MS, Load, Terms
from rig.programs import Program, ProgramFailed, Result
from rig.truth import Held, Kernel, Sample

START_DELAY_NS = 100 * MS
"""Between the go and the first launch, so that all programs begin together."""
END_TIMEOUT_S = 30.0
QUANTUM = 1  # the reason of a turn that its quantum ended
CLASSES = {"latency": 0, "standard": 1, "batch": 2}
SIMULATED_LOG = 200_000


@dataclass(frozen=True, slots=True)
class Turn:
    """A finished turn, as the arbiter tells it."""

    share: str
    granted_ns: int
    closed_ns: int
    drained_ns: int
    reason: int


@dataclass(frozen=True, slots=True)
class Run:
    """What one run gave."""

    begin_ns: int
    samples: Sequence[Sample]
    """Work done, by the device's log, at every step after the settling."""
    spans: Mapping[str, Sequence[Span]]
    results: Mapping[str, Result]
    usage: Mapping[str, Mapping[str, int]]
    """The arbiter's account by share; empty without the hook."""
    turns: Sequence[Turn]
    clock: ClockMap

    @property
    def kernels(self) -> list[Kernel]:
        """All kernels, by begin."""
        return spans.kernels(self.spans)

    @property
    def quantum_ns(self) -> float:
        """The median length of the turns that a quantum ended; the policy's shortest quantum when none did."""
        ended = [turn.closed_ns - turn.granted_ns for turn in self.turns if turn.reason == QUANTUM]
        return figures.median(ended) if ended else 2.0 * MS

    def held(self, tolerance_ns: int) -> list[Held]:
        """Return the turns as spans; the tolerance is for the map of the device's clock."""
        return [Held(t.share, t.granted_ns - tolerance_ns, t.drained_ns + tolerance_ns) for t in self.turns]


class Node:
    """One node; a context manager. `hook=False`: no arbiter, no hook."""

    _made = 0

    def __init__(self, host: Host, *, hook: bool = True) -> None:
        Node._made += 1
        self._host = host
        self._hook = hook
        self._directory = host.directory / f"node{Node._made}"
        self._arbiter: Asked | None = None
        self._shares: dict[str, int] = {}
        self._programs: dict[str, tuple[Load, Program]] = {}
        own = host.simulation(self._directory.name, SIMULATED_LOG)
        self.environment = {**host.environment, **own}
        self._first = Tick(0, 0)

    def __enter__(self) -> Self:
        self._directory.mkdir()
        try:
            self._first = self._host.tick()
            if self._hook:
                self._arbiter = Asked([str(self._host.built.node)], self.environment)
                self._arbiter.ask(f"device {self._host.device.uuid}")
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        for _, program in self._programs.values():
            program.kill()
        if self._arbiter is not None:
            self._arbiter.close()
        for state in self._host.directory.glob(f"{self._directory.name}.gpu*"):
            state.unlink()
        shutil.rmtree(self._directory, ignore_errors=True)

    # ---- shares and programs ----

    def share(self, name: str, terms: Terms) -> dict[str, str]:
        """Make a share; return the environment of its programs. Without the hook: the bare one."""
        if self._arbiter is None:
            return self.environment
        directory = self._directory / name
        directory.mkdir()
        millipercent = (round(terms.request * 1000), round(terms.limit * 1000))
        command = ("share", directory, *millipercent, CLASSES[terms.share_class], terms.memory_bytes)
        self._shares[name] = self._arbiter.ask(" ".join(map(str, command)))["share"]
        return self.inside(name)

    def inside(self, name: str) -> dict[str, str]:
        """Return the environment of a program in a share that is there."""
        region = str(self._directory / name)
        return {**self.environment, "SHAREPOD_REGION": region, "LD_PRELOAD": str(self._host.built.hook)}

    def start(self, loads: Mapping[str, Load], seconds: float) -> dict[str, Program]:
        """Start a program per load, each in a share of its own, side by side; they are ready and wait for their go.

        `seconds` is how long they will work at most: it sizes their logs.
        """
        started = {owner: self._begin(owner, load, seconds) for owner, load in loads.items()}
        for program in started.values():
            program.await_ready()
        return started

    def _begin(self, owner: str, load: Load, seconds: float) -> Program:
        options: dict[str, object] = dict(load.options)
        if load.mode in {"saturate", "sync", "periodic"}:
            kernels = int((seconds + 2) * 1.2e9 / load.unit_ns) + 4096
            options |= {"path": self._log(owner)}
            options |= {} if self._host.simulated else {"log": min(kernels, 1 << 24)}
        command = self._host.probe(load.mode, **options, wait=1)
        program = Program(owner, command, self.share(owner, load.terms))
        self._programs[owner] = (load, program)
        return program

    def _log(self, owner: str) -> Path:
        return self._directory / f"{owner}.log"

    def run(self, loads: Mapping[str, Load], steps: int) -> Run:
        """Run all loads together for `steps` sampling steps after the settling, and a little longer."""
        scale = self._host.scale
        length_ns = 2 * scale.settle_ns + steps * scale.step_ns
        programs = self.start(loads, length_ns / 1e9)
        begin_ns = time.monotonic_ns() + START_DELAY_NS
        for program in programs.values():
            program.go(begin_ns, begin_ns + length_ns)
        return self.collect(begin_ns, steps)

    def collect(self, begin_ns: int, steps: int) -> Run:
        """Wait for all programs and return what happened since `begin_ns`."""
        results = {owner: program.result(END_TIMEOUT_S + 30) for owner, (_, program) in self._programs.items()}
        clock = ClockMap(self._first, self._host.tick())
        found = self._simulated_spans(results) if self._host.simulated else self._logged_spans(results, clock)
        scale = self._host.scale
        samples = spans.samples(found, begin_ns + scale.settle_ns, scale.step_ns, steps)
        return Run(begin_ns, samples, found, results, self.usage(), self.turns(), clock)

    # ---- what is true ----

    def _logged_spans(self, results: Mapping[str, Result], clock: ClockMap) -> dict[str, list[Span]]:
        found: dict[str, list[Span]] = {}
        for owner, (load, _) in self._programs.items():
            lost = int(results[owner].other.get("not_logged", 0))
            if lost:
                raise ProgramFailed(f"{owner}: {lost} kernels did not fit into its log: the row asks for too many")
            path = self._log(owner)
            content = path.read_bytes() if path.exists() else b""
            found[owner] = spans.logged(content, clock, self._host.work_ns(load.unit_ns))
        return found

    def _simulated_spans(self, results: Mapping[str, Result]) -> dict[str, list[Span]]:
        from sharepod.simgpu.truth import Truth

        owners = {result.pid: owner for owner, result in results.items()}
        found: dict[str, list[Span]] = {owner: [] for owner in results}
        with Truth(self.environment["SIMGPU_STATE"]) as truth:
            for kernel in truth.kernels(0):
                owner = owners.get(kernel.pid)
                if owner is not None and kernel.name.startswith(("work_", "graph")):
                    found[owner].append(Span(kernel.submitted_ns, kernel.started_ns, kernel.ended_ns, kernel.busy_ns))
        return found

    # ---- what the arbiter says ----

    def usage(self) -> dict[str, dict[str, int]]:
        """Return the account of every share, by name."""
        if self._arbiter is None:
            return {}
        return {name: self._arbiter.ask(f"usage {share}") for name, share in self._shares.items()}

    def turns(self) -> list[Turn]:
        """Return every finished turn."""
        if self._arbiter is None:
            return []
        names = {share: name for name, share in self._shares.items()}
        told: Iterable[Sequence[Any]] = self._arbiter.ask("turns 0")["turns"]
        return [Turn(names[t[1]], t[2], t[3], t[4], t[6]) for t in told]
