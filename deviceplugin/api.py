"""HTTP with the API server: one answer, or a stream of lines. What the answers mean is not known here.

No proxy of the environment is used and no redirect followed: the token goes to the API server alone. A connection whose
other end is gone is found by the kernel within 30 s, for a watch may be silent for minutes.
"""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import aiohttp

from sharepod.deviceplugin.cluster import Cluster, ClusterError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from types import TracebackType

USER_AGENT: Final = "sharepod-device-plugin"
CONNECT_S: Final = 5.0
_DEAD_S: Final = 30
_LINE_MAX: Final = 16 * 2**20
"""An object is at most 1.5 MiB in etcd; JSON with escapes is longer."""
_TEXT_MAX: Final = 300

Object = dict[str, object]


class ApiUnavailable(Exception):
    """The API server did not answer, or not as it should; the text is one line with the remedy."""

    def __init__(self, text: str, *, status: int = 0, final: bool = False, after_s: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        """Of HTTP; 0: there was no answer."""
        self.final = final
        """Asking again soon would not help."""
        self.after_s = after_s
        """When the server wants to be asked again."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server said: success, or a refusal that is about the object (404, 409, 410, 422)."""

    status: int
    body: Object


class Api:
    """A session with one API server; an asynchronous context manager."""

    def __init__(self, cluster: Cluster, agent: str = USER_AGENT) -> None:
        """`agent` is what the API server's audit log calls us."""
        self._cluster = cluster
        self._agent = agent
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=8, socket_factory=_socket),
            headers={"User-Agent": self._agent, "Accept": "application/json"},
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Return the answer to one request. Raises ApiUnavailable."""
        data = None if body is None else json.dumps(body).encode("utf-8")
        try:
            async with self._open(method, path, parameters or {}, timeout_s, data, media) as response:
                return Answer(response.status, _answer(self._cluster.server, response, await response.read()))
        except (aiohttp.ClientError, OSError, TimeoutError, ClusterError) as error:
            raise self._unavailable(error, timeout_s) from None

    async def stream(self, path: str, parameters: Mapping[str, str], timeout_s: float) -> AsyncGenerator[Object]:
        """Yield the objects of a stream of lines, until it ends well. Raises ApiUnavailable when it does not."""
        rest = b""
        try:
            async with self._open("GET", path, parameters, timeout_s) as response:
                if response.status != 200:
                    refusal = _answer(self._cluster.server, response, await response.read())
                    raise ApiUnavailable(said(self._cluster.server, response.status, refusal), status=response.status)
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    if len(rest) > _LINE_MAX:
                        raise ApiUnavailable(f"{self._cluster.server} sent a line of more than {_LINE_MAX} bytes")
                    for line in lines:
                        if line.strip():
                            yield _parsed(self._cluster.server, line)
        except (aiohttp.ClientError, OSError, TimeoutError, ClusterError) as error:
            raise self._unavailable(error, timeout_s) from None

    def _open(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        timeout_s: float,
        data: bytes | None = None,
        media: str | None = None,
    ) -> aiohttp.client._RequestContextManager:
        if self._session is None:
            raise RuntimeError("the session is not open: enter it first")
        headers = self._cluster.headers()
        if data is not None and media is not None:
            headers["Content-Type"] = media
        return self._session.request(
            method,
            self._cluster.server + path,
            params=parameters,
            data=data,
            headers=headers,
            ssl=self._cluster.context(),
            server_hostname=self._cluster.server_name,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(CONNECT_S, timeout_s)),
        )

    def _unavailable(self, error: Exception, timeout_s: float) -> ApiUnavailable:
        if isinstance(error, ClusterError):
            return ApiUnavailable(str(error))
        if isinstance(error, TimeoutError):
            reason = f"no answer within {timeout_s:.0f} s"
        else:
            reason = " ".join(str(error).split())[:_TEXT_MAX] or type(error).__name__
        return ApiUnavailable(f"API server {self._cluster.server}: {reason}: see that it runs and is reached from here")


def said(server: str, status: int, body: Object) -> str:
    """Return the error text for a refusal of the API server, which puts its reason into a Status."""
    message = body.get("message")
    text = " ".join(message.split())[:_TEXT_MAX] if isinstance(message, str) and message else "no reason given"
    remedy = {
        401: "see that our token is mounted and its service account exists",
        403: "give our service account the role that comes with SharePod",
    }.get(status, "it is asked again")
    return f"API server {server}: {status} {text}: {remedy}"


def _answer(server: str, response: aiohttp.ClientResponse, data: bytes) -> Object:
    """Return the body of an answer about the object; raise ApiUnavailable for one about the server or us."""
    status = response.status
    if 200 <= status < 300 or status in (404, 409, 410, 422):
        return _parsed(server, data)
    try:
        body = _parsed(server, data)
    except ApiUnavailable:
        body = {}
    after = response.headers.get("Retry-After", "")
    after_s = float(after) if after.isdecimal() and len(after) < 4 else None
    raise ApiUnavailable(said(server, status, body), status=status, final=status == 403, after_s=after_s)


def _parsed(server: str, data: bytes) -> Object:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ApiUnavailable(f"API server {server}: an answer that is no JSON object: see what answers there")
    return value


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket that notices within 30 s that its other end is gone, whether it waits or sends."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _DEAD_S // 2)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _DEAD_S // 6)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _DEAD_S * 1000)
    return made
