"""Test the metrics over the network: TLS and a bearer token, or no answer; in the format that the scraper accepts."""

import contextlib
import gzip
import http.client
import logging
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from server_certificates import Certificates

from rig.agent import MakeAgent, free_port
from rig.until import until
from sharepod.process import metrics_server
from sharepod.process.credentials import Credentials
from sharepod.process.errors import SettingsError
from sharepod.process.metrics import Row, Table, families
from sharepod.process.metrics_page import Family
from sharepod.process.metrics_server import CONNECTIONS_MAX
from sharepod.proto import v1_pb2 as pb

TOKEN = "correct-horse-battery-staple"  # noqa: S105 - of this test
EVERYWHERE = "0.0.0.0"  # noqa: S104 - that is what is guarded
TEXT = "# HELP x One.\n# TYPE x gauge\nx 1.0\n"


class One:
    """A collector that gives one metric."""

    def collect(self) -> list[Family]:
        return families([Table("One", {}, (Row("x", "One.", float),), lambda one: [((), one)])], 1)


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1; return the files of the certificate and its key."""
    directory.mkdir(exist_ok=True)
    made = Certificates(directory, "127.0.0.1")
    return made.certificate, made.key


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Return the files of a certificate, its key and a token."""
    directory = tmp_path_factory.mktemp("tls")
    token = directory / "token"
    token.write_text(f"{TOKEN}\n")
    return (*make_certificate(directory), token)


@pytest.fixture
def serve() -> Iterator[Callable[[Credentials], int]]:
    """Yield a function that serves one metric on a port of the loopback."""
    stops: list[Callable[[], None]] = []

    def start(credentials: Credentials) -> int:
        port = free_port()
        stops.append(metrics_server.serve(One(), f"127.0.0.1:{port}", credentials))
        return port

    yield start
    for stop in stops:
        stop()


def request(
    port: int, method: str, path: str = "/metrics", certificate: Path | None = None, **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    """Ask as Prometheus does, with trust in this certificate alone; return the answer and its body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    if certificate is not None:
        context = ssl.create_default_context(cafile=str(certificate))
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # trust it without the authority that signed it
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    with contextlib.closing(connection):
        connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        return answer, answer.read()


def get(
    port: int, certificate: Path | None = None, authorization: str | None = None, path: str = "/metrics"
) -> tuple[int, str]:
    """Return the status and the text of the metrics."""
    headers = {} if authorization is None else {"Authorization": authorization}
    answer, body = request(port, "GET", path, certificate, **headers)
    return answer.status, body.decode()


@pytest.mark.parametrize("of_kernel", [True, False], ids=["both families", "IPv4 alone"])
def test_all_addresses_are_those_of_both_families_that_the_kernel_has(
    monkeypatch: pytest.MonkeyPatch, of_kernel: bool
) -> None:
    both = of_kernel and socket.has_dualstack_ipv6()
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: both)
    port = free_port()
    stop = metrics_server.serve(One(), f"[::]:{port}", Credentials())
    try:
        for host in ("127.0.0.1", *["::1"] * both):
            with contextlib.closing(http.client.HTTPConnection(host, port, timeout=10)) as connection:
                connection.request("GET", "/metrics")
                assert connection.getresponse().read().decode() == TEXT
        if not both and socket.has_ipv6:
            with pytest.raises(OSError, match=r"refused|unreachable|not supported"):
                socket.create_connection(("::1", port), timeout=5)
    finally:
        stop()


def test_who_has_the_token_reads_the_metrics_of_an_agent_over_the_network(
    make_agent: MakeAgent, files: tuple[Path, Path, Path]
) -> None:
    certificate, key, token = files
    port = free_port()
    agent = make_agent(
        "--metrics-listen", f"{EVERYWHERE}:{port}", "--metrics-tls-certificate", str(certificate),
        "--metrics-tls-key", str(key), "--metrics-token-file", str(token),
    ).start()  # fmt: skip
    share = agent.register(30, labels={"pod": "p"}).share
    status, text = get(port, certificate, f"Bearer {TOKEN}")
    assert status == 200
    assert f'share="{share.id}"' in text
    assert text.count("# TYPE ") > 30
    for wrong in (None, "", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN,
                  "Bearer \xe9", f"Bearer {TOKEN} {TOKEN}"):  # fmt: skip
        status, text = get(port, certificate, wrong)
        assert (status, text) == (401, "the bearer token of metrics_token_file is asked for\n")
    with pytest.raises((OSError, http.client.HTTPException)):
        get(port, None, f"Bearer {TOKEN}")
    assert get(port, certificate, f"Bearer {TOKEN}")[0] == 200
    assert TOKEN not in str(agent.stub.GetNode(pb.GetNodeRequest()))
    assert agent.stop() == 0
    assert TOKEN not in agent.log()
    assert "Traceback" not in agent.log()


def test_a_token_alone_guards_the_loopback(serve: Callable[[Credentials], int], files: tuple[Path, Path, Path]) -> None:
    port = serve(Credentials(token_file=str(files[2])))
    assert get(port)[0] == 401
    assert get(port, authorization=f"bearer {TOKEN}") == (200, TEXT)


def test_nothing_but_the_metrics_is_served(serve: Callable[[Credentials], int]) -> None:
    port = serve(Credentials())
    assert get(port) == (200, TEXT)
    assert get(port, path="/metrics?name[]=x") == (200, TEXT)
    assert get(port, path="/etc/passwd") == (404, "the metrics are at /metrics\n")
    answer, body = request(port, "HEAD")
    assert (answer.status, answer.getheader("Content-Length"), body) == (200, str(len(TEXT)), b"")
    assert answer.getheader("Server") == "sharepod"
    assert request(port, "POST")[0].status == 501


@pytest.mark.parametrize(
    ("accept", "content_type", "end"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8", ""),
        ("text/plain;version=0.0.4", "text/plain; version=0.0.4; charset=utf-8", ""),
        # What Prometheus 3 sends, then what Prometheus 2 sends.
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.4,*/*;q=0.2",
         "application/openmetrics-text; version=1.0.0; charset=utf-8", "# EOF\n"),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
         "application/openmetrics-text; version=1.0.0; charset=utf-8", "# EOF\n"),
        ("application/openmetrics-text;version=0.0.1", "text/plain; version=0.0.4; charset=utf-8", ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("encoding", ["", "gzip", "deflate, gzip"])
def test_a_scraper_gets_the_format_and_the_compression_that_it_accepts(
    serve: Callable[[Credentials], int], accept: str, content_type: str, end: str, encoding: str
) -> None:
    answer, body = request(serve(Credentials()), "GET", Accept=accept, Accept_Encoding=encoding)
    assert answer.getheader("Content-Type") == content_type
    assert answer.getheader("Content-Encoding") == ("gzip" if encoding else None)
    assert (gzip.decompress(body) if encoding else body).decode() == TEXT + end


def test_peers_that_say_nothing_delay_nobody_and_are_bounded(
    serve: Callable[[Credentials], int], files: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server._Handler, "timeout", 60.0)
    monkeypatch.setattr(metrics_server, "PATIENCE_S", 60.0)
    port = serve(Credentials(*map(str, files)))
    with contextlib.ExitStack() as silent:
        for _ in range(CONNECTIONS_MAX - 1):  # connections that stop in the middle of a handshake
            silent.enter_context(socket.create_connection(("127.0.0.1", port)))
        until(lambda: _answers(port, files[0]))

        def one_more_is_closed() -> bool:
            peer = silent.enter_context(socket.create_connection(("127.0.0.1", port)))
            peer.settimeout(0.3)
            try:
                return peer.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        until(one_more_is_closed)
    until(lambda: _answers(port, files[0]))


def _answers(port: int, certificate: Path) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return get(port, certificate, f"Bearer {TOKEN}")[0] == 200
    return False


def test_a_peer_that_says_nothing_is_let_go(
    serve: Callable[[Credentials], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.2)
    port = serve(Credentials())
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.settimeout(10)
        peer.sendall(b"GET /metr")
        assert peer.recv(1) == b""


def test_a_renewed_certificate_and_token_are_taken_without_a_restart(
    serve: Callable[[Credentials], int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sharepod.agent.metrics")
    certificate, key = make_certificate(tmp_path)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    port = serve(Credentials(str(certificate), str(key), str(token)))
    assert get(port, certificate, f"Bearer {TOKEN}")[0] == 200

    renewed, renewed_key = make_certificate(tmp_path / "renewed")
    old = certificate.rename(tmp_path / "old.crt")
    renewed.replace(certificate)  # until the new key is there too, the old certificate is served
    assert get(port, old, f"Bearer {TOKEN}")[0] == 200
    renewed_key.replace(key)
    assert get(port, certificate, f"Bearer {TOKEN}")[0] == 200
    with pytest.raises(ssl.SSLCertVerificationError, match="CERTIFICATE_VERIFY_FAILED"):
        get(port, old, f"Bearer {TOKEN}")

    token.write_text("another-token-of-some-length")
    assert get(port, certificate, f"Bearer {TOKEN}")[0] == 401
    assert get(port, certificate, "Bearer another-token-of-some-length")[0] == 200
    token.write_text("short")
    for _ in range(3):
        assert get(port, certificate, "Bearer another-token-of-some-length")[0] == 200
    told = [(record.levelname, record.message) for record in caplog.records]
    read, failed = "credentials of the metrics read again", "credentials of the metrics not read again"
    assert told == [("ERROR", failed), ("INFO", read), ("INFO", read), ("ERROR", failed)]
    assert TOKEN not in caplog.text


def test_credentials_that_cannot_be_used_end_the_start_in_one_line(
    make_agent: MakeAgent, files: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    certificate, key, token = map(str, files)
    other, _ = make_certificate(tmp_path / "other")
    missing, empty, spaced, locked = (tmp_path / name for name in ("missing", "empty", "spaced", "locked.key"))
    empty.write_text("\n")
    spaced.write_text("two words that are long enough")
    subprocess.run(["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", locked], check=True)
    useless = "it is no token: write one word of at least 16 printable ASCII characters"
    not_there = f"{missing}: No such file or directory: name a file that the agent can read"
    for given, message in (
        ((missing, key, token), not_there),
        ((certificate, missing, token), not_there),
        ((certificate, key, missing), not_there),
        ((other, key, token), f"{other} and {key} are no certificate with its key (key values mismatch): give"),
        ((token, key, token), f"{token} and {key} are no certificate with its key ("),
        # For a locked key OpenSSL would ask for the passphrase on the terminal.
        ((certificate, locked, token), f"{certificate} and {locked} are no certificate with its key ("),
        ((certificate, key, empty), f"{empty}: {useless}"),
        ((certificate, key, spaced), f"{spaced}: {useless}"),
    ):
        with pytest.raises(SettingsError) as caught:
            Credentials(*map(str, given))
        assert str(caught.value).startswith(f"metrics: {message}")
        assert "\n" not in str(caught.value)
    agent = make_agent(
        "--metrics-listen", f"{EVERYWHERE}:{free_port()}", "--metrics-tls-certificate", certificate,
        "--metrics-tls-key", key, "--metrics-token-file", str(empty),
    )  # fmt: skip
    process = agent.spawn()
    _, output = process.communicate(timeout=20)
    assert (process.returncode, output) == (2, f"sharepod agent: metrics: {empty}: {useless}\n")
    assert not agent.directory.exists()
