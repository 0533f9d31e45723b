"""Test that host copies are counted and explained, and that the counts go on over processes and agents."""

from dialogue import Dialogue

from rig import REPO_ROOT
from rig.agent import RunningAgent, metered, program, usage
from rig.until import until
from sharepod.proto import v1_pb2 as pb

COPIES = REPO_ROOT / "rig" / "copying.py"
EACH_WAY = 2 * (64 << 20)


def counts(agent: RunningAgent) -> tuple[int, int, int, int]:
    """Return the counts by gRPC: bytes and copies to the device, then from it."""
    told = usage(agent, "a")
    return (
        told.host_to_device_bytes,
        told.host_to_device_copies,
        told.device_to_host_bytes,
        told.device_to_host_copies,
    )


def rounds(number: int) -> tuple[int, int, int, int]:
    """Return the counts of this number of rounds of the program."""
    return number * EACH_WAY, number * 2, number * EACH_WAY, number * 2


def test_host_copies_of_the_dead_and_the_living_are_counted_explained_and_go_on_under_the_next_agent(
    agent: RunningAgent,
) -> None:
    share = metered(agent.register(name="a"))
    with program(share, of=COPIES):
        pass
    until(lambda: usage(agent, "a").processes == 0)
    with program(share, of=COPIES) as lives:
        assert counts(agent) == rounds(2)
        facts = agent.stub.ExplainShare(pb.ExplainShareRequest(share="a")).devices[0].facts
        assert "copied 256 MiB to the device and 256 MiB back, in 8 copies: these pass no gate" in facts
        assert agent.stop() == 0
        assert Dialogue(lives)("again") == "ready"  # it copies while there is no agent
        agent.start()
        until(lambda: usage(agent, "a").processes == 1)
        assert counts(agent) == rounds(3)
    until(lambda: usage(agent, "a").processes == 0)
    assert counts(agent) == rounds(3)
    assert usage(agent, "a").faults == 0
