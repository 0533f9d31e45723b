"""AdmissionReview v1: reads a body into a request, and writes a decision as a body. Pure.

Nothing in a body is trusted: any peer that reaches the port can send one.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from sharepod.webhook.patch import JsonObject, Operation

API_VERSION: Final = "admission.k8s.io/v1"
OPERATIONS: Final = ("CREATE", "UPDATE")
_UID: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")
_NAME: Final = re.compile(r"[0-9A-Za-z._:-]{0,253}")
_FORBIDDEN: Final = 403
"""The code of a refusal. For 403 and its reason kubectl shows our message. For 422, Invalid, older versions do not."""
_WARNING_MAX: Final = 120
"""Characters of a warning: what Kubernetes advises. It cuts at 256."""


class MalformedReview(Exception):
    """The body is no AdmissionReview of a pod. The text is one line that says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """A pod that is being made or changed."""

    uid: str
    namespace: str
    name: str
    """Empty: the API server has yet to make a name."""
    operation: str
    dry_run: bool
    object: JsonObject


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a pod: refused, or admitted with these changes. The default admits it unchanged."""

    refusal: str = ""
    """Why the pod is refused; empty: it is admitted."""
    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    system: str = ""
    """For the log: the other sharing system that the pod was written for, or "gates" if the pod got our gate."""

    @property
    def result(self) -> str:
        """Return the decision in one word, for the metrics."""
        return "refused" if self.refusal else "changed" if self.patch else "unchanged"


def read_review(body: bytes) -> Request:
    """Return the request in a body. Raises MalformedReview."""
    review = _parse(body)
    if review.get("apiVersion") != API_VERSION or review.get("kind") != "AdmissionReview":
        raise MalformedReview(f"it is no AdmissionReview of {API_VERSION}")
    request = _object(review, "request")
    if request.get("kind") != {"group": "", "version": "v1", "kind": "Pod"} or request.get("subResource"):
        raise MalformedReview("request.kind is no Pod of v1: the webhook is for pods alone")
    operation = _text(request, "operation", _NAME)
    if operation not in OPERATIONS:
        raise MalformedReview(f"request.operation is none of {', '.join(OPERATIONS)}")
    dry_run = request.get("dryRun", False)
    if not isinstance(dry_run, bool):
        raise MalformedReview("request.dryRun is no true or false")
    return Request(
        uid=_text(request, "uid", _UID),
        namespace=_text(request, "namespace", _NAME),
        name=_text(request, "name", _NAME, ""),
        operation=operation,
        dry_run=dry_run,
        object=_object(request, "object"),
    )


def answer(request: Request, decision: Decision) -> bytes:
    """Return the body that answers the API server with a decision."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": not decision.refusal}
    if decision.refusal:
        message = f"sharepod: {decision.refusal}"
        response["status"] = {"status": "Failure", "code": _FORBIDDEN, "reason": "Forbidden", "message": message}
    elif decision.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(decision.patch).encode()).decode()
    if decision.warnings:
        response["warnings"] = [f"sharepod: {text}"[:_WARNING_MAX] for text in decision.warnings]
    return json.dumps({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}).encode()


def _parse(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body. Raises MalformedReview."""
    try:
        loaded = json.loads(body.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):  # ValueError also covers the decoding
        raise MalformedReview("it is no JSON") from None
    if not isinstance(loaded, dict):
        raise MalformedReview("it is no JSON object")
    return loaded


def _no_constant(_: str) -> NoReturn:
    """Refuse NaN and Infinity: Python's reader takes them, JSON does not have them."""
    raise ValueError


def _object(parent: JsonObject, key: str) -> dict[str, Any]:
    """Return the object under `key`. Raises MalformedReview."""
    value = parent.get(key)
    if not isinstance(value, dict):
        raise MalformedReview(f"{key} is no object")
    return value


def _text(parent: JsonObject, key: str, form: re.Pattern[str], default: str | None = None) -> str:
    """Return the text under `key`; if it is missing, `default`. Raises MalformedReview unless `form` matches the text.

    `default` None: a missing text is malformed, too.
    """
    value = parent.get(key, default)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise MalformedReview(f"request.{key} is no text of its kind")
    return value
