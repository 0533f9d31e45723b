"""Runs the webhook in a process of its own and sends it requests over HTTPS, as the API server does."""

import contextlib
import http.client
import json
import os
import queue
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trustme
from foreign_pods import Object, response, review
from server_certificates import Certificates

NAME = "sharepod-webhook.sharepod.svc"
WAIT_S = 30.0


class Webhook:
    """A running webhook; its log is read as it comes."""

    def __init__(self, certificates: Certificates, *flags: str) -> None:
        self.certificates = certificates
        environment = {key: value for key, value in os.environ.items() if not key.startswith("SHAREPOD_")}
        environment |= {
            "SHAREPOD_WEBHOOK_CERTIFICATE": str(certificates.certificate),
            "SHAREPOD_WEBHOOK_KEY": str(certificates.key),
        }
        listen = ["--address", "127.0.0.1", "--port", "0", "--log-level", "debug"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sharepod.webhook.main", *listen, *flags],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.port = int(self.event("webhook started")["port"])

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)

    def event(self, name: str, **said: object) -> Object:
        """Return the next log line with that name and these values; earlier lines are dropped."""
        while True:
            found: Object = json.loads(self._lines.get(timeout=WAIT_S))
            if found["event"] == name and found.items() >= said.items():
                return found

    def rest(self) -> list[Object]:
        """Return the unread lines of the log, once the process has ended."""
        self._reader.join(WAIT_S)
        return [json.loads(line) for line in list(self._lines.queue)]

    def connect(self) -> http.client.HTTPSConnection:
        """Return an HTTPS connection that connects with its first request."""
        context = self.certificates.trust()
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=WAIT_S, context=context)

    def encrypted(self, authority: trustme.CA | None = None, name: str | None = NAME) -> ssl.SSLSocket:
        """Return a connection after its handshake; by default the peer trusts the present authority."""
        context = self.certificates.trust(authority)
        context.check_hostname = name is not None
        plain = socket.create_connection(("127.0.0.1", self.port), WAIT_S)
        try:
            return context.wrap_socket(plain, server_hostname=name)
        except OSError:
            plain.close()
            raise

    def post(
        self, body: bytes, path: str = "/compatibility", method: str = "POST", **headers: str
    ) -> tuple[int, bytes]:
        """Return status and body of an answer."""
        connection = self.connect()
        sent = {"Content-Type": "application/json", **{key.replace("_", "-"): text for key, text in headers.items()}}
        with contextlib.closing(connection):
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def admit(self, item: Object, path: str = "/compatibility", **more: Any) -> Object:
        """Send a review of a pod; return the response."""
        status, body = self.post(json.dumps(review(item, **more)).encode(), path)
        assert status == 200, body
        return response(body)

    def end(self) -> int:
        """Stop the webhook as kubelet does; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@contextlib.contextmanager
def webhook(directory: Path, *flags: str) -> Iterator[Webhook]:
    """Run a webhook."""
    running = Webhook(Certificates(directory, NAME, "127.0.0.1"), "--drain-seconds", "0", *flags)
    try:
        yield running
    finally:
        assert running.end() == 0
