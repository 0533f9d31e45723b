"""Makes the cluster's keys with openssl, in one folder: one authority per run, and the certificates that it signs.

A subject is a common name and its groups, as the API server reads them: ``/O=system:masters/CN=admin``.
"""

import subprocess
from pathlib import Path

DAYS = "7"


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Authority:
    """The authority that signs for one cluster."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self._key = folder / "ca.key"
        self._new_key(self._key)
        openssl("req", "-x509", "-new", "-key", self._key, "-days", DAYS, "-subj", "/CN=e2e", "-out", self.certificate)

    def issue(self, name: str, subject: str, addresses: tuple[str, ...] = ()) -> tuple[Path, Path]:
        """Return the certificate and the key of a subject; with addresses, a server may use them there."""
        certificate, key, request = (self.folder / f"{name}.{kind}" for kind in ("crt", "key", "csr"))
        self._new_key(key)
        openssl("req", "-new", "-key", key, "-subj", subject, "-out", request)
        extensions = self.folder / f"{name}.ext"
        lines = ["extendedKeyUsage=clientAuth,serverAuth"]
        if addresses:
            kinds = ["IP" if address[0].isdigit() else "DNS" for address in addresses]
            lines.append("subjectAltName=" + ",".join(f"{k}:{a}" for k, a in zip(kinds, addresses, strict=True)))
        extensions.write_text("\n".join(lines) + "\n")
        signer: list[str | Path] = ["-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-days", DAYS]
        openssl("x509", "-req", "-in", request, *signer, "-extfile", extensions, "-out", certificate)
        return certificate, key

    def _new_key(self, path: Path) -> None:
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)
