"""The webhook over HTTPS: what the API server asks, what strangers send, certificates that change, its end."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import ssl
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from foreign_pods import Object, hami, kai, patched, pod, response, review, shares
from prometheus_client.parser import text_string_to_metric_families
from webhook_process import NAME, Webhook, webhook

from rig import REPO_ROOT
from rig.cluster.apiserver import unused_port
from sharepod.webhook.metrics import manual
from sharepod.webhook.review import Decision
from sharepod.webhook.server import BODY_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    import trustme


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


def test_a_warning_is_short_enough_to_be_shown_whole(running: Webhook) -> None:
    item = hami({"gpucores": 30})
    item["spec"]["containers"][0]["name"] = "x" * 55
    [warning] = running.admit(item)["warnings"]
    assert warning.endswith("asks for no nvidia.com/gpumem")
    assert len(warning) <= 120


def test_a_connection_serves_many_pods_and_no_name_is_needed(running: Webhook) -> None:
    connection = running.connect()
    with contextlib.closing(connection):
        for _ in range(50):
            body = json.dumps(review(kai(gpu_fraction="0.5")))
            connection.request("POST", "/compatibility", body, {"Content-Type": "application/json"})
            assert json.loads(connection.getresponse().read())["response"]["allowed"] is True


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


def test_the_manual_of_the_metrics_is_current() -> None:
    assert (REPO_ROOT / "docs" / "webhook-metrics.md").read_text() == manual()


def test_it_is_healthy(running: Webhook) -> None:
    assert running.post(b"", "/healthz", "GET") == (200, b"ok\n")


def refused(webhook: Webhook, body: bytes, **headers: str) -> tuple[int, str]:
    """Return status and text of what is no review; the log says the same once."""
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
    packed = gzip.compress(json.dumps(review(pod({}))).encode())
    assert refused(running, packed, Content_Encoding="gzip") == (400, "it is no JSON")
    assert running.post(b"", "/elsewhere")[0] == 404
    assert running.post(b"", "/compatibility", "GET")[0] == 405
    assert running.admit(pod({}))["allowed"] is True


def asked_for_gates(running: Webhook, item: Object, **more: object) -> tuple[int, bytes]:
    return running.post(json.dumps(review(item, **more)).encode(), "/gate")


def test_a_pod_with_a_share_gets_its_gate_and_a_gang_that_cannot_be_is_refused(running: Webhook) -> None:
    item = pod({"sharepod.io/gpu": "30"})
    status, body = asked_for_gates(running, item)
    said = response(body)
    assert (status, said["allowed"]) == (200, True)
    gated = patched(item, Decision(patch=tuple(said["patch"])))
    assert gated["spec"]["schedulingGates"] == [{"name": "sharepod.io/gate"}]
    assert response(asked_for_gates(running, pod({}))[1])["allowed"] is True
    wrong = pod({"sharepod.io/gpu": "30"}, annotations={"sharepod.io/gang": "g", "sharepod.io/gang-size": "0"})
    said = response(asked_for_gates(running, wrong)[1])
    cause = "sharepod.io/gang-size is '0': give a whole number from 1 to 4096"
    assert (said["allowed"], said["status"]["message"]) == (False, f"sharepod: {cause}")
    assert running.event("pod refused")["cause"] == cause


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b"", "it is no JSON"),
        (b"[]", "it is no JSON object"),
        (b"{}", "it is no AdmissionReview of admission.k8s.io/v1"),
        (json.dumps(review(pod({}), uid=7)).encode(), "request.uid is no text of its kind"),
    ],
)
def test_what_is_no_review_gets_no_gate_but_a_status_and_a_line(running: Webhook, body: bytes, cause: str) -> None:
    assert running.post(body, "/gate") == (400, f"{cause}\n".encode())
    assert running.event("request not understood", status=400)["cause"] == cause


def test_a_body_that_is_longer_than_it_says_is_not_kept(running: Webhook) -> None:
    connection = running.connect()
    with contextlib.closing(connection):
        connection.putrequest("POST", "/compatibility")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        piece = b"%x\r\n%s\r\n" % (2**16, b" " * 2**16)
        with contextlib.suppress(OSError):
            for _ in range(2 * BODY_MAX // 2**16):
                connection.send(piece)
    assert running.event("request not understood", status=413)["cause"]


def test_a_body_that_does_not_come_is_not_waited_for(running: Webhook) -> None:
    connection = running.connect()
    with contextlib.closing(connection):
        connection.putrequest("POST", "/compatibility")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", "1000")
        connection.endheaders(b"{")
        assert running.admit(pod({}))["allowed"] is True, "others are served meanwhile"
        assert connection.getresponse().status == 408
    assert running.event("request not understood", status=408)["cause"]


def test_peers_that_speak_something_else_harm_nobody(running: Webhook) -> None:
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 400, b""):
        with socket.create_connection(("127.0.0.1", running.port)) as plain:
            plain.sendall(said)
    with running.certificates.trust().wrap_socket(
        socket.create_connection(("127.0.0.1", running.port)), server_hostname=NAME
    ) as encrypted:
        encrypted.sendall(b"\x00\x01 / HTTP/9.9\r\n\r\n")
        assert b" 400 " in encrypted.recv(1000)
    assert running.admit(pod({}))["allowed"] is True


def test_a_flood_of_nonsense_does_not_become_a_flood_of_lines(tmp_path: Path) -> None:
    with webhook(tmp_path) as own:
        for _ in range(60):
            assert own.post(b"nonsense")[0] == 400
        assert own.end() == 0
        told = [line for line in own.rest() if line["event"] == "request not understood"]
    assert 10 <= len(told) < 60


def serial(running: Webhook, authority: trustme.CA | None = None) -> bytes:
    """Return the certificate that is shown to a peer that trusts this authority."""
    context = running.certificates.trust(authority)
    with (
        socket.create_connection(("127.0.0.1", running.port)) as plain,
        context.wrap_socket(plain, server_hostname=NAME) as encrypted,
    ):
        shown = encrypted.getpeercert(binary_form=True)
        assert shown is not None
        return shown


def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    with webhook(tmp_path) as own:
        first, old = serial(own), own.certificates.authority
        kept = own.connect()
        kept.request("GET", "/healthz")
        assert kept.getresponse().read() == b"ok\n"
        own.certificates.renew()
        assert serial(own) != first
        assert own.event("credentials of the webhook read again")["level"] == "info"
        with pytest.raises(ssl.SSLCertVerificationError):
            serial(own, old)
        kept.request("GET", "/healthz")
        assert kept.getresponse().read() == b"ok\n", "a connection that is open stays"
        kept.close()
        renewed = serial(own)
        own.certificates.certificate.write_bytes(b"nonsense")
        assert serial(own) == renewed, "what cannot be read does not replace what can"
        assert "are no certificate with its key" in own.event("credentials of the webhook not read again")["cause"]
        nameless = own.certificates.trust()
        nameless.check_hostname = False
        with socket.create_connection(("127.0.0.1", own.port)) as plain, nameless.wrap_socket(plain) as encrypted:
            assert encrypted.getpeercert(binary_form=True) == renewed, "also for a peer that names no server"


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


def test_nothing_is_written_to_the_log_but_its_events(tmp_path: Path) -> None:
    with webhook(tmp_path) as own:
        with socket.create_connection(("127.0.0.1", own.port)) as plain:
            plain.sendall(b"nonsense\r\n\r\n")
        connection = own.connect()
        connection.putrequest("POST", "/compatibility")
        connection.putheader("Content-Length", "1000")
        connection.endheaders(b"{")
        connection.close()
        assert own.post(b"", "/healthz", "GET")[0] == 200
        assert own.end() == 0
        assert {line["event"] for line in own.rest()} <= {"webhook stopping", "request not understood"}
