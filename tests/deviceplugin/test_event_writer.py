"""Events through an API server that loses, refuses and forgets them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from apiserver import ApiServer, pod, unused_port
from watching import FAST, until, with_server

from sharepod.deviceplugin.cluster import Cluster
from sharepod.deviceplugin.pod import Pod, read_pod
from sharepod.deviceplugin.pods import Pods

if TYPE_CHECKING:
    import pytest


def some(name: str = "a") -> Pod:
    found = read_pod(pod(name))
    assert found is not None
    return found


def test_the_same_event_is_one_object_that_counts_and_few_are_written() -> None:
    async def test(server: ApiServer, account: Path) -> None:
        async with Pods(server.cluster(account), "n1", FAST) as pods:
            for _ in range(200):
                await pods.event(some(), "NoRoom", "no device has 60 % left", warning=True)
            await until(lambda: len(server.events) == 1, "the event")
            await pods.event(some("b"), "NoRoom", "no device has 60 % left", warning=True)
            await pods.event(some(), "Bound", "it runs\non device 0\x1b[31m")
        by_reason = {(body["involvedObject"]["name"], body["reason"]): body for body in server.events.values()}
        assert set(by_reason) == {("a", "NoRoom"), ("b", "NoRoom"), ("a", "Bound")}
        event = by_reason["a", "NoRoom"]
        assert event["type"] == "Warning"
        assert event["involvedObject"]["uid"] == "uid-default-a"
        assert event["source"] == {"component": "sharepod-device-plugin", "host": "n1"}
        assert event["count"] == 2
        assert by_reason["a", "Bound"]["type"] == "Normal"
        assert by_reason["a", "Bound"]["message"] == "it runs on device 0 [31m"
        assert server.requests["post events"] + server.requests["patch events"] == 4

    with_server(test)


def test_an_event_that_expired_is_made_anew_and_one_that_is_refused_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(server: ApiServer, account: Path) -> None:
        async with Pods(server.cluster(account), "n1", FAST) as pods:
            await pods.event(some(), "NoRoom", "none")
            await until(lambda: len(server.events) == 1, "the event")
            server.expire_events()
            await pods.event(some(), "NoRoom", "none")
            await until(lambda: len(server.events) == 1, "the event again")
            assert next(iter(server.events.values()))["count"] == 2
            server.put_namespace("default", "Terminating")
            await pods.event(some(), "Other", "none")
        assert [record.message for record in caplog.records] == ["event not written"]

    with_server(test)


def test_an_event_is_tried_again_and_not_written_twice_when_the_answer_was_lost() -> None:
    async def test(server: ApiServer, account: Path) -> None:
        async with Pods(server.cluster(account), "n1", FAST) as pods:
            server.faults.lose("post events")
            await pods.event(some(), "First", "none")
            await until(lambda: server.requests["post events"] == 2, "the second try")
            server.refuse(503, 2)
            await pods.event(some(), "Second", "none")
            await until(lambda: server.requests["post events"] == 5, "the tries")
        assert sorted(body["reason"] for body in server.events.values()) == ["First", "Second"]

    with_server(test)


def test_events_neither_raise_nor_wait_when_the_api_server_is_away(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with Pods(Cluster(f"https://127.0.0.1:{unused_port()}"), "n1", FAST) as pods:
            started = time.monotonic()
            for number in range(1000):
                await pods.event(some(f"p{number}"), "NoRoom", "none")
            assert time.monotonic() - started < 5

    asyncio.run(run())
    assert {record.message for record in caplog.records} <= {"event dropped", "event not written"}
