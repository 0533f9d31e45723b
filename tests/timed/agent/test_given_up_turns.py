"""Test that a program that has executed another, or is stopped at its gate, keeps no device time from the others."""

import signal
import time
from pathlib import Path

from dialogue import Dialogue

from rig.agent import RunningAgent, metered, program, usage
from rig.until import until
from sharepod.proto import v1_pb2 as pb


def used_by(agent: RunningAgent, name: str, seconds: float) -> float:
    """Return the fraction of the following seconds that a share uses."""
    began_ns, before = time.monotonic_ns(), usage(agent, name).used_ns
    time.sleep(seconds)
    return (usage(agent, name).used_ns - before) / (time.monotonic_ns() - began_ns)


def test_a_program_that_becomes_another_in_its_turn_holds_the_device_no_longer(agent: RunningAgent) -> None:
    with (
        program(metered(agent.register(50, name="gone", device="0")), "exec") as gone,
        program(metered(agent.register(50, name="other", device="0"))),
    ):
        Dialogue(gone).tell("now")
        until(lambda: Path(f"/proc/{gone.pid}/comm").read_text() == "sleep\n")
        until(lambda: usage(agent, "gone").processes == 0)
        before_ns = usage(agent, "gone").used_ns
        until(lambda: used_by(agent, "other", 0.3) > 0.8)
        assert usage(agent, "gone").used_ns == before_ns


def test_a_stopped_program_that_waits_at_its_gate_takes_no_turns_from_others(agent: RunningAgent) -> None:
    with (
        program(metered(agent.register(50, name="stopped", device="0"))) as stopped,
        program(metered(agent.register(50, name="other", device="0"))),
    ):
        agent.stub.PauseShare(pb.PauseShareRequest(share="stopped"))
        time.sleep(0.1)  # by then it waits at its closed gate
        stopped.send_signal(signal.SIGSTOP)
        agent.stub.ResumeShare(pb.ResumeShareRequest(share="stopped"))
        until(lambda: used_by(agent, "other", 0.5) > 0.8)  # it would be half if the stopped share got every second turn
        stopped.send_signal(signal.SIGCONT)
        until(lambda: used_by(agent, "stopped", 0.5) > 0.3)
