"""A share with a memory cap, and the programs that take memory in it.

The simulated device is the judge: what it counts for the share's processes must equal what the agent says, to the byte.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dialogue import Dialogue

from rig.agent import RunningAgent, python
from rig.programs import build
from rig.until import until
from sharepod.proto import v1_pb2 as pb
from sharepod.simgpu.truth import Truth

SOURCE = Path(__file__).with_name("memory_program.c")
MIB = 1 << 20
OUT_OF_MEMORY = "2"


def memory_program() -> str:
    """Build the program and return its path."""
    return str(build(str(SOURCE), "memory_program", "-lpthread"))


@dataclass(frozen=True)
class CappedShare:
    """A share with a cap, on a device of its own."""

    agent: RunningAgent
    environment: dict[str, str]
    takers: list[Dialogue] = field(default_factory=list)

    @contextmanager
    def taker(self) -> Iterator[Dialogue]:
        """Run the program in the share."""
        with python(self.environment, of=memory_program()) as (process, line):
            assert line == "ready\n"
            self.takers.append(Dialogue(process))
            yield self.takers[-1]

    def on_the_device(self, device: int = 0) -> int:
        """Return what a device counts for the share's programs."""
        pids = {taker.pid for taker in self.takers}
        with Truth(f"{self.agent.directory}/simgpu") as truth:
            return sum(process.memory_bytes for process in truth.processes(device) if process.pid in pids)

    def usage(self, device: int = 0) -> pb.Usage:
        """Return what the agent says of the share on its first device, or on another."""
        return self.agent.stub.ListShares(pb.ListSharesRequest(shares=["capped"])).shares[0].devices[device].usage

    def holds(self, device: int = 0) -> int:
        """Return the memory that the share holds, once the device and the agent say the same.

        While a process is about to write its account, the agent keeps the value that it read before.
        """
        there = self.on_the_device(device)

        def told() -> tuple[int, int]:
            usage = self.usage(device)
            return usage.memory_used_bytes, usage.memory_overhead_bytes

        until(lambda: told() == (there, 0), lambda: f"the agent says {told()}, the device {there}", 5)
        return there

    def facts(self) -> list[str]:
        """Return what the agent tells of the share."""
        return list(self.agent.stub.ExplainShare(pb.ExplainShareRequest(share="capped")).devices[0].facts)

    def set_cap(self, cap: int) -> None:
        """Change the cap while programs run."""
        change = pb.DeviceChange(memory_limit_bytes=cap)
        self.agent.stub.UpdateShare(pb.UpdateShareRequest(share="capped", devices=[change]))
