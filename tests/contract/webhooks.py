"""Webhooks: what they are asked, what their answers do, and what happens when there is none."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from aiohttp import web

from rig.cluster.apiserver import AUTHORITY
from rig.cluster.apiserver.keys import server_context
from rig.until import eventually

from .there import There, promise

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .connection import Answer, Body

MUTATING, VALIDATING = "Mutating", "Validating"
LABEL = {"op": "add", "path": "/metadata/labels", "value": {"seen": "yes", "ask": "it"}}


@dataclass
class Hook:
    """A webhook of the test; `says` is its response, but for the uid."""

    says: Body = field(default_factory=lambda: {"allowed": True})
    asked: list[Body] = field(default_factory=list)
    late_s: float = 0.0
    status: int = 200

    async def answer(self, request: web.Request) -> web.Response:
        review = json.loads(await request.read())
        self.asked.append(review["request"] | {"apiVersion": review["apiVersion"], "query": dict(request.query)})
        await asyncio.sleep(self.late_s)
        response = {"uid": review["request"]["uid"], **self.says}
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        return web.json_response(body, status=self.status)


def patched(*operations: Body) -> Body:
    text = base64.b64encode(json.dumps(operations).encode()).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": text}


@contextlib.asynccontextmanager
async def hooked(there: There, kind: str, hook: Hook, **more: Any) -> AsyncIterator[Hook]:
    """Have pods of the namespace, with the label `ask`, shown to a webhook, from when it is asked first."""
    if there.connection.listen is None:
        pytest.skip("this API server does not reach a webhook of ours")
    app = web.Application()
    app.router.add_post("/review", hook.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    listening = there.connection.listen()
    await web.SockSite(runner, listening, ssl_context=server_context(clients=False)).start()
    client = {"url": f"https://127.0.0.1:{listening.getsockname()[1]}/review"}
    client["caBundle"] = base64.b64encode(AUTHORITY.cert_pem.bytes()).decode()
    rule = {"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    path = f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}webhookconfigurations"
    name = f"{there.namespace}-{kind.lower()}"
    body = {
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": f"{kind.lower()}.contract.example", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": client, "rules": [rule], "timeoutSeconds": 5,
                "namespaceSelector": {"matchLabels": {"contract": there.namespace}},
                "objectSelector": {"matchLabels": {"ask": "it"}}, **more,
            }
        ],
    }  # fmt: skip
    try:
        made = await there.done("POST", path, body)
        if "clientConfig" not in more:

            async def heard() -> bool:
                await create(there, "probe", dryRun="All")
                return bool(hook.asked)

            await eventually(heard, "the webhook is asked")
            hook.asked.clear()
        assert made["webhooks"][0]["failurePolicy"] == more.get("failurePolicy", "Fail")
        yield hook
    finally:
        await there.ask("DELETE", f"{path}/{name}")
        await runner.cleanup()


async def create(there: There, name: str = "a", **parameters: str) -> Answer:
    return await there.ask("POST", there.path("pods"), there.pod_body(name, labels={"ask": "it"}), **parameters)


class TestWebhooks:
    """Of pods that are made and changed."""

    @promise
    async def test_a_mutating_webhook_is_asked_in_full_and_its_patch_is_done(self, there: There) -> None:
        async with hooked(there, MUTATING, Hook(patched(LABEL))) as hook:
            answer = await create(there)
        assert (answer.status, answer.body["metadata"]["labels"]) == (201, LABEL["value"])
        [request] = hook.asked
        assert request["apiVersion"] == "admission.k8s.io/v1"
        assert (request["kind"], request["operation"]) == ({"group": "", "version": "v1", "kind": "Pod"}, "CREATE")
        assert (request["namespace"], request["name"], request["dryRun"]) == (there.namespace, "a", False)
        assert request["object"]["metadata"]["labels"] == {"ask": "it"}
        assert request["object"]["spec"]["schedulerName"] == "contract"
        assert request["oldObject"] is None
        assert request["query"] == {"timeout": "5s"}

    @promise
    async def test_a_pod_whose_name_is_generated_has_none_yet(self, there: There) -> None:
        body = there.pod_body("", generateName="some-", labels={"ask": "it"})
        del body["metadata"]["name"]
        async with hooked(there, MUTATING, Hook()) as hook:
            made = await there.done("POST", there.path("pods"), body)
        assert made["metadata"]["name"].startswith("some-")
        [request] = hook.asked
        assert not request.get("name")

    @promise
    async def test_a_refusal_is_told_in_the_webhooks_words_and_with_its_code(self, there: There) -> None:
        says = {"allowed": False, "status": {"code": 403, "message": "ask for less"}}
        async with hooked(there, MUTATING, Hook(says)):
            answer = await create(there)
        assert answer.status == 403
        assert 'webhook "mutating.contract.example" denied the request: ask for less' in answer.message
        assert (await there.ask("GET", there.path("pods", "a"))).status == 404

    @promise
    async def test_what_a_patch_makes_has_to_be_a_pod_that_can_be(self, there: There) -> None:
        async with hooked(there, MUTATING, Hook(patched({"op": "remove", "path": "/spec/containers/0/image"}))):
            answer = await create(there)
        assert (answer.status, answer.reason) == (422, "Invalid")

    @promise
    async def test_a_validating_webhook_sees_what_the_mutating_has_made(self, there: There) -> None:
        async with (
            hooked(there, MUTATING, Hook(patched(LABEL))),
            hooked(there, VALIDATING, Hook()) as validating,
        ):
            assert (await create(there)).status == 201
        [request] = validating.asked
        assert request["object"]["metadata"]["labels"] == LABEL["value"]
        assert request["object"]["metadata"]["uid"]

    @promise
    async def test_a_change_is_shown_with_what_was_before(self, there: There) -> None:
        async with hooked(there, MUTATING, Hook()) as hook:
            await create(there)
            await there.merge(there.path("pods", "a"), {"metadata": {"annotations": {"x": "y"}}})
            await there.merge(there.path("pods", "a") + "/status", {"status": {"reason": "none"}})
        assert [request["operation"] for request in hook.asked] == ["CREATE", "UPDATE"], "a status is no pod"
        request = hook.asked[1]
        assert "x" not in request["oldObject"]["metadata"].get("annotations", {})
        assert request["object"]["metadata"]["annotations"]["x"] == "y"

    @promise
    async def test_who_is_not_selected_is_not_shown(self, there: There) -> None:
        async with hooked(there, MUTATING, Hook()) as hook:
            await there.pod("a")
            await there.config_map("a", {}, labels={"ask": "it"})
        assert hook.asked == []

    @promise
    async def test_a_dry_run_is_shown_as_one_and_changes_nothing(self, there: There) -> None:
        async with hooked(there, MUTATING, Hook(patched(LABEL))) as hook:
            answer = await create(there, dryRun="All")
        assert (answer.status, answer.body["metadata"]["labels"]) == (201, LABEL["value"])
        assert hook.asked[-1]["dryRun"] is True
        assert (await there.ask("GET", there.path("pods", "a"))).status == 404

    @promise
    async def test_a_warning_is_in_the_answers_headers(self, there: There) -> None:
        async with hooked(there, MUTATING, Hook({"allowed": True, "warnings": ["it is rounded"]})):
            answer = await create(there)
        assert '299 - "it is rounded"' in answer.headers["Warning"]

    @pytest.mark.parametrize("policy", ["Fail", "Ignore"])
    @pytest.mark.parametrize("trouble", ["error", "late", "no review"])
    def test_a_webhook_that_fails_stops_pods_or_is_passed_over(self, connected: Any, policy: str, trouble: str) -> None:
        @promise
        async def test(_: object, there: There) -> None:
            async with hooked(there, MUTATING, Hook(), failurePolicy=policy, timeoutSeconds=1) as hook:
                hook.status = 500 if trouble == "error" else 200
                hook.late_s = 2.0 if trouble == "late" else 0.0
                hook.says = {"uid": "another"} if trouble == "no review" else hook.says
                answer = await create(there)
            assert answer.status == (500 if policy == "Fail" else 201)
            if policy == "Fail":
                assert 'failed calling webhook "mutating.contract.example"' in answer.message

        test(self, connected)

    @promise
    async def test_a_webhook_under_another_authority_is_not_believed(self, there: There) -> None:
        bundle = base64.b64encode(trustme.CA().cert_pem.bytes()).decode()
        if there.connection.listen is None:
            pytest.skip("this API server does not reach a webhook of ours")
        hook = Hook()
        async with hooked(there, MUTATING, hook):
            name = f"{there.namespace}-mutating"
            path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{name}"
            operation = {"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}
            answer = await there.ask("PATCH", path, [operation], media="application/json-patch+json")
            assert answer.status == 200

            async def refused() -> bool:
                answer = await create(there, "probe", dryRun="All")
                return answer.status == 500 and "certificate" in answer.message

            await eventually(refused, "its certificate is refused")

    @promise
    async def test_a_configuration_that_cannot_be_is_refused(self, there: There) -> None:
        path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        good = {
            "name": "a.contract.example", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": "https://127.0.0.1:1/"},
        }  # fmt: skip
        for wrong in (
            {"timeoutSeconds": 31}, {"sideEffects": "Some"}, {"clientConfig": {"url": "http://127.0.0.1:1/"}},
            {"admissionReviewVersions": ["v9"]},
        ):  # fmt: skip
            body = {
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
                "metadata": {"name": there.namespace}, "webhooks": [good | wrong],
            }  # fmt: skip
            answer = await there.ask("POST", path, body)
            assert answer.status == 422, wrong
