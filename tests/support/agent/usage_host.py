"""A scheduler's usage server as a process: `usage_host.py ADDRESS [CERTIFICATE KEY TOKENS]`.

It prints its port, then for each line of standard input a line of JSON: what its book has. TOKENS is a JSON file that
says of which node a token is; without it nodes are believed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from sharepod.process.credentials import Credentials
from sharepod.scheduler.usage import UsageBook
from sharepod.scheduler.usage_identity import AGENT_USER, AUDIENCE, Identities
from sharepod.scheduler.usage_server import UsageServer


@dataclasses.dataclass(frozen=True)
class _Answer:
    status: int
    body: dict[str, Any]


class _Reviewer:
    """An API server that knows the tokens of a file."""

    def __init__(self, tokens: Path) -> None:
        self._tokens = tokens

    async def call(self, method: str, path: str, *, body: Any = None, timeout_s: float) -> _Answer:
        _ = method, path, timeout_s
        node = json.loads(self._tokens.read_text()).get(body["spec"]["token"])
        if node is None:
            return _Answer(201, {"status": {"authenticated": False}})
        user = {"username": AGENT_USER, "extra": {"authentication.kubernetes.io/node-name": [node]}}
        return _Answer(201, {"status": {"authenticated": True, "audiences": [AUDIENCE], "user": user}})


async def _serve(address: str, *files: str) -> None:
    book = UsageBook()
    identities = Identities(_Reviewer(Path(files[2])), OSError, time.monotonic) if files else None
    server = UsageServer(book, identities.node_of if identities else None)
    print(await server.start(address, Credentials(*files[:2]) if files else None), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        nodes = {}
        for name in book.names():
            node = book.node(name)
            assert node is not None
            nodes[name] = {**dataclasses.asdict(node), "silent_s": book.silent_s(name, time.monotonic())}
        found = {"nodes": nodes, "tally": dataclasses.asdict(server.tally)}
        print(json.dumps(found), flush=True)
    await server.stop()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
