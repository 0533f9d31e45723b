"""The double's certificates: one authority for a run, the server's certificate, and a developer's."""

from __future__ import annotations

import ssl

import trustme

AUTHORITY = trustme.CA()
SERVER = AUTHORITY.issue_cert("127.0.0.1", "localhost")
DEVELOPER = AUTHORITY.issue_cert("developer@example.org")


def server_context(*, clients: bool) -> ssl.SSLContext:
    """Return the TLS context of a server under our authority. `clients`: it accepts client certificates, too."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    SERVER.configure_cert(context)
    if clients:
        AUTHORITY.configure_trust(context)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
