"""Tests Events of core/v1 as the device plugin and the controllers write them."""

from typing import Any

from .connection import Body
from .there import There, promise


def event(there: There, name: str = "a.1", **more: Any) -> Body:
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": there.namespace, "name": "a", "uid": "u1"}
    return {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": there.namespace},
        "involvedObject": about, "reason": "NoRoom", "message": "no device has 60 % left", "type": "Warning",
        "count": 1, "firstTimestamp": "2026-01-02T03:04:05Z", "lastTimestamp": "2026-01-02T03:04:05Z",
        "source": {"component": "contract", "host": "n1"}, "reportingComponent": "contract", "reportingInstance": "n1",
        **more,
    }  # fmt: skip


class TestEvents:
    """Events as kube/events.py makes them."""

    @promise
    async def test_an_event_is_made_counts_and_is_told_from_another_of_its_name(self, there: There) -> None:
        made = await there.done("POST", there.path("events"), event(there))
        assert made["count"] == 1
        again = {"count": 2, "lastTimestamp": "2026-01-02T03:05:05Z"}
        answer = await there.merge(there.path("events", "a.1"), again)
        assert (answer.status, answer.body["count"], answer.body["reason"]) == (200, 2, "NoRoom")
        answer = await there.ask("POST", there.path("events"), event(there, message="another"))
        assert (answer.status, answer.reason) == (409, "AlreadyExists")

    @promise
    async def test_an_event_is_in_the_namespace_of_what_it_is_about(self, there: There) -> None:
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "a", "uid": "u1"}
        answer = await there.ask("POST", there.path("events"), event(there, involvedObject=about))
        assert answer.status == 422
        node = {"apiVersion": "v1", "kind": "Node", "namespace": "", "name": "n1", "uid": "n1"}
        answer = await there.ask("POST", there.path("events"), event(there, involvedObject=node))
        assert answer.status == 422, "of a node it is in default"
        body = event(there, f"{there.namespace}.1", involvedObject=node)
        body["metadata"]["namespace"] = "default"
        path = "/api/v1/namespaces/default/events"
        await there.done("POST", path, body)
        await there.done("DELETE", f"{path}/{there.namespace}.1")

    @promise
    async def test_an_event_that_cannot_be_read_is_a_bad_request(self, there: There) -> None:
        for more in ({"count": "1"}, {"lastTimestamp": "yesterday"}, {"source": "contract"}):
            answer = await there.ask("POST", there.path("events"), event(there, **more))
            assert answer.status == 400, more
