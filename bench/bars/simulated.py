"""The rig of the simulated GPU: the real agent and the real hook on a device that tells at any time what truly ran."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.bars.rig import Account, Run
from bench.peer import Peer
from bench.scale import Scale
from rig.closing import Closing
from rig.loads import Load, Terms
from rig.node import Node
from rig.programs import Program, fill_command, load_command
from sharepod.proto import v1_pb2 as pb

LOG_KERNELS = 400_000


class SimulatedNode(Closing):
    """One simulated node; a context manager."""

    def __init__(self, rig: "SimulatedRig", *, hook: bool, log: bool) -> None:
        self._peer = rig.peer if hook else None
        hook = hook and not rig.peer  # a peer replaces the hook, and there is no agent then
        self._rig, self._hook, self._log = rig, hook, log
        settings = {"SIMGPU_PROFILE": rig.profile, **rig.gpu_settings}
        self._node = Node(rig.devices, hook=hook, log_kernels=LOG_KERNELS if log else 0, gpu_settings=settings)
        self._programs: dict[str, Program] = {}

    def open(self) -> None:
        """Start the agent."""
        self._node.open()

    def close(self) -> None:
        """End every program and the agent, and remove the files."""
        self._node.close()

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of a program without a share."""
        return self._node.environment

    @property
    def uuid(self) -> str:
        """The device's UUID."""
        return self._node.truth.devices()[0].uuid

    def share(self, name: str, terms: Terms) -> Mapping[str, str]:
        """Register a share; return the environment of its programs. Without the hook: the bare one."""
        environment = self._node.share_environment(name, terms)
        return self._peer.inside(environment) if self._peer else environment

    def add(self, owner: str, command: Sequence[str], environment: Mapping[str, str]) -> Program:
        """Start one more program of `owner`; it is ready."""
        program = self._node.add(owner, command, environment)
        self._programs[f"{owner} {program.pid}"] = program
        return program

    def start(self, loads: Mapping[str, Load], _seconds: float) -> dict[str, Program]:
        """Start a program per load, each in a share of its own. They are ready then."""
        return {
            owner: self.add(owner, self._rig.command(load.mode, load.options), self.share(owner, load.terms))
            for owner, load in loads.items()
        }

    def collect(self, first_ns: int, steps: int) -> Run:
        """Return what happens from now on, and what device and agent know once all programs have ended."""
        samples = self._node.samples(first_ns, steps, self._rig.scale.step_ns)
        results = {program.owner: program.result() for program in self._programs.values()}
        used = self._node.sample().busy_ns
        kernels = self._node.kernels() if self._log else []
        if not self._hook:
            return Run(samples, results, used, kernels=kernels)
        turns = self._node.turns()
        quanta = [turn.closed_ns - turn.granted_ns for turn in turns if turn.reason == "quantum"]
        return Run(samples, results, used, self.accounts(), kernels, self._node.held(turns), quanta)

    def accounts(self) -> dict[str, Account]:
        """Return the agent's present counts, by share; nothing without an agent."""
        if not self._hook:
            return {}
        return {
            name: _account([device.usage for device in share.devices]) for name, share in self._node.usage().items()
        }


def _account(usages: Sequence[pb.Usage]) -> Account:
    return Account(
        used_ns=sum(usage.used_ns for usage in usages),
        turns=sum(usage.turns for usage in usages),
        memory_used_bytes=sum(usage.memory_used_bytes for usage in usages),
    )


@dataclass
class SimulatedRig:
    """A place to measure; see bench.bars.rig."""

    scale: Scale
    gpu_settings: Mapping[str, str] = field(default_factory=dict)
    peer: Peer | None = None
    """It replaces the hook. There is no agent then."""
    profile: str = "typical"
    """How kind the device is, as a value of `SIMGPU_PROFILE`."""
    devices: str = "1xH200"
    """The devices, in the simulator's notation. A share's account is the sum over its devices."""
    driver = "simulated driver"
    real = False
    cap_bytes = 3 * 2**30 + 4096 * 3
    """A multiple of rows, so that an array can be as large as the cap; not a multiple of a pool's grain."""

    def node(self, *, hook: bool = True, log: bool = False) -> SimulatedNode:
        """Return a fresh node."""
        return SimulatedNode(self, hook=hook, log=log)

    def command(self, mode: str, options: Mapping[str, object]) -> list[str]:
        """Return the command of a load program."""
        return load_command(mode, options)

    def memory_command(self, rounds: int) -> list[str]:
        """Return the command of a program that fills a share by every kind of allocation."""
        return fill_command("kinds", {"count": rounds})
