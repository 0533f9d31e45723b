"""The scheduler's gRPC server: takes an agent's reports about the node that its token belongs to, and no other.

The token of a stream is checked before any of its messages is read. A stream may report one node, at a bounded pace, in
messages of a bounded size. An impossible message ends the stream and changes nothing. Every end says why, in a status
and one line of log. Messages are taken as bytes, and the handler is as simple as possible: ten thousand nodes report
every second.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import grpc

from sharepod.process.errors import SettingsError
from sharepod.proto import v1_pb2 as pb
from sharepod.scheduler.errors import UsageRefused
from sharepod.scheduler.feed.usage_identity import NotAnAgent, Unanswered
from sharepod.scheduler.feed.usage_reader import MESSAGE_MAX, read_report

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sharepod.process.credentials import Credentials
    from sharepod.scheduler.state.usage import UsageBook

log = logging.getLogger("sharepod.scheduler.usage")

Context = grpc.aio.ServicerContext[Any, Any]
Code = grpc.StatusCode

STREAMS_MAX: Final = 20_000
ARRIVING_MAX: Final = 1024
"""The most streams that wait to be let in."""
ANSWER_S: Final = 10.0
"""The time between two answers to a stream that sends reports."""
QUIET_S: Final = 60.0
"""A stream without a message for this time is ended: its agent hangs, or has gone without closing the stream."""
AGE_S: Final = 3000.0
"""A stream is ended at this age, or up to a fifth later, so that its token is checked again."""
PACE: Final = 2.0
"""Messages a second that a stream may send in the long run."""
BURST: Final = 60.0
"""Messages that a stream may send at once: it held them back while the agent or the scheduler could not go on."""
COUNTED_BYTES: Final = 2**15
"""This many bytes of a message count as one more message: the largest takes as long as a thousand small ones."""
AGING_S: Final = 1.0
"""The time between two calls of `UsageServer.age`."""
_LOG_LINES_MAX: Final = 10
"""The most lines about ended streams that are logged at once; in the long run it is one a second."""
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MESSAGE_MAX),
    ("grpc.max_metadata_size", 16_384),
    ("grpc.max_concurrent_streams", 2),  # of one connection: a stream, and the one that replaces it
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.http2.bdp_probe", 0),  # a ping for each message, to find a window that no agent fills
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    # These bound the memory of one stream; there are ten thousand.
    ("grpc.tsi.max_frame_size", 4096),
    ("grpc.experimental.tcp_read_chunk_size", 256),
    ("grpc.experimental.tcp_min_read_chunk_size", 256),
    ("grpc.experimental.tcp_max_read_chunk_size", 4096),
    ("grpc.enable_channelz", 0),
)


ENDS: Final = ("unauthenticated", "unanswered", "lie", "malformed", "flood", "replaced", "quiet", "old", "full")
"""Why this server ends a stream; `lie`: it reports a node that is not its token's."""
_CODES: Final = dict(
    zip(
        ENDS,
        (
            Code.UNAUTHENTICATED, Code.UNAVAILABLE, Code.PERMISSION_DENIED, Code.INVALID_ARGUMENT,
            Code.RESOURCE_EXHAUSTED, Code.ABORTED, Code.ABORTED, Code.ABORTED, Code.RESOURCE_EXHAUSTED,
        ),
        strict=True,
    )
)  # fmt: skip
"""The gRPC status of each of ENDS."""


@dataclass(slots=True)
class Counters:
    """The counters for the metrics."""

    messages: int = 0
    streams: int = 0
    """Streams that are open now, including those that are not let in yet."""
    ended: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDS, 0))
    """Streams that this server ended, by the reason in ENDS."""


class _End(Exception):
    """The end of a stream, with its reason from ENDS and in words."""

    def __init__(self, why: str, text: str) -> None:
        super().__init__(text)
        self.why = why


class _Stream:
    """One stream that was let in.

    `task` serves it. `node`: the one that it may report. `heard_s`: when its last message came, or it was let in.
    `left`: messages that it may send now. `old_s`: when it is ended for its age. `end`: why another task ends it; None:
    no task does.
    """

    __slots__ = ("end", "heard_s", "left", "node", "old_s", "task")

    def __init__(self, node: str, task: asyncio.Task[Any], now_s: float) -> None:
        self.node = node
        self.task = task
        self.heard_s = now_s
        self.old_s = now_s + AGE_S * random.uniform(1, 1.2)  # noqa: S311 - spreads the load
        self.left = BURST
        self.end: _End | None = None

    def stop(self, why: str, text: str) -> None:
        """End the stream from another task: `why` is one of ENDS, `text` says it to the agent.

        Only the first call counts. The task that serves the stream is cancelled, and then sends the status (`_serve`).
        """
        if self.end is None:
            self.end = _End(why, text)
            self.task.cancel()

    def pay(self, now_s: float, size: int) -> None:
        """Count a message of `size` bytes that came at `now_s`; a large one counts for several.

        What the stream may send grows by PACE a second, up to BURST. Raises _End if it has sent more.
        """
        self.left = min(BURST, self.left + (now_s - self.heard_s) * PACE) - 1 - size / COUNTED_BYTES
        self.heard_s = now_s
        if self.left < 0:
            raise _End("flood", f"more than {PACE:g} messages a second for long: send one a second")


class UsageServer:
    """The server that takes the agents' streams into a book, from `start` to `stop`."""

    def __init__(
        self,
        book: UsageBook,
        node_of: Callable[[str], Awaitable[str]] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`node_of` returns a token's node (Identities.node_of); None: the node in a report is believed.

        None is for a server on the loopback only. `clock` is monotonic, in seconds.
        """
        self._book = book
        self._node_of = node_of
        self._clock = clock
        self._server: grpc.aio.Server | None = None
        self._aging: asyncio.Task[None] | None = None
        self._open: set[_Stream] = set()
        self._of_node: dict[str, _Stream] = {}
        """By node: the stream that has reported it."""
        self._arriving = 0
        """Streams that wait to be let in: their tokens are being checked."""
        self._log_lines = float(_LOG_LINES_MAX)
        """How many lines about ended streams might be logged at `_log_lines_s`; it grows by one a second."""
        self._log_lines_s = clock()
        self.counters: Final = Counters()

    async def start(self, address: str, credentials: Credentials | None) -> int:
        """Listen on `address`, HOST:PORT; return the port. `credentials`: for TLS; None: without, on the loopback only.

        Raises SettingsError if other hosts could reach the address without TLS and tokens, or if it cannot be used.
        """
        if (credentials is None or self._node_of is None) and not _on_loopback(address):
            raise SettingsError(
                f"usage feed on {address}: beyond the loopback it needs a certificate and the API server: give both"
            )
        self._server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=STREAMS_MAX)
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("sharepod.v1.UsageService", {"ReportUsage": handler}),)
        )
        try:
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials.for_grpc())
        except RuntimeError:
            raise SettingsError(f"usage feed on {address}: cannot listen there: choose another address") from None
        await self._server.start()
        self._aging = asyncio.create_task(self._age_for_ever())
        return port

    async def stop(self) -> None:
        """End all streams at once, and close; also if `start` failed."""
        if self._aging is not None:
            self._aging.cancel()
        if self._server is not None:
            await self._server.stop(None)

    async def _age_for_ever(self) -> None:
        """Call `age` every second, for ever."""
        while True:
            await asyncio.sleep(AGING_S)
            self.age()

    def age(self) -> None:
        """Have the book find silent nodes, and end the streams that are quiet (QUIET_S) or old (AGE_S)."""
        now_s = self._clock()
        self._book.age(now_s)
        for stream in list(self._open):
            if now_s - stream.heard_s > QUIET_S:
                stream.stop("quiet", f"no message for {QUIET_S:g} s: connect again")
            elif now_s > stream.old_s:
                stream.stop("old", "the stream is old: connect again, with the token as it is now")

    async def _serve(self, _: object, context: Context) -> None:
        """Serve one stream until it ends; gRPC calls this. If this server ends it, the agent is told the reason."""
        self.counters.streams += 1
        stream: _Stream | None = None
        try:
            stream = await self._let_in(context)
            await self._take_all(stream, context)
        except _End as end:
            await self._abort(context, end, stream)
        except asyncio.CancelledError:
            if stream is None or stream.end is None:
                raise
            stream.task.uncancel()  # `stop` has cancelled it, but the agent is still to be told why
            await self._abort(context, stream.end, stream)
        finally:
            self.counters.streams -= 1
            if stream is not None:
                self._open.discard(stream)
                if self._of_node.get(stream.node) is stream:
                    del self._of_node[stream.node]

    async def _let_in(self, context: Context) -> _Stream:
        """Check the token of a stream; return the stream with the token's node. Raises _End.

        If no token is checked (`node_of`), the node is empty for now.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("not in a task")
        node = ""
        if self._node_of is not None:
            if self._arriving >= ARRIVING_MAX:
                raise _End("full", f"{ARRIVING_MAX} streams wait to be let in: try again")
            self._arriving += 1
            try:
                node = await self._node_of(_token(context))
            except NotAnAgent as error:
                raise _End("unauthenticated", str(error)) from None
            except Unanswered as error:
                raise _End("unanswered", str(error)) from None
            finally:
                self._arriving -= 1
        stream = _Stream(node, task, self._clock())
        self._open.add(stream)
        return stream

    async def _take_all(self, stream: _Stream, context: Context) -> None:
        """Take the messages of a stream into the book until the agent ends it, with an answer every ANSWER_S.

        Raises _End for a message that is refused, for one of another node, and for too many.
        """
        taken, answered_s = 0, -ANSWER_S
        read, clock, apply = context.read, self._clock, self._book.apply
        while (data := await read()) is not grpc.aio.EOF:
            now_s = clock()
            stream.pay(now_s, len(data))
            try:
                report = read_report(data)
                if report.node is not None or not taken:
                    self._check_node(stream, report.node.name if report.node else "")
                apply(stream.node, report, now_s)
            except UsageRefused as error:
                raise _End("malformed", str(error)) from None
            if not taken:
                self._enter(stream)
            taken += 1
            self.counters.messages += 1
            if now_s - answered_s >= ANSWER_S:
                answered_s = now_s
                await context.write(pb.ReportUsageResponse(taken=taken).SerializeToString())

    def _check_node(self, stream: _Stream, name: str) -> None:
        """Check that a stream begins by naming its node, and stays with that node. Raises _End or UsageRefused.

        `name`: the node that a message names; empty: it names none. Where no token is checked, the first name is
        believed.
        """
        if not name:
            raise UsageRefused("the first message names no node: begin with a complete message")
        if self._node_of is None and not stream.node:
            stream.node = name
        if name != stream.node:
            raise _End("lie", f"the report is of node {name}, the token of one on {stream.node}: tell of that")

    def _enter(self, stream: _Stream) -> None:
        """Make a stream the only one of its node: an earlier one is ended, because the agent has connected again."""
        before = self._of_node.get(stream.node)
        self._of_node[stream.node] = stream
        if before is not None:
            before.stop("replaced", "the node has a newer stream")

    async def _abort(self, context: Context, end: _End, stream: _Stream | None) -> None:
        """End a stream with its reason: count it, log it unless it is only old, and tell the agent.

        `stream`: None if it was not let in. The log has a bounded pace (_LOG_LINES_MAX): no client must fill it.
        """
        self.counters.ended[end.why] += 1
        now_s = self._clock()
        self._log_lines = min(float(_LOG_LINES_MAX), self._log_lines + now_s - self._log_lines_s)
        self._log_lines_s = now_s
        if end.why != "old" and self._log_lines >= 1:
            self._log_lines -= 1
            extra = {"peer": context.peer(), "node": stream.node if stream else "", "cause": str(end)}
            log.warning("usage stream ended: %s", end.why, extra=extra)
        await context.abort(_CODES[end.why], str(end))


def _token(context: Context) -> str:
    """Return the bearer token of a call; empty: it has none."""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            return token.strip() if scheme.lower() == "bearer" else ""
    return ""


def _on_loopback(address: str) -> bool:
    """Tell whether HOST:PORT is on the loopback; of names only localhost is."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
