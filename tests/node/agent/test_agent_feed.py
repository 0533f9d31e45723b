"""Test a real agent that reports to a real usage server: over TLS with a token, and through restarts of both.

The server runs in the test's event loop, so it hangs while the test does not await anything.
"""

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from prometheus_client.parser import text_string_to_metric_families
from server_certificates import Certificates

from rig.agent import MakeAgent, RunningAgent, free_port, metered, program, scrape
from rig.until import eventually
from sharepod.agent.shares.share import ShareClass
from sharepod.process.credentials import Credentials
from sharepod.proto import v1_pb2 as pb
from sharepod.scheduler.feed.usage_identity import AGENT_USER, AUDIENCE, Identities
from sharepod.scheduler.feed.usage_server import UsageServer
from sharepod.scheduler.state.usage import NodeUse, ShareUse, UsageBook

TOKEN = "a-token-of-the-agent-on-n1"  # noqa: S105
NODE = "n1"


class Scheduler:
    """Usage servers, one after the other, at the same address."""

    def __init__(self, directory: Path, *, tls: bool = True) -> None:
        self.directory = directory
        self.tls = tls
        self.address = f"127.0.0.1:{free_port()}"
        self.node_of = {TOKEN: NODE}
        (directory / "token").write_text(TOKEN)
        self.certificates = Certificates(directory, "localhost", "127.0.0.1")
        self.trust()

    def trust(self) -> None:
        """Let agents trust the authority of the server's certificate."""
        self.certificates.authority.cert_pem.write_to_path(str(self.directory / "root.crt"))

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the flags with which an agent reports to this server."""
        port = self.address.rpartition(":")[2]
        if not self.tls:
            return ("--node-name", NODE, "--scheduler-address", self.address)
        return (
            "--node-name", NODE, "--scheduler-address", f"localhost:{port}",
            "--scheduler-ca", str(self.directory / "root.crt"), "--scheduler-token-file", str(self.directory / "token"),
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()

    async def start(self) -> None:
        self.book = UsageBook()
        node_of = Identities(self, OSError, time.monotonic).node_of if self.tls else None
        credentials = Credentials(str(self.certificates.certificate), str(self.certificates.key))
        self.server = UsageServer(self.book, node_of)
        await self.server.start(self.address, credentials if self.tls else None)

    async def call(self, method: str, path: str, *, body: Any = None, timeout_s: float) -> SimpleNamespace:
        """Answer as the API server does which node a token belongs to."""
        _ = method, path, timeout_s
        node = self.node_of.get(body["spec"]["token"])
        if node is None:
            return SimpleNamespace(status=201, body={"status": {"authenticated": False}})
        user = {"username": AGENT_USER, "extra": {"authentication.kubernetes.io/node-name": [node]}}
        status = {"authenticated": True, "audiences": [AUDIENCE], "user": user}
        return SimpleNamespace(status=201, body={"status": status})

    async def wait(self, what: Callable[[NodeUse], object] = bool, timeout_s: float = 30.0) -> NodeUse:
        """Return the node once it is known and `what` is true of it."""

        def found() -> NodeUse | None:
            node = self.book.node(NODE)
            return node if node and what(node) else None

        node = await eventually(found, timeout_s=timeout_s)
        assert isinstance(node, NodeUse)
        return node


def shares(node: NodeUse) -> dict[str, ShareUse]:
    """Return the shares of a node by pod."""
    return {share.terms.pod: share for device in node.devices for share in device.shares}


def numbers(address: str) -> dict[str, float]:
    """Return the metrics of the feed."""
    families = text_string_to_metric_families(scrape(address))
    return {s.name.removeprefix("sharepod_feed_"): s.value for f in families for s in f.samples if "_feed_" in s.name}


def register(agent: RunningAgent, pod: str, request: int = 30, **more: Any) -> pb.Share:
    labels = {"namespace": "team", "pod": pod, "container": "main", "pod_uid": f"uid-{pod}"}
    return agent.register(request, labels=labels, **more).share


async def test_what_an_agent_knows_is_what_its_scheduler_knows(make_agent: MakeAgent, tmp_path: Path) -> None:
    async with Scheduler(tmp_path) as scheduler:
        agent = make_agent(*scheduler.flags).start()
        node = await scheduler.wait()
        seen = agent.stub.GetNode(pb.GetNodeRequest())
        assert (node.facts.name, node.facts.version) == (NODE, seen.version)
        for told, device in zip(node.devices, seen.devices, strict=True):
            facts = told.facts
            assert (facts.uuid, facts.index, facts.model) == (device.uuid, device.index, device.name)
            assert facts.memory_total_bytes == device.memory_total_bytes
            assert (facts.healthy, facts.offered) == (True, False)
            assert facts.nvlink_peers == (1 - facts.index,)  # two devices of a model with NVLink

        share = register(agent, "a", 30, limit=60, memory=2**30, share_class=pb.SHARE_CLASS_LATENCY)
        found = shares(await scheduler.wait(lambda node: "a" in shares(node)))["a"].terms
        assert (found.id, found.pod_uid, found.namespace, found.container) == (share.id, "uid-a", "team", "main")
        assert (found.request_millipercent, found.limit_millipercent) == (30_000, 60_000)
        assert (found.memory_limit_bytes, found.share_class) == (2**30, ShareClass.LATENCY)

        def pauses(node: NodeUse) -> tuple[bool, bool]:
            terms = shares(node)["a"].terms
            return terms.paused, terms.yielding

        assert (found.paused, found.yielding) == (False, False)
        agent.stub.PauseShare(pb.PauseShareRequest(share=share.id))
        await scheduler.wait(lambda node: pauses(node) == (True, False))
        agent.stub.PauseShare(pb.PauseShareRequest(share=share.id, yielding=True))
        await scheduler.wait(lambda node: pauses(node) == (True, True))
        change = pb.DeviceChange(request_millipercent=50_000)
        agent.stub.UpdateShare(pb.UpdateShareRequest(share=share.id, devices=[change]))
        await scheduler.wait(lambda node: shares(node)["a"].terms.request_millipercent == 50_000)
        agent.stub.ReleaseShare(pb.ReleaseShareRequest(share=share.id))
        await scheduler.wait(lambda node: not shares(node))
        assert scheduler.server.counters.streams == 1


async def test_what_programs_use_is_told_and_on_the_loopback_without_tls_and_token(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    async with Scheduler(tmp_path, tls=False) as scheduler:
        agent = make_agent(*scheduler.flags).start()
        answer = agent.register(30, device="1", labels={"pod": "busy"})
        with program(metered(answer)):
            node = await scheduler.wait(lambda node: node.devices[1].numbers.used_1s_millipercent > 50_000)
            assert node.devices[0].numbers.used_1s_millipercent == 0
            node = await scheduler.wait(lambda node: shares(node)["busy"].used_1m_millipercent > 10_000)
            assert node.devices[1].numbers.used_1m_millipercent > 10_000
            assert node.devices[1].numbers.used_15m_millipercent > 10_000
        agent.stub.ReleaseShare(pb.ReleaseShareRequest(share=answer.share.id))
        await scheduler.wait(lambda node: not shares(node))
        node = await scheduler.wait(lambda node: node.devices[1].numbers.used_1s_millipercent == 0)
        assert node.devices[1].numbers.used_1m_millipercent > 0  # the use of a share that has ended since


@pytest.mark.early
async def test_an_idle_node_tells_next_to_nothing(make_agent: MakeAgent, tmp_path: Path) -> None:
    async with Scheduler(tmp_path) as scheduler:
        metrics = f"127.0.0.1:{free_port()}"
        make_agent(*scheduler.flags, "--metrics-listen", metrics).start()
        await scheduler.wait()
        await asyncio.sleep(3)
        before = numbers(metrics)["messages_total"]
        await asyncio.sleep(10.5)
        assert numbers(metrics)["messages_total"] - before in (1, 2)
        silent_s = scheduler.book.silent_s(NODE, time.monotonic())
        assert silent_s is not None
        assert silent_s < 11
        assert numbers(metrics)["lag_seconds"] < 12


async def test_a_scheduler_that_comes_late_or_comes_back_hears_everything(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    async with Scheduler(tmp_path) as scheduler:
        await scheduler.server.stop()
        metrics = f"127.0.0.1:{free_port()}"
        agent = make_agent(*scheduler.flags, "--metrics-listen", metrics).start()  # it starts without a scheduler
        register(agent, "a")
        await eventually(lambda: numbers(metrics)["failures_total"] >= 1)
        assert (numbers(metrics)["schedulers"], numbers(metrics)["connected"]) == (1, 0)
        for pods in ({"a"}, {"a", "b"}):
            await scheduler.start()
            await scheduler.wait(lambda node, pods=pods: set(shares(node)) == pods)  # type: ignore[misc]
            await eventually(lambda: numbers(metrics)["connected"] == 1)
            await scheduler.server.stop()
            register(agent, "b" if len(pods) == 1 else "c")
            await eventually(lambda: numbers(metrics)["connected"] == 0)
        assert "scheduler told" in agent.log()


async def test_an_agent_that_is_killed_and_comes_back_replaces_what_it_told(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    async with Scheduler(tmp_path) as scheduler:
        agent = make_agent(*scheduler.flags).start()
        register(agent, "a")
        await scheduler.wait(lambda node: set(shares(node)) == {"a"})
        agent.stop(signal.SIGKILL)
        assert set(shares(await scheduler.wait())) == {"a"}  # a killed agent's node is not forgotten
        agent.start()
        register(agent, "b")
        await scheduler.wait(lambda node: set(shares(node)) == {"a", "b"})
        await eventually(lambda: scheduler.server.counters.streams == 1)


async def test_a_planned_stop_does_not_wait_for_a_scheduler_that_hangs(make_agent: MakeAgent, tmp_path: Path) -> None:
    async with Scheduler(tmp_path) as scheduler:
        agent = make_agent(*scheduler.flags).start()
        await scheduler.wait()
        register(agent, "a")  # from here on the server hangs
        began = time.monotonic()
        assert agent.stop() == 0
        assert time.monotonic() - began < 2


async def test_the_token_is_read_again_for_each_connection_and_must_be_that_of_the_node(
    make_agent: MakeAgent, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    async with Scheduler(tmp_path) as scheduler:
        ended, scheduler.node_of["a-token-of-the-agent-on-n2"] = scheduler.server.counters.ended, "n2"
        token.write_text("a-token-that-nobody-knows")
        agent = make_agent(*scheduler.flags).start()
        await eventually(lambda: "UNAUTHENTICATED: the API server does not know the token" in agent.log())
        assert ended["unauthenticated"] >= 1
        token.write_text("a-token-of-the-agent-on-n2")
        lie = "PERMISSION_DENIED: the report is of node n1, the token of one on n2"
        await eventually(lambda: lie in agent.log())
        assert ended["lie"] >= 1
        token.unlink()
        missing = "token: No such file or directory: name a file that the agent can read"
        await eventually(lambda: missing in agent.log())
        assert not scheduler.book.names()
        token.write_text(TOKEN)
        await scheduler.wait(timeout_s=15)
        assert "a-token" not in agent.log()


async def test_a_scheduler_with_a_strangers_certificate_gets_no_token(make_agent: MakeAgent, tmp_path: Path) -> None:
    async with Scheduler(tmp_path) as scheduler:
        scheduler.certificates.renew()
        metrics = f"127.0.0.1:{free_port()}"
        agent = make_agent(*scheduler.flags, "--metrics-listen", metrics).start()
        await eventually(lambda: numbers(metrics)["failures_total"] >= 2)
        assert "CERTIFICATE_VERIFY_FAILED" in agent.log()
        assert scheduler.server.counters.ended["unauthenticated"] == 0
        assert not scheduler.book.names()
        scheduler.trust()
        await scheduler.wait(timeout_s=15)
