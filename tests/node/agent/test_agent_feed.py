"""A real agent tells a real usage server: over TLS with a token, through restarts of both, and whatever comes back."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from rig import REPO_ROOT
from rig.agent import free_port, metered, program, scrape
from rig.until import until
from sharepod.agent.plugin import NO_CALLS, SIDES, STARTS
from sharepod.proto import v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rig.agent import MakeAgent, RunningAgent

HOST = REPO_ROOT / "tests" / "support" / "agent" / "usage_host.py"
TOKEN = "a-token-of-the-agent-on-n1"  # noqa: S105
NODE = "n1"

Node = dict[str, Any]


class Scheduler:
    """One usage server after another at the same address."""

    def __init__(self, directory: Path, *, tls: bool = True) -> None:
        self.directory = directory
        self.tls = tls
        self.address = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[str] | None = None
        self.tokens = directory / "tokens.json"
        self.tokens.write_text(json.dumps({TOKEN: NODE}))
        (directory / "token").write_text(TOKEN)
        self.certify(trustme.CA(key_type=trustme.KeyType.ECDSA))

    def certify(self, authority: trustme.CA) -> None:
        """Write certificates of an authority."""
        served = authority.issue_cert("localhost", "127.0.0.1", key_type=trustme.KeyType.ECDSA)
        authority.cert_pem.write_to_path(str(self.directory / "ca.crt"))
        served.private_key_pem.write_to_path(str(self.directory / "tls.key"))
        served.cert_chain_pems[0].write_to_path(str(self.directory / "tls.crt"))

    @property
    def flags(self) -> tuple[str, ...]:
        """What an agent needs to tell it."""
        port = self.address.rpartition(":")[2]
        if not self.tls:
            return ("--node-name", NODE, "--scheduler-address", self.address)
        return (
            "--node-name", NODE, "--scheduler-address", f"localhost:{port}",
            "--scheduler-ca", str(self.directory / "ca.crt"), "--scheduler-token-file", str(self.directory / "token"),
        )  # fmt: skip

    def start(self) -> Scheduler:
        """Start it and wait until it listens."""
        files = [str(self.directory / name) for name in ("tls.crt", "tls.key", "tokens.json")] if self.tls else []
        self._process = subprocess.Popen(
            [sys.executable, str(HOST), self.address, *files],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == self.address.rpartition(":")[2] + "\n"
        return self

    def ask(self) -> dict[str, Any]:
        """Return what it knows."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        found: dict[str, Any] = json.loads(process.stdout.readline())
        return found

    def node(self) -> Node:
        """Return what it knows of the node; empty: nothing."""
        found: Node = self.ask()["nodes"].get(NODE, {})
        return found

    def wait(self, what: Callable[[Node], object], timeout_s: float = 30.0) -> Node:
        """Return the node once `what` is true of it."""
        found: Node = {}

        def look() -> bool:
            found.update(self.node())
            return bool(found and what(found))

        until(look, timeout_s=timeout_s)
        return found

    def kill(self) -> None:
        """End it as a crash does."""
        if self._process is not None:
            with self._process as process:
                process.kill()
        self._process = None


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Scheduler]:
    made = Scheduler(tmp_path)
    yield made
    made.kill()


@contextlib.contextmanager
def plain(tmp_path: Path) -> Iterator[Scheduler]:
    made = Scheduler(tmp_path, tls=False)
    try:
        yield made.start()
    finally:
        made.kill()


def shares(node: Node) -> dict[str, Node]:
    """Return the shares of a node by pod."""
    found = [
        {**share["terms"], **share, "device": d["facts"]["index"]} for d in node["devices"] for share in d["shares"]
    ]
    return {share["pod"]: share for share in found}


def numbers(address: str) -> dict[str, float]:
    """Return the metrics of the feed."""
    families = text_string_to_metric_families(scrape(address))
    return {s.name.removeprefix("sharepod_feed_"): s.value for f in families for s in f.samples if "_feed_" in s.name}


def register(agent: RunningAgent, pod: str, request: int = 30, **more: Any) -> pb.Share:
    labels = {"namespace": "team", "pod": pod, "container": "main", "pod_uid": f"uid-{pod}"}
    return agent.register(request, labels=labels, **more).share


def test_what_an_agent_knows_is_what_its_scheduler_knows(make_agent: MakeAgent, scheduler: Scheduler) -> None:
    scheduler.start()
    agent = make_agent(*scheduler.flags).start()
    node = scheduler.wait(lambda node: node)
    seen = agent.stub.GetNode(pb.GetNodeRequest())
    assert node["facts"] == {"name": NODE, "version": seen.version}
    for told, device in zip(node["devices"], seen.devices, strict=True):
        facts = told["facts"]
        assert (facts["uuid"], facts["index"], facts["model"]) == (device.uuid, device.index, device.name)
        assert facts["memory_total_bytes"] == device.memory_total_bytes
        assert (facts["healthy"], facts["offered"], facts["nvlink_peers"]) == (True, False, [])

    share = register(agent, "a", 30, limit=60, memory=2**30, share_class=pb.SHARE_CLASS_LATENCY)
    found = shares(scheduler.wait(lambda node: "a" in shares(node)))["a"]
    assert (found["id"], found["pod_uid"], found["namespace"], found["container"]) == (
        share.id,
        "uid-a",
        "team",
        "main",
    )
    assert (found["request_millipercent"], found["limit_millipercent"]) == (30_000, 60_000)
    assert (found["memory_limit_bytes"], found["share_class"], found["paused"]) == (2**30, 0, False)

    agent.stub.PauseShare(pb.PauseShareRequest(share=share.id))
    scheduler.wait(lambda node: shares(node)["a"]["paused"] and not shares(node)["a"]["yielding"])
    agent.stub.PauseShare(pb.PauseShareRequest(share=share.id, yielding=True))
    scheduler.wait(lambda node: shares(node)["a"]["paused"] and shares(node)["a"]["yielding"])
    change = pb.DeviceChange(request_millipercent=50_000)
    agent.stub.UpdateShare(pb.UpdateShareRequest(share=share.id, devices=[change]))
    scheduler.wait(lambda node: shares(node)["a"]["request_millipercent"] == 50_000)
    agent.stub.ReleaseShare(pb.ReleaseShareRequest(share=share.id))
    scheduler.wait(lambda node: not shares(node))
    assert scheduler.ask()["tally"]["streams"] == 1


def test_what_programs_use_is_told_of_shares_and_devices(make_agent: MakeAgent, scheduler: Scheduler) -> None:
    scheduler.start()
    agent = make_agent(*scheduler.flags).start()
    answer = agent.register(30, device="1", labels={"pod": "busy"})
    with program(metered(answer)):
        node = scheduler.wait(lambda node: node["devices"][1]["numbers"]["used_1s_millipercent"] > 50_000)
        assert node["devices"][0]["numbers"]["used_1s_millipercent"] == 0
        node = scheduler.wait(lambda node: shares(node)["busy"]["used_1m_millipercent"] > 10_000)
        assert node["devices"][1]["numbers"]["used_1m_millipercent"] > 10_000
        assert node["devices"][1]["numbers"]["used_15m_millipercent"] > 10_000
    agent.stub.ReleaseShare(pb.ReleaseShareRequest(share=answer.share.id))
    node = scheduler.wait(lambda node: not shares(node) and node["devices"][1]["numbers"]["used_1s_millipercent"] == 0)
    assert node["devices"][1]["numbers"]["used_1m_millipercent"] > 0  # what a share used that has ended since


def test_an_idle_node_tells_next_to_nothing(make_agent: MakeAgent, scheduler: Scheduler) -> None:
    scheduler.start()
    metrics = f"127.0.0.1:{free_port()}"
    make_agent(*scheduler.flags, "--metrics-listen", metrics).start()
    scheduler.wait(lambda node: node)
    time.sleep(3)
    before = numbers(metrics)["messages_total"]
    time.sleep(10.5)
    assert numbers(metrics)["messages_total"] - before in (1, 2)
    assert scheduler.node()["silent_s"] < 11
    assert numbers(metrics)["lag_seconds"] < 12


def test_what_the_device_plugin_offers_is_passed_on(make_agent: MakeAgent, scheduler: Scheduler) -> None:
    scheduler.start()
    agent = make_agent(*scheduler.flags).start()
    first, second = agent.stub.GetNode(pb.GetNodeRequest()).devices
    times = pb.CallTimes(counts=NO_CALLS.counts)
    report = pb.ReportPluginRequest(
        starts=dict.fromkeys(STARTS, 0), errors=dict.fromkeys(SIDES, 0), allocate=times, pre_start=times,
        offer=pb.PluginOffer(device_uuids=[first.uuid]),
    )  # fmt: skip
    agent.stub.ReportPlugin(report)
    scheduler.wait(lambda node: [device["facts"]["offered"] for device in node["devices"]] == [True, False])
    report.offer.device_uuids.append(second.uuid)
    agent.stub.ReportPlugin(report)
    scheduler.wait(lambda node: all(device["facts"]["offered"] for device in node["devices"]))


def test_a_scheduler_that_comes_late_or_comes_back_hears_everything(
    make_agent: MakeAgent, scheduler: Scheduler
) -> None:
    metrics = f"127.0.0.1:{free_port()}"
    agent = make_agent(*scheduler.flags, "--metrics-listen", metrics).start()  # it answers, with no scheduler there
    register(agent, "a")
    until(lambda: numbers(metrics)["failures_total"] >= 1)
    assert (numbers(metrics)["schedulers"], numbers(metrics)["connected"]) == (1, 0)
    scheduler.start()
    scheduler.wait(lambda node: set(shares(node)) == {"a"})
    until(lambda: numbers(metrics)["connected"] == 1)
    scheduler.kill()
    register(agent, "b")
    until(lambda: numbers(metrics)["connected"] == 0)
    scheduler.start()
    scheduler.wait(lambda node: set(shares(node)) == {"a", "b"}, 20)
    until(lambda: numbers(metrics)["connected"] == 1)
    assert "scheduler told" in agent.log()


def test_an_agent_that_is_killed_and_comes_back_replaces_what_it_told(
    make_agent: MakeAgent, scheduler: Scheduler
) -> None:
    scheduler.start()
    agent = make_agent(*scheduler.flags).start()
    register(agent, "a")
    scheduler.wait(lambda node: set(shares(node)) == {"a"})
    agent.stop(signal.SIGKILL)
    assert set(shares(scheduler.node())) == {"a"}  # it is not forgotten for that
    agent.start()
    register(agent, "b")
    scheduler.wait(lambda node: set(shares(node)) == {"a", "b"})
    until(lambda: scheduler.ask()["tally"]["streams"] == 1)


def test_a_planned_stop_does_not_wait_for_a_scheduler_that_hangs(make_agent: MakeAgent, scheduler: Scheduler) -> None:
    scheduler.start()
    agent = make_agent(*scheduler.flags).start()
    scheduler.wait(lambda node: node)
    assert scheduler._process is not None
    scheduler._process.send_signal(signal.SIGSTOP)
    try:
        register(agent, "a")
        began = time.monotonic()
        assert agent.stop() == 0
        assert time.monotonic() - began < 2
    finally:
        scheduler._process.send_signal(signal.SIGCONT)


def test_a_token_of_another_node_is_a_lie_that_changes_nothing(make_agent: MakeAgent, scheduler: Scheduler) -> None:
    scheduler.tokens.write_text(json.dumps({TOKEN: "n2"}))
    scheduler.start()
    agent = make_agent(*scheduler.flags).start()
    until(lambda: scheduler.ask()["tally"]["ended"]["lie"] >= 1)
    assert scheduler.ask()["nodes"] == {}
    until(lambda: "PERMISSION_DENIED: the report is of node n1, the token of one on n2" in agent.log())


def test_the_token_is_read_again_for_each_connection(make_agent: MakeAgent, scheduler: Scheduler) -> None:
    (scheduler.directory / "token").write_text("a-token-that-nobody-knows")
    scheduler.start()
    agent = make_agent(*scheduler.flags).start()
    until(lambda: scheduler.ask()["tally"]["ended"]["unauthenticated"] >= 1)
    until(lambda: "UNAUTHENTICATED: the API server does not know the token" in agent.log())
    (scheduler.directory / "token").unlink()
    until(lambda: "token: No such file or directory: name a file that the agent can read" in agent.log())
    (scheduler.directory / "token").write_text(TOKEN)
    scheduler.wait(lambda node: node, 15)
    assert "a-token" not in agent.log()


def test_a_scheduler_with_a_strangers_certificate_gets_no_token(make_agent: MakeAgent, scheduler: Scheduler) -> None:
    trusted = (scheduler.directory / "ca.crt").read_bytes()
    scheduler.certify(trustme.CA(key_type=trustme.KeyType.ECDSA))
    ours = (scheduler.directory / "ca.crt").read_bytes()
    (scheduler.directory / "ca.crt").write_bytes(trusted)
    scheduler.start()
    metrics = f"127.0.0.1:{free_port()}"
    agent = make_agent(*scheduler.flags, "--metrics-listen", metrics).start()
    until(lambda: numbers(metrics)["failures_total"] >= 2)
    assert "CERTIFICATE_VERIFY_FAILED" in agent.log()
    assert scheduler.ask()["tally"]["ended"]["unauthenticated"] == 0
    assert scheduler.ask()["nodes"] == {}
    (scheduler.directory / "ca.crt").write_bytes(ours)
    scheduler.wait(lambda node: node, 15)


def test_on_the_loopback_neither_tls_nor_a_token_is_needed(make_agent: MakeAgent, tmp_path: Path) -> None:
    with plain(tmp_path) as scheduler:
        make_agent(*scheduler.flags).start()
        scheduler.wait(lambda node: len(node["devices"]) == 2)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--scheduler-address", "somewhere"), "give a name or an address with a port"),
        (("--scheduler-address", "somewhere:0"), "give a name or an address with a port"),
        (("--scheduler-address", "somewhere:80"), "beyond the loopback give scheduler_ca and scheduler_token_file too"),
        (("--scheduler-address", "10.0.0.1:80"), "beyond the loopback give scheduler_ca and scheduler_token_file too"),
        (("--scheduler-address", "localhost:80", "--scheduler-token-file", "/t"), "a token goes over TLS alone"),
    ],
)
def test_an_address_that_cannot_be_told_safely_is_refused(
    make_agent: MakeAgent, flags: tuple[str, ...], text: str
) -> None:
    agent = make_agent(*flags)
    process = agent.spawn()
    _, said = process.communicate(timeout=20)
    assert process.returncode == 2
    assert text in said
    assert len(said.splitlines()) == 1
