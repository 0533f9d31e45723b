"""Pods: how they begin, what never changes, how they are bound."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .there import NODE, SHARE, There, promise

if TYPE_CHECKING:
    from .connection import Body


class TestPods:
    """As every release since 1.20 has them."""

    @promise
    async def test_a_pod_begins_pending_with_a_uid_and_a_time(self, there: There) -> None:
        body = there.pod_body("a")
        body["status"] = {"phase": "Running"}
        made = await there.done("POST", there.path("pods"), body)
        assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", made["metadata"]["uid"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made["metadata"]["creationTimestamp"])
        assert made["metadata"]["namespace"] == there.namespace
        assert made["status"]["phase"] == "Pending"

    @promise
    async def test_what_a_pod_asks_never_changes(self, there: There) -> None:
        await there.pod("a")
        more = {"name": "main", "image": "nowhere.invalid/none:1", "resources": {"limits": {SHARE: "30"}}}
        changes: tuple[Body, ...] = (
            {"nodeName": NODE}, {"nodeSelector": {"a": "b"}}, {"schedulerName": "other"}, {"containers": [more]},
        )  # fmt: skip
        for spec in changes:
            answer = await there.merge(there.path("pods", "a"), {"spec": spec})
            assert (answer.status, answer.reason) in ((422, "Invalid"), (403, "Forbidden")), spec

    @promise
    async def test_binding_says_where_a_pod_is_and_that_it_is_scheduled(self, there: There) -> None:
        await there.pod("a")
        answer = await there.bind("a")
        assert answer.status == 201
        bound = await there.done("GET", there.path("pods", "a"))
        assert bound["spec"]["nodeName"] == NODE
        conditions = {one["type"]: one["status"] for one in bound["status"]["conditions"]}
        assert conditions["PodScheduled"] == "True"

    @promise
    async def test_a_pod_is_bound_once(self, there: There) -> None:
        await there.pod("a")
        assert (await there.bind("a")).status == 201
        answer = await there.bind("a")
        assert (answer.status, answer.reason) == (409, "Conflict")
        assert "already assigned to node" in answer.message
        assert (await there.bind("nobody")).status == 404

    @promise
    async def test_a_token_of_nobody_is_unauthorized(self, there: There) -> None:
        answer = await there.ask("GET", there.path("pods"), headers={"Authorization": "Bearer nobody's"})
        # Whoever has a certificate is believed for it.
        configuration, _ = await there.connection.access.current()
        assert answer.status == 401 or configuration.cert_file is not None
