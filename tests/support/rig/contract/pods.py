"""Tests pods: how they begin, and what never changes."""

import re
from itertools import product

from .connection import Body
from .there import NODE, SHARE, There, promise

MAIN = {"name": "main", "image": "nowhere.invalid/none:1", "resources": {"limits": {SHARE: "30"}}}
CHANGES: tuple[Body, ...] = (
    {"nodeName": NODE}, {"schedulerName": "other"}, {"priority": 7}, {"containers": [MAIN]},
)  # fmt: skip


class TestPods:
    """Pods as every Kubernetes release since 1.20 has them."""

    @promise
    async def test_a_pod_begins_pending_with_a_uid_and_a_time(self, there: There) -> None:
        body = there.pod_body("a")
        body["status"] = {"phase": "Running"}
        made = await there.done("POST", there.path("pods"), body)
        assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", made["metadata"]["uid"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made["metadata"]["creationTimestamp"])
        assert made["metadata"]["namespace"] == there.namespace
        assert made["status"]["phase"] == "Pending"
        await there.done("DELETE", there.path("pods", "a"))
        assert (await there.pod("a"))["metadata"]["uid"] != made["metadata"]["uid"], "one that comes again is another"

    @promise
    async def test_what_a_pod_asks_never_changes(self, there: There) -> None:
        for name, gates in (("a", []), ("gated", [{"name": "sharepod.io/gate"}])):
            await there.pod(name, {"schedulingGates": gates})
        for name, spec in (("a", {"nodeSelector": {"a": "b"}}), *product(("a", "gated"), CHANGES)):
            answer = await there.merge(there.path("pods", name), {"spec": spec})
            assert (answer.status, answer.reason) in ((422, "Invalid"), (403, "Forbidden")), (name, spec)

    @promise
    async def test_a_token_of_nobody_is_unauthorized_and_reviewed_as_such(self, there: There) -> None:
        answer = await there.ask("GET", there.path("pods"), headers={"Authorization": "Bearer nobody's"})
        # A client with a certificate is authenticated by that, whatever its token.
        configuration, _ = await there.connection.access.current()
        assert answer.status == 401 or configuration.cert_file is not None
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "nobody's"}}
        reviewed = await there.done("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)
        assert not reviewed["status"].get("authenticated")
        assert reviewed["status"]["error"]
