"""Test that a share is owned by the process that registers it, as the kernel tells it, and not by one that is named."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from rig.agent import MakeAgent, RunningAgent, python
from rig.pid_namespaces import alone
from rig.until import until
from sharepod.agent.api.hello import PEERS_OF_A_USER
from sharepod.agent.settings import TICKET_KEY
from sharepod.proto import v1_pb2 as pb
from sharepod.proto import v1_pb2_grpc as rpc

TOKEN = ("sharepod-token", "m" * 43)
SAY_HELLO = """
import os, socket, sys
if len(sys.argv) > 2:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
print(connection.makefile().readline().strip(), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def users_stub(agent: RunningAgent) -> Iterator[rpc.NodeServiceStub]:
    path = agent.directory / "users.sock"
    until(lambda: path.exists() and path.stat().st_mode & 0o777 == 0o666)
    with grpc.insecure_channel(f"unix:{path}") as channel:
        yield rpc.NodeServiceStub(channel)


@contextlib.contextmanager
def caller(agent: RunningAgent) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield another process that has said hello, and its ticket."""
    with python({}, "-c", SAY_HELLO, str(agent.directory / "hello.sock")) as (process, line):
        yield process, line.strip()


def request(name: str, owner_pid: int = 1) -> pb.RegisterShareRequest:
    return pb.RegisterShareRequest(name=name, devices=[pb.DeviceAsk(request_millipercent=10_000)], owner_pid=owner_pid)


def refusal(stub: rpc.NodeServiceStub, *metadata: tuple[str, str]) -> str:
    with pytest.raises(grpc.RpcError) as refused:
        stub.RegisterShare(request("refused"), metadata=metadata)
    assert isinstance(refused.value, grpc.Call)
    return str(refused.value.details())


def warned(agent: RunningAgent) -> str:
    """Return what doctor, run from here, finds wrong with the agent, with the remedies."""
    command = [
        sys.executable,
        "-m",
        "sharepod.cli",
        "doctor",
        "-o",
        "json",
        "--socket",
        f"{agent.directory}/agent.sock",
    ]
    found = json.loads(subprocess.run(command, capture_output=True, timeout=60, check=False).stdout)["checks"]
    return " ".join(one["text"] + one["remedy"] for one in found if one["name"] == "agent" and one["status"] != "OK")


def test_who_registers_a_share_owns_it_whatever_pid_it_names(make_agent: MakeAgent) -> None:
    agent = make_agent("--users-socket-mode", "0666").start()
    with users_stub(agent) as stub:
        for where in (stub, agent.stub):
            with caller(agent) as (process, ticket):
                share = where.RegisterShare(request("mine"), metadata=(TOKEN, (TICKET_KEY, ticket))).share
                assert share.owner_pid == process.pid
                ownerless = where.RegisterShare(request("free", 0), metadata=(TOKEN, (TICKET_KEY, ticket))).share
                assert ownerless.owner_pid == 0
            until(lambda: [share.name for share in agent.shares()] == ["free"])
            agent.stub.ReleaseShare(pb.ReleaseShareRequest(share="free"))
        assert "a share is owned by the process that registers it" in refusal(stub, TOKEN)
        for gone in (ticket, "made up"):
            assert "the ticket is not valid" in refusal(stub, TOKEN, (TICKET_KEY, gone))
    assert agent.shares() == []
    assert agent.register(10, name="stated", owner_pid=os.getpid()).share.owner_pid == os.getpid(), "operators may"


def test_an_agent_that_stops_hangs_up_on_its_callers_without_a_word(agent: RunningAgent) -> None:
    with caller(agent), caller(agent):
        assert agent.stop() == 0
    assert "Traceback" not in agent.log()
    assert "exception" not in agent.log().lower()
    assert not (agent.directory / "hello.sock").exists()


def test_an_owner_that_the_agent_does_not_see_is_refused_with_the_remedy(make_agent: MakeAgent) -> None:
    agent = make_agent("--users-socket-mode", "0666")
    agent.wrapper = list(alone())  # an agent in a container: of processes outside it sees none
    agent.start()
    with caller(agent) as (_, ticket), users_stub(agent) as stub:
        assert "is not seen by the agent" in (text := refusal(stub, TOKEN, (TICKET_KEY, ticket)))
        assert "sharepod run --private" in text
    assert agent.shares() == []
    assert "an agent of its own (sharepod run --private)" in warned(agent), "doctor names it, too"


def test_doctor_says_nothing_of_a_caller_that_the_agent_sees_and_what_is_missing_where_it_cannot_ask(
    agent: RunningAgent,
) -> None:
    assert warned(agent) == ""
    (agent.directory / "hello.sock").unlink()  # as where only the other socket is bound into a container
    assert f"mount its whole directory, {agent.directory}" in warned(agent)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_one_users_tickets_do_not_use_up_anothers(agent: RunningAgent) -> None:
    path = str(agent.directory / "hello.sock")
    with contextlib.ExitStack() as stack:
        for _ in range(PEERS_OF_A_USER):
            held = stack.enter_context(socket.socket(socket.AF_UNIX))
            held.connect(path)
            assert held.recv(100)
        with socket.socket(socket.AF_UNIX) as more:
            more.connect(path)
            assert more.recv(100) == b"", "hung up on"
        Path(path).chmod(0o666)
        with open_to_nobody(agent), python({}, "-c", SAY_HELLO, path, "as nobody") as (_, line):
            assert len(line) > 20
    with caller(agent) as (_, ticket):
        assert len(ticket) > 20


@contextlib.contextmanager
def open_to_nobody(agent: RunningAgent) -> Iterator[None]:
    """Let other users pass through the directories above the agent's sockets."""
    before = {parent: parent.stat().st_mode for parent in (agent.directory, *agent.directory.parents)}
    for parent, mode in before.items():
        if not mode & 0o001 and parent != Path("/"):
            parent.chmod(mode | 0o011)
    try:
        yield
    finally:
        for parent, mode in before.items():
            if parent.exists() and parent.stat().st_mode != mode:
                parent.chmod(mode)
