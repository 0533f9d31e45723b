"""The usage feed: tells the cluster's schedulers what the node uses, by one stream to each of their addresses.

Nothing in the agent waits for it. A snapshot that cannot be sent now is skipped: each stream sends the difference from
what it sent last, so a scheduler that was away still gets the present state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from sharepod.agent.api.snapshot import Snapshot, SnapshotBuilder, message
from sharepod.agent.devices.on_thread import on_thread
from sharepod.process.credentials import read_token
from sharepod.proto import v1_pb2 as pb
from sharepod.proto import v1_pb2_grpc as rpc

if TYPE_CHECKING:
    from sharepod.agent.devices.device import NodeStatus
    from sharepod.agent.metrics.feed import Counters

log = logging.getLogger("sharepod.agent.feed")

Call = Any
"""grpc.aio.StreamStreamCall."""
Address = tuple[str, int]
HEARTBEAT_TELLS: Final = 10
"""After so many snapshots without a change, one a second, an empty message says that the agent is there."""
RESOLVE_S: Final = 30.0
"""The time between two questions for the addresses."""
ANSWER_S: Final = 40.0
"""A scheduler answers every ten seconds. If it does not for this long, it hangs or is gone."""
SETTLED_S: Final = 30.0
"""A stream that lived for this long was healthy: the next attempt comes soon."""
BACKOFF_S: Final = (0.5, 30.0)
"""The shortest and the longest wait before a stream is opened again."""
ADDRESSES_MAX: Final = 16
_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_channelz", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


@dataclass(frozen=True, slots=True)
class Target:
    """The schedulers' address, and the credentials for them."""

    host: str
    port: int
    authority: str = ""
    """PEM file with the authorities that a scheduler's certificate is checked against; empty: no TLS."""
    token_file: str = ""

    @classmethod
    def of(cls, address: str, authority: str, token_file: str) -> Target:
        """Read host:port, which the settings have checked."""
        host, _, port = address.rpartition(":")
        return cls(host.strip("[]"), int(port), authority, token_file)


class _Failed(Exception):
    """A stream cannot be opened, or has ended; the text is the reason."""


class _Latest:
    """The last snapshot, and a way for the streams to wait for the next one."""

    def __init__(self) -> None:
        """Begin without a snapshot. Called in a running loop."""
        self.snapshot: Snapshot | None = None
        self._next: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def show(self, snapshot: Snapshot) -> None:
        """Take the next snapshot, and wake all streams that wait for it."""
        self.snapshot = snapshot
        shown, self._next = self._next, asyncio.get_running_loop().create_future()
        shown.set_result(None)

    async def wait(self) -> None:
        """Return when `show` is called next."""
        await asyncio.shield(self._next)  # a stream that is cancelled must not cancel the future of all


class Feed:
    """The streams of one node, from construction in a running loop to `close`."""

    def __init__(self, target: Target, node_name: str, version: str, counters: Counters) -> None:
        """Begin to send. `version` is the agent's; what is sent is counted in `counters`, for the metrics."""
        self._target = target
        self._node = pb.ReportingNode(name=node_name, version=version)
        self._counters = counters
        self._builder = SnapshotBuilder()
        self._latest = _Latest()
        self._streams: dict[Address, asyncio.Task[None]] = {}
        self._failure = ""
        self._task = asyncio.create_task(self._run())

    def tell(self, status: NodeStatus) -> None:
        """Take the node's present status. Called every second."""
        self._latest.show(self._builder.build(status))

    async def close(self) -> None:
        """End all streams."""
        tasks = [self._task, *self._streams.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        """Keep one stream to each address of the schedulers, and ask for the addresses again and again. Never ends."""
        while True:
            with contextlib.suppress(_Failed):
                self._set_addresses(await self._resolve())
            await asyncio.sleep(RESOLVE_S if self._streams else 5 * random.uniform(0.5, 1))  # noqa: S311

    async def _resolve(self) -> frozenset[Address]:
        """Return the addresses of the schedulers' name.

        Raises _Failed; then the caller keeps the known addresses. A failure is logged once while it stays the same.
        """
        target, failure = self._target, ""
        try:
            found = await on_thread("feed", lambda: _addresses(target.host, target.port))
        except (OSError, UnicodeError) as error:  # UnicodeError: the name is too long
            failure = f"{target.host}: {getattr(error, 'strerror', '') or error}"
        if failure and failure != self._failure:
            remedy = "it is asked again; see that the name is that of the scheduler's Service"
            log.warning("schedulers not found", extra={"cause": failure, "remedy": remedy})
        self._failure = failure
        if failure:
            raise _Failed(failure)
        return found

    def _set_addresses(self, addresses: frozenset[Address]) -> None:
        """Open a stream to each address that has none, and end those to addresses that are gone."""
        for address in self._streams.keys() - addresses:
            self._streams.pop(address).cancel()
        for address in addresses - self._streams.keys():
            stream = _Stream(address, self._target, self._node, self._counters, self._latest)
            self._streams[address] = asyncio.create_task(stream.run())
        self._counters.schedulers = len(self._streams)


class _Stream:
    """The stream to one scheduler, opened again whenever it ends."""

    def __init__(
        self, address: Address, target: Target, node: pb.ReportingNode, counters: Counters, latest: _Latest
    ) -> None:
        """Take the address, and what all streams have in common; `run` does the work."""
        self._address = address
        self._name = f"{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}"
        self._target = target
        self._node = node
        self._counters = counters
        self._latest = latest
        self._failure = ""
        """The failure that was logged last; empty once the scheduler has answered."""
        self._answered_s = 0.0
        """When the scheduler last answered, or else the stream was opened (time.monotonic)."""

    async def run(self) -> None:
        """Open the stream again whenever it ends: soon after a healthy one, else later each time. Never ends."""
        wait_s, most_s = BACKOFF_S
        while True:
            began_s = time.monotonic()
            failure = await self._once()
            self._counters.failures += 1
            if failure != self._failure:
                log.warning("scheduler not told", extra={"scheduler": self._name, "cause": failure})
            self._failure = failure
            wait_s = BACKOFF_S[0] if time.monotonic() - began_s >= SETTLED_S else min(2 * wait_s, most_s)
            await asyncio.sleep(wait_s * random.uniform(0.5, 1))  # noqa: S311 - a cluster does not come back all at once

    async def _once(self) -> str:
        """Open the stream and send until it fails or ends; return the reason, in one line. Raises nothing."""
        try:
            credentials, metadata = await on_thread("feed", self._read_credentials)
            async with self._channel(credentials) as channel:
                call = rpc.UsageServiceStub(channel).ReportUsage(metadata=metadata)
                await self._talk(call)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {' '.join((error.details() or 'no reason given').split())[:300]}"
        except OSError as error:
            return f"{error.filename}: {error.strerror}: name a file that the agent can read"
        except ValueError as error:
            return f"{self._target.token_file}: {error}"
        except _Failed as error:
            return str(error)
        except Exception:
            log.exception("usage feed failed", extra={"scheduler": self._name})
            return "a fault of the agent: see its log"
        finally:
            self._forget()
        return "the scheduler has ended the stream"

    def _read_credentials(self) -> tuple[grpc.ChannelCredentials | None, tuple[tuple[str, str], ...]]:
        """Read the TLS authorities and the token anew; return both for the connection. Raises OSError, ValueError."""
        credentials = None
        if self._target.authority:
            credentials = grpc.ssl_channel_credentials(Path(self._target.authority).read_bytes())
        if not self._target.token_file:
            return credentials, ()
        return credentials, (("authorization", f"Bearer {read_token(self._target.token_file).decode('ascii')}"),)

    def _channel(self, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        """Return a channel to the address. With credentials it uses TLS; the certificate must name the target."""
        target = f"{'ipv6' if ':' in self._address[0] else 'ipv4'}:{self._name}"
        if credentials is None:
            return grpc.aio.insecure_channel(target, options=_OPTIONS)
        name = self._target.host
        options = (*_OPTIONS, ("grpc.ssl_target_name_override", name), ("grpc.default_authority", name))
        return grpc.aio.secure_channel(target, credentials, options=options)

    async def _talk(self, call: Call) -> None:
        """Send and listen at once until one of both fails; then end the other, and raise the error.

        `_listen` finds out why the scheduler ends the stream, `_send` that it is silent.
        """
        self._answered_s = time.monotonic()
        sending = asyncio.create_task(self._send(call))
        sending.add_done_callback(lambda _: call.cancel())
        try:
            await self._listen(call)
        except asyncio.CancelledError:  # of this task, or what the library makes of a call that was cancelled
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
        finally:
            sending.cancel()
            [fault] = await asyncio.gather(sending, return_exceptions=True)
        if isinstance(fault, Exception):
            raise fault

    async def _listen(self, call: Call) -> None:
        """Note when the scheduler answers. Raises _Failed with the reason when it has ended the stream."""
        while await call.read() is not grpc.aio.EOF:
            self._answered_s = time.monotonic()
            if self._failure or self._name not in self._counters.answered_ns:
                self._failure = ""
                log.info("scheduler told", extra={"scheduler": self._name})
            self._counters.answered_ns = {**self._counters.answered_ns, self._name: time.monotonic_ns()}
        code, details = await call.code(), await call.details()
        raise _Failed(f"{code.name}: {' '.join((details or 'the stream was ended').split())[:300]}")

    async def _send(self, call: Call) -> None:
        """Send what each new snapshot changes, or a heartbeat. Raises _Failed if no answer comes for ANSWER_S."""
        sent: Snapshot | None = None
        unchanged = 0  # snapshots in a row
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # the call ended: _listen knows why
            while True:
                snapshot = self._latest.snapshot
                if snapshot is not None:
                    told = message(self._node, sent, snapshot)
                    unchanged = 0 if told.ListFields() else unchanged + 1
                    if unchanged % HEARTBEAT_TELLS == 0:
                        await call.write(told)
                        self._counters.messages += 1
                    sent = snapshot
                await self._latest.wait()
                if time.monotonic() - self._answered_s > ANSWER_S:
                    raise _Failed(f"no answer for {ANSWER_S:g} s")

    def _forget(self) -> None:
        """Count the scheduler as not connected. The dictionary is replaced, because another thread reads it."""
        self._counters.answered_ns = {name: at for name, at in self._counters.answered_ns.items() if name != self._name}


def _addresses(host: str, port: int) -> frozenset[Address]:
    """Return the addresses of a name, ADDRESSES_MAX of them at most. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return frozenset(sorted({(str(place[0]), int(place[1])) for *_, place in found})[:ADDRESSES_MAX])
