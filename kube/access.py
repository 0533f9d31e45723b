"""The API server's address and our credentials: those of a pod's service account, or of a kubeconfig.

The library reads both, and runs the exec plugin that a kubeconfig names (EKS, GKE or AKS). But it does not notice a
replaced file, and asks for a new token only at certain times. So this module decides when to read again: when a file
has changed, after a minute, and when the API server no longer knows our token.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import InClusterConfigLoader
from kubernetes.aio.config.kube_config import load_kube_config

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any

    Refresh = Callable[[], Coroutine[Any, Any, None]]

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
AGE_S: Final = 60.0
"""Older credentials are read again. Even then the library runs a plugin only if its token ends within 5 minutes."""
REFUSED_S: Final = 5.0
"""The least time between two reads because the API server did not know our token."""
READ_S: Final = 15.0
"""The time for one read of the credentials: a plugin may have to answer in it."""
_TOKEN: Final = "BearerToken"  # noqa: S105 - what the library calls it
_TEXT_MAX: Final = 200
"""Characters of another program's or library's text that an error quotes."""

T = TypeVar("T")

log = logging.getLogger("sharepod.kube.access")


class AccessError(Exception):
    """The API server's address or our credentials are missing or wrong. The text is one line with the remedy."""


class Access:
    """One API server, with our present credentials."""

    def __init__(
        self,
        name: str,
        files: tuple[Path, ...],
        read: Callable[[Configuration], Coroutine[Any, Any, Refresh]],
    ) -> None:
        """`name` stands for `files` in errors. `read` fills a configuration and returns what refreshes it."""
        self._name, self._files, self._read = name, files, read
        self._lock = asyncio.Lock()
        self._last_read: asyncio.Future[Any] | None = None
        """The last read of the credentials, which may still be under way."""
        self._configuration = Configuration()
        self._refresh: Refresh | None = None
        """Reads the credentials in `_configuration` again; None: they were never read."""
        self._stamp: tuple[object, ...] = ()
        """The stamps of the files at the last read; empty: they have to be read."""
        self._read_s = 0.0
        """When the credentials were last read or refreshed, or a refresh failed."""
        self._refused_s = -REFUSED_S
        """When `refused` last had everything read again."""

    @property
    def server(self) -> str:
        """Return the API server's address; before the first read, the name of its source."""
        return str(self._configuration.host) if self._refresh is not None else f"of {self._name}"

    async def current(self) -> tuple[Configuration, tuple[object, ...]]:
        """Return the configuration, and a value that changes when a new session is needed. Raises AccessError.

        The client calls it before each request. The credentials are read anew when a file has changed, and refreshed
        when they are older than AGE_S. If only the refresh fails, they stay as they were.
        """
        async with self._lock:
            stamp = tuple(map(_stamp, self._files))
            if self._refresh is None or stamp != self._stamp:
                fresh = Configuration()
                self._refresh = await self._reading(self._read(fresh), fresh)
                self._configuration, self._stamp = fresh, stamp
            elif time.monotonic() - self._read_s >= AGE_S:
                try:
                    await self._reading(self._refresh(), self._configuration)
                except AccessError as error:
                    self._read_s = time.monotonic()
                    log.warning("credentials stay as they were", extra={"cause": str(error)})
            now = self._configuration
            stamps = [_stamp(Path(file)) for file in (now.ssl_ca_cert, now.cert_file, now.key_file) if file]
            return now, (now.host, now.verify_ssl, now.tls_server_name, now.proxy, *stamps)

    def refused(self) -> bool:
        """Have the next `current` read everything again, because the API server does not know our token.

        Returns True: the caller may repeat its request. If this was done less than REFUSED_S ago, it does nothing and
        returns False.
        """
        now_s = time.monotonic()
        if now_s - self._refused_s < REFUSED_S:
            return False
        self._refused_s, self._stamp = now_s, ()
        return True

    async def _reading(self, work: Coroutine[Any, Any, T], configuration: Configuration) -> T:
        """Await `work`, a read that fills `configuration`; check the result, and return what `work` returned.

        A read that takes longer than READ_S goes on in the background, and no other begins meanwhile. Raises
        AccessError if the read is too slow or fails, and if what it has read cannot be used.
        """
        too_slow = AccessError(f"{self._name}: no credential within {READ_S:.0f} s: see what its plugin does")
        if self._last_read is not None and not self._last_read.done():
            work.close()
            raise too_slow  # the library lets a hanging plugin run on: a second one would hang beside it
        self._last_read = read = asyncio.ensure_future(work)
        if not (await asyncio.wait({read}, timeout=READ_S))[0]:
            # Nobody awaits it any more. Its error is fetched here, so that asyncio does not log it as a lost one.
            read.add_done_callback(lambda task: task.cancelled() or task.exception())
            raise too_slow
        try:
            result = read.result()
        except (ConfigException, OSError, yaml.YAMLError) as error:
            raise AccessError(f"{self._name}: {_reason(error)}: put it right") from None
        except Exception as error:  # noqa: BLE001 - the library trips in any way over a file that is no kubeconfig
            text = f"{self._name}: {_reason(error)} while it was read: write it as kubectl does"
            raise AccessError(text) from None
        self._check(configuration)
        self._read_s = time.monotonic()
        return result

    def _check(self, configuration: Configuration) -> None:
        """Check the address and the credential of a configuration that was read. Raises AccessError.

        It also changes the configuration: the token loses its line feed, and certificates are checked less strictly.
        """
        parts = urlsplit(configuration.host)
        token = str(configuration.api_key.get(_TOKEN) or "").strip()  # a file of one line ends with a line feed
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AccessError(f"{self._name}: {configuration.host!r} is no address: give https://host:port")
        if parts.scheme == "http" and token:
            raise AccessError(f"{self._name}: {configuration.host} would get our token in the clear: use https")
        if parts.scheme == "https" and not token and not configuration.cert_file:
            raise AccessError(f"{self._name}: it gives no credential: add a token, a certificate or a working plugin")
        if token:
            configuration.api_key[_TOKEN] = token
        # The authorities of clusters lack fields that newer Pythons require, for example a key identifier.
        configuration.disable_strict_ssl_verification = True


def in_cluster(environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> Access:
    """Return the access to the API server of this pod's own cluster. Raises AccessError if it has no service account.

    `environment` has the API server's address, as kubelet sets it. The directory `account` has `token` and `ca.crt`.
    """
    if not (environment.get("KUBERNETES_SERVICE_HOST") and environment.get("KUBERNETES_SERVICE_PORT")):
        raise AccessError("KUBERNETES_SERVICE_HOST or _PORT is not set, so this is no pod: give a kubeconfig")
    token, authority = account / "token", account / "ca.crt"
    for file in (token, authority):
        if not file.is_file():
            raise AccessError(f"{file} is not there: give the pod a service account")

    async def read(configuration: Configuration) -> Refresh:
        """Read the credentials into `configuration`; return the call that reads them again."""

        async def refresh() -> None:
            # Without the library's own refresh: only `Access` decides when the token is read again.
            loader = InClusterConfigLoader(str(token), str(authority), try_refresh_token=False, environ=environment)
            loader.load_and_set(configuration)

        await refresh()
        return refresh

    return Access(f"service account {account}", (token, authority), read)


def from_kubeconfig(path: Path) -> Access:
    """Return the access to the API server of a kubeconfig's current context. Raises AccessError if it is unreadable."""
    try:
        path.read_bytes()  # a missing file is reported at the start, not with the first request
    except OSError as error:
        raise AccessError(f"kubeconfig {path}: {_reason(error)}: name a readable kubeconfig") from None

    async def read(configuration: Configuration) -> Refresh:
        """Read the credentials into `configuration`; return the call that reads them again."""
        # A plugin's token is not written back into the file: the file belongs to the user.
        loader = await load_kube_config(str(path), client_configuration=configuration, persist_config=False)

        async def refresh() -> None:
            await loader.load_and_set(configuration)

        return refresh

    return Access(f"kubeconfig {path}", (path,), read)


def _stamp(file: Path) -> object:
    """Return a value that changes when a file is replaced; None: it is missing, which the next read reports."""
    try:
        status = os.stat(file)  # noqa: PTH116 - Path.stat is slower, and this runs for every request
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _reason(error: Exception) -> str:
    """Return what an error says, in one line of at most _TEXT_MAX characters."""
    words = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return " ".join(words.split())[:_TEXT_MAX]
