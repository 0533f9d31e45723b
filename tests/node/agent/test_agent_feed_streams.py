"""Test the agent's streams against schedulers that hang, vanish or multiply, in one event loop with short times."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from agent_doubles import H200

from rig.until import eventually
from sharepod.agent.api import feed as feed_module
from sharepod.agent.api.feed import Feed, Target
from sharepod.agent.devices.device import DeviceStatus, NodeStatus
from sharepod.agent.metrics.feed import Counters
from sharepod.proto import v1_pb2 as pb

Serve = Callable[["Double", Any], Awaitable[None]]
TARGET = Target("schedulers", 1)


class Double:
    """A scheduler that keeps all that it is told; `serve` defines how it behaves."""

    def __init__(self, serve: Serve) -> None:
        self.told: list[pb.ReportUsageRequest] = []
        self.streams = 0
        self._serve = serve

    async def handle(self, _: object, context: Any) -> None:
        self.streams += 1
        await self._serve(self, context)

    async def take(self, context: Any) -> bool:
        data = await context.read()
        if data is grpc.aio.EOF:
            return False
        self.told.append(pb.ReportUsageRequest.FromString(data))
        return True


async def answer_all(double: Double, context: Any) -> None:
    while await double.take(context):
        await context.write(pb.ReportUsageResponse(taken=len(double.told)).SerializeToString())


@contextlib.asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[tuple[Double, int]]:
    double = Double(serve)
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0), ("grpc.http2.bdp_probe", 0)))
    handler: Any = grpc.stream_stream_rpc_method_handler(double.handle)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("sharepod.v1.UsageService", {"ReportUsage": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield double, port
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def feeding(
    monkeypatch: pytest.MonkeyPatch,
    ports: Callable[[], set[int]],
    *,
    answer_s: float = 40.0,
    tick_s: float = 0.02,
    devices: int = 2,
    shown: list[NodeStatus] | None = None,
) -> AsyncIterator[Counters]:
    """Run a feed with ten times as many snapshots, of changing numbers, that looks for its schedulers all the time.

    The snapshots that the feed gets also go to `shown`.
    """
    known = [replace(H200, uuid=f"GPU-{number}", index=number) for number in range(devices)]

    def addresses(host: str, port: int) -> frozenset[tuple[str, int]]:
        assert (host, port) == ("schedulers", 1)
        found = ports()
        if not found:
            raise OSError(2, "Name or service not known")
        return frozenset(("127.0.0.1", port) for port in found)

    monkeypatch.setattr(feed_module, "_addresses", addresses)
    monkeypatch.setattr(feed_module, "RESOLVE_S", 0.1)
    monkeypatch.setattr(feed_module, "BACKOFF_S", (0.05, 0.2))
    monkeypatch.setattr(feed_module, "ANSWER_S", answer_s)
    counters = Counters()
    feed = Feed(TARGET, "n1", "0.1.0", counters)

    async def tick() -> None:
        for second in itertools.count(1):
            of_each = tuple(DeviceStatus(device, memory_used_bytes=second * 2**30) for device in known)
            status = NodeStatus(second * 1_000_000_000, (), of_each)
            feed.tell(status)
            if shown is not None:
                shown.append(status)
            await asyncio.sleep(tick_s)

    ticking = asyncio.create_task(tick())
    try:
        yield counters
    finally:
        ticking.cancel()
        await feed.close()


async def test_every_scheduler_that_the_name_stands_for_is_told_and_none_that_it_no_longer_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with listening(answer_all) as (one, first), listening(answer_all) as (other, second):
        ports = {first}
        async with feeding(monkeypatch, lambda: ports) as counters:
            await eventually(lambda: one.told)
            assert not other.told
            ports.add(second)
            await eventually(lambda: len(other.told) > 1 and len(counters.answered_ns) == 2)
            assert counters.schedulers == 2
            assert other.told[0].HasField("node")
            assert not other.told[1].HasField("node")
            ports.clear()  # the name cannot be resolved for a moment; both streams must stay
            before = len(other.told)
            await eventually(lambda: len(other.told) > before + 20)
            assert len(counters.answered_ns) == 2
            ports.add(second)
            await eventually(lambda: len(counters.answered_ns) == 1)
            assert one.streams == other.streams == 1


async def test_a_scheduler_that_answers_no_longer_is_not_called_connected_and_is_tried_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer_once(double: Double, context: Any) -> None:
        if double.streams == 1:
            await double.take(context)
            await context.write(b"")
        while await double.take(context):
            pass

    async with listening(answer_once) as (double, port), feeding(monkeypatch, lambda: {port}, answer_s=0.3) as counters:
        await eventually(lambda: counters.answered_ns)
        await eventually(lambda: double.streams > 1)
        assert not counters.answered_ns
        await eventually(lambda: double.streams >= 4)
        assert counters.failures >= 3
    # gRPC logs ends of streams too. Our log must not repeat the same cause.
    causes = [getattr(one, "cause", "") for one in caplog.records if one.name.startswith("sharepod.")]
    assert causes.count("no answer for 0.3 s") == 1


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff", b"\x08\x01" * 40])
async def test_what_a_scheduler_answers_cannot_harm_the_agent(monkeypatch: pytest.MonkeyPatch, garbage: bytes) -> None:
    async def answer_garbage(double: Double, context: Any) -> None:
        while await double.take(context):
            await context.write(garbage)

    async with listening(answer_garbage) as (double, port), feeding(monkeypatch, lambda: {port}):
        await eventually(lambda: len(double.told) > 3 or double.streams > 3)


async def test_a_scheduler_that_ends_each_stream_is_asked_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_: Double, context: Any) -> None:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full: try again")

    async with listening(refuse) as (double, port), feeding(monkeypatch, lambda: {port}) as counters:
        await eventually(lambda: double.streams >= 3)
        before, began = double.streams, time.monotonic()
        await eventually(lambda: double.streams >= before + 5)
        assert time.monotonic() - began >= 5 * 0.2 / 2
        assert counters.failures >= before + 4


async def test_one_that_reads_nothing_hears_the_last_and_not_all_that_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that messages for a slow scheduler do not pile up in the agent."""
    resume = asyncio.Event()

    async def read_late(double: Double, context: Any) -> None:
        await double.take(context)
        await context.write(b"")
        await resume.wait()
        await answer_all(double, context)

    shown: list[NodeStatus] = []
    async with (
        listening(read_late) as (double, port),
        feeding(monkeypatch, lambda: {port}, tick_s=0.0002, devices=16, shown=shown) as counters,
    ):
        await eventually(lambda: counters.answered_ns)
        await eventually(lambda: len(shown) > 1000)
        assert counters.messages < 800  # no more messages than flow control lets through
        resume.set()
        last = shown[-1].devices[0].memory_used_bytes
        await eventually(lambda: double.told[-1].device_numbers[0].memory_used_bytes >= last)
