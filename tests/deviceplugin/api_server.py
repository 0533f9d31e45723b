"""A double of the API server: TLS, tokens, pods with versions, watches that break, Events checked as the real one does.

It runs in the test's loop. What it refuses, and with which status, is what Kubernetes 1.20 to 1.37 do; `refuse`,
`lag_s`, `cut` and `compact` make the days on which they do not work.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import re
import socket
import ssl
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self

import trustme
from aiohttp import web

from sharepod.deviceplugin.cluster import Cluster, in_cluster

if TYPE_CHECKING:
    from pathlib import Path

Body = dict[str, Any]
Break = Literal["end", "cut", "half"]

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
AUTHORITY = trustme.CA()
SERVER = AUTHORITY.issue_cert("127.0.0.1", "localhost")
DEVELOPER = AUTHORITY.issue_cert("developer@example.org")


def pod(name: str, uid: str = "", namespace: str = "default", node: str = "n1", **more: Any) -> Body:
    """Return a pod as the API server would show it; `annotations`, `running` and `phase` are the usual changes."""
    running = more.get("running", ())
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-{namespace}-{name}",
            "annotations": more.get("annotations", {}),
        },
        "spec": {"nodeName": node, "containers": [{"name": "main"}]},
        "status": {
            "phase": more.get("phase", "Running"),
            "containerStatuses": [{"name": item, "state": {"running": {"startedAt": None}}} for item in running],
        },
    }


@dataclass
class _Watcher:
    """One watch; `broken` says how it is to end."""

    node: str
    bookmarks: bool
    at: int
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    broken: Break | None = None
    bookmark_due: bool = False


class Refusal(Exception):
    """An answer with a Status."""

    def __init__(self, code: int, reason: str, message: str, kind: str = "pods", headers: dict[str, str] | None = None):
        super().__init__(message)
        self.code = code
        self.headers = headers
        self.status: Body = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
            "reason": reason, "message": message, "details": {"kind": kind},
        }  # fmt: skip


class ApiServer:
    """Start with `async with`; `stop` and `start` make it go and come back at the same address."""

    def __init__(self) -> None:
        self.token = "first"  # noqa: S105
        self.version = 100
        self.floor = 0
        """Versions below are compacted away."""
        self.pods: dict[tuple[str, str], Body] = {}
        self.history: list[tuple[int, Body | None, Body, bool]] = []
        """Version, the pod before and after it, and whether it is still there."""
        self.events: dict[tuple[str, str], Body] = {}
        self.nodes: dict[str, Body] = {}
        """What a Node object says under status.nodeInfo, by name."""
        self.requests: Counter[str] = Counter()
        self.lag_s = 0.0
        """Every answer comes this much later."""
        self.stale = 0
        """How many versions the cache is behind, from which a list at version 0 is answered."""
        self.gone_by_status = False
        self.events_heard = True
        """False: an event is stored and the connection cut before the answer."""
        self.terminating: set[str] = set()
        self.port = 0
        self._refusals: list[Refusal] = []
        self._cuts = 0
        self._watchers: list[_Watcher] = []
        self._runner: web.AppRunner | None = None
        self._connections: set[asyncio.Transport] = set()
        """Held until the end: asyncio forgets one whose other end closes while it is paused, and never closes it."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        # Connections that were shaking hands or had paused are nobody's now. Those of the client are left alone: if it
        # forgets one, the test is to fail.
        for connection in self._connections:
            connection.abort()
        loop: Any = asyncio.get_running_loop()
        quiet = 0
        of_clients: list[Any] = []
        for _ in range(200):
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
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        SERVER.configure_cert(context)
        AUTHORITY.configure_trust(context)
        context.verify_mode = ssl.CERT_OPTIONAL
        app = web.Application()
        app.router.add_get("/api/v1/pods", self._answered(self._list_or_watch))
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}", self._answered(self._get))
        app.router.add_get("/api/v1/nodes/{name}", self._answered(self._get_node))
        app.router.add_post("/api/v1/namespaces/{namespace}/events", self._answered(self._create_event))
        app.router.add_patch("/api/v1/namespaces/{namespace}/events/{name}", self._answered(self._patch_event))
        self._runner = web.AppRunner(app, shutdown_timeout=0.05, handler_cancellation=True)
        await self._runner.setup()
        server: Any = self._runner.server
        begin = server.connection_made

        def connection_made(handler: Any, transport: asyncio.Transport) -> None:
            self._connections.add(transport)
            begin(handler, transport)

        server.connection_made = connection_made
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=context, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        self.cut("cut")
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def account(self, directory: Path) -> Path:
        """Write a service account as kubelet mounts it; again after `token` has changed."""
        directory.mkdir(exist_ok=True)
        (directory / "token").write_text(self.token + "\n", encoding="ascii")
        AUTHORITY.cert_pem.write_to_path(str(directory / "ca.crt"))
        return directory

    def cluster(self, directory: Path) -> Cluster:
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}
        return in_cluster(environment, self.account(directory))

    def put(self, body: Body) -> None:
        """Create or change a pod."""
        key = body["metadata"]["namespace"], body["metadata"]["name"]
        self.version += 1
        stored = copy.deepcopy(body)
        stored["metadata"]["resourceVersion"] = str(self.version)
        self._happened(self.pods.get(key), stored, there=True)
        self.pods[key] = stored

    def delete(self, name: str, namespace: str = "default") -> None:
        self.version += 1
        gone = copy.deepcopy(self.pods.pop((namespace, name)))
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._happened(gone, gone, there=False)

    def bookmark(self) -> None:
        for watcher in self._watchers:
            watcher.bookmark_due = True
            watcher.wake.set()

    def cut(self, how: Break, coming: int = 0) -> None:
        """End all watches, and as many of those to come as soon as they begin."""
        for watcher in self._watchers:
            watcher.broken = how
            watcher.wake.set()
        self._cuts = coming

    def compact(self) -> None:
        """Forget the history: whoever is behind must list again."""
        self.floor = self.version

    def refuse(self, code: int, times: int = 1, after: str | None = None) -> None:
        """Answer the next requests with a status, as an overloaded server or a broken proxy does."""
        headers = {"Retry-After": after} if after else None
        self._refusals += [Refusal(code, "ServerTimeout", f"told to say {code}", headers=headers)] * times

    @property
    def watching(self) -> int:
        return len(self._watchers)

    @property
    def bookmarked(self) -> bool:
        """Every watch was sent its bookmark."""
        return not any(watcher.bookmark_due for watcher in self._watchers)

    def _happened(self, before: Body | None, after: Body, *, there: bool) -> None:
        self.history.append((self.version, before, after, there))
        for watcher in self._watchers:
            watcher.wake.set()

    def _answered(self, handler: Any) -> Any:
        async def answer(request: web.Request) -> web.StreamResponse:
            kind = next((kind for kind in ("events", "nodes") if f"/{kind}" in request.path), "pods")
            verb = "watch" if request.query.get("watch") else request.method.lower()
            self.requests[f"{verb} {kind}"] += 1
            await asyncio.sleep(self.lag_s)
            try:
                self._authenticate(request)
                if self._refusals:
                    raise self._refusals.pop(0)
                return await handler(request)  # type: ignore[no-any-return]
            except Refusal as refusal:
                return web.json_response(refusal.status, status=refusal.code, headers=refusal.headers)

        return answer

    def _authenticate(self, request: web.Request) -> None:
        transport = request.transport
        certified = transport is not None and bool(transport.get_extra_info("peercert"))
        if not certified and request.headers.get("Authorization") != f"Bearer {self.token}":
            raise Refusal(401, "Unauthorized", "Unauthorized")

    async def _get(self, request: web.Request) -> web.StreamResponse:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        body = self.pods.get((namespace, name))
        if body is None:
            refusal = Refusal(404, "NotFound", f'pods "{name}" not found')
            refusal.status["details"]["name"] = name
            raise refusal
        return web.json_response(body)

    async def _get_node(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if (info := self.nodes.get(name)) is None:
            raise Refusal(404, "NotFound", f'nodes "{name}" not found')
        return web.json_response({"kind": "Node", "metadata": {"name": name}, "status": {"nodeInfo": info}})

    async def _list_or_watch(self, request: web.Request) -> web.StreamResponse:
        selector = request.query.get("fieldSelector", "")
        if not selector.startswith("spec.nodeName="):
            raise Refusal(403, "Forbidden", "a node's plugin lists the pods of its node")
        node = selector.removeprefix("spec.nodeName=")
        if request.query.get("watch"):
            return await self._watch(request, node)
        wanted = request.query.get("resourceVersion", "")
        if wanted and int(wanted) > self.version:
            raise Refusal(504, "Timeout", f"Too large resource version: {wanted}, current: {self.version}")
        at = max(self.floor, self.version - self.stale) if wanted == "0" else self.version
        items = [
            {key: value for key, value in body.items() if key not in ("kind", "apiVersion")}  # the list has them
            for body in self._pods_at(at).values()
            if body["spec"]["nodeName"] == node
        ]
        answer = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": str(at)}, "items": items}
        return web.json_response(answer)

    def _pods_at(self, version: int) -> dict[tuple[str, str], Body]:
        if version == self.version:
            return dict(self.pods)
        there: dict[tuple[str, str], Body] = {}
        for at, _, body, stays in self.history:
            key = body["metadata"]["namespace"], body["metadata"]["name"]
            if at > version:
                break
            there[key] = body
            if not stays:
                del there[key]
        return there

    async def _watch(self, request: web.Request, node: str) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        if since < self.floor and self.gone_by_status:
            raise Refusal(410, "Expired", f"too old resource version: {since} ({self.floor})")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            await response.prepare(request)
        except ConnectionError:  # it has gone again
            return response
        if since < self.floor:
            refusal = Refusal(410, "Expired", f"too old resource version: {since} ({self.floor})")
            await response.write(_line("ERROR", refusal.status))
            return response
        watcher = _Watcher(node, "allowWatchBookmarks" in request.query, since)
        if self._cuts:
            self._cuts -= 1
            watcher.broken = "cut"
        self._watchers.append(watcher)
        try:
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(float(request.query["timeoutSeconds"])):
                    await self._send(watcher, request, response)
        finally:
            self._watchers.remove(watcher)
        return response

    async def _send(self, watcher: _Watcher, request: web.Request, response: web.StreamResponse) -> None:
        while True:
            watcher.wake.clear()
            for at, before, after, there in list(self.history):
                if at <= watcher.at or watcher.broken:
                    continue
                watcher.at = at
                # A selector makes pods appear and vanish that only begin or cease to match.
                was = before is not None and before["spec"]["nodeName"] == watcher.node
                now = there and after["spec"]["nodeName"] == watcher.node
                if was or now:
                    await response.write(_line("DELETED" if not now else "MODIFIED" if was else "ADDED", after))
            if watcher.bookmark_due and watcher.bookmarks and not watcher.broken:
                watcher.bookmark_due = False
                metadata = {"resourceVersion": str(self.version), "creationTimestamp": None}
                bookmark = {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {"containers": None}}
                await response.write(_line("BOOKMARK", bookmark))
            if watcher.broken == "end":
                return
            if watcher.broken == "half" and self.history:
                await response.write(_line("MODIFIED", self.history[-1][2])[:40])
            if watcher.broken and request.transport is not None:
                request.transport.abort()
                return
            await watcher.wake.wait()

    async def _create_event(self, request: web.Request) -> web.StreamResponse:
        namespace = request.match_info["namespace"]
        body = await _body(request, "application/json")
        name = body.get("metadata", {}).get("name", "")
        if body.get("metadata", {}).get("namespace", namespace) != namespace:
            raise Refusal(400, "BadRequest", "the namespace of the object does not match the request's", "events")
        if namespace in self.terminating:
            raise Refusal(403, "Forbidden", f"namespace {namespace} is being terminated", "events")
        if not SUBDOMAIN.fullmatch(name) or len(name) > 253:
            raise Refusal(422, "Invalid", f'Event "{name}" is invalid: metadata.name', "events")
        _check_event(body, namespace)
        if (namespace, name) in self.events:
            raise Refusal(409, "AlreadyExists", f'events "{name}" already exists', "events")
        self.events[namespace, name] = body
        if not self.events_heard and request.transport is not None:
            self.events_heard = True
            request.transport.abort()
        return web.json_response(body, status=201)

    async def _patch_event(self, request: web.Request) -> web.StreamResponse:
        key = request.match_info["namespace"], request.match_info["name"]
        kinds = ("application/merge-patch+json", "application/strategic-merge-patch+json")
        patch = await _body(request, *kinds)
        if key not in self.events:
            raise Refusal(404, "NotFound", f'events "{key[1]}" not found', "events")
        changed = self.events[key] | patch
        _check_event(changed, key[0])
        self.events[key] = changed
        return web.json_response(changed)


def _line(kind: str, body: Body) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"


async def _body(request: web.Request, *media: str) -> Body:
    if request.content_type not in media:
        raise Refusal(415, "UnsupportedMediaType", f"the body must be one of {media}", "events")
    try:
        body = json.loads(await request.read())
    except ValueError:
        raise Refusal(400, "BadRequest", "the body is no JSON", "events") from None
    if not isinstance(body, dict):
        raise Refusal(400, "BadRequest", "the body is no object", "events")
    return body


def _check_event(body: Body, namespace: str) -> None:
    """Refuse what does not decode as an Event of core/v1 (400) or is none (422: its one rule, about namespaces)."""
    for key, kind in {"count": int, "reason": str, "message": str, "type": str, "source": dict}.items():
        if not isinstance(body.get(key, kind()), kind):
            raise Refusal(400, "BadRequest", f"Event in version v1 cannot be handled: {key}", "events")
    for key in ("firstTimestamp", "lastTimestamp"):
        try:
            datetime.strptime(body.get(key) or "2026-01-01T00:00:00Z", "%Y-%m-%dT%H:%M:%S%z")
        except (TypeError, ValueError):
            raise Refusal(400, "BadRequest", f"parsing time of {key}", "events") from None
    about = body.get("involvedObject", {})
    if (about.get("namespace", "") or "default") != namespace:  # what is in no namespace is told of in that one
        raise Refusal(422, "Invalid", "involvedObject.namespace: does not match event.namespace", "events")


def unused_port() -> int:
    """Return a port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
