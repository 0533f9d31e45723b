"""Sockets of a node's network, in this process: a test speaks HTTP with what is there."""

import ctypes
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from node import Node

_NEW_NET = 0x40000000


def socket_in(node: Node, make: Callable[[], socket.socket]) -> socket.socket:
    """Return a socket that is made in the node's network, and stays there. Raises OSError."""

    def make_there() -> socket.socket:
        with Path(f"/proc/{node.pid}/ns/net").open() as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), _NEW_NET):
                error = ctypes.get_errno()
                raise OSError(error, f"the network of {node.name} cannot be entered: {os.strerror(error)}")
        return make()

    with ThreadPoolExecutor(1) as thread:  # it ends in the node's network, and this one never goes there
        return thread.submit(make_there).result()
