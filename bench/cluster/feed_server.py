"""Runs the scheduler's usage server in a process of its own, with an API server that knows every token at once.

`python -m bench.cluster.feed_server CERTIFICATE KEY` prints its port. For each line of standard input it prints a line
of JSON, and it ends with its input. Like the scheduler it collects the changes every second.
"""

import asyncio
import json
import os
import sys
import time

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from dataclasses import dataclass
from typing import Any

from sharepod.process.credentials import Credentials
from sharepod.process.run import take_open_files
from sharepod.scheduler.feed import heap
from sharepod.scheduler.feed.usage_identity import AGENT_USER, AUDIENCE, Identities
from sharepod.scheduler.feed.usage_server import UsageServer
from sharepod.scheduler.state.usage import UsageBook

LOOK_S = 0.05


@dataclass(frozen=True)
class _Answer:
    status: int
    body: dict[str, Any]


class _ApiServer:
    """Accepts every token: the token names the node."""

    async def call(self, method: str, path: str, *, body: Any = None, timeout_s: float) -> _Answer:
        _ = method, path, timeout_s
        node = body["spec"]["token"].removeprefix("of-")
        user = {"username": AGENT_USER, "extra": {"authentication.kubernetes.io/node-name": [node]}}
        return _Answer(201, {"status": {"authenticated": True, "audiences": [AUDIENCE], "user": user}})


async def _look_for_ever(pauses: list[float], book: UsageBook) -> None:
    """Record how late the loop comes back each time, and take the changes once a second."""
    due = 0.0
    while True:
        began = time.monotonic()
        await asyncio.sleep(LOOK_S)
        pauses.append(time.monotonic() - began - LOOK_S)
        if began > due:
            due = began + 1
            book.take_changes()


async def _serve(certificate: str, key: str) -> None:
    """Serve agents. Tell for each line of input what was served, and the pauses of the loop since the line before."""
    book = UsageBook()
    server = UsageServer(book, Identities(_ApiServer(), OSError, time.monotonic).node_of)
    port = await server.start("127.0.0.1:0", Credentials(certificate, key, what="usage feed", reader="scheduler"))
    print(port, flush=True)
    pauses: list[float] = []
    looking = asyncio.create_task(_look_for_ever(pauses, book))
    while await asyncio.to_thread(sys.stdin.readline):
        found = {
            "nodes": len(book),
            "messages": server.counters.messages,
            "ended": server.counters.ended,
            "pauses_s": sorted(pauses),
        }
        print(json.dumps(found), flush=True)
        pauses.clear()
    looking.cancel()
    await server.stop()


def main() -> int:
    """Serve until the standard input ends."""
    take_open_files()
    heap.tune()
    asyncio.run(_serve(*sys.argv[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
