"""Finds out which process a caller is: after a hello on this socket it gets a ticket for its registration.

gRPC for Python does not tell the process of a peer, and a pid that a caller states may be that of any process: in a
container it has another number than here. The kernel tells both of a unix socket's peer (SO_PEERCRED). A ticket is
valid while its connection is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sharepod.agent.errors import InvalidInput
from sharepod.agent.settings import TICKET_KEY
from sharepod.agent.shares.owners import start_ticks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TICKET_S: Final = 30.0
"""A connection is closed after this time."""
PEERS_OF_A_USER: Final = 64
"""One user may have this many open tickets, so that no user takes them from the others."""
_CREDENTIALS: Final = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end of a connection."""

    pid: int
    """In the agent's pid namespace; 0: it is not seen there."""
    start_ticks: int
    """When it started; 0: it is not seen, or gone."""


class Hello:
    """The socket and its open tickets. All calls from the event loop."""

    def __init__(self) -> None:
        self._peers: dict[str, Peer] = {}
        """By open ticket."""
        self._by_user: Counter[int] = Counter()
        """By uid: how many open tickets."""
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, asyncio.Task[Any] | None] = {}
        """The connections, each with its task."""

    async def serve(self, path: Path) -> None:
        """Listen at a path, until `close`. Raises OSError."""
        self._server = await asyncio.start_unix_server(self._welcome, path)

    async def close(self) -> None:
        """Listen no more, and hang up on all callers."""
        if self._server is not None:
            self._server.close()
        tasks = [task for task in self._open.values() if task is not None]
        for writer in self._open:
            writer.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def peer(self, metadata: Iterable[Sequence[Any]] | None) -> Peer | None:
        """Return the caller that has the ticket in a call's metadata; None: it carries none.

        Raises InvalidInput if the ticket is not valid any more.
        """
        ticket = next((item[1] for item in metadata or () if item[0] == TICKET_KEY), None)
        if ticket is None:
            return None
        if ticket not in self._peers:
            raise InvalidInput("the ticket is not valid: keep the connection open on which it was given")
        return self._peers[ticket]

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection: give the caller its ticket, and take it back when the caller hangs up.

        After TICKET_S the agent hangs up. A user that has PEERS_OF_A_USER tickets gets none.
        """
        own = writer.get_extra_info("socket")
        raw = own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(raw)
        ticket = secrets.token_urlsafe(24)
        self._open[writer] = asyncio.current_task()
        try:
            if self._by_user[uid] < PEERS_OF_A_USER:
                self._peers[ticket] = Peer(pid, start_ticks(pid) if pid else 0)
                self._by_user[uid] += 1
                writer.write(ticket.encode() + b"\n")
                await writer.drain()
                await asyncio.wait_for(reader.read(1), TICKET_S)
        except (OSError, TimeoutError):
            pass
        finally:
            if self._peers.pop(ticket, None) is not None:
                self._by_user[uid] -= 1
                if not self._by_user[uid]:
                    del self._by_user[uid]
            del self._open[writer]
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
