"""The pods of a node through an API server that goes away, forgets, refuses and comes back."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from apiserver import ApiServer, pod
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from watching import FAST, until, watched, with_server

from sharepod.deviceplugin import pods as module
from sharepod.deviceplugin.api import ApiUnavailable
from sharepod.deviceplugin.cluster import Cluster
from sharepod.deviceplugin.pod import Pod
from sharepod.deviceplugin.pods import Pods
from sharepod.deviceplugin.runtime import Runtime
from sharepod.deviceplugin.watch import Pace


def test_a_pod_is_read_as_it_is_now() -> None:
    async def test(server: ApiServer, account: Path) -> None:
        server.put(pod("train-0", annotations={"sharepod.io/limit": "60"}, running=("main",)))
        async with Pods(server.cluster(account), "n1") as pods:
            found = await pods.get("default", "train-0")
            assert found == Pod(
                uid="uid-default-train-0",
                namespace="default",
                name="train-0",
                annotations={"sharepod.io/limit": "60"},
                cgroup_uid="uid-default-train-0",
                phase="Running",
                deleting=False,
                running=frozenset({"main"}),
                containers=frozenset({"main"}),
            )
            server.put(pod("train-0", annotations={"sharepod.io/limit": "40"}))
            found = await pods.get("default", "train-0")
            assert found is not None
            assert found.annotations == {"sharepod.io/limit": "40"}
            assert await pods.get("default", "train-1") is None
            assert await pods.get("other", "train-0") is None
            before = server.requests["get pods"]
            assert await pods.get("..", "x/y?z") is None
            assert server.requests["get pods"] == before, "what is no name is not asked for"

    with_server(test)


def test_a_404_of_something_that_is_no_api_server_is_not_a_pod_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GET_S", 0.5)

    async def test(server: ApiServer, account: Path) -> None:
        async with Pods(server.cluster(account), "n1", FAST) as pods:
            assert await pods.get("default", "a") is None, "a Status about pods is the API server's"
        async with Pods(Cluster(f"https://127.0.0.1:{server.port}/elsewhere", account / "ca.crt"), "n1") as pods:
            with pytest.raises(ApiUnavailable, match="no JSON object"):
                await pods.get("default", "a")

    with_server(test)


def test_an_api_server_that_stumbles_is_asked_again_within_the_time_that_kubelet_gives() -> None:
    async def test(server: ApiServer, account: Path) -> None:
        server.put(pod("a"))
        async with Pods(server.cluster(account), "n1", FAST) as pods:
            server.refuse(503, 2)
            server.refuse(429, 1, after="1")
            assert await pods.get("default", "a") is not None
            assert server.requests["get pods"] == 4

    with_server(test)


def test_an_api_server_that_does_not_answer_is_unavailable_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GET_S", 0.5)

    async def test(server: ApiServer, account: Path) -> None:
        async with Pods(server.cluster(account), "n1", FAST) as pods:
            server.faults.lag_s = 3
            started = time.monotonic()
            with pytest.raises(ApiUnavailable, match=r"no answer within .* s: see that it runs"):
                await pods.get("default", "a")
            server.faults.lag_s = 0
            await server.stop()
            with pytest.raises(ApiUnavailable, match="see that it runs"):
                await pods.get("default", "a")
            assert time.monotonic() - started < 8

    with_server(test)


def test_what_is_not_allowed_says_which_role_is_missing_and_is_not_asked_again() -> None:
    async def test(server: ApiServer, account: Path) -> None:
        async with Pods(server.cluster(account), "n1", FAST) as pods:
            server.refuse(403)
            with pytest.raises(ApiUnavailable, match="403 told to say 403: give our service account the role"):
                await pods.get("default", "a")
            assert server.requests["get pods"] == 1

    with_server(test)


def test_a_node_tells_what_runs_its_containers() -> None:
    async def test(server: ApiServer, account: Path) -> None:
        info = {"kubeletVersion": "v1.36.2", "containerRuntimeVersion": "containerd://2.1.9+unknown"}
        server.put_node({"metadata": {"name": "n1"}, "status": {"nodeInfo": info}})
        async with Pods(server.cluster(account), "n1", FAST) as pods:
            assert await pods.runtime() == Runtime("v1.36.2", "containerd://2.1.9+unknown")
            server.refuse(403)
            with pytest.raises(ApiUnavailable, match="give our service account the role"):
                await pods.runtime()
        async with Pods(server.cluster(account), "n2", FAST) as pods:
            with pytest.raises(ApiUnavailable, match='nodes "n2" not found'):
                await pods.runtime()

    with_server(test)


def test_a_token_that_is_rotated_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GET_S", 0.3)

    async def test(server: ApiServer, account: Path) -> None:
        server.put(pod("a"))
        async with watched(server, account) as (pods, view):
            await until(lambda: view.equals(server), "the first list")
            server.token = "second"  # noqa: S105
            with pytest.raises(ApiUnavailable, match="401 Unauthorized: see that our token is mounted"):
                await pods.get("default", "a")
            server.put(pod("b"))
            server.cut("cut")
            server.account(account)
            assert await pods.get("default", "a") is not None
            await until(lambda: view.equals(server), "the watch goes on with the new token")

    with_server(test)
