"""What a test has the double do wrong, it does, and no more than that; and what only the double can be asked."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import aiohttp
import pytest
from contract.connection import MERGE, Client, Connection

from rig.cluster.apiserver import ApiServer, pod

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

PODS = "/api/v1/pods"
A = "/api/v1/namespaces/default/pods/a"


def with_double(test: Callable[[ApiServer, Client], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        async with ApiServer() as server:
            address = server.address()
            async with Client(Connection(address)) as client:
                await test(server, client)

    asyncio.run(run())


def test_it_refuses_as_often_as_it_is_told_and_only_what_it_is_told() -> None:
    async def test(server: ApiServer, client: Client) -> None:
        server.put(pod("a"))
        server.refuse(503, 2, after="7", only="get nodes")
        assert (await client.ask("GET", PODS)).status == 200
        for _ in range(2):
            answer = await client.ask("GET", "/api/v1/nodes")
            assert (answer.status, answer.headers["Retry-After"]) == (503, "7")
        assert (await client.ask("GET", "/api/v1/nodes")).status == 200
        server.refuse(429)
        assert (await client.ask("GET", PODS)).status == 429
        assert (await client.ask("GET", PODS)).status == 200

    with_double(test)


def test_an_answer_that_is_lost_was_done() -> None:
    async def test(server: ApiServer, client: Client) -> None:
        server.put(pod("a"))
        server.faults.lose("patch pods")
        patch = {"metadata": {"annotations": {"x": "y"}}}
        with pytest.raises(aiohttp.ClientError):
            await client.ask("PATCH", A, patch, media=MERGE)
        assert (await client.ask("GET", A)).body["metadata"]["annotations"] == {"x": "y"}

    with_double(test)


def test_one_kind_of_request_is_late() -> None:
    async def test(server: ApiServer, client: Client) -> None:
        server.faults.delay(0.4, "get nodes")
        began_s = time.monotonic()
        await client.ask("GET", PODS)
        assert time.monotonic() - began_s < 0.4
        await client.ask("GET", "/api/v1/nodes")
        assert time.monotonic() - began_s >= 0.4

    with_double(test)


def test_it_goes_and_comes_back_at_the_same_port_with_what_it_knew() -> None:
    async def test(server: ApiServer, client: Client) -> None:
        server.put(pod("a"))
        await server.stop()
        with pytest.raises(aiohttp.ClientError):
            await client.ask("GET", A)
        server.put(pod("b"))
        await server.start()
        assert len((await client.ask("GET", PODS)).body["items"]) == 2

    with_double(test)


def test_watches_are_dropped_and_a_compaction_does_not_end_them() -> None:
    async def test(server: ApiServer, client: Client) -> None:
        server.put(pod("a"))
        version = str(server.store.version)
        async with client.watch(PODS, resourceVersion=version) as lines:
            server.compact()
            server.put(pod("b"))
            assert (await anext(lines))["object"]["metadata"]["name"] == "b"
            server.cut("cut")
            with pytest.raises(aiohttp.ClientError):
                await anext(lines)
        server.put(pod("c"))
        server.compact()
        for by_status in (False, True):
            server.watches.gone_by_status = by_status
            async with client.watch(PODS, resourceVersion=version) as lines:
                line = await anext(lines)
                assert (line["type"], line["object"]["code"]) == ("ERROR", 410)

    with_double(test)


def test_a_kubelet_ends_deleted_pods_after_a_while() -> None:
    async def test(server: ApiServer, client: Client) -> None:
        server.registry.deletion.kubelet_s = 0.3
        server.put(pod("a"))
        assert (await client.ask("DELETE", A)).body["metadata"]["deletionTimestamp"]
        assert (await client.ask("GET", A)).status == 200
        await asyncio.sleep(0.5)
        assert (await client.ask("GET", A)).status == 404

    with_double(test)


def test_paths_of_other_kinds_releases_and_verbs_are_not_found_or_not_allowed() -> None:
    async def test(_: ApiServer, client: Client) -> None:
        for method, path, status in (
            ("GET", "/api/v1/gizmos", 404), ("GET", "/api/v1/pods/a", 404),
            ("GET", "/api/v1/namespaces/default/nodes", 404),
            ("GET", "/apis/policy/v1beta1/poddisruptionbudgets", 404),
            ("PUT", PODS, 405), ("GET", f"{A}/eviction", 405),
            ("GET", "/apis/policy/v1/poddisruptionbudgets", 200),
        ):  # fmt: skip
            assert (await client.ask(method, path)).status == status, path

    with_double(test)
