"""Tests how a pod ends: its object stays until its kubelet has ended the pod."""

from .there import There, promise


class TestDeletions:
    """Deletions of pods on nodes."""

    @promise
    async def test_who_watches_sees_a_pod_end_in_two_steps(self, there: There) -> None:
        await there.running_pod("a")
        version = await there.version("pods")
        async with there.client.watch(there.path("pods"), resourceVersion=version) as lines:
            await there.done("DELETE", there.path("pods", "a"))
            line = await anext(lines)
            assert line["type"] == "MODIFIED"
            metadata = line["object"]["metadata"]
            assert metadata["deletionTimestamp"] > metadata["creationTimestamp"]
            assert (await there.ask("GET", there.path("pods", "a"))).status == 200
            await there.done("DELETE", there.path("pods", "a"), {"gracePeriodSeconds": 0})
            while line["type"] == "MODIFIED":  # its grace period is shorter now, or its kubelet updates its status
                assert line["object"]["metadata"]["deletionTimestamp"]
                line = await anext(lines)
            assert line["type"] == "DELETED"
        assert (await there.ask("GET", there.path("pods", "a"))).status == 404
