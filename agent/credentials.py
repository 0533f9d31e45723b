"""A certificate with its key, who may be a client, and a token, from files that are read again when they change.

It opens no socket: a server asks it for the context of a connection, and whether a header shows the token.
"""

from __future__ import annotations

import hmac
import logging
import ssl
from pathlib import Path
from typing import Final

from sharepod.agent.errors import SettingsError

TOKEN_MIN: Final = 16
_TOKEN_READ_MAX: Final = 4096


def read_token(path: str) -> bytes:
    """Return the token of a file, without the white space around it. Raises OSError or ValueError (what is wrong)."""
    with Path(path).open("rb") as file:
        token = file.read(_TOKEN_READ_MAX).strip()
    if len(token) < TOKEN_MIN or not all(0x21 <= byte <= 0x7E for byte in token):
        raise ValueError(f"it is no token: write one word of at least {TOKEN_MIN} printable ASCII characters")
    return token


def read_context(certificate: str, key: str, client_ca: str = "") -> ssl.SSLContext:
    """Return what TLS needs; with an authority, clients must show a certificate of it.

    Raises OSError; ssl.SSLError is one.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_ca or None)
    context.load_cert_chain(certificate, key, password="")  # without it OpenSSL asks on the terminal
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.options |= ssl.OP_NO_TICKET  # who resumes a session would not be asked for a certificate again
        context.num_tickets = 0
    return context


class Credentials:
    """What a server shows to those who ask it (certificate and key) and what they show to it (theirs, or the token).

    Empty paths: no TLS, no client's certificate, no token. The files are read again when they change, so that
    certificates can be renewed; what cannot be read then is told once, and the last that could stays.
    """

    def __init__(
        self,
        certificate: str = "",
        key: str = "",
        token_file: str = "",
        *,
        client_ca: str = "",
        what: str = "metrics",
        reader: str = "agent",
    ) -> None:
        """Read the files. `what` is served with them by `reader`, for the texts. Raises SettingsError."""
        self._what, self._reader = what, reader
        self._log = logging.getLogger(f"sharepod.{reader}.{what}")
        self._certificate, self._key, self._token_file, self._client_ca = certificate, key, token_file, client_ca
        self._paths = [path for path in (certificate, key, token_file, client_ca) if path]
        self._stamp = self._look()
        self.context: ssl.SSLContext | None = None
        self._token: bytes | None = None
        if cause := self._read():
            raise SettingsError(f"{what}: {cause}")

    def refresh(self) -> None:
        """Read the files again if they have changed. For the thread that accepts connections."""
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp = stamp
            if cause := self._read():
                self._log.error("credentials of the %s not read again", self._what, extra={"cause": cause})
            else:
                self._log.info("credentials of the %s read again", self._what, extra={"files": self._paths})

    def following(self) -> ssl.SSLContext | None:
        """Return a context for a server of asyncio that hands every handshake on to the files as they are then."""
        context = self.context
        if context is None:
            return None

        def renew(connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
            self.refresh()
            if self.context is not None:
                connection.context = self.context

        context.sni_callback = renew  # called whether or not the client names a server
        return context

    def accept(self, authorization: str) -> bool:
        """Tell whether the header of that name has the token, in a time that does not depend on where it is wrong."""
        if self._token is None:
            return True
        scheme, _, token = authorization.partition(" ")
        return hmac.compare_digest(token.strip().encode(), self._token) and scheme.lower() == "bearer"

    def _read(self) -> str:
        """Read all files; return what is wrong, after which nothing has changed."""
        try:
            for path in self._paths:  # OpenSSL does not say which one it cannot read
                Path(path).open("rb").close()
            context = None
            if self._certificate:
                context = read_context(self._certificate, self._key, self._client_ca)
            token = read_token(self._token_file) if self._token_file else None
        except ssl.SSLError as error:
            reason = (error.reason or "unreadable").lower().replace("_", " ")
            files = f"{self._certificate} and {self._key} are no certificate with its key"
            if self._client_ca:
                files += f", or {self._client_ca} is no authority"
            return f"{files} ({reason}): give PEM files that go together"
        except OSError as error:
            return f"{error.filename}: {error.strerror}: name a file that the {self._reader} can read"
        except ValueError as error:
            return f"{self._token_file}: {error}"
        self.context, self._token = context, token
        return ""

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        info = Path(path).stat()
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns
