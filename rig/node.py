"""A node for one measurement: a simulated GPU of its own, the real agent on it, and programs in shares.

The same node without the agent is the baseline: the device's own time slicing. Everything lies in one directory in
memory, which is removed with the node. The ground truth comes from the simulated device, never from the agent.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rig.agent import RunningAgent
from rig.closing import Closing
from rig.gpu import SimulatedGpu
from rig.loads import Load, Terms
from rig.programs import Program, load_command
from rig.truth import Held, Kernel, Sample
from sharepod.cli.commands.launch import program_environment
from sharepod.cli.connection.client import Client
from sharepod.cli.render.messages import class_of
from sharepod.cli.render.turns import Turn
from sharepod.cli.scratch import Scratch
from sharepod.proto import v1_pb2 as pb
from sharepod.simgpu.truth import Truth

START_DELAY_NS = 100_000_000
"""The time between the go and the first launch, so that all programs begin together."""
SETTLE_NS = 500_000_000
"""Programs start in this time, and no bar covers it. The work also goes on for this time after the last sample."""


class Node(Closing):
    """One simulated node; a context manager. `hook=False`: no agent, no hook."""

    def __init__(
        self,
        devices: str = "1xH200",
        *,
        hook: bool = True,
        log_kernels: int = 0,
        agent_settings: Mapping[str, str] | None = None,
        gpu_settings: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
    ) -> None:
        # `preload`: libraries that programs get instead of the hook (an instrumented build of it).
        self._preload = ":".join(preload)
        self._scratch = Scratch("sharepod-bench")
        self._directory = self._scratch.path
        self._hook = hook
        self.socket = self._directory / "run" / "agent.sock"
        self._client: Client | None = None
        self._programs: list[Program] = []
        self._owners: dict[int, str] = {}
        log = {"SIMGPU_LOG_KERNELS": str(log_kernels)} if log_kernels else {}
        self.environment = SimulatedGpu(self._directory / "gpu", devices, {**log, **(gpu_settings or {})}).env
        settings = {
            **self.environment,
            "SHAREPOD_SIMULATE": devices,
            "SHAREPOD_METRICS_LISTEN": "off",
            "SHAREPOD_LOG_LEVEL": "warning",
            **{f"SHAREPOD_{name.upper()}": value for name, value in (agent_settings or {}).items()},
        }
        self._agent = RunningAgent(self._directory / "run", environment=settings, ends_with_us=True)

    def open(self) -> None:
        """Start the agent. Without one start a program that makes the device: before that there is no truth to read."""
        if self._hook:
            self._start_agent()
        else:
            Program("maker", load_command("cost", {"count": 1}), self.environment).await_ready().kill()
        self.truth = Truth(self._directory / "gpu")

    def _start_agent(self) -> None:
        self._agent.start()
        self._client = Client(str(self.socket))

    def close(self) -> None:
        """End every program and the agent, and remove the files."""
        for program in self._programs:
            program.kill()
        if self._client is not None:
            self._client.close()
        self._agent.end()
        self._scratch.remove()

    def restart_agent(self, number: int) -> None:
        """End the agent with a signal and start another one in its place."""
        self.client.close()
        self._agent.stop(number)
        self._start_agent()

    # ---- shares and programs ----

    @property
    def client(self) -> Client:
        """The connection to the agent. It exists only with the hook."""
        if self._client is None:
            raise RuntimeError("there is no agent on a node without the hook")
        return self._client

    @property
    def directory(self) -> Path:
        """A directory in memory that is removed with the node."""
        return self._directory

    @property
    def agent_pid(self) -> int:
        """The agent's process id."""
        return self._agent.pid

    def share_environment(self, name: str, terms: Terms) -> dict[str, str]:
        """Register a share and return the environment of its programs. Without the hook return the bare one."""
        if not self._hook:
            return self.environment
        devices = [
            pb.DeviceAsk(
                device=device,
                request_millipercent=round(terms.request * 1000),
                limit_millipercent=round(terms.limit * 1000),
                memory_limit_bytes=terms.memory_bytes,
            )
            for device in terms.devices
        ]
        share_class = class_of(terms.share_class)
        ask = pb.RegisterShareRequest(name=name, devices=devices, share_class=share_class, gang=terms.gang)
        registration = self.client.register(ask)
        hook = self._preload or registration.hook_path
        return program_environment(self.environment, registration.environment, hook)

    def add(self, owner: str, command: Sequence[str], environment: Mapping[str, str]) -> Program:
        """Start one more program of `owner`. It is then ready, and waits for its `go`."""
        program = Program(owner, command, environment)
        self._programs.append(program)
        self._owners[program.pid] = owner
        return program.await_ready()

    def start(self, owner: str, load: Load) -> Program:
        """Register a share for `load` and start its program."""
        return self.add(owner, load_command(load.mode, load.options), self.share_environment(owner, load.terms))

    def run(self, loads: Mapping[str, Load], seconds: float) -> list[Sample]:
        """Run all loads together for `seconds`. Return the truth at every full second, from SETTLE_NS on."""
        programs = [self.start(owner, load) for owner, load in loads.items()]
        start_ns = time.monotonic_ns() + START_DELAY_NS
        for program in programs:
            program.go(start_ns, start_ns + round(seconds * 1e9) + 2 * SETTLE_NS)
        samples = self.samples(start_ns + SETTLE_NS, round(seconds))
        for program in programs:
            program.result()
        return samples

    def samples(self, first_ns: int, steps: int, step_ns: int = 1_000_000_000) -> list[Sample]:
        """Read the truth at intervals: `steps` + 1 samples, `step_ns` apart, from `first_ns` on."""
        taken = []
        for step in range(steps + 1):
            time.sleep(max(0.0, (first_ns + step * step_ns - time.monotonic_ns()) / 1e9))
            taken.append(self.sample())
        return taken

    def parts(self, seconds: float, first_ns: int = 0) -> dict[str, float]:
        """Return the part of the next `seconds` that each owner's work takes, all devices together.

        `first_ns`: when the time begins; 0: now.
        """
        before, after = self.samples(first_ns or time.monotonic_ns(), 1, round(seconds * 1e9))
        span_ns = after.now_ns - before.now_ns
        return {owner: (busy_ns - before.busy_ns.get(owner, 0)) / span_ns for owner, busy_ns in after.busy_ns.items()}

    # ---- what is true ----

    def sample(self) -> Sample:
        """Return the present device time of every owner, all devices together."""
        busy: dict[str, int] = {}
        now_ns = self.truth.now_ns()
        for device in self.truth.devices():
            for context in self.truth.contexts(device.index):
                owner = self._owners.get(context.pid)
                if owner is not None:
                    busy[owner] = busy.get(owner, 0) + context.busy_ns
        return Sample(now_ns, busy)

    def kernels(self) -> list[Kernel]:
        """Return the device's log, oldest first, for the programs started here."""
        found = [
            Kernel(self._owners[k.pid], k.submitted_ns, k.started_ns, k.ended_ns, device.index, k.busy_ns)
            for device in self.truth.devices()
            for k in self.truth.kernels(device.index)
            if k.pid in self._owners
        ]
        return sorted(found, key=lambda kernel: kernel.started_ns)

    # ---- what the agent says ----

    def turns(self) -> list[Turn]:
        """Return every finished turn that the agent keeps."""
        return self.client.turns_after(0)

    def held(self, turns: Iterable[Turn] | None = None) -> list[Held]:
        """Return turns as intervals on numbered devices."""
        index = {device.uuid: device.index for device in self.client.node().devices}
        chosen: Sequence[Turn] = self.turns() if turns is None else list(turns)
        return [Held(turn.share, turn.granted_ns, turn.drained_ns, index[turn.device]) for turn in chosen]

    def usage(self) -> dict[str, pb.Share]:
        """Return the agent's account of every share, by name."""
        return {share.name: share for share in self.client.list_shares().shares}
