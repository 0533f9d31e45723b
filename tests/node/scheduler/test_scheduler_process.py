"""The scheduler as the process that is shipped, with a real agent that reports to it and the API server's double."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from cluster_world import node_body, pod_body

from rig.cluster.apiserver import AUTHORITY, ApiServer, unused_port
from rig.until import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

PATIENCE_S = 30.0


def kubeconfig(directory: Path, server: ApiServer) -> Path:
    cluster = {
        "server": f"https://127.0.0.1:{server.port}",
        "certificate-authority-data": base64.b64encode(AUTHORITY.cert_pem.bytes()).decode(),
    }
    content = {
        "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {"token": server.token}}],
    }  # fmt: skip
    path = directory / "kubeconfig"
    path.write_text(json.dumps(content))
    return path


@contextlib.asynccontextmanager
async def in_memory() -> AsyncIterator[Path]:
    """A directory on tmpfs, which an agent needs."""
    with tempfile.TemporaryDirectory(prefix="sharepod-test-", dir="/dev/shm") as directory:
        yield Path(directory)


@contextlib.asynccontextmanager
async def process(directory: Path, module: str, *flags: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, Path]]:
    """A process of ours; it is ended in order."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SHAREPOD_")}
    # The Kubernetes client leaves copies of certificates where it is killed.
    environment |= {"SIMGPU_STATE": str(directory / "gpus"), "TMPDIR": str(directory)}
    log = directory / f"{module}.log"
    with log.open("a") as sink:
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


def scheduler_flags(directory: Path, server: ApiServer) -> list[str]:
    return [
        "--kubeconfig", str(kubeconfig(directory, server)), "--listen", "127.0.0.1:0", "--usage-listen", "127.0.0.1:0",
        "--metrics-listen", "off", "--drain-seconds", "0",
    ]  # fmt: skip


def port_of(log: Path, event: str) -> int | None:
    found = re.search(rf'"event": "{event}".*?"port": (\d+)', log.read_text())
    return int(found[1]) if found else None


def with_api_server(tmp_path: Path, test: Callable[[ApiServer], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with ApiServer() as server:
            await test(server)

    asyncio.run(run())


def test_a_pod_is_judged_by_the_devices_that_a_real_agent_has_told_of(tmp_path: Path) -> None:
    async def test(server: ApiServer) -> None:
        server.put_node(node_body("n1", 2))
        flags = scheduler_flags(tmp_path, server)
        async with (
            in_memory() as memory,
            process(tmp_path, "sharepod.scheduler.main", *flags) as (scheduler, log),
        ):
            await eventually(lambda: port_of(log, "scheduler started"), log.read_text)
            feed, port = port_of(log, "agents may report"), port_of(log, "scheduler started")
            agent_flags = (
                "--runtime-directory", str(memory / "run"), "--simulate", "2xH200", "--metrics-listen", "off",
                "--node-name", "n1", "--scheduler-address", f"127.0.0.1:{feed}",
            )  # fmt: skip
            async with (
                process(memory, "sharepod.agent.main", *agent_flags),
                aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
            ):
                ready = False
                for _ in range(int(PATIENCE_S / 0.1)):
                    async with client.get("/readyz") as response:
                        ready = response.status == 200
                    if ready:
                        break
                    await asyncio.sleep(0.1)
                assert ready, log.read_text()
                body = pod_body("p", 30)
                server.put(body)
                answer: dict[str, Any] = {}
                for _ in range(int(PATIENCE_S / 0.1)):
                    async with client.get("/explain/default/p") as response:
                        if response.status == 200:
                            answer = await response.json()
                            break
                    await asyncio.sleep(0.1)
                # No device plugin has said what it offers: that is a reason, and it is told.
                [refused] = answer["refused"]
                assert refused["reason"] == "no healthy device is offered", answer
                assert [device["memory_mib"] > 0 for device in refused["examples"][0]["devices"]] == [True, True]
            scheduler.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE_S):
                assert await scheduler.wait() == 0
            assert "Traceback" not in log.read_text()

    with_api_server(tmp_path, test)


def test_it_decides_and_its_metrics_say_so(tmp_path: Path) -> None:
    async def test(server: ApiServer) -> None:
        server.put_namespace("sharepod")
        flags = scheduler_flags(tmp_path, server)
        address = f"127.0.0.1:{unused_port()}"
        flags[flags.index("off")] = address
        async with process(tmp_path, "sharepod.scheduler.main", *flags) as (_, log):
            await eventually(lambda: '"this replica decides"' in log.read_text(), log.read_text)
            text = ""
            async with aiohttp.ClientSession() as client:
                for _ in range(int(PATIENCE_S / 0.1)):
                    async with client.get(f"http://{address}/metrics") as response:
                        text = await response.text()
                    if 'sharepod_gates_round_seconds_count{result="decided"} 0.0' not in text:
                        break
                    await asyncio.sleep(0.1)
        assert "sharepod_scheduler_ready 1.0" in text
        assert 'sharepod_scheduler_nodes{state="reporting"} 0.0' in text
        assert 'sharepod_scheduler_feed_streams_ended_total{why="lie"} 0.0' in text
        assert "sharepod_gates_leading 1.0" in text
        assert 'sharepod_gates_round_seconds_count{result="failed"} 0.0' in text
        assert 'sharepod_gates_orders_total{order="release",result="written"} 0.0' in text
        assert "Traceback" not in log.read_text()

    with_api_server(tmp_path, test)


def gang_member(number: int, **more: str) -> dict[str, Any]:
    said = {"sharepod.io/gang": "g", "sharepod.io/gang-size": "2", "sharepod.io/gang-restart": "whole", **more}
    return pod_body(f"member-{number}", 100, said)


def told(server: ApiServer) -> set[tuple[str, str]]:
    return {(event["involvedObject"]["name"], event["reason"]) for event in server.events.values()}


def test_it_reads_its_rules_shows_its_queue_starts_gangs_anew_and_gives_its_lease_up(tmp_path: Path) -> None:
    async def test(server: ApiServer) -> None:
        server.put_namespace("sharepod")
        server.put_config_map("sharepod", "sharepod-gates-queues", {"queues.yaml": "default: {cap: 3}"})
        server.put_node(node_body("n1", 2))
        for number in range(2):
            body = gang_member(number, **{"sharepod.io/device": f"GPU-n1-{number}"})
            body["spec"]["nodeName"], body["status"] = "n1", {"phase": "Running"}
            server.put(body)
        waits = pod_body("alone", 50, {"sharepod.io/gang": "h", "sharepod.io/gang-size": "2"})
        waits["spec"]["schedulingGates"] = [{"name": "sharepod.io/gate"}]
        server.put(waits)
        flags = [*scheduler_flags(tmp_path, server), "--usage-listen", "off"]
        async with process(tmp_path, "sharepod.scheduler.main", *flags) as (scheduler, log):
            await eventually(lambda: ("sharepod-gates-queues", "QueuesRead") in told(server), log.read_text)
            await eventually(lambda: ("alone", "GangIncomplete") in told(server), log.read_text)
            port = port_of(log, "scheduler started")
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
                async with client.get("/queue") as response:
                    queue = await response.json()
                async with client.get("/explain/default/alone") as response:
                    explained = await response.json()
            assert queue["decides"] is True
            assert [(one["job"], one["why"]) for one in queue["waiting"]] == [
                ("default/h", "1 of 2 members of the gang are there")
            ]
            assert [one["cap_devices"] for one in queue["queues"]] == [3.0]
            assert explained["turn"]["why"] == "1 of 2 members of the gang are there"
            failed = server.pods["default", "member-0"]
            server.put({**failed, "status": {"phase": "Failed", "reason": "Evicted"}})
            await eventually(lambda: server.registry.evicted == ["member-1"], log.read_text)
            await eventually(lambda: ("member-0", "GangRestarts") in told(server), log.read_text)
            [lease] = server.seen("leases").values()
            assert lease["spec"]["holderIdentity"]
            scheduler.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE_S):
                assert await scheduler.wait() == 0
            [lease] = server.seen("leases").values()
            assert lease["spec"]["holderIdentity"] == ""
            assert "Traceback" not in log.read_text()

    with_api_server(tmp_path, test)


def test_what_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    async def run(*flags: str) -> tuple[int | None, str]:
        async with process(tmp_path, "sharepod.scheduler.main", *flags) as (scheduler, log):
            async with asyncio.timeout(PATIENCE_S):
                code = await scheduler.wait()
            text = log.read_text()
            log.write_text("")
            return code, text

    async def test(server: ApiServer) -> None:
        flags = scheduler_flags(tmp_path, server)
        code, text = await run(*flags, "--policy", "best")
        assert (code, text.count("\n")) == (2, 1), text
        assert "--policy is 'best'" in text
        code, text = await run("--kubeconfig", str(tmp_path / "none"), "--usage-listen", "off")
        assert (code, text.count("\n")) == (2, 1), text
        taken = f"127.0.0.1:{server.port}"
        code, text = await run(*flags, "--listen", taken)
        assert code == 2
        assert "cannot listen" in text.splitlines()[-1]
        code, text = await run(*flags, "--no-such-flag")
        assert (code, text.count("\n")) == (2, 1), text

    with_api_server(tmp_path, test)
