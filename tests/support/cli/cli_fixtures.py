"""Fixtures to run the command in this process, against an agent that answers from memory: no GPU, no arbiter."""

# ruff: noqa: N802 - gRPC names the methods

import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from sharepod.cli import main as cli
from sharepod.proto import v1_pb2 as pb
from sharepod.proto import v1_pb2_grpc as rpc

UUID = "GPU-00000000-0000-0000-0000-000000000001"


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


Sharepod = Callable[..., Answer]


@pytest.fixture
def sharepod(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sharepod:
    """Run the command in this process: `sharepod("ps", "-o", "json")`."""
    monkeypatch.delenv("SHAREPOD_SOCKET", raising=False)

    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["sharepod", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return Answer(int(ended.value.code or 0), out, err)

    return run


def train() -> pb.Share:
    usage = pb.Usage(
        used_ns=12_300_000_000,
        charged_ns=12_400_000_000,
        waited_ns=450_000_000,
        turns=7,
        processes=1,
        memory_used_bytes=2**30,
        used_1s_millipercent=29_950,
        used_1m_millipercent=30_010,
    )
    term = pb.DeviceShare(
        device_uuid=UUID,
        request_millipercent=30_000,
        limit_millipercent=60_000,
        memory_limit_bytes=10 * 2**30,
        state=pb.SHARE_STATE_WAITING,
        usage=usage,
    )
    return pb.Share(id="abc", name="train", share_class=pb.SHARE_CLASS_STANDARD, devices=[term], owner_pid=42)


@dataclass
class Agent(rpc.NodeServiceServicer):
    """An agent that answers from `shares` and remembers requests. Calls that change a share need a real agent."""

    shares: list[pb.Share] = field(default_factory=lambda: [train()])
    turns: list[pb.Turn] = field(default_factory=list)
    asked: list[object] = field(default_factory=list)
    version: str = "0.1.0"

    def device(self) -> pb.Device:
        return pb.Device(uuid=UUID, name="NVIDIA H200", healthy=True, memory_total_bytes=141 * 2**30)

    def ListShares(self, request, context):
        self.asked.append(request)
        return pb.ListSharesResponse(shares=self.shares, now_ns=1)

    def WatchUsage(self, request, context):
        self.asked.append(request)
        yield pb.WatchUsageResponse(now_ns=1, shares=self.shares, devices=[self.device()])

    def ListTurns(self, request, context):
        self.asked.append(request)
        later = [turn for turn in self.turns if turn.sequence > request.after_sequence]
        return pb.ListTurnsResponse(turns=later[: request.max_turns], now_ns=1)

    def ExplainShare(self, request, context):
        self.asked.append(request)
        part = pb.Explanation(
            device_uuid=UUID,
            state=pb.SHARE_STATE_WAITING,
            reason="waiting: it used its 30 % and others are below theirs",
            facts=["its turn comes in about 3 ms"],
            holder_share_ids=["xyz"],
        )
        return pb.ExplainShareResponse(share=self.shares[0], devices=[part])

    def GetNode(self, request, context):
        self.asked.append(request)
        return pb.GetNodeResponse(
            node_name="host",
            version=self.version,
            region_abi_version=1,
            features=["simulated"],
            agent_pid=7,
            devices=[self.device()],
            runtime_directory="/dev/shm",
        )


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """Yield an agent in memory, on the socket that the command finds."""
    service = Agent()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    rpc.add_NodeServiceServicer_to_server(service, server)
    with tempfile.TemporaryDirectory(prefix="sharepod-cli-") as directory:
        path = Path(directory) / "agent.sock"
        server.add_insecure_port(f"unix:{path}")
        server.start()
        monkeypatch.setenv("SHAREPOD_SOCKET", str(path))
        yield service
        server.stop(None).wait()
