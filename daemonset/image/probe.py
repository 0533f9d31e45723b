#!/usr/bin/python3 -IS
"""Asks a service whether it is well, by a call without arguments; exits with 0 when the answer says so.

    sharepod-probe SOCKET METHOD [SECONDS]        gRPC on a unix socket
    sharepod-probe HOST:PORT PATH [SECONDS]       HTTP, on a port that only the pod itself reaches

Where SHAREPOD_WAIT_FOR or SHAREPOD_PLUGIN_WAIT_FOR names a file that is missing, the service waits for the driver. It
is well then, and is not asked: a node without a driver must not hold up the rollout of all others.

Kubelet's own gRPC probe speaks TCP alone, and importing gRPC costs more CPU than the call itself. So this file speaks
HTTP/2 by hand, in a few milliseconds. The answer comes from the service's event loop: if that hangs, the probe fails.
"""

from __future__ import annotations

import os
import socket
import sys
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1
WAITS = ("SHAREPOD_WAIT_FOR", "SHAREPOD_PLUGIN_WAIT_FOR")
"""The settings by which agent and plugin wait for a file; empty: they do not."""
EMPTY_MESSAGE = bytes(5)
"""Not compressed, no bytes: the request has no fields."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame of HTTP/2 (RFC 9113, section 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def header(name: bytes, value: bytes) -> bytes:
    """Return a header as a literal that is not indexed, not compressed (RFC 7541, section 6.2.2); names below 127."""
    size = bytes([len(value)]) if len(value) < 127 else bytes([127, len(value) - 127])
    return bytes([0, len(name)]) + name + size + value


def request(method: str) -> bytes:
    """Return all that a client says in one unary call."""
    headers = [
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", method.encode()), (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"), (b"te", b"trailers"),
    ]  # fmt: skip
    block = b"".join(header(name, value) for name, value in headers)
    call = frame(HEADERS, END_HEADERS, 1, block) + frame(DATA, END_STREAM, 1, EMPTY_MESSAGE)
    return PREFACE + frame(SETTINGS, 0, 0) + call


def receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    """Return exactly `size` bytes. Raises OSError."""
    parts = b""
    while len(parts) < size:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionResetError("the service closed the connection")
        parts += part
    return parts


def ask(path: str, method: str, seconds: float) -> str:
    """Return what is wrong; empty: the service answered. Only a call that went well has a message before its end."""
    deadline = time.monotonic() + seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect(path)
        connection.sendall(request(method))
        while True:
            begin = receive(connection, 9, deadline)
            kind, flags, stream = begin[3], begin[4], int.from_bytes(begin[5:9], "big")
            payload = receive(connection, int.from_bytes(begin[:3], "big"), deadline)
            if kind == SETTINGS and not flags & ACK:
                connection.sendall(frame(SETTINGS, ACK, 0))
            elif kind == DATA and stream == 1 and payload:
                return ""
            elif kind in (RST_STREAM, GOAWAY) or (kind == HEADERS and flags & END_STREAM):
                return "it refused the call"


def get(address: str, path: str, seconds: float) -> str:
    """Return what is wrong; empty: the service answered with 200."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    with socket.create_connection((host.strip("[]"), int(port)), seconds) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
        status = receive(connection, 12, deadline)  # "HTTP/1.1 200"
        if status.endswith(b" 200"):
            return ""
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        return "it answered " + " ".join((status + connection.recv(4096)).decode("ascii", "replace").split()[1:])


def main() -> int:
    """Probe; return the exit code."""
    if len(sys.argv) not in (3, 4):
        sys.stderr.write("usage: sharepod-probe SOCKET METHOD [SECONDS], or HOST:PORT PATH [SECONDS]\n")
        return 2
    if any(name in os.environ and not os.path.exists(os.environ[name] or "/") for name in WAITS):  # noqa: PTH110
        return 0
    path, method = sys.argv[1:3]
    probe = ask if path.startswith("/") else get
    try:
        wrong = probe(path, method, float(sys.argv[3]) if len(sys.argv) == 4 else 2.0)
    except (OSError, ValueError) as error:
        wrong = str(error)
    if wrong:
        sys.stderr.write(f"{path} {method}: {wrong}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
