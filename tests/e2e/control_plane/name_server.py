"""Serves the names of a cluster's services: answers with the addresses of the pods behind a service.

The name server runs on the first node, with the machine's Python and nothing else. It answers for every service as for
a headless one, as nothing here forwards a service's address. It keeps no state: each question becomes a request to the
API server.
"""

import json
import socket
import ssl
import struct
import sys
import urllib.error
import urllib.request
from pathlib import Path

DOMAIN = ("svc", "cluster", "local")
PORT = 53
TTL_S = 1
NO_ERROR, SERVER_FAILED, NO_SUCH_NAME = 0, 2, 3
ADDRESS, INTERNET = 1, 1
MOST = 25  # so many addresses fit into one answer with any name


def question(packet: bytes) -> tuple[list[str], int, int]:
    """Return the labels of the name in the question, the type of the record, and where the question ends."""
    labels, at = [], 12
    while length := packet[at]:
        labels.append(packet[at + 1 : at + 1 + length].decode("ascii").lower())
        at += 1 + length
    kind, _ = struct.unpack_from("!HH", packet, at + 1)
    return labels, kind, at + 5


def answer(packet: bytes, code: int, addresses: list[str]) -> bytes:
    """Return the answer to a packet with one question."""
    *_, end = question(packet)
    identity, flags = struct.unpack_from("!HH", packet)
    flags = 0x8480 | flags & 0x0100 | code  # an authoritative answer; recursion is offered, and wanted if it was before
    header = struct.pack("!6H", identity, flags, 1, len(addresses), 0, 0)
    record = struct.pack("!HHHIH", 0xC00C, ADDRESS, INTERNET, TTL_S, 4)
    return header + packet[12:end] + b"".join(record + socket.inet_aton(address) for address in addresses)


class Services:
    """Services as the API server knows them."""

    def __init__(self, server: str, keys: Path) -> None:
        self._server = server
        self._context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        self._context.load_cert_chain(keys / "admin.crt", keys / "admin.key")

    def addresses(self, namespace: str, service: str) -> list[str] | None:
        """Return the addresses of the ready pods, or None if there is no such service."""
        path = f"{self._server}/api/v1/namespaces/{namespace}/endpoints/{service}"
        try:
            with urllib.request.urlopen(path, context=self._context, timeout=2) as response:  # noqa: S310
                subsets = json.load(response).get("subsets") or []
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise
        return [each["ip"] for subset in subsets for each in subset.get("addresses") or []]


def reply(packet: bytes, services: Services) -> bytes:
    """Return the answer to any packet that holds a question."""
    labels, kind, _ = question(packet)
    if len(labels) != 2 + len(DOMAIN) or tuple(labels[2:]) != DOMAIN:
        return answer(packet, NO_SUCH_NAME, [])
    try:
        found = services.addresses(labels[1], labels[0])
    except OSError as error:
        print(f"{'.'.join(labels)}: {error}", flush=True)
        return answer(packet, SERVER_FAILED, [])
    if found is None:
        return answer(packet, NO_SUCH_NAME, [])
    return answer(packet, NO_ERROR, found[:MOST] if kind == ADDRESS else [])


def main() -> None:
    address, server, keys = sys.argv[1:]
    services = Services(server, Path(keys))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.bind((address, PORT))
        while True:
            packet, client = asked.recvfrom(4096)
            try:
                asked.sendto(reply(packet, services), client)
            except (ValueError, IndexError, struct.error) as error:
                print(f"{client}: {error}", flush=True)


if __name__ == "__main__":
    main()
