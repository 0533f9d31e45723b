"""Pods: what is filled in, what cannot be, what never changes, how they are bound."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .there import NODE, SHARE, There, promise

if TYPE_CHECKING:
    from .connection import Answer, Body


async def refused(there: There, spec: Body | None = None, **metadata: object) -> Answer:
    answer = await there.ask("POST", there.path("pods"), there.pod_body("a", spec, **metadata))
    assert answer.status == 422, answer
    assert answer.reason == "Invalid"
    return answer


def container(**resources: Body) -> list[Body]:
    return [{"name": "main", "image": "nowhere.invalid/none:1", "resources": resources}]


class TestPods:
    """As every release since 1.20 has them."""

    @promise
    async def test_a_pod_begins_pending_with_a_uid_a_time_and_a_scheduler(self, there: There) -> None:
        body = there.pod_body("a")
        del body["spec"]["schedulerName"]
        body["spec"]["nodeSelector"] = {"contract": "no-such-node"}
        body["status"] = {"phase": "Running"}
        made = await there.done("POST", there.path("pods"), body)
        assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", made["metadata"]["uid"])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made["metadata"]["creationTimestamp"])
        assert made["metadata"]["namespace"] == there.namespace
        assert made["status"]["phase"] == "Pending"
        spec = made["spec"]
        assert (spec["schedulerName"], spec["restartPolicy"], spec["priority"]) == ("default-scheduler", "Always", 0)
        assert spec["terminationGracePeriodSeconds"] == 30

    @promise
    async def test_a_generated_name_begins_as_asked_and_is_new_each_time(self, there: There) -> None:
        body = there.pod_body("", generateName="gang-")
        del body["metadata"]["name"]
        names = {(await there.done("POST", there.path("pods"), body))["metadata"]["name"] for _ in range(3)}
        assert len(names) == 3
        assert all(re.fullmatch(r"gang-[a-z0-9]{5}", name) for name in names)

    @promise
    async def test_limits_alone_are_requests_too(self, there: There) -> None:
        made = await there.pod("a", {"containers": container(limits={SHARE: "30", "cpu": "1"})})
        assert made["spec"]["containers"][0]["resources"]["requests"] == {SHARE: "30", "cpu": "1"}

    @promise
    async def test_a_share_is_a_whole_number_and_its_request_its_limit(self, there: There) -> None:
        await refused(there, {"containers": container(limits={SHARE: "30"}, requests={SHARE: "20"})})
        await refused(there, {"containers": container(requests={SHARE: "20"})})
        await refused(there, {"containers": container(limits={SHARE: "500m"})})

    @promise
    async def test_a_pod_that_cannot_be_is_refused(self, there: There) -> None:
        await refused(there, {"containers": []})
        await refused(there, {"containers": [{"name": "main"}]})
        await refused(there, labels={"a": "no label!"})
        await refused(there, annotations={"a": "x" * 262_144})
        answer = await there.ask("POST", there.path("pods"), there.pod_body("Not_a_name"))
        assert answer.status == 422

    @promise
    async def test_a_priority_class_gives_the_priority(self, there: There) -> None:
        group = "scheduling.k8s.io/v1"
        body = {"apiVersion": group, "kind": "PriorityClass", "metadata": {"name": there.namespace}, "value": -7}
        await there.done("POST", f"/apis/{group}/priorityclasses", body)
        try:
            made = await there.pod("a", {"priorityClassName": there.namespace})
        finally:
            await there.done("DELETE", f"/apis/{group}/priorityclasses/{there.namespace}")
        assert made["spec"]["priority"] == -7
        answer = await there.merge(there.path("pods", "a"), {"spec": {"priority": 7}})
        assert answer.status in (403, 422)

    @promise
    async def test_a_priority_class_that_is_not_there_is_refused(self, there: There) -> None:
        spec = {"priorityClassName": "contract-nobody"}
        answer = await there.ask("POST", there.path("pods"), there.pod_body("a", spec))
        assert (answer.status, answer.reason) == (403, "Forbidden")
        assert "no PriorityClass with name contract-nobody was found" in answer.message

    @promise
    async def test_what_a_pod_asks_never_changes_but_images_and_more_tolerations(self, there: There) -> None:
        await there.pod("a", {"tolerations": [{"key": "a", "operator": "Exists"}]})
        path = there.path("pods", "a")
        changes: tuple[Body, ...] = (
            {"nodeName": NODE}, {"nodeSelector": {"a": "b"}}, {"schedulerName": "other"}, {"priority": 5},
            {"containers": container(limits={SHARE: "30"})}, {"tolerations": []},
        )  # fmt: skip
        for spec in changes:
            answer = await there.merge(path, {"spec": spec})
            assert (answer.status, answer.reason) in ((422, "Invalid"), (403, "Forbidden")), spec
        tolerations = (await there.done("GET", path))["spec"]["tolerations"]
        image = [{"name": "main", "image": "nowhere.invalid/none:2"}]
        found = (await there.done("GET", path))["spec"]["containers"]
        more = {"tolerations": [*tolerations, {"key": "b", "operator": "Exists"}], "containers": [found[0] | image[0]]}
        answer = await there.merge(path, {"spec": more})
        assert answer.status == 200, answer
        assert answer.body["spec"]["containers"][0]["image"] == "nowhere.invalid/none:2"

    @promise
    async def test_binding_says_where_a_pod_is_and_that_it_is_scheduled(self, there: There) -> None:
        await there.pod("a")
        answer = await there.bind("a", annotations={"said": "so"})
        assert answer.status == 201
        bound = await there.done("GET", there.path("pods", "a"))
        assert bound["spec"]["nodeName"] == NODE
        assert bound["metadata"]["annotations"]["said"] == "so"
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
