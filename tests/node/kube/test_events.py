"""Test Events through an API server that loses, refuses and forgets them."""

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rig.cluster.apiserver import ApiServer
from rig.until import eventually
from sharepod.kube.client import Client
from sharepod.kube.event_writer import EventWriter
from sharepod.kube.events import Subject


def some(name: str = "a") -> Subject:
    return Subject("default", name, f"uid-default-{name}")


@contextlib.asynccontextmanager
async def writer(server: ApiServer, account: Path) -> AsyncIterator[EventWriter]:
    client = Client(server.access(account), "sharepod-test")
    async with client, EventWriter(client, "n1", "sharepod-test", first_s=0.01) as events:
        yield events


async def test_the_same_event_is_one_object_that_counts_and_few_are_written(tmp_path: Path) -> None:
    async with ApiServer() as server:
        async with writer(server, tmp_path) as events:
            for _ in range(200):
                events.tell(some(), "NoRoom", "no device has 60 % left", warning=True)
            await eventually(lambda: len(server.events) == 1, "the event")
            events.tell(some("b"), "NoRoom", "no device has 60 % left", warning=True)
            events.tell(some(), "Bound", "it runs\non device 0\x1b[31m", warning=False)
        by_reason = {(body["involvedObject"]["name"], body["reason"]): body for body in server.events.values()}
        assert set(by_reason) == {("a", "NoRoom"), ("b", "NoRoom"), ("a", "Bound")}
        event = by_reason["a", "NoRoom"]
        assert event["type"] == "Warning"
        assert event["involvedObject"]["uid"] == "uid-default-a"
        assert event["source"] == {"component": "sharepod-test", "host": "n1"}
        assert event["count"] == 2
        assert by_reason["a", "Bound"]["type"] == "Normal"
        assert by_reason["a", "Bound"]["message"] == "it runs on device 0 [31m"
        assert server.requests["post events"] + server.requests["patch events"] == 4


async def test_an_event_that_expired_is_made_anew_and_one_that_is_refused_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ApiServer() as server:
        async with writer(server, tmp_path) as events:
            events.tell(some(), "NoRoom", "none", warning=False)
            await eventually(lambda: len(server.events) == 1, "the event")
            server.expire_events()
            events.tell(some(), "NoRoom", "none", warning=False)
            await eventually(lambda: len(server.events) == 1, "the event again")
            assert next(iter(server.events.values()))["count"] == 2
            server.put_namespace("default", "Terminating")
            events.tell(some(), "Other", "none", warning=False)
            await eventually(lambda: caplog.records, "the refusal")
            server.put_namespace("default")
            changed = server.requests["patch events"]
            events.tell(some(), "Other", "none", warning=False)
        assert server.requests["patch events"] == changed  # no Event was there to patch
        assert {body["reason"] for body in server.events.values()} == {"NoRoom", "Other"}
        assert [record.message for record in caplog.records] == ["event not written"]


async def test_an_event_is_tried_again_and_not_written_twice_when_the_answer_was_lost(tmp_path: Path) -> None:
    async with ApiServer() as server:
        async with writer(server, tmp_path) as events:
            server.faults.lose("post events")
            events.tell(some(), "First", "none", warning=False)
        assert server.requests["post events"] == 2
        async with writer(server, tmp_path) as events:
            server.faults.refuse(503, 2)
            events.tell(some(), "Second", "none", warning=False)
        assert server.requests["post events"] == 5
        assert sorted(body["reason"] for body in server.events.values()) == ["First", "Second"]


async def test_events_neither_raise_nor_wait_when_the_api_server_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ApiServer() as server, writer(server, tmp_path) as events:
        await server.stop()
        started = time.monotonic()
        for number in range(1000):
            events.tell(some(f"p{number}"), "NoRoom", "none", warning=False)
        assert time.monotonic() - started < 5
    assert {record.message for record in caplog.records} <= {"event dropped", "event not written"}
