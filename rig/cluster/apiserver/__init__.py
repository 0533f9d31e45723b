"""A double of the API server, for tests: HTTPS, tokens, versions, watches that break, the rules of pods.

It refuses what Kubernetes refuses, and with the same status. `tests/support/rig/contract` holds the promises that our
code relies on; it passes here and on a real API server. `server` is the way in. Each module says what it owns.
"""

import socket

from .hand import pod
from .keys import AUTHORITY, DEVELOPER, SERVER
from .refusal import Body, Refusal
from .server import ApiServer

__all__ = [
    "AUTHORITY", "DEVELOPER", "SERVER", "ApiServer", "Body", "Refusal", "pod", "unused_port",
]  # fmt: skip


def unused_port() -> int:
    """Return a port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
