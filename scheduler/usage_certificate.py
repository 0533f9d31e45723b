"""The certificate of the usage server, from files that are read again when they change. It opens no socket."""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import grpc

from sharepod.agent.credentials import read_context
from sharepod.agent.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("sharepod.scheduler.usage")

_LOOK_S: Final = 5.0
"""Between two looks at the files: ten thousand handshakes in a row do not mean as many."""


class Certificate:
    """A certificate with its key. What cannot be read again is told once, and the last that could stays."""

    def __init__(self, certificate: str, key: str) -> None:
        """Read the PEM files. Raises SettingsError."""
        self._paths = (Path(certificate), Path(key))
        self._stamp = self._look()
        self._looked_s = time.monotonic()
        try:
            self._pair = self._read()
        except OSError as error:
            raise SettingsError(f"usage feed: {_cause(error, certificate, key)}") from None

    def credentials(self) -> grpc.ServerCredentials:
        """Return what a server needs; it asks again at every handshake."""
        renewed = cast("Callable[[], grpc.ServerCertificateConfiguration]", self._renewed)  # the stubs forget None
        return grpc.dynamic_ssl_server_credentials(_configuration(self._pair), renewed)

    def _renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the certificate when it is another one, else None. Called on a thread of grpc."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return None
        self._looked_s = now_s
        stamp = self._look()
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            self._pair = self._read()
        except OSError as error:
            cause = _cause(error, *map(str, self._paths))
            log.error("certificate of the usage feed not read again", extra={"cause": cause})  # noqa: TRY400 - it says all
            return None
        log.info("certificate of the usage feed read again", extra={"files": [str(path) for path in self._paths]})
        return _configuration(self._pair)

    def _read(self) -> tuple[bytes, bytes]:
        """Return certificate and key. Raises OSError; ssl.SSLError is one."""
        pair = (self._paths[0].read_bytes(), self._paths[1].read_bytes())
        read_context(str(self._paths[0]), str(self._paths[1]))  # grpc would take anything, and fail at every handshake
        return pair

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._paths]


def _configuration(pair: tuple[bytes, bytes]) -> grpc.ServerCertificateConfiguration:
    certificate, key = pair
    return grpc.ssl_server_certificate_configuration([(key, certificate)])


def _cause(error: OSError, certificate: str, key: str) -> str:
    if isinstance(error, ssl.SSLError):
        return f"{certificate} and {key} are no certificate with its key: give PEM files that go together"
    return f"{error.filename}: {error.strerror}: name a file that the scheduler can read"


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_ino, info.st_size, info.st_mtime_ns
