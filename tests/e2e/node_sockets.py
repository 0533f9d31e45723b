"""Sockets of a node's network, in this process: a test speaks HTTP with what is there.

A socket stays in the network it was made in. The thread that goes there to make it ends with that.
"""

import ctypes
import os
import socket
import threading
from collections.abc import Callable

from node import Node

_NEW_NET = 0x40000000


def socket_in(node: Node, make: Callable[[], socket.socket]) -> socket.socket:
    """Return a socket that is made in the node's network. Raises OSError."""
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def go() -> None:
        try:
            _enter(node)
            made.append(make())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def _enter(node: Node) -> None:
    """Take this thread, for good, to the node's network. Raises OSError."""
    place = os.open(f"/proc/{node.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(place, _NEW_NET):
            raise OSError(ctypes.get_errno(), f"the network of {node.name} cannot be entered")
    finally:
        os.close(place)
