"""Test the webhook over HTTPS: the API server's requests, requests of strangers, changing certificates, its end."""

import contextlib
import gzip
import http.client
import json
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from foreign_pods import hami, kai, patched, pod, review, shares
from prometheus_client.parser import text_string_to_metric_families
from server_certificates import Certificates
from webhook_process import Webhook, webhook

from rig import REPO_ROOT
from rig.cluster.apiserver import unused_port
from sharepod.process.credentials import Credentials
from sharepod.webhook.metrics import WebhookMetrics, manual
from sharepod.webhook.review import Decision
from sharepod.webhook.server import BODY_MAX, WebhookServer


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    with webhook(tmp_path_factory.mktemp("webhook"), "--device-memory", "80Gi") as found:
        yield found


def test_a_pod_of_another_system_becomes_one_with_a_share(running: Webhook) -> None:
    item = hami({"gpu": 2, "gpumem": 40960})
    said = running.admit(item, name="train-0")
    assert (said["uid"], said["allowed"]) == ("705ab4f5-6393-11e8-b7cc-42010a800002", True)
    share = shares(patched(item, Decision(patch=tuple(said["patch"]))))["a"]
    assert (share.devices, share.request_millipercent, share.memory_limit_bytes) == (2, 50_000, 40 * 2**30)
    told = running.event("pod translated", pod="train-0")
    assert (told["namespace"], told["system"], told["level"]) == ("team", "HAMi", "info")


def test_a_pod_that_cannot_be_is_refused_with_its_reason(running: Webhook) -> None:
    said = running.admit(kai(gpu_fraction="0.125"), dryRun=True)
    assert said["allowed"] is False
    cause = "annotation gpu-fraction is '0.125', finer than 1 %: give 0.12 or 0.13"
    assert said["status"]["message"] == f"sharepod: {cause}"
    assert (said["status"]["code"], said["status"]["reason"]) == (403, "Forbidden")
    told = running.event("pod refused")
    assert (told["cause"], told["dry_run"]) == (cause, True)


def test_other_pods_and_updates_pass(running: Webhook) -> None:
    for item, more in ((pod({}), {}), (kai(gpu_fraction="7"), {"operation": "UPDATE", "oldObject": {}})):
        assert running.admit(item, **more) == {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True}


def test_what_it_was_asked_and_answered_is_in_its_metrics(tmp_path: Path) -> None:
    address = f"127.0.0.1:{unused_port()}"
    with webhook(tmp_path, "--metrics-listen", address) as one:
        for item in (kai(gpu_fraction="0.5"), kai(gpu_fraction="0.5"), kai(gpu_fraction="0.125"), pod({})):
            one.admit(item)
        assert one.post(b"{", "/gate")[0] == 400
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        found = {(s.name, *sorted(s.labels.values())): s.value for family in families for s in family.samples}
    told = {key[1:]: value for key, value in found.items() if key[0] == "sharepod_webhook_requests_total"}
    assert told == {
        ("changed", "compatibility"): 2, ("compatibility", "refused"): 1, ("compatibility", "unchanged"): 1,
        ("compatibility", "malformed"): 0, ("changed", "gate"): 0, ("gate", "refused"): 0, ("gate", "unchanged"): 0,
        ("gate", "malformed"): 1,
    }  # fmt: skip
    assert found["sharepod_webhook_request_seconds_count", "compatibility"] == 4
    assert 0 < found["sharepod_webhook_request_seconds_sum", "compatibility"] < 4
    assert (REPO_ROOT / "docs" / "webhook-metrics.md").read_text() == manual()


def refused(webhook: Webhook, body: bytes, **headers: str) -> tuple[int, str]:
    """Send a body that is no review; return status and text, which the log must repeat once."""
    status, answer = webhook.post(body, **headers)
    cause = answer.decode().removesuffix("\n")
    told = webhook.event("request not understood", status=status, cause=cause)
    assert (told["level"], told["peer"]) == ("warning", "127.0.0.1")
    return status, cause


def test_what_is_no_review_gets_a_status_and_a_line(running: Webhook) -> None:
    assert refused(running, b"[" * 100_000) == (400, "it is no JSON")
    assert refused(running, json.dumps(review({}, object=[])).encode()) == (400, "object is no object")
    too_long = b" " * (BODY_MAX + 1)
    assert refused(running, too_long) == (413, f"the body is longer than {BODY_MAX} bytes")
    assert refused(running, b"{}", Content_Type="text/plain") == (415, "the body is not application/json")
    assert running.post(b"[]", "/gate") == (400, b"it is no JSON object\n")
    packed = gzip.compress(json.dumps(review(pod({}))).encode())
    assert refused(running, packed, Content_Encoding="gzip") == (400, "it is no JSON")
    assert running.post(b"", "/elsewhere")[0] == 404
    assert running.post(b"", "/compatibility", "GET")[0] == 405
    with running.encrypted() as encrypted:
        encrypted.sendall(b"\x00\x01 / HTTP/9.9\r\n\r\n")
        assert b" 400 " in encrypted.recv(1000)
    assert running.admit(pod({}))["allowed"] is True


def test_a_pod_with_a_share_gets_its_gate_and_a_gang_that_cannot_be_is_refused(running: Webhook) -> None:
    said = running.admit(pod({"sharepod.io/gpu": "30"}), "/gate")
    assert said["allowed"] is True
    assert [operation["value"] for operation in said["patch"]] == [[{"name": "sharepod.io/gate"}]]
    wrong = pod({"sharepod.io/gpu": "30"}, annotations={"sharepod.io/gang": "g", "sharepod.io/gang-size": "0"})
    said = running.admit(wrong, "/gate")
    cause = "sharepod.io/gang-size is '0': give a whole number from 1 to 4096"
    assert (said["allowed"], said["status"]["message"]) == (False, f"sharepod: {cause}")
    assert running.event("pod refused")["cause"] == cause


def begun(running: Webhook, header: str, value: str, body: bytes | None = None) -> http.client.HTTPSConnection:
    """Return a connection on which a request has begun; the request's header announces more body than is sent."""
    connection = running.connect()
    connection.putrequest("POST", "/compatibility")
    connection.putheader("Content-Type", "application/json")
    connection.putheader(header, value)
    connection.endheaders(body)
    return connection


def test_a_body_that_is_longer_than_it_says_is_not_kept(running: Webhook) -> None:
    with contextlib.closing(begun(running, "Transfer-Encoding", "chunked")) as connection:
        piece = b"%x\r\n%s\r\n" % (2**16, b" " * 2**16)
        with contextlib.suppress(OSError):
            for _ in range(2 * BODY_MAX // 2**16):
                connection.send(piece)
    assert running.event("request not understood", status=413)["cause"]


def test_a_body_that_does_not_come_is_not_waited_for(running: Webhook) -> None:
    with contextlib.closing(begun(running, "Content-Length", "1000", b"{")) as connection:
        assert running.admit(pod({}))["allowed"] is True, "others are served meanwhile"
        assert connection.getresponse().status == 408
    assert running.event("request not understood", status=408)["cause"]


def test_peers_that_speak_something_else_harm_nobody_and_write_nothing_into_the_log(tmp_path: Path) -> None:
    with webhook(tmp_path) as own:
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 400, b""):
            with socket.create_connection(("127.0.0.1", own.port)) as plain:
                plain.sendall(said)
        with own.encrypted() as encrypted:
            head = b"POST /compatibility HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            encrypted.sendall(head + b"Content-Length: 1000\r\n\r\n{")  # the client closes before it sends the rest
        assert own.admit(pod({}))["allowed"] is True
        assert own.end() == 0
        assert {line["event"] for line in own.rest()} <= {"pod unchanged", "webhook stopping", "request not understood"}


@pytest.mark.early
def test_a_flood_of_nonsense_does_not_become_a_flood_of_lines(tmp_path: Path) -> None:
    with webhook(tmp_path) as own:
        for _ in range(60):
            assert own.post(b"nonsense")[0] == 400
        assert own.end() == 0
        told = [line for line in own.rest() if line["event"] == "request not understood"]
    assert 10 <= len(told) < 60


def shown(running: Webhook, **trusted: Any) -> bytes | None:
    """Return the certificate that the webhook shows to a peer."""
    with running.encrypted(**trusted) as encrypted:
        return encrypted.getpeercert(binary_form=True)


def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    with webhook(tmp_path) as own:
        first, old = shown(own), own.certificates.authority
        kept = own.connect()
        kept.request("GET", "/healthz")
        assert kept.getresponse().read() == b"ok\n"
        own.certificates.renew()
        renewed = shown(own)
        assert renewed not in (None, first)
        assert own.event("credentials of the webhook read again")["level"] == "info"
        with pytest.raises(ssl.SSLCertVerificationError):
            shown(own, authority=old)
        kept.request("GET", "/healthz")
        assert kept.getresponse().read() == b"ok\n", "a connection that is open stays"
        kept.close()
        own.certificates.certificate.write_bytes(b"nonsense")
        assert shown(own) == renewed, "what cannot be read does not replace what can"
        assert "are no certificate with its key" in own.event("credentials of the webhook not read again")["cause"]
        assert shown(own, name=None) == renewed, "also for a peer that names no server"


async def test_a_server_that_has_stopped_lets_nobody_in(tmp_path: Path) -> None:
    own = Certificates(tmp_path, "localhost")
    credentials = Credentials(str(own.certificate), str(own.key), what="webhook", reader="webhook")
    server = WebhookServer({}, credentials, WebhookMetrics())
    port = await server.start("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    await server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    await WebhookServer({}, credentials, WebhookMetrics()).stop()  # as after a start that failed


def test_it_serves_on_while_it_drains_and_sends_everybody_away(tmp_path: Path) -> None:
    with webhook(tmp_path, "--drain-seconds", "2") as own:
        connection = own.connect()
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b"ok\n"
        own.process.terminate()
        assert own.event("webhook stopping")["drain_seconds"] == 2
        body = json.dumps(review(kai(gpu_fraction="0.5")))
        connection.request("POST", "/compatibility", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert json.loads(answer.read())["response"]["allowed"] is True
        assert answer.getheader("Connection") == "close"
        connection.close()
        assert own.end() == 0
