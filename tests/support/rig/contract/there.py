"""Gives each contract test an API server, a namespace of its own there, and ways to make objects in it."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from rig.until import eventually

from .connection import MERGE, STRATEGIC, Answer, Body, Client, Connection

Connected = Callable[[], contextlib.AbstractAsyncContextManager[Connection]]

PATIENCE_S = 30.0
NODE = "contract-no-node"
"""A name that no node has, so that no kubelet takes the pods that are bound to it."""
SHARE = "sharepod.io/gpu"


class There:
    """A namespace of one API server."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace
        self.connection = client.connection

    def path(self, plural: str, name: str = "", group: str = "") -> str:
        """Return the path of a kind, or of one object, in the namespace; `group` is, for example, policy/v1."""
        root = f"/apis/{group}" if group else "/api/v1"
        return f"{root}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    async def ask(self, method: str, path: str, body: object = None, **more: Any) -> Answer:
        return await self.client.ask(method, path, body, **more)

    async def done(self, method: str, path: str, body: object = None, **more: Any) -> Body:
        """Send a request that must succeed; return the answer's body."""
        answer = await self.ask(method, path, body, **more)
        assert answer.status in (200, 201), (method, path, answer)
        return answer.body

    def pod_body(self, name: str, spec: Body | None = None, **metadata: Any) -> Body:
        """Return a pod that no scheduler takes."""
        container = {"name": "main", "image": "nowhere.invalid/none:1"}
        return {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata},
            "spec": {
                "schedulerName": "contract", "automountServiceAccountToken": False, "containers": [container],
                **(spec or {}),
            },
        }  # fmt: skip

    async def pod(self, name: str, spec: Body | None = None, **metadata: Any) -> Body:
        return await self.done("POST", self.path("pods"), self.pod_body(name, spec, **metadata))

    async def running_pod(self, name: str, **metadata: Any) -> Body:
        """Make a pod that is bound and that, by its status, runs and is ready."""
        await self.pod(name, **metadata)
        await self.bind(name)
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        path = self.path("pods", name) + "/status"
        return await self.done("PATCH", path, {"status": status}, media=STRATEGIC)

    async def bind(self, name: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await self.done("POST", self.path("pods", name) + "/binding", binding)

    async def merge(self, path: str, patch: Body, **parameters: str) -> Answer:
        return await self.ask("PATCH", path, patch, media=MERGE, **parameters)

    async def config_map(self, name: str, data: Body, **metadata: Any) -> Body:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}, "data": data}
        return await self.done("POST", self.path("configmaps"), body)

    async def version(self, plural: str) -> str:
        """Return the version of a list."""
        return str((await self.done("GET", self.path(plural)))["metadata"]["resourceVersion"])


def promise(test: Callable[[Any, There], Coroutine[None, None, None]]) -> Callable[[Any, Connected], None]:
    """Make a coroutine a test that runs in an event loop and a namespace of its own."""

    def run(self: object, connected: Connected) -> None:
        async def here() -> None:
            async with connected() as connection, _there(connection) as there:
                await test(self, there)

        asyncio.run(here())

    run.__doc__ = test.__doc__
    return run


@contextlib.asynccontextmanager
async def _there(connection: Connection) -> AsyncIterator[There]:
    async with Client(connection) as client:
        there = There(client, f"contract-{random.getrandbits(40):010x}")
        labels = {"contract": there.namespace}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": there.namespace, "labels": labels}}
        await there.done("POST", "/api/v1/namespaces", body)

        async def has_account() -> bool:
            return (await there.ask("GET", there.path("serviceaccounts", "default"))).status == 200

        try:
            await eventually(has_account, "pods can be made")
            yield there
        finally:
            # Bound pods must be deleted here: no kubelet would end them.
            await there.ask("DELETE", there.path("pods"), gracePeriodSeconds="0")
            await there.ask("DELETE", f"/api/v1/namespaces/{there.namespace}")
