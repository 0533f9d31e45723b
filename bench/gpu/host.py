"""The machine under test: its device, its clock, its environment, and what the rows have learnt about it so far."""

import os
import re
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.gpu.build import ROOT, Built
from bench.gpu.process import Asked, ask_once
from bench.gpu.spans import Tick
from bench.peer import Peer
from bench.scale import HardwareScale
from rig.closing import Closing
from rig.programs import machine
from sharepod.cli.scratch import IN_MEMORY, Scratch

SIMULATED_BYTES = 32 << 20
"""Memory that a dry run may hold at a time, with room to spare."""
UNITS = ("20us", "100us", "200us", "500us", "1ms")


class Unusable(Exception):
    """Nothing can be measured here. The text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Device:
    """The GPU, as the driver describes it."""

    name: str
    uuid: str
    memory_bytes: int
    multiprocessors: int
    capability: str
    cuda_version: int
    compute_mode: int

    @property
    def kind(self) -> str:
        """A short name for files, for example h100, a10, rtx-4090."""
        words = re.sub(r"[^a-z0-9]+", " ", self.name.lower()).split()
        plain = [word for word in words if word not in {"nvidia", "geforce", "tesla"}]
        model = next((word for word in plain if re.fullmatch(r"[a-z]{1,2}[0-9]{1,4}[a-z]?", word)), None)
        return model or "-".join(plain[:2]) or "gpu"


@dataclass
class Host(Closing):
    """One run of the bench on one machine; a context manager that ends the clock's process and the files in memory."""

    built: Built
    scale: HardwareScale
    simulated: bool
    results: Path = ROOT / "bench" / "results"
    """Where rows save files of their own."""
    device: Device = field(init=False)
    directory: Path = field(init=False)
    environment: dict[str, str] = field(init=False)
    rate: float = 1.0
    """Loop iterations per microsecond of the device."""
    units_ns: dict[int, int] = field(default_factory=dict)
    """By duration in a kernel's name: how long it really takes alone."""
    profile: dict[str, float] = field(default_factory=dict)
    """What the rows have learnt for the simulated GPU, by the property's name."""
    clock_resolution_ns: int = 1
    speed_change_percent: float | None = None
    """The change between the last two calibrations."""
    peer: Peer | None = None
    """It replaces the hook in every node. There is no arbiter then."""
    event_ticks: list[Tick] = field(default_factory=list)
    """The times of events by both clocks, over the whole run."""
    heavy_rate: float = 1.0
    """Iterations of a heavy kernel per microsecond."""
    _clock: Asked | None = None
    _scratch: Scratch = field(default_factory=lambda: Scratch("sharepod-gpu"))

    def open(self) -> None:
        """Find the device and its clock, and measure its speed."""
        self.directory = self._scratch.path
        self.environment = self._bare_environment()
        self.device = self._describe()
        self._clock = Asked([*self.probe("clock")], self.environment)
        self._clock.read_line()  # "ready"
        self.clock_resolution_ns = self._sample()["resolution_ns"]
        self.calibrate()

    def close(self) -> None:
        """End the clock's process and remove the files."""
        if self._clock is not None:
            self._clock.close()
        self._scratch.remove()

    def end_strays(self) -> None:
        """End children that an aborted row may have left: they would disturb the next row."""
        try:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()
        except OSError:
            return
        for pid in map(int, children):
            if self._clock is not None and pid == self._clock.pid:
                continue
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue

    def _bare_environment(self) -> dict[str, str]:
        """Return the environment of a program without a share: ours without what would change what it measures."""
        # A dry run may have its own settings: SIMGPU_PROFILE and the like.
        own = ("SHAREPOD_", "CUPTI_", "CENSUS_", "CUDA_INJECTION", *(() if self.simulated else ("SIMGPU_",)))
        environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        environment.pop("LD_PRELOAD", None)
        # Indices as in NVML, so that device 0 is the same everywhere.
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environment["CUDA_CACHE_PATH"] = str(self.directory / "cache")  # the run only writes into its own folders
        if self.simulated:
            environment |= self.simulation("host")
        return environment

    def simulation(self, name: str, log_kernels: int = 0) -> dict[str, str]:
        """Return the variables of a simulated GPU of its own; none on a real machine."""
        if not self.simulated:
            return {}
        variables = {
            "LD_LIBRARY_PATH": str(ROOT / "simgpu" / "lib"),
            "SIMGPU_STATE": str(self.directory / f"{name}.gpu"),
            "SIMGPU_DEVICES": "1xH200",
        }
        return variables | ({"SIMGPU_LOG_KERNELS": str(log_kernels)} if log_kernels else {})

    def _describe(self) -> Device:
        """Return the device as the driver describes it. Raises Unusable."""
        if self.simulated and not (ROOT / "simgpu" / "lib" / "libcuda.so.1").exists():
            raise Unusable("the simulated GPU is not built: run make build")
        if self.simulated and (free := shutil.disk_usage(IN_MEMORY).free) < SIMULATED_BYTES:
            raise Unusable(
                f"{IN_MEMORY} is full: {free >> 20} MiB are free and a simulated GPU needs {SIMULATED_BYTES >> 20}: "
                "remove what nobody uses there, or make it larger (--shm-size of a container)"
            )
        told = ask_once(self.probe("info"), self.environment)
        device = Device(**{name: told[name] for name in Device.__dataclass_fields__})
        if device.compute_mode != 0:
            raise Unusable(
                f"{device.name} is in compute mode {device.compute_mode}, in which processes cannot share it: "
                "ask its administrator for the default mode"
            )
        return device

    def probe(self, mode: str, **options: object) -> list[str]:
        """Return the command of a probe."""
        rate = self.heavy_rate if options.get("heavy") else self.rate
        fixed = {"rate": f"{rate:.6f}", **({"simulated": 1} if self.simulated else {})}
        return [str(self.built.probe), mode, *(f"{name}={value}" for name, value in {**fixed, **options}.items())]

    def ask(self, mode: str, *, timeout_s: float = 60.0, **options: object) -> Mapping[str, Any]:
        """Run a probe without hook to its end. Return what it found."""
        return ask_once(self.probe(mode, **options), self.environment, timeout_s)

    def calibrate(self) -> None:
        """Measure the device's speed: the loop's rate, and the real length of the named durations."""
        found = self.ask("calibrate", unit="500us", units=",".join(UNITS))
        if self.rate != 1.0 and not self.simulated:
            self.speed_change_percent = (found["rate"] / self.rate - 1) * 100
        self.rate = float(found["rate"])
        self.units_ns = {int(unit): int(ns) for unit, ns in found["units"].items()}
        self.heavy_rate = float(self.ask("calibrate", unit="500us", heavy=1)["rate"])

    def work_ns(self, unit_ns: int) -> int:
        """Return how long a kernel named for `unit_ns` takes alone."""
        return self.units_ns.get(unit_ns, unit_ns)

    def tick(self) -> Tick:
        """Read both clocks at one instant. The device should be idle."""
        told = self._sample()
        return Tick(told["host_ns"], told["device_ns"])

    def _sample(self) -> Mapping[str, Any]:
        assert self._clock is not None
        told = self._clock.ask("sample")
        self.event_ticks.append(Tick(told["event_host_ns"], round(told["event_ms"] * 1e6)))
        return told

    def free_bytes(self) -> int:
        """Return the free device memory."""
        return int(self._sample()["free_bytes"])

    @property
    def rounded_profile(self) -> dict[str, int]:
        """What is known of the hardware so far, as a profile."""
        return {name: round(value) for name, value in self.profile.items()}

    @property
    def machine(self) -> str:
        """A name for this kind of machine, without its host name."""
        return machine("dry-run" if self.simulated else self.device.kind)
