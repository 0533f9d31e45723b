"""Reaches an API server and sends plain requests; every status is an answer, not an error."""

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
from kubernetes.aio.client.rest import RESTClientObject

from sharepod.kube.access import Access

Body = dict[str, Any]

ANSWER_S = 40.0
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True)
class Connection:
    """One API server, and what a test can do to it."""

    access: Access
    """Its address, authority and our credentials."""
    open: Callable[[aiohttp.AddrInfoType], socket.socket] | None = None
    """Makes sockets in the network where the address can be reached; None: in this process's network."""
    compact: Callable[[], Awaitable[None]] | None = None
    """Makes the server forget its history; None: a test cannot do that."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int
    body: Body
    headers: Mapping[str, str]

    @property
    def reason(self) -> str:
        return str(self.body.get("reason", ""))

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


class Client:
    """A session with one API server; an asynchronous context manager."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def __aenter__(self) -> Self:
        self._configuration, _ = await self.connection.access.current()
        self._context = RESTClientObject(self._configuration).ssl_context
        connector = aiohttp.TCPConnector(socket_factory=self.connection.open)
        self._session = aiohttp.ClientSession(
            connector=connector, headers={"User-Agent": "contract/1"}, trust_env=False
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    def _request(self, method: str, path: str, parameters: Mapping[str, str], **more: Any) -> Any:
        token = self._configuration.api_key.get("BearerToken")
        headers = ({"Authorization": token} if token else {}) | more.pop("headers", {})
        return self._session.request(
            method, self._configuration.host + path, params=parameters, headers=headers, ssl=self._context,
            server_hostname=self._configuration.tls_server_name, timeout=aiohttp.ClientTimeout(total=ANSWER_S), **more,
        )  # fmt: skip

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        media: str = "application/json",
        headers: Mapping[str, str] | None = None,
        **parameters: str,
    ) -> Answer:
        """Return the answer to a request, whatever its status."""
        head = dict(headers or {}) | ({"Content-Type": media} if body is not None else {})
        data = None if body is None else json.dumps(body).encode()
        async with self._request(method, path, parameters, data=data, headers=head) as response:
            text = await response.read()
            return Answer(response.status, json.loads(text), response.headers)

    @contextlib.asynccontextmanager
    async def watch(self, path: str, **parameters: str) -> AsyncIterator[AsyncIterator[Body]]:
        """Open a watch; it yields the lines one by one and ends with the stream."""
        async with self._request("GET", path, {"watch": "true", "timeoutSeconds": "20", **parameters}) as response:

            async def lines() -> AsyncIterator[Body]:
                if response.status != 200:  # servers may answer so instead of with an error in the stream
                    yield {"type": "ERROR", "object": json.loads(await response.read())}
                    return
                async for line in response.content:
                    yield json.loads(line)

            yield lines()
