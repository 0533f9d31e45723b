"""Synthetic agents for the usage feed: a TLS connection with one HTTP/2 stream each, a message every second on each.

Frames are written by hand: ten thousand real client libraries would take the processors from the server that is
measured. `python -m bench.cluster.feed_clients PORT CA COUNT DEVICES SHARES` prints "ready" when all are connected, and
goes on until its standard input ends. Then it prints what it sent, and how late the latest message was.
"""

import json
import select
import socket
import ssl
import sys
import time
from contextlib import suppress

from bench.cluster.feed_messages import Agent, agents

PATH = b"/sharepod.v1.UsageService/ReportUsage"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY = 0, 1, 3, 4, 6, 7
ACK = 1
END_HEADERS = 4
STEP = 256
"""Messages between two reads of the server's answers."""
PAUSE_S = 0.01


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    """Return an HTTP/2 frame."""
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def field(name: bytes, value: bytes) -> bytes:
    """Return a header field in HPACK, as a literal that is not indexed; both are shorter than 127 bytes."""
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


def message(data: bytes) -> bytes:
    """Return a frame with a gRPC message."""
    return frame(DATA, 0, 1, b"\x00" + len(data).to_bytes(4, "big") + data)


def opening(token: str) -> bytes:
    """Return what a gRPC client sends first: its settings, and the headers of a stream."""
    method_and_scheme = b"\x83\x87"  # of HPACK's static table: POST, https
    head = [
        method_and_scheme,
        field(b":path", PATH),
        field(b":authority", b"localhost"),
        field(b"content-type", b"application/grpc"),
        field(b"te", b"trailers"),
        field(b"authorization", f"Bearer {token}".encode()),
    ]
    return PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, END_HEADERS, 1, b"".join(head))


class Client:
    """One agent."""

    def __init__(self, agent: Agent, port: int, context: ssl.SSLContext) -> None:
        self.name = agent.name
        self._changes = [message(data) for data in agent.changes]
        self._sent = 0
        self._left = b""
        plain = socket.create_connection(("127.0.0.1", port), timeout=30)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = context.wrap_socket(plain, server_hostname="localhost")
        self.socket.sendall(opening(f"of-{agent.name}") + message(agent.complete))
        self.socket.setblocking(False)

    def tell(self) -> None:
        """Send a change. A message is small: if it does not fit, the server does not read."""
        self.socket.send(self._changes[self._sent % len(self._changes)])
        self._sent += 1

    def listen(self) -> None:
        """Read the server's answers, and answer settings and pings. Raises RuntimeError when it ends the stream."""
        with suppress(BlockingIOError, ssl.SSLWantReadError):
            while True:
                said = self.socket.recv(65_536)
                if not said:
                    raise RuntimeError(f"the server has closed the connection of {self.name}")
                self._left += said
                self._take()

    def _take(self) -> None:
        """Act on the whole frames that have come. A frame is a head of 9 bytes, which begins with its length."""
        while len(self._left) >= 9 and len(self._left) >= (end := 9 + int.from_bytes(self._left[:3], "big")):
            kind, flags, body = self._left[3], self._left[4], self._left[9:end]
            self._left = self._left[end:]
            if kind in (SETTINGS, PING) and not flags & ACK:
                self.socket.send(frame(kind, ACK, 0, body if kind == PING else b""))
            elif kind in (RESET, GO_AWAY):
                raise RuntimeError(f"the server has ended the stream of {self.name}: {body!r}")


def main() -> int:
    """Connect, tell until standard input ends, and print the totals."""
    port, authority, count, devices, shares = sys.argv[1:]
    context = ssl.create_default_context(cafile=authority)
    context.set_alpn_protocols(["h2"])
    clients = [
        Client(agent, int(port), context) for agent in agents(int(count), devices=int(devices), shares=int(shares))
    ]
    by_file = {client.socket.fileno(): client for client in clients}
    poll = select.epoll()
    for number in by_file:
        poll.register(number, select.EPOLLIN)
    print("ready", flush=True)
    began, sent, late_s = time.monotonic(), 0, 0.0
    stdin = select.poll()
    stdin.register(sys.stdin, select.POLLIN | select.POLLHUP)
    while not stdin.poll(0):
        due = int((time.monotonic() - began) * len(clients))  # one message of each client a second
        for number in range(sent, min(due, sent + STEP)):
            clients[number % len(clients)].tell()
        sent = min(due, sent + STEP)
        late_s = max(late_s, time.monotonic() - began - sent / len(clients))
        for number, _ in poll.poll(0):
            by_file[number].listen()
        if sent >= due:
            time.sleep(PAUSE_S)
    print(json.dumps({"sent": sent, "seconds": time.monotonic() - began, "late_s": late_s}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
