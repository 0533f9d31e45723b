"""Test the informer of a node's pods on an API server that goes away, forgets, refuses and comes back."""

import asyncio
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from watching import LOG, watched

from rig.cluster.apiserver import ApiServer, pod
from rig.until import eventually
from sharepod.kube.informer import Pace


async def test_the_watch_yields_what_there_is_and_then_what_changes(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.put(pod("a"))
        server.put(pod("elsewhere", node="n2"))
        async with watched(server, tmp_path) as (_, view):
            await eventually(lambda: view.equals(server) and server.watches.open == 1, "the watch")
            server.put(pod("a", annotations={"sharepod.io/limit": "60"}))
            server.put(pod("a", annotations={"sharepod.io/limit": "60"}))  # this changes nothing that a Pod holds
            server.put(pod("b"))
            server.put(pod("elsewhere", node="n2", phase="Failed"))
            server.delete("b")
            server.put(pod("last"))
            await eventually(lambda: ("set", "last") in view.changes, "the changes")
            assert view.changes == [("set", "a"), ("set", "a"), ("set", "b"), ("gone", "b"), ("set", "last")]
            assert server.requests["get pods"] == server.requests["watch pods"] == 1


async def test_bookmarks_save_the_list_after_the_history_was_compacted(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.put(pod("a"))
        async with watched(server, tmp_path) as (_, view):
            await eventually(lambda: view.equals(server) and server.watches.open == 1, "the watch")
            for number in range(20):
                server.put(pod("elsewhere", node="n2", phase=str(number)))
            server.watches.bookmark()
            await eventually(lambda: server.watches.bookmarked, "the bookmark")
            server.store.compact()
            begun = server.requests["watch pods"]
            server.watches.cut("end")
            await eventually(lambda: server.requests["watch pods"] > begun, "the next watch")
            await eventually(lambda: server.watches.open == 1, "the next watch")
            server.put(pod("b"))
            await eventually(lambda: view.equals(server), "it goes on")
            assert server.requests["get pods"] == 1


async def test_an_api_server_whose_versions_began_anew_is_believed(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.restore(5000)
        server.put(pod("a"))
        async with watched(server, tmp_path, Pace(first_s=0.01, last_s=0.1, watch_s=1)) as (_, view):
            await eventually(lambda: view.equals(server), "the list")
            await server.stop()
            server.restore(10)  # restored from an old backup
            server.put(pod("b"))
            begun = server.requests["watch pods"]
            await server.start()
            await eventually(lambda: view.equals(server), "the restored state")
            assert server.requests["watch pods"] <= begun + 2, "one silent watch tells"


@pytest.mark.parametrize(("code", "asked_of"), [(500, "the cache"), (504, "the store")])
async def test_a_list_that_failed_is_taken_from_the_cache_again_unless_that_is_behind(
    tmp_path: Path, code: int, asked_of: str
) -> None:
    async with ApiServer() as server:
        server.put(pod("a"))
        server.put(pod("a", annotations={"sharepod.io/limit": "60"}))
        server.stale = 1
        server.faults.refuse(code)
        async with watched(server, tmp_path) as (_, view):
            await eventually(lambda: view.equals(server), "the list, and the watch from there")
            assert len(view.changes) == {"the cache": 2, "the store": 1}[asked_of]


async def test_a_server_that_goes_and_comes_back_is_waited_for_said_once_and_not_overrun(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ApiServer() as server:
        await server.stop()
        server.put(pod("a"))
        with caplog.at_level(logging.INFO, logger=LOG.name):
            async with watched(server, tmp_path) as (_, view):
                await asyncio.sleep(0.7)
                assert view.changes == []
                server.faults.lag_s = 0.1
                await server.start()
                await eventually(lambda: view.equals(server), "the list")
                await asyncio.sleep(0)
                server.put(pod("b"))
                await eventually(lambda: view.equals(server) and server.watches.open == 1, "the watch")
                before = server.requests.total()
                await asyncio.sleep(0.5)
                assert server.requests.total() == before, "a healthy watch asks for nothing"
        messages = [record.message for record in caplog.records if record.name == LOG.name]
        assert messages == ["pods are not watched", "API server is back"]


@pytest.mark.parametrize("how", ["end", "cut"])
async def test_a_watch_that_is_ended_at_once_every_time_is_no_busy_loop(tmp_path: Path, how: str) -> None:
    async with ApiServer() as server:
        server.put(pod("a"))
        pace = Pace(first_s=0.05, last_s=5.0, watch_s=20)
        async with watched(server, tmp_path, pace) as (_, view):
            await eventually(lambda: view.equals(server), "the list")
            stop = time.monotonic() + 1.5
            while time.monotonic() < stop:
                server.watches.cut("end" if how == "end" else "cut", coming=1000)
                await asyncio.sleep(0.001)
            # It waits 0.05, 0.1, 0.2, 0.4, 0.8 s, or half with the worst jitter: 6 watches, a list after 5 empty ones.
            assert server.requests.total() <= 12
            server.watches.cut("end")
            server.put(pod("b"))
            await eventually(lambda: view.equals(server), "it goes on")


async def test_a_server_that_answers_with_errors_is_no_busy_loop(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.faults.refuse(500, 10_000)
        async with watched(server, tmp_path, Pace(first_s=0.05, last_s=5.0, watch_s=20)):
            await asyncio.sleep(1.5)
            assert 2 <= server.requests.total() <= 10


CHANGES = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("move"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("delete"), st.integers(0, 3)),
    st.tuples(st.just("cut"), st.sampled_from(["end", "cut", "half"]), st.integers(0, 2)),
    st.tuples(st.just("compact"), st.booleans()),
    st.tuples(st.just("bookmark")),
    st.tuples(st.just("refuse"), st.sampled_from([401, 410, 429, 500, 503, 504]), st.integers(1, 3)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("stale"), st.integers(0, 4)),
    st.tuples(st.just("wait")),
)


async def do(server: ApiServer, change: tuple[Any, ...], uids: dict[str, int]) -> None:
    kind, *rest = change
    name = f"p{rest[0]}" if kind in ("put", "move", "delete") else ""
    if kind in ("put", "move"):
        body = pod(name, uid=f"{name}-{uids.setdefault(name, 0)}", annotations={"a": str(rest[1])})
        body["spec"]["nodeName"] = "n2" if kind == "move" and rest[1] % 2 else "n1"
        server.put(body)
    elif kind == "delete" and ("default", name) in server.pods:
        server.delete(name)
        uids[name] += 1
    elif kind == "cut":
        server.watches.cut(rest[0], coming=rest[1])
    elif kind == "compact":
        server.watches.gone_by_status = rest[0]
        server.store.compact()
    elif kind == "bookmark":
        server.watches.bookmark()
    elif kind == "refuse":
        server.faults.refuse(rest[0], rest[1])
    elif kind == "restart":
        await server.stop()
        await server.start()
    elif kind == "stale":
        server.stale = rest[0]
    elif kind == "wait":
        await asyncio.sleep(0.02)
    await asyncio.sleep(0)


# If a connection is cut during its handshake, asyncio drops the double's side unclosed. The double asserts at its end
# that the client leaves no connection.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes=st.lists(CHANGES, max_size=30), begun=st.integers(0, 10), page=st.sampled_from([0, 1, 2]))
def test_nothing_is_lost_whenever_the_watch_breaks(changes: list[tuple[Any, ...]], begun: int, page: int) -> None:
    async def test(account: Path) -> None:
        async with ApiServer() as server:
            uids: dict[str, int] = {}
            for change in changes[:begun]:
                await do(server, change, uids)
            async with watched(server, account, Pace(first_s=0.001, last_s=0.01, watch_s=20), page) as (_, view):
                for change in changes[begun:]:
                    await do(server, change, uids)
                await eventually(lambda: view.equals(server), f"{view.pods} is not {server.pods}")
                server.put(pod("last"))
                await eventually(lambda: view.equals(server), "a change after it all")

    with tempfile.TemporaryDirectory(prefix="sharepod-test-") as directory:
        asyncio.run(test(Path(directory)))
