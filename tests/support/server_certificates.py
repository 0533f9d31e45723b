"""Makes a server's certificate, its key and its clients' authority, as files like those of a Secret's volume."""

import ssl
from pathlib import Path

import trustme


class Certificates:
    """The files, issued by authorities that can be replaced."""

    def __init__(self, directory: Path, *names: str) -> None:
        """`names`: the names that the server's certificate is for."""
        self.certificate, self.key, self.client_ca = (directory / name for name in ("tls.crt", "tls.key", "ca.crt"))
        self._names = names
        self.renew()

    def renew(self) -> None:
        """Write all files anew, issued by new authorities."""
        self.authority, self.clients = trustme.CA(), trustme.CA()
        issued = self.authority.issue_cert(*self._names)
        blobs = issued.cert_chain_pems[0], issued.private_key_pem, self.clients.cert_pem
        for path, blob in zip((self.certificate, self.key, self.client_ca), blobs, strict=True):
            fresh = path.with_suffix(".new")
            fresh.write_bytes(blob.bytes())
            fresh.replace(path)

    def trust(self, authority: trustme.CA | None = None, issuer: trustme.CA | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts an authority, by default the server's present one.

        The client shows a certificate of `issuer`, or none.
        """
        context = ssl.create_default_context()
        (authority or self.authority).configure_trust(context)
        if issuer is not None:
            issuer.issue_cert("client").configure_cert(context)
        return context
