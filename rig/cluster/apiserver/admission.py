"""Webhooks: who asks to see a write, what they are asked (AdmissionReview v1, over TLS), what becomes of their answers.

Knows nothing of what is written. No CEL: configurations with matchConditions are refused, so that none is ignored.
"""

from __future__ import annotations

import base64
import binascii
import json
import ssl
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from .patch import json_patch
from .refusal import Refusal, invalid
from .selector import labels_match
from .store import copied

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .kinds import Place
    from .store import Store

Body = dict[str, Any]

MUTATING, VALIDATING = "mutatingwebhookconfigurations", "validatingwebhookconfigurations"
_ANSWER_MAX = 3 * 2**20


@dataclass(frozen=True, slots=True)
class Write:
    """What is about to be written."""

    place: Place
    name: str
    operation: str
    """CREATE, UPDATE, DELETE or CONNECT."""
    body: Body | None
    before: Body | None
    dry_run: bool = False


class Unreachable(Exception):
    """A webhook did not answer, or not as it should."""


class Admission:
    """The webhooks of one server."""

    def __init__(self, store: Store, services: Mapping[tuple[str, str], int]) -> None:
        """`services`: ports on this machine, by namespace and name of the Service that leads there."""
        self._store = store
        self._services = services
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def mutate(self, write: Write, warnings: list[str]) -> Body | None:
        """Return what is to be written after the mutating webhooks. Raises Refusal."""
        body = write.body
        for hook in self._hooks(MUTATING):
            seen = Write(write.place, write.name, write.operation, body, write.before, write.dry_run)
            if not self._is_asked(hook, seen):
                continue
            response = await self._answer(hook, seen, warnings)
            if response is not None and response.get("patch") and body is not None:
                body = self._patched(hook, body, response)
        return body

    async def validate(self, write: Write, warnings: list[str]) -> None:
        """Ask the validating webhooks. Raises Refusal."""
        for hook in self._hooks(VALIDATING):
            if self._is_asked(hook, write):
                await self._answer(hook, write, warnings)

    def _hooks(self, plural: str) -> list[Body]:
        return [hook for _, kept in self._store.all(plural) for hook in kept.body.get("webhooks") or ()]

    def _is_asked(self, hook: Body, write: Write) -> bool:
        if not any(_rule_matches(rule, write) for rule in hook.get("rules") or ()):
            return False
        shown = [body for body in (write.body, write.before) if body is not None]
        if not any(
            labels_match(hook.get("objectSelector"), body["metadata"].get("labels") or {}, empty=True) for body in shown
        ):
            return False
        if write.place.kind.plural == "namespaces":
            labels = shown[0]["metadata"].get("labels") or {}
        elif write.place.namespace:
            namespace = self._store.get("namespaces", ("", write.place.namespace))
            labels = (namespace.body["metadata"].get("labels") if namespace else None) or {}
        else:
            return True
        return labels_match(hook.get("namespaceSelector"), labels, empty=True)

    async def _answer(self, hook: Body, write: Write, warnings: list[str]) -> Body | None:
        """Return the response of a webhook that allows; None: it failed, and may. Raises Refusal."""
        name = hook["name"]
        try:
            response = await self._call(hook, write)
        except Unreachable as error:
            if hook["failurePolicy"] == "Ignore":
                return None
            why = f'Internal error occurred: failed calling webhook "{name}": {error}'
            raise Refusal(500, "InternalError", why, causes=[{"message": why}]) from None
        warnings += [str(warning) for warning in response.get("warnings") or ()]
        if not response["allowed"]:
            status = response.get("status") or {}
            text = status.get("message") or status.get("reason")
            denied = f'admission webhook "{name}" denied the request' + (
                f": {text}" if text else " without explanation"
            )
            raise Refusal(max(400, int(status.get("code") or 0)), str(status.get("reason") or ""), denied)
        return response

    async def _call(self, hook: Body, write: Write) -> Body:
        """Return what a webhook responds. Raises Unreachable."""
        uid = str(uuid.uuid4())
        review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": _request(uid, write)}
        url, host = self._url(hook["clientConfig"])
        seconds = int(hook["timeoutSeconds"])
        if self._session is None:
            # No connection is kept: a webhook that comes back has a new certificate, or listens anew.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        try:
            async with self._session.post(
                url,
                params={"timeout": f"{seconds}s"},
                data=json.dumps(review).encode(),
                headers={"Content-Type": "application/json", "User-Agent": "kube-apiserver-admission"},
                ssl=_context(hook["clientConfig"].get("caBundle")),
                server_hostname=host,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=seconds),
            ) as response:
                text = await response.content.read(_ANSWER_MAX)
                if response.status != 200:
                    raise Unreachable(f"an error on the server ({text[:200]!r}) with status {response.status}")
        except TimeoutError:
            raise Unreachable(f'Post "{url}?timeout={seconds}s": context deadline exceeded') from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f'Post "{url}?timeout={seconds}s": {error}') from None
        return _response(text, uid)

    def _url(self, client: Body) -> tuple[str, str | None]:
        """Return where a webhook is, and the name in its certificate where that is another."""
        if url := client.get("url"):
            return str(url), None
        service = client["service"]
        key = service["namespace"], service["name"]
        if key not in self._services:
            raise Unreachable(f'service "{service["name"]}" not found')
        return f"https://127.0.0.1:{self._services[key]}{service.get('path', '')}", f"{key[1]}.{key[0]}.svc"

    def _patched(self, hook: Body, body: Body, response: Body) -> Body:
        if response.get("patchType") != "JSONPatch":
            why = f'Internal error occurred: failed calling webhook "{hook["name"]}": patchType is no JSONPatch'
            raise Refusal(500, "InternalError", why)
        try:
            operations = json.loads(base64.b64decode(response["patch"], validate=True))
            return json_patch(copied(body), operations)
        except (binascii.Error, ValueError, Refusal) as error:
            raise Refusal(500, "InternalError", f"Internal error occurred: {error}") from None


def check_configuration(body: Body) -> None:
    """Fill in what a configuration of webhooks leaves out. Raises Refusal for one that cannot be."""
    faults = []
    for number, hook in enumerate(body.get("webhooks") or ()):
        field = f"webhooks[{number}]"
        defaults = {"failurePolicy": "Fail", "timeoutSeconds": 10, "matchPolicy": "Equivalent"}
        for key, value in (defaults | {"namespaceSelector": {}, "objectSelector": {}}).items():
            hook.setdefault(key, value)
        if hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            faults.append((f"{field}.sideEffects", 'Unsupported value: supported values: "None", "NoneOnDryRun"'))
        if "v1" not in (hook.get("admissionReviewVersions") or ()):
            faults.append((f"{field}.admissionReviewVersions", "Invalid value: must include v1"))
        if not 1 <= hook["timeoutSeconds"] <= 30:
            faults.append(
                (f"{field}.timeoutSeconds", "Invalid value: the timeout value must be between 1 and 30 seconds")
            )
        if hook.get("matchConditions"):
            faults.append((f"{field}.matchConditions", "Forbidden: the double knows no CEL"))
        client = hook.get("clientConfig") or {}
        if ("url" in client) == ("service" in client):
            faults.append((f"{field}.clientConfig", "Required value: exactly one of url or service is required"))
        elif "url" in client and not str(client["url"]).startswith("https://"):
            faults.append((f"{field}.clientConfig.url", "Invalid value: 'https' is the only allowed URL scheme"))
    if faults:
        raise invalid("WebhookConfiguration", body["metadata"]["name"], faults)


def _rule_matches(rule: Body, write: Write) -> bool:
    kind = write.place.kind

    def has(key: str, value: str) -> bool:
        return value in rule.get(key, ()) or "*" in rule.get(key, ())

    resources, sub = rule.get("resources", ()), write.place.subresource
    named = (kind.plural, "*") if not sub else (f"{kind.plural}/{sub}", f"*/{sub}", f"{kind.plural}/*")
    scope = rule.get("scope", "*")
    return (
        has("operations", write.operation)
        and has("apiGroups", kind.group)
        and has("apiVersions", kind.version)
        and (any(name in resources for name in named) or "*/*" in resources)
        and scope in ("*", "Namespaced" if kind.namespaced else "Cluster")
    )


def _request(uid: str, write: Write) -> Body:
    place = write.place
    named = {"group": place.kind.group, "version": place.kind.version}
    kind, resource = named | {"kind": place.kind.kind}, named | {"resource": place.kind.plural}
    head = {"apiVersion": place.kind.api_version, "kind": place.kind.kind}
    request = {
        "uid": uid, "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
        "name": write.name, "namespace": place.namespace, "operation": write.operation,
        "userInfo": {"username": "test", "groups": ["system:authenticated"]}, "dryRun": write.dry_run, "options": None,
        "object": None if write.body is None else head | write.body,
        "oldObject": None if write.before is None else head | write.before,
    }  # fmt: skip
    if place.subresource:
        request |= {"subResource": place.subresource, "requestSubResource": place.subresource}
    return {key: value for key, value in request.items() if value != ""}


def _context(bundle: str | None) -> ssl.SSLContext:
    try:
        authority = base64.b64decode(bundle, validate=True).decode("ascii") if bundle else None
        return ssl.create_default_context(cadata=authority)
    except (binascii.Error, UnicodeDecodeError, ssl.SSLError) as error:
        raise Unreachable(f"unable to load root certificates: {error}") from None


def _response(text: bytes, uid: str) -> Body:
    try:
        review = json.loads(text)
        response: Body = review["response"]
        named, allowed = response.get("uid"), response["allowed"]
        version, kind = review.get("apiVersion"), review.get("kind")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unreachable(f"the answer is no AdmissionReview: {error}") from None
    if (version, kind) != ("admission.k8s.io/v1", "AdmissionReview"):
        raise Unreachable(
            f"expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {version}, {kind}"
        )
    if named != uid:
        raise Unreachable(f'expected response.uid="{uid}", got "{named}"')
    if not isinstance(allowed, bool):
        raise Unreachable("response.allowed is no boolean")
    return response
