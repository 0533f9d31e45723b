"""Test that a real API server keeps the same promises as the double (tests/support/rig/contract).

A given cluster is not tested for compaction, as its store cannot be reached.
"""

import base64
import contextlib
import ctypes
import json
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import components
import pytest
from cluster import Cluster as OwnCluster
from contract import *  # noqa: F403 - every promise is a test here
from contract.connection import Connection
from node import Node

from sharepod.kube.access import from_kubeconfig

if TYPE_CHECKING:
    from contract.there import Connected

pytestmark = pytest.mark.releases
OTHER_CLUSTER = os.environ.get("SHAREPOD_E2E_KUBECONFIG")
NEW_NET = 0x40000000


@pytest.fixture
def connected(request: pytest.FixtureRequest) -> "Connected":
    if OTHER_CLUSTER:
        connection = Connection(from_kubeconfig(Path(OTHER_CLUSTER)))
    else:
        connection = connection_to(request.getfixturevalue("own_cluster"))
    return lambda: contextlib.nullcontext(connection)


def socket_in(node: Node, make: Callable[[], socket.socket]) -> socket.socket:
    """Return a socket that was made in the node's network and stays there. Raises OSError."""

    def make_there() -> socket.socket:
        with Path(f"/proc/{node.pid}/ns/net").open() as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), NEW_NET):
                raise OSError(ctypes.get_errno(), f"the network of {node.name} cannot be entered")
        return make()

    with ThreadPoolExecutor(1) as thread:  # only this short-lived thread enters the node's network
        return thread.submit(make_there).result()


def connection_to(cluster: OwnCluster) -> Connection:
    """Return a connection to our own cluster's API server through its node's network."""

    def open_socket(address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        return socket_in(cluster.node, lambda: socket.socket(family, kind, protocol))

    async def compact() -> None:
        connector = aiohttp.TCPConnector(socket_factory=open_socket)
        async with aiohttp.ClientSession(connector=connector) as session:
            key = base64.b64encode(b"/registry").decode()
            found = await _etcd(session, "range", {"key": key})
            await _etcd(session, "compaction", {"revision": found["header"]["revision"]})

    access = from_kubeconfig(cluster.node.state / "admin.kubeconfig")
    return Connection(access, open_socket, compact)


async def _etcd(session: aiohttp.ClientSession, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    async with session.post(f"{components.ETCD}/v3/kv/{verb}", data=json.dumps(body)) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = json.loads(await response.read())
        return answer
