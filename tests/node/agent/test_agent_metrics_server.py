"""The metrics over the network: TLS and a bearer token, or nothing; in the format that the scraper asks for."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import logging
import shutil
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from rig.agent import free_port
from rig.until import until
from sharepod.agent.settings import OPTIONS
from sharepod.process import metrics_server
from sharepod.process.credentials import Credentials
from sharepod.process.errors import SettingsError
from sharepod.process.metrics_server import CONNECTIONS_MAX
from sharepod.proto import v1_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rig.agent import MakeAgent

TOKEN = "correct-horse-battery-staple"  # noqa: S105 - of this test
EVERYWHERE = "0.0.0.0"  # noqa: S104 - that is what is guarded
TEXT = "# HELP x One.\n# TYPE x gauge\nx 1.0\n"


class One:
    """A collector of one metric."""

    def collect(self) -> list[GaugeMetricFamily]:
        return [GaugeMetricFamily("x", "One.", 1)]


def make_certificate(directory: Path, name: str = "tls") -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1 that signs itself; return it and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here to make a certificate with")
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,IP:::1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A certificate, its key and a token."""
    directory = tmp_path_factory.mktemp("tls")
    token = directory / "token"
    token.write_text(f"{TOKEN}\n")
    return (*make_certificate(directory), token)


@pytest.fixture
def serve() -> Iterator[Callable[[Credentials], int]]:
    """Serve one metric on a port of the loopback."""
    stops: list[Callable[[], None]] = []

    def start(credentials: Credentials) -> int:
        port = free_port()
        stops.append(metrics_server.serve(One(), f"127.0.0.1:{port}", credentials))
        return port

    yield start
    for stop in stops:
        stop()


def get(
    port: int, certificate: Path | None = None, authorization: str | None = None, path: str = "/metrics"
) -> tuple[int, str]:
    """Ask as Prometheus does, believing that certificate alone; return the status and the text."""
    scheme = "https" if certificate else "http"
    context = ssl.create_default_context(cafile=str(certificate)) if certificate else None
    request = urllib.request.Request(f"{scheme}://127.0.0.1:{port}{path}")  # noqa: S310 - one of two
    if authorization is not None:
        request.add_header("Authorization", authorization)
    try:
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


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
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("HEAD", "/metrics")
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("Content-Length"), answer.read()) == (200, str(len(TEXT)), b"")
        assert answer.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
        assert answer.getheader("Server") == "sharepod"
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("POST", "/metrics", b"x")
        assert connection.getresponse().status == 501


@pytest.mark.parametrize(
    ("accept", "content_type", "end"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8", ""),
        ("text/plain;version=0.0.4", "text/plain; version=0.0.4; charset=utf-8", ""),
        # What Prometheus 3 sends, and what Prometheus 2 does.
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
    connection = http.client.HTTPConnection("127.0.0.1", serve(Credentials()), timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics", headers={"Accept": accept, "Accept-Encoding": encoding})
        answer = connection.getresponse()
        body = answer.read()
    assert answer.getheader("Content-Type") == content_type
    assert answer.getheader("Content-Encoding") == ("gzip" if encoding else None)
    assert (gzip.decompress(body) if encoding else body).decode() == TEXT + end


def test_the_metrics_of_an_agent_are_valid_openmetrics(make_agent: MakeAgent) -> None:
    port = free_port()
    agent = make_agent("--metrics-listen", f"127.0.0.1:{port}").start()
    share = agent.register(30, labels={"namespace": "n", "pod": "p", "container": "c"}).share
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        text = connection.getresponse().read().decode()
    families = {one.name: one for one in text_string_to_metric_families(text)}
    assert families["sharepod_share"].type == "info"
    assert families["sharepod_share_turns"].type == "counter"
    assert families["sharepod_share_turn_wait_seconds"].type == "histogram"
    assert [one.labels["share"] for one in families["sharepod_share"].samples] == [share.id]


def test_peers_that_say_nothing_delay_nobody_and_are_bounded(
    serve: Callable[[Credentials], int], files: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server._Handler, "timeout", 60.0)
    monkeypatch.setattr(metrics_server, "PATIENCE_S", 60.0)
    port = serve(Credentials(*map(str, files)))
    with contextlib.ExitStack() as silent:
        for _ in range(CONNECTIONS_MAX - 1):  # in the midst of a handshake
            silent.enter_context(socket.create_connection(("127.0.0.1", port)))
        until(lambda: _answers(port, files[0]))

        def one_more_is_closed() -> bool:
            silent.enter_context(socket.create_connection(("127.0.0.1", port)))
            return _is_closed(port)

        until(one_more_is_closed)
    until(lambda: _answers(port, files[0]))


def _answers(port: int, certificate: Path) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return get(port, certificate, f"Bearer {TOKEN}")[0] == 200
    return False


def _is_closed(port: int) -> bool:
    """Tell whether the server closes a new connection at once."""
    with socket.create_connection(("127.0.0.1", port)) as probe:
        probe.settimeout(0.3)
        try:
            return probe.recv(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True


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

    renewed, renewed_key = make_certificate(tmp_path, "renewed")
    old = tmp_path / "old.crt"
    old.write_bytes(certificate.read_bytes())
    renewed.replace(certificate)  # and for a moment the key is not there yet: what was, is served
    assert get(port, old, f"Bearer {TOKEN}")[0] == 200
    renewed_key.replace(key)
    assert get(port, certificate, f"Bearer {TOKEN}")[0] == 200
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, ("--metrics-listen is '0.0.0.0:9464': give a loopback address like 127.0.0.1:9464, or, for the network, "
              "metrics_tls_certificate, metrics_tls_key and metrics_token_file too")),
        ({"metrics_token_file": "/t"}, "--metrics-listen is '0.0.0.0:9464': give a loopback address"),
        ({"metrics_tls_certificate": "/c", "metrics_tls_key": "/k"}, "--metrics-listen is '0.0.0.0:9464': give a loop"),
        ({"metrics_tls_certificate": "/c", "metrics_token_file": "/t"},
         "metrics_tls_certificate is given without metrics_tls_key: give both, or none"),
        ({"metrics_tls_key": "/k", "metrics_token_file": "/t"},
         "metrics_tls_key is given without metrics_tls_certificate: give both, or none"),
        ({"metrics_token_file": "t"}, "--metrics-token-file is 't': give an absolute path"),
    ],
)  # fmt: skip
def test_the_network_is_refused_in_one_line_without_all_three(flags: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        OPTIONS.load({"metrics_listen": "0.0.0.0:9464", **flags}, {})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("address", ["10.0.0.1:9464", "[::]:9464", "[fe80::1]:9464", "[::ffff:127.0.0.1]:9464"])
def test_every_address_beyond_the_loopback_is_of_the_network(address: str) -> None:
    with pytest.raises(SettingsError, match="for the network, metrics_tls_certificate, metrics_tls_key and metrics_to"):
        OPTIONS.load({"metrics_listen": address}, {})
    three = {"metrics_tls_certificate": "/c", "metrics_tls_key": "/k", "metrics_token_file": "/t"}
    assert OPTIONS.load({"metrics_listen": address, **three}, {}).metrics_listen == address


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:9464", "127.1.2.3:1", "[::1]:9464", "localhost:65535", "off", ""],
)
def test_the_loopback_needs_none(address: str) -> None:
    assert OPTIONS.load({"metrics_listen": address}, {}).metrics_listen == ("" if address == "off" else address)


@pytest.mark.parametrize("address", ["1.2.3:9464", "1.2.3.400:9464", "host:9464", ":9464", "::1:9464", "[::g]:9464"])
def test_what_is_no_address_is_refused(address: str) -> None:
    three = {"metrics_tls_certificate": "/c", "metrics_tls_key": "/k", "metrics_token_file": "/t"}
    with pytest.raises(SettingsError, match="give a loopback address like"):
        OPTIONS.load({"metrics_listen": address, **three}, {})


def test_credentials_that_cannot_be_used_end_the_start_in_one_line(
    make_agent: MakeAgent, files: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    certificate, key, token = map(str, files)
    other, _ = make_certificate(tmp_path, "other")
    empty, spaced = tmp_path / "empty", tmp_path / "spaced"
    empty.write_text("\n")
    spaced.write_text("two words that are long enough")
    missing = str(tmp_path / "missing")
    useless = "it is no token: write one word of at least 16 printable ASCII characters"
    for given, message in (
        ((missing, key, token), f"{missing}: No such file or directory: name a file that the agent can read"),
        ((certificate, missing, token), f"{missing}: No such file or directory: name a file that the agent can read"),
        ((certificate, key, missing), f"{missing}: No such file or directory: name a file that the agent can read"),
        ((str(other), key, token), f"{other} and {key} are no certificate with its key (key values mismatch): give"),
        ((token, key, token), f"{token} and {key} are no certificate with its key ("),
        ((certificate, key, str(empty)), f"{empty}: {useless}"),
        ((certificate, key, str(spaced)), f"{spaced}: {useless}"),
    ):
        with pytest.raises(SettingsError) as caught:
            Credentials(*given)
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


def test_a_key_with_a_passphrase_is_refused_and_not_asked_for(tmp_path: Path, files: tuple[Path, Path, Path]) -> None:
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "pkey", "-in", files[1], "-aes256", "-passout", "pass:secret", "-out", locked], check=True
    )
    with pytest.raises(SettingsError, match="are no certificate with its key"):
        Credentials(str(files[0]), str(locked))
