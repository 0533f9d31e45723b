"""Test the scheduler as the shipped process, with a real agent that reports to it and a double of the API server."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cluster_world import node_body, pod_body
from server_certificates import Certificates

from rig.cluster.apiserver import ApiServer, Body, unused_port
from rig.until import eventually

PATIENCE_S = 30.0
Served = tuple[Path, aiohttp.ClientSession]


@contextlib.asynccontextmanager
async def process(directory: Path, module: str, *flags: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, Path]]:
    """Run a process of ours; yield it and its log, and end it in order."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SHAREPOD_")}
    # A killed Kubernetes client leaves copies of certificates behind.
    environment |= {"SIMGPU_STATE": str(directory / "gpus"), "TMPDIR": str(directory)}
    log = directory / f"{module}.log"
    with log.open("w") as sink:
        running = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *flags, stderr=sink, stdout=sink, env=environment
        )
    try:
        yield running, log
    finally:
        if running.returncode is None:
            running.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            await running.wait()


@contextlib.asynccontextmanager
async def scheduler(directory: Path, server: ApiServer, *flags: str) -> AsyncIterator[Served]:
    """Start a scheduler; yield its log and a client of its status. At the end it stops in order."""
    given = [*FLAGS, "--kubeconfig", str(server.kubeconfig(directory / "kubeconfig")), *flags]
    async with process(directory, "sharepod.scheduler.main", *given) as (running, log):
        port = await eventually(lambda: port_of(log, "scheduler started"), log.read_text)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
            yield log, client
        running.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert await running.wait() == 0
        assert "Traceback" not in log.read_text()


FLAGS = [
    "--listen", "127.0.0.1:0", "--usage-listen", "127.0.0.1:0", "--metrics-listen", "off", "--drain-seconds", "0",
]  # fmt: skip


def port_of(log: Path, event: str) -> int:
    found = re.search(rf'"event": "{event}".*?"port": (\d+)', log.read_text())
    return int(found[1]) if found else 0


async def answer(client: aiohttp.ClientSession, path: str) -> Any:
    """Return what is served at a path, or None for an error."""
    async with client.get(path) as response:
        text = await response.text()
        return (json.loads(text) if response.content_type == "application/json" else text) if response.ok else None


async def shows(client: aiohttp.ClientSession, line: str) -> bool:
    return line in await answer(client, "/metrics")


async def test_a_pod_is_judged_by_the_devices_that_a_real_agent_has_told_of(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sharepod-test-", dir="/dev/shm") as memory:
        async with ApiServer() as server:
            server.put_node(node_body("n1", 2))
            async with scheduler(tmp_path, server) as (log, client):
                agent = (
                    "--runtime-directory", f"{memory}/run", "--simulate", "2xH200", "--metrics-listen", "off",
                    "--node-name", "n1", "--scheduler-address", f"127.0.0.1:{port_of(log, 'agents may report')}",
                )  # fmt: skip
                async with process(Path(memory), "sharepod.agent.main", *agent):
                    await eventually(lambda: answer(client, "/readyz"), log.read_text)
                    server.put(pod_body("p", 30))
                    found = await eventually(lambda: answer(client, "/explain/default/p"), log.read_text)
                    # No device plugin has said what it offers; the explanation must give this as the reason.
                    [refused] = found["refused"]
                    assert refused["reason"] == "no healthy device is offered", found
                    assert [device["memory_mib"] > 0 for device in refused["examples"][0]["devices"]] == [True, True]


async def test_agents_report_under_the_certificate_that_it_is_given(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path, "localhost")
    files = ("--usage-certificate", str(certificates.certificate), "--usage-key", str(certificates.key))
    async with ApiServer() as server, scheduler(tmp_path, server, *files) as (log, _):
        trust = certificates.trust()
        trust.set_alpn_protocols(["h2"])
        _, writer = await asyncio.open_connection("localhost", port_of(log, "agents may report"), ssl=trust)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        writer.close()


def gang_member(number: int) -> Body:
    said = {"sharepod.io/gang": "g", "sharepod.io/gang-size": "2", "sharepod.io/gang-restart": "whole"}
    body = pod_body(f"member-{number}", 100, {**said, "sharepod.io/device": f"GPU-n1-{number}"})
    body["spec"]["nodeName"], body["status"] = "n1", {"phase": "Running"}
    return body


@pytest.mark.early
async def test_it_decides_by_its_rules_shows_queue_and_metrics_starts_gangs_anew_and_gives_its_lease_up(
    tmp_path: Path,
) -> None:
    def told(name: str) -> set[str]:
        return {one["reason"] for one in server.events.values() if one["involvedObject"]["name"] == name}

    def holder() -> str:
        [lease] = server.seen("leases").values()
        return str(lease["spec"]["holderIdentity"])

    metrics = f"127.0.0.1:{unused_port()}"
    async with ApiServer() as server:
        server.put_namespace("sharepod")
        server.put_config_map("sharepod", "sharepod-gates-queues", {"queues.yaml": "default: {cap: 3}"})
        server.put_node(node_body("n1", 2))
        for number in range(2):
            server.put(gang_member(number))
        waits = pod_body("alone", 50, {"sharepod.io/gang": "h", "sharepod.io/gang-size": "2"})
        waits["spec"]["schedulingGates"] = [{"name": "sharepod.io/gate"}]
        server.put(waits)
        async with scheduler(tmp_path, server, "--usage-listen", "off", "--metrics-listen", metrics) as (log, client):
            await eventually(lambda: "QueuesRead" in told("sharepod-gates-queues"), log.read_text)
            await eventually(lambda: "GangIncomplete" in told("alone"), log.read_text)
            queue, explained = await answer(client, "/queue"), await answer(client, "/explain/default/alone")
            why = "1 of 2 members of the gang are there"
            assert queue["decides"] is True
            assert [(one["job"], one["why"]) for one in queue["waiting"]] == [("default/h", why)]
            assert [one["cap_devices"] for one in queue["queues"]] == [3.0]
            assert explained["turn"]["why"] == why
            server.put({**gang_member(0), "status": {"phase": "Failed", "reason": "Evicted"}})
            await eventually(lambda: server.registry.evicted == ["member-1"], log.read_text)
            await eventually(lambda: "GangRestarts" in told("member-0"), log.read_text)
            async with aiohttp.ClientSession(f"http://{metrics}") as scraper:
                for line in (
                    "sharepod_scheduler_ready 1.0", 'sharepod_scheduler_nodes{state="reporting"} 0.0',
                    'sharepod_scheduler_feed_streams_ended_total{why="lie"} 0.0', "sharepod_gates_leading 1.0",
                    'sharepod_gates_round_seconds_count{result="failed"} 0.0',
                    'sharepod_gates_orders_total{order="evict",result="written"} 1.0',
                ):  # fmt: skip
                    await eventually(partial(shows, scraper, line), line)
            assert holder()
        assert holder() == ""


@pytest.mark.early
async def test_what_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    async with ApiServer() as server:
        config = str(server.kubeconfig(tmp_path / "kubeconfig"))
        for flags, says in (
            (("--kubeconfig", config, "--policy", "best"), "--policy is 'best'"),
            (("--kubeconfig", str(tmp_path / "none")), "none"),
            (("--kubeconfig", config, "--listen", f"127.0.0.1:{server.port}"), "cannot listen"),
            (("--kubeconfig", config, "--no-such-flag"), "no-such-flag"),
        ):
            async with process(tmp_path, "sharepod.scheduler.main", *FLAGS, *flags) as (running, log):
                async with asyncio.timeout(PATIENCE_S):
                    assert await running.wait() == 2
                *before, last = log.read_text().splitlines()
                assert says in last
                assert not before or says == "cannot listen", "it had begun"
                assert "Traceback" not in log.read_text()
