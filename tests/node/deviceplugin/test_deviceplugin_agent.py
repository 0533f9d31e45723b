"""What the agent is told of a share that is there: what differs, and nothing when nothing does."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from sharepod.deviceplugin.agent import Agent, HeldShare, NodeDevice, NodeView, StaysPaused
from sharepod.deviceplugin.terms import PodTerms
from sharepod.proto import v1_pb2 as pb
from sharepod.proto import v1_pb2_grpc as rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

GIB = 2**30
LABELS = {"pod": "p", "container": "main"}
TERMS = PodTerms(1, 30_000, 50_000, None, "standard", (), same_device=False, paused=False)
Context = grpc.aio.ServicerContext[Any, Any]


def node(memory_total_bytes: int) -> NodeView:
    device = NodeDevice("GPU-0", 0, memory_total_bytes, True, "")
    return NodeView((device,), "/hook", "/run/shares", closed=False, environment={})


class OneShare(rpc.NodeServiceServicer):
    """An agent with one share; what changes it is kept."""

    def __init__(self) -> None:
        self.held = pb.DeviceShare(
            device_uuid="GPU-0", request_millipercent=30_000, limit_millipercent=50_000, memory_limit_bytes=3 * GIB
        )
        self.changes: list[pb.UpdateShareRequest] = []
        self.paused = self.yielding = False
        self.full = False
        self.pauses: list[str] = []

    async def ListShares(self, _request: pb.ListSharesRequest, _context: Context) -> pb.ListSharesResponse:  # noqa: N802 - proto
        share = pb.Share(id="s1", devices=[self.held], share_class=pb.SHARE_CLASS_STANDARD, labels=LABELS)
        share.paused, share.yielding = self.paused, self.yielding
        return pb.ListSharesResponse(shares=[share])

    async def UpdateShare(self, request: pb.UpdateShareRequest, _context: Context) -> pb.UpdateShareResponse:  # noqa: N802
        self.changes.append(request)
        return pb.UpdateShareResponse()

    async def PauseShare(self, request: pb.PauseShareRequest, context: Context) -> pb.PauseShareResponse:  # noqa: N802
        await self._change(context, "yields" if request.yielding else "paused")
        return pb.PauseShareResponse()

    async def ResumeShare(self, _request: pb.ResumeShareRequest, context: Context) -> pb.ResumeShareResponse:  # noqa: N802
        await self._change(context, "runs")
        return pb.ResumeShareResponse()

    async def _change(self, context: Context, how: str) -> None:
        self.pauses.append(how)
        if self.full and self.yielding and how != "yields":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "share s1 stays paused: no room")
        self.paused, self.yielding = how != "runs", how == "yields"


@contextlib.asynccontextmanager
async def one_share(directory: Path) -> AsyncIterator[tuple[OneShare, Agent, HeldShare]]:
    served, server = OneShare(), grpc.aio.server()
    rpc.add_NodeServiceServicer_to_server(served, server)
    server.add_insecure_port(f"unix:{directory / 'agent.sock'}")
    await server.start()
    try:
        async with Agent(directory / "agent.sock") as agent:
            share = await agent.share("s1")
            assert share is not None
            yield served, agent, share
    finally:
        await server.stop(None)


async def test_a_share_that_has_what_its_pod_asks_for_is_left_alone(directory: Path) -> None:
    async with one_share(directory) as (served, agent, share):
        await agent.update(share, TERMS, node(10 * GIB))
        await agent.update(share, TERMS, node(10 * GIB), LABELS)
        assert served.changes == []


@pytest.mark.parametrize("differs", ["request", "limit", "memory", "class", "labels", "gang"])
async def test_whatever_differs_is_told(directory: Path, differs: str) -> None:
    async with one_share(directory) as (served, agent, share):
        terms, labels = {
            "request": (PodTerms(1, 20_000, 50_000, 3 * GIB, "standard", (), False, False), None),
            "limit": (PodTerms(1, 30_000, 60_000, None, "standard", (), False, False), None),
            "memory": (PodTerms(1, 30_000, 50_000, 2 * GIB, "standard", (), False, False), None),
            "class": (PodTerms(1, 30_000, 50_000, None, "batch", (), False, False), None),
            "labels": (TERMS, {"pod": "p", "container": "next"}),
            "gang": (replace(TERMS, gang="team/job"), None),
        }[differs]
        await agent.update(share, terms, node(10 * GIB), labels)
        [told] = served.changes
        [change] = told.devices
        assert (change.device, change.request_millipercent) == ("GPU-0", terms.request_millipercent)
        assert change.limit_millipercent == terms.limit_millipercent
        assert change.memory_limit_bytes == (terms.memory_limit_bytes or 3 * GIB)
        assert told.share_class == (pb.SHARE_CLASS_BATCH if differs == "class" else pb.SHARE_CLASS_STANDARD)
        assert dict(told.labels) == (labels or {})
        assert (told.HasField("gang"), told.gang) == (True, terms.gang)


async def test_a_device_that_does_not_tell_its_memory_leaves_the_cap_as_it_was_admitted(directory: Path) -> None:
    async with one_share(directory) as (served, agent, share):
        await agent.update(share, TERMS, node(0))
        assert served.changes == []
        await agent.update(share, PodTerms(1, 30_000, 60_000, None, "standard", (), False, False), node(0))
        [told] = served.changes
        assert told.devices[0].memory_limit_bytes == 3 * GIB


async def test_a_share_is_paused_resumed_and_yields_as_its_terms_say_and_is_told_only_what_is_new(
    directory: Path,
) -> None:
    def wants(*, paused: bool, yields: str = "") -> PodTerms:
        return PodTerms(1, 30_000, 50_000, None, "standard", (), same_device=False, paused=paused, yields=yields)

    async with one_share(directory) as (served, agent, _):
        for terms, told in (
            (wants(paused=True), ["paused"]),
            (wants(paused=True, yields="pause"), ["yields"]),
            (wants(paused=False, yields="pause"), []),
            (wants(paused=True), ["paused"]),
            (wants(paused=True), []),
            (wants(paused=False), ["runs"]),
            (wants(paused=False, yields="pause"), ["yields"]),
            (wants(paused=False), ["runs"]),
        ):
            served.pauses.clear()
            share = await agent.share("s1")
            assert share is not None
            await agent.update(share, terms, node(10 * GIB))
            assert served.pauses == told
        assert served.changes == []


async def test_a_share_that_cannot_have_its_time_back_has_all_else_of_its_terms(directory: Path) -> None:
    async with one_share(directory) as (served, agent, _):
        served.paused = served.yielding = served.full = True
        share = await agent.share("s1")
        assert share is not None
        failures: list[int] = []
        agent.failed = lambda: failures.append(1)
        for paused in (False, True):
            terms = PodTerms(1, 30_000, 60_000, None, "standard", (), same_device=False, paused=paused)
            with pytest.raises(StaysPaused, match="share s1 stays paused: no room"):
                await agent.update(share, terms, node(10 * GIB))
        assert len(served.changes) == 2
        assert not failures  # nothing is wrong with the agent


async def test_a_share_that_yields_by_its_limit_has_its_request_for_one(directory: Path) -> None:
    async with one_share(directory) as (served, agent, share):
        await agent.update(share, replace(TERMS, yields="limit"), node(10 * GIB))
        [told] = served.changes
        assert told.devices[0].limit_millipercent == 30_000
        assert served.pauses == []
