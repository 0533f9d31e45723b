"""The server: HTTPS on loopback, authentication, the verb of a request; it stops and comes back at the same port.

It runs in the test's event loop. The other modules do the work of a verb, and `faults` has the faults.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

import orjson
from aiohttp import web

from sharepod.kube.access import Access, in_cluster

from .faults import Faults
from .hand import Hand
from .keys import AUTHORITY, server_context
from .kinds import Place, place_of
from .listing import listed
from .refusal import Refusal, bad_request
from .registry import MERGE, STRATEGIC, Registry
from .store import Store
from .watch import Watches

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Body = dict[str, Any]

_BODY_MAX = 3 * 2**20
_LOOKS = 200
"""How often the server's end looks whether the event loop has nothing of it any more: for one second."""


class ApiServer(Hand):
    """Start it with `async with`. `stop` and `start` let it go away and come back at the same address."""

    def __init__(self, unix: Callable[[], float] = time.time) -> None:
        """`unix` is its wall clock."""
        super().__init__(Store())
        self.token = "first"  # noqa: S105
        self.faults = Faults()
        self.requests: Counter[str] = Counter()
        """The number of requests, by `verb resource`."""
        self.stale = 0
        """How many versions the cache lags. A list at version 0 is answered from the cache."""
        self.port = 0
        self.registry = Registry(self.store, unix)
        self.watches = Watches(self.store)
        self._runner: web.AppRunner | None = None
        self._connections: set[asyncio.Transport] = set()
        """Held until the end: if the peer closes a paused connection, asyncio forgets it and never closes it."""
        for name in ("default", "kube-system"):
            self.put_namespace(name)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Stop, and wait until the event loop has nothing of the server any more.

        Fails the test if a client left a connection open.
        """
        await self.stop()
        self.registry.deletion.close()
        # No task owns connections that were shaking hands or paused. The client's own connections are left alone: if
        # the client forgets one, the test must fail.
        for connection in self._connections:
            connection.abort()
        loop: Any = asyncio.get_running_loop()
        quiet = 0  # looks in a row at which the loop had nothing left
        of_clients: list[Any] = []
        for _ in range(_LOOKS):
            await asyncio.sleep(0.005)
            open_ones = [item for item in loop._transports.values() if item._sock is not None]
            of_clients = [item for item in open_ones if item.get_extra_info("sockname")[1] != self.port]
            for item in open_ones:
                if item.get_extra_info("sockname")[1] == self.port:
                    item.abort()
            quiet = 0 if open_ones or len(asyncio.all_tasks()) > 1 else quiet + 1
            if quiet == 3:
                break
        assert not of_clients, "a client left a connection open"

    async def start(self) -> None:
        """Begin to listen: the first time at any port, then at the same one."""
        app = web.Application(client_max_size=_BODY_MAX)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.05, handler_cancellation=True)
        await self._runner.setup()
        server: Any = self._runner.server
        begin = server.connection_made

        def connection_made(handler: Any, transport: asyncio.Transport) -> None:
            self._connections.add(transport)
            begin(handler, transport)

        server.connection_made = connection_made
        context = server_context(clients=True)
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=context, reuse_address=True)
        await site.start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Cut all watches and listen no more. The objects stay."""
        self.watches.cut("cut")
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def account(self, directory: Path) -> Path:
        """Write a service account's files as kubelet mounts them. Call it again after `token` has changed."""
        directory.mkdir(exist_ok=True)
        (directory / "token").write_text(self.token + "\n", encoding="ascii")
        AUTHORITY.cert_pem.write_to_path(str(directory / "ca.crt"))
        return directory

    def access(self, directory: Path) -> Access:
        """Return the access to the server that a pod with this service account has."""
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}
        return in_cluster(environment, self.account(directory))

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig that reaches the server with its present token."""
        authority = base64.b64encode(AUTHORITY.cert_pem.bytes()).decode()
        cluster = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority-data": authority}
        content = {
            "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {"token": self.token}}],
        }  # fmt: skip
        path.write_bytes(orjson.dumps(content))
        return path

    def restore(self, version: int) -> None:
        """Forget everything and count versions from here, as after the restore of a backup."""
        self.store.reset(version)
        self.put_namespace("default")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Count a request, delay it, and answer it, if it is authenticated and no fault is due.

        If its answer is to be lost, it is done all the same, and then the connection is cut.
        """
        place = place_of(request.path)
        watches = place is not None and request.method == "GET" and request.query.get("watch") in ("true", "1")
        verb = "watch" if watches else request.method.lower()
        what = f"{verb} {place.what if place is not None else request.path}"
        self.requests[what] += 1
        await asyncio.sleep(self.faults.lag_of(what))
        try:
            self._authenticate(request)
            self.faults.check(what)
            if watches and place is not None:
                return await self.watches.serve(request, place)
            response = await self._do(request, place)
        except Refusal as refusal:
            return _json(refusal.status, refusal.code, refusal.headers)
        if self.faults.loses(what) and request.transport is not None:
            request.transport.abort()
        return response

    def _authenticate(self, request: web.Request) -> None:
        """Raise Refusal unless the request has a client's certificate or the present token."""
        transport = request.transport
        certified = transport is not None and bool(transport.get_extra_info("peercert"))
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if not certified and (scheme.lower(), token) != ("bearer", self.token):
            raise Refusal(401, "Unauthorized", "Unauthorized")

    async def _do(self, request: web.Request, place: Place | None) -> web.Response:
        """Do what a request asks, except a watch. Raises Refusal."""
        if place is None:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        method = request.method
        if method == "GET" and place.kind.stored and place.subresource in ("", "status"):
            if place.name:
                return _json(_with_kind(place, self.registry.get(place).body))
            return _json(listed(self.store, place, request.query, self.stale))
        if method == "POST" and (not place.name or place.subresource in ("binding", "eviction")):
            return await self._post(request, place)
        changes = place.name and place.kind.stored and place.subresource in ("", "status")
        if method == "PUT" and changes:
            body = await _body(request, "application/json")
            return _json(_with_kind(place, self.registry.update(place, body)))
        if method == "PATCH" and changes:
            patch = await _body(request, MERGE, STRATEGIC)
            return _json(_with_kind(place, self.registry.patch(place, request.content_type, patch)))
        if method == "DELETE" and changes and not place.subresource:
            return await self._delete(request, place)
        raise Refusal(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    async def _post(self, request: web.Request, place: Place) -> web.Response:
        """Create an object, bind a pod or evict one. Raises Refusal."""
        body = await _body(request, "application/json")
        if place.subresource == "binding":
            self.registry.bind(place, body)
        elif place.subresource == "eviction":
            self.registry.evict(place, body)
        else:
            return _json(_with_kind(place, self.registry.create(place, body)), 201)
        return _json(_success(), 201)

    async def _delete(self, request: web.Request, place: Place) -> web.Response:
        """Delete an object. Answer with it as it is now, or as it was if it is gone. Raises Refusal."""
        options = await _body(request, "application/json", "application/octet-stream") if request.can_read_body else {}
        if grace := request.query.get("gracePeriodSeconds"):
            options["gracePeriodSeconds"] = int(grace)
        before = self.registry.get(place).body
        left = self.registry.deletion.delete(place, options)
        return _json(_with_kind(place, before if left is None else left))


async def _body(request: web.Request, *media: str) -> Body:
    """Return the JSON object in a request's body.

    Raises Refusal if it is none, or if its content type is not one of `media`.
    """
    if request.content_type not in media:
        why = f"the body of the request was in an unknown format - accepted media types include: {', '.join(media)}"
        raise Refusal(415, "UnsupportedMediaType", why)
    try:
        body: Body = orjson.loads(await request.read())
    except ValueError:
        raise bad_request("couldn't get version/kind; json parse error: the body is no JSON") from None
    if not isinstance(body, dict):
        raise bad_request("the body is no object")
    return body


def _with_kind(place: Place, body: Body) -> Body:
    """Return a body with kind and version, which stored bodies lack."""
    return {"kind": place.kind.kind, "apiVersion": place.kind.api_version, **body}


def _success() -> Body:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def _json(body: Body, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, headers=headers, content_type="application/json")
