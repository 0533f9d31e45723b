"""Test the usage server on agents that lie, flood, hang or send nonsense: each end has a reason, nothing is changed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from server_certificates import Certificates

from rig.until import eventually
from sharepod.process.credentials import Credentials
from sharepod.process.errors import SettingsError
from sharepod.proto import v1_pb2 as pb
from sharepod.scheduler.feed import usage_server
from sharepod.scheduler.feed.usage_identity import NotAnAgent, Unanswered
from sharepod.scheduler.feed.usage_reader import MESSAGE_MAX
from sharepod.scheduler.feed.usage_server import ENDS, UsageServer
from sharepod.scheduler.state.usage import UsageBook

Code = grpc.StatusCode
METHOD = "/sharepod.v1.UsageService/ReportUsage"
OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
BROKEN = grpc.aio.AioRpcError, asyncio.InvalidStateError
"""The errors with which a write may end after the server has ended its stream."""
SENDING = Code.RESOURCE_EXHAUSTED, Code.INTERNAL
"""The status of a stream that is refused while it sends; gRPC's client says INTERNAL if its own send fails first."""


def whole(name: str = "n1", request: int = 30_000) -> bytes:
    """Return a complete message of a node with one device and one share."""
    return pb.ReportUsageRequest(
        node=pb.ReportingNode(name=name, version="0.1.0"),
        devices=[pb.ReportedDevice(index=0, uuid="GPU-0", model="H200", healthy=True)],
        shares=[
            pb.ReportedShare(
                id="a" * 10, share_class=pb.SHARE_CLASS_BATCH, request_millipercent=request, limit_millipercent=100_000
            )
        ],
    ).SerializeToString()


def numbers(used: int) -> bytes:
    return pb.ReportUsageRequest(device_numbers=[pb.DeviceNumbers(used_1s_millipercent=used)]).SerializeToString()


async def node_of(token: str) -> str:
    """Return the node of a token, which is the token itself, or refuse the token."""
    if token == "unknown":  # noqa: S105
        raise NotAnAgent("the API server does not know the token")
    if token == "later":  # noqa: S105
        raise Unanswered("the API server is away: try again")
    return token


class Running:
    """A server with its book, and clients of it."""

    def __init__(self, nodes: Callable[[str], Awaitable[str]]) -> None:
        self.book = UsageBook()
        self.now_s = 1000.0
        """The server's clock, which only the test moves."""
        self.server = UsageServer(self.book, nodes, lambda: self.now_s)
        self.port = 0
        self.channels: list[grpc.aio.Channel] = []

    def open(self, token: str | None = "n1", **more: str) -> Any:  # noqa: S107
        """Open a stream on a connection of its own."""
        self.channels.append(grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=OWN_CONNECTION))
        metadata = [("authorization", f"Bearer {token}")] if token is not None else []
        return self.channels[-1].stream_stream(METHOD)(metadata=(*metadata, *more.items()))

    async def told(self, token: str = "n1", message: bytes = b"") -> Any:  # noqa: S107
        """Open a stream, report the node, and wait for the answer."""
        call = self.open(token)
        await call.write(message or whole(token))
        answer = await call.read()
        assert answer is not grpc.aio.EOF, (await call.code(), await call.details())
        assert pb.ReportUsageResponse.FromString(answer).taken == 1
        return call

    async def heard(self, call: Any) -> None:
        """Send an empty message and wait until it is heard, so that not many messages come at one time of the clock."""
        before = self.server.counters.messages
        await call.write(b"")
        await eventually(lambda: self.server.counters.messages > before)

    def used(self, node: str = "n1") -> int:
        """Return the used time of the first device in the book."""
        known = self.book.node(node)
        assert known is not None
        return known.devices[0].numbers.used_1s_millipercent


@contextlib.asynccontextmanager
async def running(nodes: Callable[[str], Awaitable[str]] = node_of) -> AsyncIterator[Running]:
    found = Running(nodes)
    found.port = await found.server.start("127.0.0.1:0", None)
    try:
        yield found
    finally:
        for channel in found.channels:
            await channel.close()
        await found.server.stop()
        await eventually(lambda: found.server.counters.streams == 0)  # a cancelled handler ends at its next step


async def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    """Return how the server has ended a stream."""
    async with asyncio.timeout(30):
        with contextlib.suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        return await call.code(), await call.details()


async def test_what_is_told_is_in_the_book_and_answered_now_and_then() -> None:
    async with running() as run:
        call = await run.told()
        for used in (1000, 2000, 3000):
            await call.write(numbers(used))
        await eventually(lambda: run.used() == 3000)
        run.now_s += 10
        await call.write(b"")
        assert pb.ReportUsageResponse.FromString(await call.read()).taken == 5
        assert run.server.counters.messages == 5
        assert run.book.silent_s("n1", run.now_s) == 0
        await call.done_writing()
        assert await ended(call) == (Code.OK, "")
        assert run.book.node("n1") is not None  # the node ages, but it is not forgotten at once


@pytest.mark.parametrize(
    ("authorization", "code", "text", "why"),
    [
        ({}, Code.UNAUTHENTICATED, "does not know", "unauthenticated"),
        ({"authorization": "Bearer unknown"}, Code.UNAUTHENTICATED, "does not know", "unauthenticated"),
        ({"authorization": "Basic bjE6eA=="}, Code.UNAUTHENTICATED, "does not know", "unauthenticated"),
        ({"authorization": "Bearer later"}, Code.UNAVAILABLE, "the API server is away: try again", "unanswered"),
    ],
)
async def test_who_is_not_an_agent_is_not_let_in(
    authorization: dict[str, str], code: Code, text: str, why: str
) -> None:
    async with running(lambda token: node_of(token or "unknown")) as run:
        found, details = await ended(run.open(None, **authorization))
        assert (found, run.server.counters.ended[why]) == (code, 1)
        assert text in details
        assert not run.book.names()


async def test_a_feed_that_lies_about_its_node_ends_and_changes_nothing() -> None:
    async with running() as run:
        await run.told("n2")
        before = run.book.node("n2")
        liar = run.open("n1")
        await liar.write(whole("n2", 90_000))
        assert await ended(liar) == (
            Code.PERMISSION_DENIED, "the report is of node n2, the token of one on n1: tell of that",
        )  # fmt: skip
        assert run.book.names() == ("n2",)
        turncoat = await run.told("n1")
        await turncoat.write(whole("n2", 90_000))
        assert (await ended(turncoat))[0] is Code.PERMISSION_DENIED
        assert run.book.node("n2") is before
        assert run.server.counters.ended["lie"] == 2


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"\xff\xff\xff", "no ReportUsageRequest"),
        (numbers(100_001), "time used 100001 is above 100000"),
        (pb.ReportUsageRequest(device_numbers=[pb.DeviceNumbers(device_index=5)]).SerializeToString(), "device 5"),
    ],
)
async def test_a_message_that_cannot_be_ends_its_stream_and_changes_nothing(message: bytes, text: str) -> None:
    async with running() as run:
        call, other = await run.told("n1"), await run.told("n2")
        before = run.book.node("n1")
        await call.write(message)
        code, details = await ended(call)
        assert code is Code.INVALID_ARGUMENT
        assert text in details
        assert len(details.splitlines()) == 1
        assert run.book.node("n1") is before
        await other.write(numbers(7000))
        await eventually(lambda: run.used("n2") == 7000)


async def test_a_stream_begins_with_everything() -> None:
    async with running() as run:
        await run.told()
        for first in (b"", numbers(9000)):
            call = run.open()
            await call.write(first)
            assert await ended(call) == (
                Code.INVALID_ARGUMENT, "the first message names no node: begin with a complete message",
            )  # fmt: skip
        assert run.used() == 0


async def test_a_message_above_the_limit_is_not_read() -> None:
    async with running() as run:
        call = await run.told()
        with contextlib.suppress(*BROKEN):
            await call.write(bytes(MESSAGE_MAX + 1))
        assert (await ended(call))[0] in SENDING
        assert run.server.counters.messages == 1


async def test_a_stream_that_floods_is_ended_and_one_that_had_to_hold_back_is_not() -> None:
    async with running() as run:
        late, flood = await run.told("n1"), await run.told("n2")
        for _ in range(int(usage_server.BURST) - 10):
            await late.write(b"")
        with contextlib.suppress(*BROKEN):
            for _ in range(int(usage_server.BURST) + 10):
                await flood.write(numbers(5000))
        await eventually(lambda: run.server.counters.ended["flood"])
        assert (await ended(flood))[0] in SENDING
        for _ in range(200):  # one message a second may go on for ever
            run.now_s += 1
            await run.heard(late)
        assert run.server.counters.ended == {**dict.fromkeys(ENDS, 0), "flood": 1}


async def test_large_messages_count_for_several() -> None:
    message = pb.ReportUsageRequest.FromString(whole())
    del message.shares[:]
    for number in range(4096):  # together a third of a megabyte
        share = "".join("abcdefghjk"[int(digit)] for digit in f"{number:010d}")
        message.shares.add(id=share, namespace="n" * 30, share_class=pb.SHARE_CLASS_BATCH, limit_millipercent=100_000)
    large = message.SerializeToString()
    async with running() as run:
        call = await run.told(message=large)
        fit = int(usage_server.BURST / (1 + len(large) / usage_server.COUNTED_BYTES))
        assert 5 < fit < 15
        with contextlib.suppress(*BROKEN):
            for _ in range(fit + 1):
                await call.write(large)
        await eventually(lambda: run.server.counters.ended["flood"])
        assert run.server.counters.messages == fit
        known = run.book.node("n1")
        assert known is not None
        assert len(known.devices[0].shares) == 4096


async def test_a_newer_stream_of_a_node_replaces_the_old_one_and_a_stranger_does_not() -> None:
    async with running() as run:
        old = await run.told("n1")
        assert (await ended(run.open("unknown")))[0] is Code.UNAUTHENTICATED
        liar = run.open("n2")
        await liar.write(whole("n1"))
        assert (await ended(liar))[0] is Code.PERMISSION_DENIED
        waiting = run.open("n1")  # this stream has reported nothing yet
        await old.write(numbers(1000))
        await eventually(lambda: run.used() == 1000)
        await waiting.write(whole("n1"))
        await waiting.read()
        assert await ended(old) == (Code.ABORTED, "the node has a newer stream")
        await waiting.write(numbers(2000))
        await eventually(lambda: run.used() == 2000)
        assert run.server.counters.streams == 1


async def test_a_stream_without_messages_is_ended_and_so_is_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_server, "AGING_S", 3600.0)  # only this test ages the streams
    async with running() as run:
        quiet, silent = await run.told("n1"), run.open("n2")  # the second stream never reports anything
        await eventually(lambda: run.server.counters.streams == 2)
        run.now_s += usage_server.QUIET_S
        run.server.age()
        assert not run.book.is_fresh("n1", run.now_s)
        run.now_s += 1
        run.server.age()
        for call in (quiet, silent):
            assert await ended(call) == (Code.ABORTED, "no message for 60 s: connect again")
        old = await run.told("n1")
        for _ in range(100):
            run.now_s += usage_server.AGE_S * 1.2 / 100 + 0.1
            await run.heard(old)
        run.server.age()
        assert (await ended(old))[0] is Code.ABORTED
        assert run.server.counters.ended == {**dict.fromkeys(ENDS, 0), "quiet": 2, "old": 1}


async def test_only_so_many_wait_to_be_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_server, "ARRIVING_MAX", 3)
    answer = asyncio.Event()

    async def slowly(token: str) -> str:
        await answer.wait()
        return token

    async with running(slowly) as run:
        calls = [run.open(f"n{number}") for number in range(4)]
        await eventually(lambda: run.server.counters.ended["full"] == 1)
        codes = [asyncio.ensure_future(call.code()) for call in calls]
        [refused], _ = await asyncio.wait(codes, return_when=asyncio.FIRST_COMPLETED)
        answer.set()
        for number, call in enumerate(calls):
            if codes[number] is not refused:
                await call.write(whole(f"n{number}"))
                await call.done_writing()
        codes = [(await ended(call))[0] for call in calls]
        assert sorted(code.name for code in codes) == ["OK", "OK", "OK", "RESOURCE_EXHAUSTED"]
        await run.told("n5")  # a stream that was let in no longer counts among those that wait


async def test_strangers_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as run:
        for _ in range(25):
            assert (await ended(run.open("unknown")))[0] is Code.UNAUTHENTICATED
    told = [record.getMessage() for record in caplog.records if record.name == "sharepod.scheduler.usage"]
    assert told == ["usage stream ended: unauthenticated"] * 10


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "example.org:0", "10.0.0.1:0"])
async def test_beyond_the_loopback_it_serves_with_tls_and_tokens_alone(address: str) -> None:
    certificate: Any = object()
    for given, tokens in ((None, node_of), (certificate, None)):
        with pytest.raises(SettingsError, match="beyond the loopback it needs a certificate and the API server"):
            await UsageServer(UsageBook(), tokens).start(address, given)


async def test_a_certificate_is_renewed_without_a_restart(tmp_path: Path) -> None:
    async def told(port: int, authority: bytes) -> bool:
        credentials = grpc.ssl_channel_credentials(authority)
        async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options=OWN_CONNECTION) as channel:
            call = channel.stream_stream(METHOD)(metadata=(("authorization", "Bearer n1"),))
            try:
                await call.write(whole())
                return await call.read() is not grpc.aio.EOF
            except grpc.aio.AioRpcError:
                return False

    files = Certificates(tmp_path, "localhost")
    first = files.authority.cert_pem.bytes()
    given = Credentials(str(files.certificate), str(files.key), what="usage feed", reader="scheduler")
    server = UsageServer(UsageBook(), node_of)
    port = await server.start("localhost:0", given)
    try:
        assert await told(port, first)
        files.certificate.write_text("half written")
        assert await told(port, first)  # the last readable certificate stays in use
        files.renew()
        assert await told(port, files.authority.cert_pem.bytes())
        assert not await told(port, first)
    finally:
        await server.stop()
