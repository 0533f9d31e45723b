"""Reads a server's certificate, key, clients' authority and token from files, and reads them again when they change.

It opens no socket. A server asks it for the TLS context of a connection, or whether a header has the right token.
"""

from __future__ import annotations

import hmac
import logging
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from sharepod.process.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    import grpc

TOKEN_MIN: Final = 16
_TOKEN_READ_MAX: Final = 4096
"""Bytes that are read of a token's file."""


def read_token(path: str) -> bytes:
    """Return the token in a file, without surrounding white space. Raises OSError, or ValueError with what is wrong."""
    with Path(path).open("rb") as file:
        token = file.read(_TOKEN_READ_MAX).strip()
    if len(token) < TOKEN_MIN or not all(0x21 <= byte <= 0x7E for byte in token):  # "!" to "~"
        raise ValueError(f"it is no token: write one word of at least {TOKEN_MIN} printable ASCII characters")
    return token


def _read_context(certificate: str, key: str, client_ca: str) -> ssl.SSLContext:
    """Return a server's TLS context with the files at these paths. Raises OSError, of which SSLError is one.

    With `client_ca`, clients must show a certificate of that authority.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_ca or None)
    context.load_cert_chain(certificate, key, password="")  # without a password OpenSSL asks on the terminal
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        # No sessions to resume: a client that resumes one does not show its certificate again.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context


class Credentials:
    """What a server shows to clients (certificate and key), and what clients must show to it (a certificate, a token).

    Empty paths: no TLS, no client certificate, no token. A server calls `refresh` for each connection, so renewed files
    are used from the next connection on. If files cannot be read, that is logged once, and the last content stays.
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
        """Read the files. Raises SettingsError.

        `what` is served by the process `reader`: both words are for logs and errors.
        """
        self._what, self._reader = what, reader
        self._log = logging.getLogger(f"sharepod.{reader}.{what}")
        self._certificate, self._key, self._token_file, self._client_ca = certificate, key, token_file, client_ca
        self._paths = [path for path in (certificate, key, token_file, client_ca) if path]
        self._stamps = self._look()
        self.context: ssl.SSLContext | None = None
        self._token: bytes | None = None
        self._pair: tuple[bytes, bytes]
        """The content of the files of certificate and key."""
        if cause := self._read():
            raise SettingsError(f"{what}: {cause}")

    def refresh(self) -> bool:
        """Read the files again if they have changed. Tell whether new content is in use now.

        False: they have not changed, or what changed cannot be used. Then the last content stays in use.
        """
        stamps = self._look()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        if cause := self._read():
            self._log.error("credentials of the %s not read again", self._what, extra={"cause": cause})
            return False
        self._log.info("credentials of the %s read again", self._what, extra={"files": self._paths})
        return True

    def following(self) -> ssl.SSLContext | None:
        """Return a context for an asyncio server. It follows the files: each handshake uses their present content.

        None: there is no certificate, so the server speaks no TLS.
        """
        context = self.context
        if context is None:
            return None

        def renew(connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
            """Give a connection that begins its handshake the context of the present files."""
            self.refresh()
            if self.context is not None:
                connection.context = self.context

        context.sni_callback = renew  # OpenSSL calls it in each handshake, even if the client names no server
        return context

    def for_grpc(self) -> grpc.ServerCredentials:
        """Return the credentials for a gRPC server that asks for no client certificates. They follow the files.

        There must be a certificate.
        """
        import grpc  # imported late: the webhook does not need it

        def configuration() -> grpc.ServerCertificateConfiguration:
            """Return the present certificate with its key."""
            certificate, key = self._pair
            return grpc.ssl_server_certificate_configuration([(key, certificate)])

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            """Return a new configuration; None: the files have not changed. gRPC calls it in each handshake."""
            return configuration() if self.refresh() else None

        fetch = cast("Callable[[], grpc.ServerCertificateConfiguration]", renewed)  # gRPC's types forget None
        return grpc.dynamic_ssl_server_credentials(configuration(), fetch)

    def accept(self, authorization: str) -> bool:
        """Tell whether the Authorization header has the token. True if there is no token file.

        The comparison takes equally long wherever the first wrong byte is, so its duration tells nothing of the token.
        """
        if self._token is None:
            return True
        scheme, _, token = authorization.partition(" ")
        return hmac.compare_digest(token.strip().encode(), self._token) and scheme.lower() == "bearer"

    def _read(self) -> str:
        """Read all files, and use their content from now on. Return an empty text.

        If something is wrong, the last content stays in use; return what is wrong.
        """
        try:
            # Read here, because OpenSSL does not say which file is missing.
            content = {path: Path(path).read_bytes() for path in self._paths}
            context = None
            if self._certificate:
                context = _read_context(self._certificate, self._key, self._client_ca)
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
        self._pair = content.get(self._certificate, b""), content.get(self._key, b"")
        return ""

    def _look(self) -> list[tuple[int, int, int] | None]:
        """Return the stamps of all files. A stamp changes when its file does."""
        return [_stamp(path) for path in self._paths]


def _stamp(path: str) -> tuple[int, int, int] | None:
    """Return a file's inode, size and time of its last write; None: they cannot be read."""
    try:
        info = Path(path).stat()
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns
