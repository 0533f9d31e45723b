"""A server's certificate and key, and the authority of its clients: files as a Secret's volume has them."""

import ssl
from pathlib import Path

import trustme


class Certificates:
    """The files, of authorities that can be replaced."""

    def __init__(self, directory: Path, *names: str) -> None:
        """`names`: what the server is called."""
        self.certificate, self.key, self.client_ca = (directory / name for name in ("tls.crt", "tls.key", "ca.crt"))
        self._names = names
        self.renew()

    def renew(self) -> None:
        """Write all of them anew, of new authorities."""
        self.authority, self.clients = trustme.CA(), trustme.CA()
        issued = self.authority.issue_cert(*self._names)
        blobs = issued.cert_chain_pems[0], issued.private_key_pem, self.clients.cert_pem
        for path, blob in zip((self.certificate, self.key, self.client_ca), blobs, strict=True):
            fresh = path.with_suffix(".new")
            fresh.write_bytes(blob.bytes())
            fresh.replace(path)

    def trust(self, authority: trustme.CA | None = None, issuer: trustme.CA | None = None) -> ssl.SSLContext:
        """Return what a client has that trusts an authority, by default the present one of the server.

        It shows a certificate of `issuer`, or none.
        """
        context = ssl.create_default_context()
        (authority or self.authority).configure_trust(context)
        if issuer is not None:
            issuer.issue_cert("client").configure_cert(context)
        return context
