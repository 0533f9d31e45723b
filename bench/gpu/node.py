"""A node for one measurement: the arbiter alone, its shares, and probes that run in them.

The same node without the hook is the baseline: the device's own time slicing. What happened is read from the device's
log, never from the arbiter.
"""

import dataclasses
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.bars.rig import START_DELAY_NS, Account, Run
from bench.gpu import spans
from bench.gpu.host import Host
from bench.gpu.process import Asked
from bench.gpu.spans import ClockMap, Span, Tick
from bench.scale import HardwareScale
from rig.closing import Closing
from rig.loads import MS, Load, Terms
from rig.programs import Program, ProgramFailed, Result
from rig.truth import Held

END_TIMEOUT_S = 60.0
QUANTUM = 1  # the reason of a turn that its quantum ended
CLASSES = {"latency": 0, "standard": 1, "batch": 2}
LOGGED = {"saturate", "sync", "periodic", "latency", "records", "signals"}
"""The modes that write a log of their kernels."""
SIMULATED_LOG = 200_000
CLOCK_ERROR_NS = 10_000
"""The possible error of a kernel's host time: the map of the clocks, and their drift within a run."""


class Node(Closing):
    """One node; a context manager. `hook=False`: no arbiter, no hook."""

    _made = 0

    def __init__(self, host: Host, *, hook: bool = True) -> None:
        Node._made += 1
        self._host = host
        self._hook = hook and host.peer is None
        self._peer = host.peer if hook else None
        self._directory = host.directory / f"node{Node._made}"
        self._arbiter: Asked | None = None
        self._shares: dict[str, int] = {}
        self._programs: dict[str, tuple[Load, Program]] = {}
        own = host.simulation(self._directory.name, SIMULATED_LOG)
        self.environment = {**host.environment, **own}
        self._first = Tick(0, 0)

    def open(self) -> None:
        """Start the arbiter, and compare the clocks: `finish` does so again, and maps one to the other."""
        self._directory.mkdir()
        self._first = self._host.tick()
        if self._hook:
            self._arbiter = Asked([str(self._host.built.node)], self.environment)
            self._arbiter.ask(f"device {self._host.device.uuid}")

    def close(self) -> None:
        """End every program and the arbiter, and remove the files."""
        for _, program in self._programs.values():
            program.kill()
        if self._arbiter is not None:
            self._arbiter.close()
        for state in self._host.directory.glob(f"{self._directory.name}.gpu*"):
            state.unlink()
        shutil.rmtree(self._directory, ignore_errors=True)

    # ---- shares and programs ----

    @property
    def uuid(self) -> str:
        """The device's UUID."""
        return self._host.device.uuid

    def share(self, name: str, terms: Terms) -> dict[str, str]:
        """Make a share; return the environment of its programs. Without the hook: the bare one."""
        if self._arbiter is None:
            return self._peer.inside(self.environment) if self._peer else self.environment
        directory = self._directory / name
        directory.mkdir()
        millipercent = (round(terms.request * 1000), round(terms.limit * 1000))
        command = ("share", directory, *millipercent, CLASSES[terms.share_class], terms.memory_bytes)
        self._shares[name] = self._arbiter.ask(" ".join(map(str, command)))["share"]
        return self.inside(name)

    def inside(self, name: str) -> dict[str, str]:
        """Return the environment of a program in an existing share."""
        region = str(self._directory / name)
        return {**self.environment, "SHAREPOD_REGION": region, "LD_PRELOAD": str(self._host.built.hook)}

    def start(self, loads: Mapping[str, Load], seconds: float) -> dict[str, Program]:
        """Start a program per load, each in a share of its own, in parallel. They are ready and wait for their go.

        `seconds` is the longest time that they will work: it sizes their logs.
        """
        started = {owner: self._begin(owner, load, seconds) for owner, load in loads.items()}
        for program in started.values():
            program.await_ready()
        return started

    def _begin(self, owner: str, load: Load, seconds: float) -> Program:
        """Start a program in a share of its own. On a real GPU its log gets room for more kernels than fit in time."""
        options = {name: value for name, value in load.options.items() if name != "warm"}  # a probe is always warm
        if load.mode in LOGGED:
            kernels = int((seconds + 2) * 1.2e9 / load.unit_ns) + 4096
            options |= {"path": self._log(owner)}
            options |= {} if self._host.simulated else {"log": min(kernels, 1 << 24)}
        command = self._host.probe(load.mode, **options, wait=1)
        program = Program(owner, command, self.share(owner, load.terms))
        self._programs[owner] = (load, program)
        return program

    def _log(self, owner: str) -> Path:
        return self._directory / f"{owner}.log"

    def collect(self, first_ns: int, steps: int) -> Run:
        """Wait for all programs. Return what happened, with samples from `first_ns` on."""
        results, clock, found = self.finish()
        samples = spans.samples(found, first_ns, self._host.scale.step_ns, steps)
        kernel_ns = {owner: sum(span.ended_ns - span.started_ns for span in found[owner]) for owner in found}
        detail = {"clock_drift_ppm": clock.drift_ppm, "kernels_alone_ns": kernel_ns, "account": self.usage()}
        held, quanta_ns = self._turns()
        used, kernels = spans.occupied_ns(found), spans.kernels(found)
        return Run(samples, results, used, self.accounts(), kernels, held, quanta_ns, detail)

    # ---- what is true ----

    def finish(self) -> tuple[dict[str, Result], ClockMap, dict[str, list[Span]]]:
        """Wait for all programs. Return their results, the map of the clocks, and their kernels."""
        results = {owner: program.result(END_TIMEOUT_S) for owner, (_, program) in self._programs.items()}
        clock = ClockMap(self._first, self._host.tick())
        found = self._simulated_spans(results) if self._host.simulated else self._logged_spans(results, clock)
        return results, clock, found

    def _logged_spans(self, results: Mapping[str, Result], clock: ClockMap) -> dict[str, list[Span]]:
        """Return each owner's kernels from the programs' logs. Raises ProgramFailed if a log was too small."""
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
        """Return each owner's kernels from the simulated device's log."""
        from sharepod.simgpu.truth import Truth

        owners = {result.pid: owner for owner, result in results.items()}
        found: dict[str, list[Span]] = {owner: [] for owner in results}
        with Truth(self.environment["SIMGPU_STATE"]) as truth:
            for kernel in truth.kernels(0):
                owner = owners.get(kernel.pid)
                if owner is not None and kernel.name.startswith(("work_", "heavy_", "graph")):
                    found[owner].append(Span(kernel.submitted_ns, kernel.started_ns, kernel.ended_ns, kernel.busy_ns))
        return found

    # ---- what the arbiter says ----

    def usage(self) -> dict[str, dict[str, int]]:
        """Return the account of every share, by name."""
        if self._arbiter is None:
            return {}
        return {name: self._arbiter.ask(f"usage {share}") for name, share in self._shares.items()}

    def accounts(self) -> dict[str, Account]:
        """Return the arbiter's present counts, by share."""
        names = Account.__dataclass_fields__
        return {share: Account(**{name: told[name] for name in names}) for share, told in self.usage().items()}

    def _turns(self) -> tuple[list[Held], list[int]]:
        """Return every finished turn, and the lengths of the turns that ended with their quantum."""
        if self._arbiter is None:
            return [], []
        names = {share: name for name, share in self._shares.items()}
        off_ns = 0 if self._host.simulated else CLOCK_ERROR_NS
        turns: Sequence[Sequence[Any]] = self._arbiter.ask("turns 0")["turns"]  # their fields: see c/node.c
        held = [Held(names[share], granted - off_ns, drained + off_ns) for _, share, granted, _, drained, _, _ in turns]
        return held, [closed - granted for _, _, granted, closed, _, _, reason in turns if reason == QUANTUM]


def beside(host: Host, loads: Mapping[str, Load]) -> tuple[Mapping[str, Result], Mapping[str, list[Span]]]:
    """Run loads together without the hook. Return their results, and when their kernels ran."""
    length_ns = host.scale.slices_ms * MS
    with Node(host, hook=False) as node:
        programs = node.start(loads, length_ns / 1e9)
        begin_ns = time.monotonic_ns() + START_DELAY_NS
        for program in programs.values():
            program.go(begin_ns, begin_ns + length_ns)
        results, _, found = node.finish()
    return results, found


class HardwareRig:
    """A place to measure; see bench.bars.rig. The dry run uses it too, so that all of it is tested."""

    driver = "this driver"
    real = True
    profile = ""
    cap_bytes = (1 << 30) + (3 << 21)
    """A multiple of 2 MiB, the coarsest step of any kind, and far below any device's memory."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @property
    def scale(self) -> HardwareScale:
        """The lengths of all measurements. A peer's column has no baselines of its own."""
        scale = self._host.scale
        return dataclasses.replace(scale, baselines=False) if self._host.peer else scale

    def node(self, *, hook: bool = True, log: bool = True) -> Node:
        """Return a fresh node. Its programs are always logged."""
        del log
        return Node(self._host, hook=hook)

    def command(self, mode: str, options: Mapping[str, object]) -> list[str]:
        """Return the command of a probe that waits for its go."""
        return self._host.probe(mode, **options, wait=1)

    def memory_command(self, rounds: int) -> list[str]:
        """Return the command of a program that fills a share by every kind of allocation."""
        return self.command("memory", {"count": rounds, "bytes": self.cap_bytes})
