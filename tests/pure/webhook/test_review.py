"""Test what counts as an AdmissionReview of a pod: a hostile body gets one line as error and is never walked."""

import json
from typing import Any

import pytest
from foreign_pods import kai, pod, response, review
from hypothesis import given
from hypothesis import strategies as st

from sharepod.webhook.review import Decision, MalformedReview, answer, read_review

DEEP = b'{"a":' * 100_000
MALFORMED: list[tuple[bytes, str]] = [
    (b"", "it is no JSON"),
    (b"{", "it is no JSON"),
    (b"\xff\xfe", "it is no JSON"),
    (b"[" * 100_000, "it is no JSON"),
    (DEEP, "it is no JSON"),
    (b'{"a": NaN}', "it is no JSON"),
    (b'{"a": ' + b"9" * 10_000 + b"}", "it is no JSON"),
    (b"[]", "it is no JSON object"),
    (b"{}", "it is no AdmissionReview of admission.k8s.io/v1"),
    (json.dumps(review({}) | {"apiVersion": "admission.k8s.io/v1beta1"}).encode(), "it is no AdmissionReview of"),
    (json.dumps(review({}) | {"kind": "Pod"}).encode(), "it is no AdmissionReview of"),
    (json.dumps(review({}) | {"request": []}).encode(), "request is no object"),
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"uid": ""}, "request.uid is no text of its kind"),
    ({"uid": 7}, "request.uid is no text of its kind"),
    ({"uid": "a\nb"}, "request.uid is no text of its kind"),
    ({"uid": "x" * 129}, "request.uid is no text of its kind"),
    ({"namespace": None}, "request.namespace is no text of its kind"),
    ({"name": ["p"]}, "request.name is no text of its kind"),
    ({"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}}, "request.kind is no Pod of v1: the webhook"),
    ({"subResource": "status"}, "request.kind is no Pod of v1"),
    ({"operation": "DELETE"}, "request.operation is none of CREATE, UPDATE"),
    ({"dryRun": "yes"}, "request.dryRun is no true or false"),
    ({"object": None}, "object is no object"),
]


@pytest.mark.parametrize(
    ("body", "cause"),
    [*MALFORMED, *((json.dumps(review(pod({}), **more)).encode(), cause) for more, cause in WRONG)],
    ids=range(len(MALFORMED) + len(WRONG)),
)
def test_what_is_no_review_of_a_pod_is_told_in_one_line(body: bytes, cause: str) -> None:
    with pytest.raises(MalformedReview) as caught:
        read_review(body)
    assert str(caught.value).startswith(cause)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=64))
def test_no_body_is_anything_else_than_malformed(body: bytes) -> None:
    with pytest.raises(MalformedReview):
        read_review(body)


def test_a_request_is_read_whole() -> None:
    found = read_review(json.dumps(review(kai(gpu_fraction="0.5"), dryRun=True, name="")).encode())
    assert (found.namespace, found.name, found.operation, found.dry_run) == ("team", "", "CREATE", True)
    assert found.object == kai(gpu_fraction="0.5")
    nameless = review(pod({}))
    del nameless["request"]["name"], nameless["request"]["dryRun"]
    assert read_review(json.dumps(nameless).encode()).name == ""


def test_an_answer_says_what_was_decided() -> None:
    request = read_review(json.dumps(review(pod({}))).encode())
    patch = {"op": "add", "path": "/a", "value": "\ud800"}
    said = response(answer(request, Decision(patch=(patch,), warnings=("w" * 300,))))
    assert (said["allowed"], said["patch"]) == (True, [patch])
    assert len(said["warnings"][0]) == 120
    refused = response(answer(request, Decision(refusal="no")))
    assert (refused["allowed"], refused["status"]["message"], "patch" in refused) == (False, "sharepod: no", False)
