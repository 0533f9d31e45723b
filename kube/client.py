"""Sends requests to the API server: one answer, or a stream of lines. It does not know what the answers mean.

The library handles credentials, addresses and sessions. Its typed calls are not used: they cost 25 MiB, drop fields
that they do not know, and raise on a pod that another version wrote (docs/adr/0026). The token goes only to the API
server: no proxy of the environment is used, and no redirect is followed. A watch may be silent for minutes, so the
kernel checks within 30 s that the other end of a connection is still there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import aiohttp
from kubernetes.aio.client import ApiClient
from kubernetes.aio.client.rest import RESTClientObject

from sharepod.kube.access import Access, AccessError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
    from types import TracebackType

    from kubernetes.aio.client import Configuration

    from sharepod.kube.objects import Object

CONNECT_S: Final = 5.0
CONNECTIONS: Final = 8
MERGE: Final = "application/merge-patch+json"
_ABOUT_THE_OBJECT: Final = (404, 409, 410, 422)
"""The statuses of refusals that the caller gets as an Answer."""
_DEAD_S: Final = 30
"""After this time a connection with a silent other end is given up."""
_LINE_MAX: Final = 16 * 2**20
"""Bytes. An object has at most 1.5 MiB in etcd. As JSON with escapes it is longer."""
_TEXT_MAX: Final = 300
"""Characters of the server's text that an error quotes."""


class ApiUnavailable(Exception):
    """The API server did not answer, or not as it should. The text is one line with the remedy."""

    def __init__(self, text: str, *, status: int = 0, final: bool = False, after_s: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        """The HTTP status; 0: there was no answer."""
        self.final = final
        """Whether asking again soon is useless."""
        self.after_s = after_s
        """The time after which the server wants to be asked again; None: it does not say."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The API server's answer: success, or a refusal that is about the object (404, 409, 410, 422)."""

    status: int
    body: Object


class Client:
    """A session with one API server; an asynchronous context manager."""

    def __init__(self, access: Access, agent: str) -> None:
        """`agent` is our name in the API server's audit log."""
        self._access, self._agent = access, agent
        self._session: _Session | None = None

    async def __aenter__(self) -> Self:
        """Read the credentials. Raises AccessError."""
        await self._access.current()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the session, if a request has opened one."""
        if self._session is not None:
            await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, str] | None = None,
        body: Object | None = None,
        media: str = "application/json",
        timeout_s: float,
    ) -> Answer:
        """Send one request, and return the answer. Raises ApiUnavailable.

        `parameters` are the query. `media` is the content type of `body`. A try takes at most `timeout_s`. A refusal
        that is about the object (404, 409, 410, 422) is an answer, too. After a 401 the credentials are read again and
        the request is repeated, unless they have just been read for that reason (`Access.refused`).
        """
        while True:
            async with self._open(method, path, parameters or {}, timeout_s, body, media) as response:
                data = await response.read()
                if response.status != 401 or not self._access.refused():  # else ask again with new credentials
                    return self._answer(response, data)

    async def patiently(
        self, path: str, within_s: float, pause_s: float, failed: Callable[[], None] = lambda: None
    ) -> Answer:
        """Return the answer to a GET of `path`. The GET is repeated while the API server is away.

        `pause_s` is the first pause: each try doubles it. `failed` is called for each failed try. Raises ApiUnavailable
        when `within_s` have passed, and at once if another try is useless.
        """
        deadline_s = time.monotonic() + within_s
        while True:
            try:
                return await self.call("GET", path, timeout_s=max(0.1, deadline_s - time.monotonic()))
            except ApiUnavailable as error:
                failed()
                wait_s = jittered(pause_s) if error.after_s is None else error.after_s
                if error.final or time.monotonic() + wait_s >= deadline_s:
                    raise
                await asyncio.sleep(wait_s)
                pause_s *= 2

    async def stream(self, path: str, parameters: Mapping[str, str], timeout_s: float) -> AsyncGenerator[Object]:
        """Send the GET of a watch, and yield the JSON object in each line of the answer until the answer ends.

        `parameters` are the query. Raises ApiUnavailable if the stream breaks, or lasts longer than `timeout_s`.
        """
        partial = b""  # the begin of a line that has not come whole
        async with self._open("GET", path, parameters, timeout_s) as response:
            if response.status != 200:
                if response.status == 401:
                    self._access.refused()  # the next request has new credentials
                raise self.refusal(self._answer(response, await response.read()))
            async for chunk in response.content.iter_any():
                *lines, partial = (partial + chunk).split(b"\n")
                if len(partial) > _LINE_MAX:
                    raise ApiUnavailable(f"{self._access.server} sent a line of more than {_LINE_MAX} bytes")
                for line in lines:
                    if line.strip():
                        yield self._parsed(line)

    def refusal(self, answer: Answer) -> ApiUnavailable:
        """Return the error to raise for an answer that the caller cannot use. The answer's body gives the reason."""
        message = answer.body.get("message")
        text = " ".join(message.split())[:_TEXT_MAX] if isinstance(message, str) and message else "no reason given"
        remedy = {
            401: "see that our token is mounted and its service account exists",
            403: "give our service account the role that comes with SharePod",
        }.get(answer.status, "it is asked again")
        text = f"API server {self._access.server}: {answer.status} {text}: {remedy}"
        return ApiUnavailable(text, status=answer.status, final=answer.status == 403)

    @contextlib.asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        timeout_s: float,
        body: Object | None = None,
        media: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request, and yield its response while the caller reads it. The parameters are those of `call`.

        Raises ApiUnavailable if there is no response, or if the caller's reading fails.
        """
        try:
            async with (await self._current()).for_request() as api:
                arguments = await api.param_serialize(
                    method,
                    path,
                    query_params=list(parameters.items()),
                    header_params={"Accept": "application/json", "Content-Type": media},
                    body=body,
                    auth_settings=["BearerToken"],
                )
                timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(CONNECT_S, timeout_s))
                async with (await api.call_api(*arguments, _request_timeout=timeout)).response as response:
                    yield response
        except (aiohttp.ClientError, OSError, TimeoutError, AccessError) as error:
            raise self._unavailable(error, timeout_s) from None

    async def _current(self) -> _Session:
        """Return the session with the present credentials. Raises AccessError.

        It is a new one if the address or a certificate has changed. The old one ends with its last request.
        """
        configuration, stamp = await self._access.current()
        if self._session is None or self._session.stamp != stamp:
            old, self._session = self._session, _Session(configuration, stamp, self._agent)
            if old is not None:
                await old.retire()
        self._session.api.configuration = configuration  # its token may be new
        return self._session

    def _unavailable(self, error: Exception, timeout_s: float) -> ApiUnavailable:
        """Return the error of a request without an answer as one line with the remedy."""
        if isinstance(error, AccessError):
            return ApiUnavailable(str(error))
        if isinstance(error, TimeoutError):
            reason = f"no answer within {timeout_s:.0f} s"
        else:
            reason = " ".join(str(error).split())[:_TEXT_MAX] or type(error).__name__
        return ApiUnavailable(f"API server {self._access.server}: {reason}: see that it runs and is reached from here")

    def _answer(self, response: aiohttp.ClientResponse, data: bytes) -> Answer:
        """Return a response with the body `data` as an answer: a success, or a refusal that is about the object.

        Raises ApiUnavailable for any other refusal.
        """
        if 200 <= response.status < 300 or response.status in _ABOUT_THE_OBJECT:
            return Answer(response.status, self._parsed(data))
        try:
            body = self._parsed(data)
        except ApiUnavailable:
            body = {}
        error = self.refusal(Answer(response.status, body))
        after = response.headers.get("Retry-After", "")
        error.after_s = float(after) if after.isdecimal() and len(after) < 4 else None  # no date, and below 1000 s
        raise error

    def _parsed(self, data: bytes) -> Object:
        """Return the JSON object in `data`. Raises ApiUnavailable if it is none."""
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            text = f"API server {self._access.server}: an answer that is no JSON object: see what answers there"
            raise ApiUnavailable(text)
        return value


class _Session:
    """The library's client with one set of certificates. It lives until its last request has ended."""

    def __init__(self, configuration: Configuration, stamp: tuple[object, ...], agent: str) -> None:
        """`configuration` and `stamp` are those of `Access.current`. `agent` is the User-Agent.

        Raises AccessError for an invalid certificate.
        """
        self.stamp = stamp
        self._requests = 0
        """Requests that are under way."""
        self._retired = False
        """True: it closes with its last request."""
        configuration.connection_pool_maxsize = CONNECTIONS
        configuration.client_session_kwargs = {
            "trust_env": False,
            "cookie_jar": aiohttp.DummyCookieJar(),
            "middlewares": (_refuse_redirects,),
        }
        try:
            self.api = ApiClient(configuration)
            self.api.rest_client = _Rest(configuration)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            reason = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
            raise AccessError(f"certificates for {configuration.host}: {reason}: put them right") from None
        self.api.user_agent = agent

    @contextlib.asynccontextmanager
    async def for_request(self) -> AsyncIterator[ApiClient]:
        """Lend the client for one request. The last request of a retired session closes it."""
        self._requests += 1
        try:
            yield self.api
        finally:
            self._requests -= 1
            if self._retired and not self._requests:
                await self.close()

    async def retire(self) -> None:
        """Close it once no request uses it."""
        self._retired = True
        if not self._requests:
            await self.close()

    async def close(self) -> None:
        """Close the library's client and its connections."""
        await self.api.close()


class _Rest(RESTClientObject):  # type: ignore[misc]
    """The library's sessions, with sockets that notice a dead connection."""

    def _create_connector(self) -> aiohttp.TCPConnector:
        """Replace the library's method of this name, which `RESTClientObject` calls when it opens a session."""
        return aiohttp.TCPConnector(limit=self.maxsize, ssl=self.ssl_context, socket_factory=_socket)


async def _refuse_redirects(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Pass a request on. Raise ClientError for a redirect: no other server may get our token. aiohttp's middleware."""
    response = await handler(request)
    if response.status in (301, 302, 303, 307, 308):
        response.close()
        raise aiohttp.ClientError(f"it sends us elsewhere ({response.status}), which no API server does")
    return response


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket for `address` that notices within 30 s that the other end is gone.

    While it waits for data, the kernel sends three probes after 15 s of silence, 5 s apart. While data of ours is not
    acknowledged, TCP_USER_TIMEOUT (in ms) counts.
    """
    family, kind, protocol, _, _ = address
    connection = socket.socket(family, kind, protocol)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _DEAD_S // 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _DEAD_S // 6)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_S * 1000)
    return connection


def jittered(pause_s: float) -> float:
    """Return a random pause between half of `pause_s` and all of it: not all clients should ask again at once."""
    return pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
