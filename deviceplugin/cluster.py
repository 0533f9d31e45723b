"""Where the API server is, and how the plugin proves who it is: a pod's service account, or a developer's kubeconfig.

Nothing is kept that can be replaced under us: kubelet rotates the token and the authority's certificate, so the token
is read for every request, and the certificates when their files change.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

import yaml

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ClusterError(Exception):
    """The API server's address or our credentials are missing or wrong; the text is one line with the remedy."""


@dataclass(slots=True)
class Cluster:
    """An API server and our credentials. Certificates are a path or the text itself."""

    server: str
    authority: Path | bytes | None = None
    token: Path | str | None = None
    certificate: Path | bytes | None = None
    key: Path | bytes | None = None
    server_name: str | None = None
    """The name in its certificate, where that is not the host of `server`."""
    verify: bool = True
    _context: ssl.SSLContext | None = None
    _stamp: tuple[object, ...] = field(default=())

    def __post_init__(self) -> None:
        """Raise ClusterError when the address is none, or a secret would travel in the clear."""
        parts = urlsplit(self.server)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ClusterError(f"{self.server!r} is no address of an API server: give https://host:port")
        if parts.scheme == "http" and self.token is not None:
            raise ClusterError(f"{self.server} would get our token in the clear: use https")
        self.server = self.server.rstrip("/")

    def headers(self) -> dict[str, str]:
        """Return what a request must carry now. Raises ClusterError when the token cannot be read."""
        if self.token is None:
            return {}
        token = self.token
        if isinstance(token, Path):
            try:
                token = token.read_text(encoding="ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ClusterError(f"token {self.token}: {_reason(error)}: mount the service account's token") from None
        return {"Authorization": f"Bearer {token}"}

    def context(self) -> ssl.SSLContext | bool:
        """Return the TLS context, a new one when a certificate's file has changed. Raises ClusterError."""
        if self.server.startswith("http:"):
            return False
        stamp = tuple(_stamp(item) for item in (self.authority, self.certificate, self.key))
        if self._context is None or stamp != self._stamp:
            self._context, self._stamp = self._new_context(), stamp
        return self._context

    def _new_context(self) -> ssl.SSLContext:
        try:
            if isinstance(self.authority, Path):
                context = ssl.create_default_context(cafile=self.authority)
            else:
                context = ssl.create_default_context(cadata=self.authority.decode() if self.authority else None)
            # Authorities of clusters lack what newer Pythons ask of them, a key identifier for one.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.certificate is not None and self.key is not None:
                with _CertificateFile(self.certificate) as certificate, _CertificateFile(self.key) as key:
                    context.load_cert_chain(certificate.path, key.path)
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise ClusterError(f"certificates for {self.server}: {_reason(error)}: put them right") from None
        return context


class _CertificateFile:
    """A path to what ssl takes only from a file: text of a kubeconfig lies in memory, never on a disk."""

    def __init__(self, source: Path | bytes) -> None:
        self._source = source
        self._handle = -1
        self.path = ""

    def __enter__(self) -> Self:
        if isinstance(self._source, Path):
            self.path = str(self._source)
        else:
            self._handle = os.memfd_create("sharepod-certificate", os.MFD_CLOEXEC)
            os.write(self._handle, self._source)
            self.path = f"/proc/self/fd/{self._handle}"
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle >= 0:
            os.close(self._handle)


def in_cluster(environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> Cluster:
    """Return the cluster of the pod that we run in. Raises ClusterError outside of one."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise ClusterError(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set, so this is no pod: give a kubeconfig"
        )
    for name in ("token", "ca.crt"):
        if not (account / name).is_file():
            raise ClusterError(f"{account / name} is not there: give the pod a service account")
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Cluster(server, authority=account / "ca.crt", token=account / "token")


def from_kubeconfig(path: Path) -> Cluster:
    """Return the cluster of a kubeconfig's current context: a token or a client certificate. Raises ClusterError."""
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ClusterError(f"kubeconfig {path}: {_reason(error)}: name a readable kubeconfig") from None
    reader = _Kubeconfig(path, loaded)
    context = reader.entry("contexts", "context", reader.text(reader.whole, "current-context"))
    cluster = reader.entry("clusters", "cluster", reader.text(context, "cluster"))
    user = reader.entry("users", "user", reader.text(context, "user")) if context.get("user") else {}
    for key in ("exec", "auth-provider", "username"):
        if key in user:
            raise ClusterError(f"kubeconfig {path}: {key} is not supported: use a token or a client certificate")
    token = user.get("token")
    return Cluster(
        server=reader.text(cluster, "server"),
        authority=reader.material(cluster, "certificate-authority"),
        token=str(token) if token else reader.file(user, "tokenFile"),
        certificate=reader.material(user, "client-certificate"),
        key=reader.material(user, "client-key"),
        server_name=str(cluster["tls-server-name"]) if cluster.get("tls-server-name") else None,
        verify=cluster.get("insecure-skip-tls-verify") is not True,
    )


class _Kubeconfig:
    """Reads parts of a kubeconfig; what is missing or of the wrong kind is a ClusterError."""

    def __init__(self, path: Path, loaded: object) -> None:
        self._path = path
        self.whole = self._mapping(loaded, "it")

    def _mapping(self, value: object, what: str) -> dict[str, object]:
        if not isinstance(value, dict):
            raise ClusterError(f"kubeconfig {self._path}: {what} is no mapping: write it as kubectl does")
        return {str(key): item for key, item in value.items()}

    def entry(self, section: str, kind: str, name: str) -> dict[str, object]:
        items = self.whole.get(section)
        for item in items if isinstance(items, list) else []:
            if isinstance(item, dict) and item.get("name") == name:
                return self._mapping(item.get(kind), f"{kind} {name}")
        raise ClusterError(f"kubeconfig {self._path}: there is no {kind} {name}: add it, or choose another context")

    def text(self, place: Mapping[str, object], key: str) -> str:
        value = place.get(key)
        if not isinstance(value, str) or not value:
            raise ClusterError(f"kubeconfig {self._path}: {key} is missing: add it")
        return value

    def file(self, place: Mapping[str, object], key: str) -> Path | None:
        return self._path.parent / self.text(place, key) if place.get(key) else None

    def material(self, place: Mapping[str, object], key: str) -> Path | bytes | None:
        """Return the certificate or key: `<key>-data` wins over the file that `<key>` names."""
        if not place.get(f"{key}-data"):
            return self.file(place, key)
        try:
            return base64.b64decode(self.text(place, f"{key}-data"), validate=True)
        except (binascii.Error, ValueError):
            raise ClusterError(f"kubeconfig {self._path}: {key}-data is no base64: write it as kubectl does") from None


def _stamp(source: Path | bytes | None) -> object:
    """Return what changes when a file is replaced; its absence counts too, and is found when it is read."""
    if not isinstance(source, Path):
        return None
    try:
        status = source.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())[:200]
