"""Test what the plugin tells the agent about an existing share: only the differences, and nothing if there are none."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from sharepod.deviceplugin.core.agent import Agent, NodeView, StaysPaused
from sharepod.deviceplugin.core.terms import PodTerms
from sharepod.proto import v1_pb2 as pb
from sharepod.proto import v1_pb2_grpc as rpc

GIB = 2**30
LABELS = {"pod": "p", "container": "main"}
TERMS = PodTerms(1, 30_000, 50_000, None, "standard", (), same_device=False, paused=False)
Context = grpc.aio.ServicerContext[Any, Any]


def node(memory_total_bytes: int) -> NodeView:
    device = pb.Device(uuid="GPU-0", memory_total_bytes=memory_total_bytes, healthy=True)
    return NodeView((device,), "/hook", "/run/shares", closed=False, environment={})


class OneShare(rpc.NodeServiceServicer):
    """An agent with one share; it keeps the changes that it is told."""

    def __init__(self) -> None:
        self.changes: list[pb.UpdateShareRequest] = []
        self.paused = self.yielding = self.full = False
        self.told: list[str] = []

    async def ListShares(self, _request: pb.ListSharesRequest, _context: Context) -> pb.ListSharesResponse:  # noqa: N802 - proto
        held = pb.DeviceShare(
            device_uuid="GPU-0", request_millipercent=30_000, limit_millipercent=50_000, memory_limit_bytes=3 * GIB
        )
        share = pb.Share(id="s1", devices=[held], share_class=pb.SHARE_CLASS_STANDARD, labels=LABELS)
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
        self.told.append(how)
        if self.full and self.yielding and how != "yields":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "share s1 stays paused: no room")
        self.paused, self.yielding = how != "runs", how == "yields"


@contextlib.asynccontextmanager
async def one_share(directory: Path) -> AsyncIterator[tuple[OneShare, Agent]]:
    served, server = OneShare(), grpc.aio.server()
    rpc.add_NodeServiceServicer_to_server(served, server)
    server.add_insecure_port(f"unix:{directory / 'agent.sock'}")
    await server.start()
    try:
        async with Agent(directory / "agent.sock") as agent:
            yield served, agent
    finally:
        await server.stop(None)


async def update(
    agent: Agent, terms: PodTerms, labels: dict[str, str] | None = None, memory_bytes: int = 10 * GIB
) -> None:
    share = await agent.share("s1")
    assert share is not None
    await agent.update(share, terms, node(memory_bytes), labels)


@pytest.mark.parametrize(
    ("other", "labels"),
    [
        ({"request_millipercent": 20_000, "memory_limit_bytes": 3 * GIB}, {}),
        ({"limit_millipercent": 60_000}, {}),
        ({"memory_limit_bytes": 2 * GIB}, {}),
        ({"share_class": "batch"}, {}),
        ({"gang": "team/job"}, {}),
        ({}, {"pod": "p", "container": "next"}),
    ],
    ids=str,
)
async def test_whatever_differs_is_told_with_all_that_holds(
    directory: Path, other: dict[str, Any], labels: dict[str, str]
) -> None:
    async with one_share(directory) as (served, agent):
        terms = replace(TERMS, **other)
        await update(agent, terms, labels or None)
        [told] = served.changes
        [change] = told.devices
        assert (change.device, change.request_millipercent) == ("GPU-0", terms.request_millipercent)
        assert change.limit_millipercent == terms.limit_millipercent
        assert change.memory_limit_bytes == (terms.memory_limit_bytes or 3 * GIB)
        assert told.share_class == (pb.SHARE_CLASS_BATCH if "share_class" in other else pb.SHARE_CLASS_STANDARD)
        assert dict(told.labels) == labels
        assert (told.HasField("gang"), told.gang) == (True, terms.gang)


async def test_a_share_that_has_what_its_pod_asks_for_is_left_alone(directory: Path) -> None:
    async with one_share(directory) as (served, agent):
        await update(agent, TERMS)
        await update(agent, TERMS, LABELS)
        await update(agent, TERMS, memory_bytes=0)  # the device's size is unknown, so the admitted cap stays
        assert served.changes == []
        await update(agent, replace(TERMS, limit_millipercent=60_000), memory_bytes=0)
        assert served.changes[0].devices[0].memory_limit_bytes == 3 * GIB


async def test_a_share_is_paused_resumed_and_yields_as_its_terms_say_and_is_told_only_what_is_new(
    directory: Path,
) -> None:
    async with one_share(directory) as (served, agent):
        for paused, yields, told in (
            (True, "", ["paused"]),
            (True, "pause", ["yields"]),
            (False, "pause", []),
            (True, "", ["paused"]),
            (False, "", ["runs"]),
        ):
            served.told.clear()
            await update(agent, replace(TERMS, paused=paused, yields=yields))
            assert served.told == told
        assert served.changes == []


async def test_a_share_that_cannot_have_its_time_back_has_all_else_of_its_terms(directory: Path) -> None:
    async with one_share(directory) as (served, agent):
        served.paused = served.yielding = served.full = True
        failures: list[int] = []
        agent.failed = lambda: failures.append(1)
        for paused in (False, True):
            with pytest.raises(StaysPaused, match="share s1 stays paused: no room"):
                await update(agent, replace(TERMS, limit_millipercent=60_000, paused=paused))
        assert len(served.changes) == 2
        assert not failures  # this must not count as a failure of the agent
