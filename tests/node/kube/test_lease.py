"""Test the lease that selects the deciding replica: races, clocks that differ, a holder that falls silent."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from watching import AGENT

from rig.cluster.apiserver import ApiServer
from sharepod.kube.client import Client
from sharepod.kube.lease import RENEW_WITHIN_S, TAKE_AFTER_S, Lease


class Replicas:
    """Replicas with one common clock, which the test sets."""

    def __init__(self, client: Client, server: ApiServer) -> None:
        self.server, self.now_s = server, 1000.0
        self.all = [
            Lease(client, namespace="sharepod", name="leader", holder=name, clock=lambda: self.now_s)
            for name in ("one", "two", "three")
        ]

    async def step(self) -> None:
        """Let all replicas look at the lease at the same time."""
        await asyncio.gather(*(lease._step() for lease in self.all))

    @property
    def held(self) -> list[bool]:
        return [lease.is_held() for lease in self.all]

    def write(self, holder: str, renewed: str) -> None:
        """Let another client write the lease."""
        body = {"metadata": {"namespace": "sharepod", "name": "leader"}}
        self.server.put_object("leases", body | {"spec": {"holderIdentity": holder, "renewTime": renewed}})


@contextlib.asynccontextmanager
async def wanting_a_lease(account: Path) -> AsyncIterator[Replicas]:
    async with ApiServer() as server:
        server.put_namespace("sharepod")
        async with Client(server.access(account), AGENT) as client:
            yield Replicas(client, server)


@pytest.mark.parametrize("is_there", [False, True])
async def test_of_replicas_that_want_a_free_one_at_the_same_time_one_has_it(tmp_path: Path, is_there: bool) -> None:
    async with wanting_a_lease(tmp_path) as replicas:
        if is_there:
            replicas.write("", "2026-01-01T00:00:00.000000Z")
        replicas.server.faults.delay(0.2, "put leases" if is_there else "post leases")  # all have read the same version
        for _ in range(5):
            await replicas.step()
            assert sorted(replicas.held) == [False, False, True]
            replicas.now_s += 2.0


async def test_a_holder_is_believed_whatever_its_clock_says_for_as_long_as_it_writes(tmp_path: Path) -> None:
    async with wanting_a_lease(tmp_path) as replicas:
        for second in range(20):
            replicas.write("stranger", f"1970-01-01T00:00:{second:02}.000000Z")
            await replicas.step()
            replicas.now_s += 2.0
        assert replicas.held == [False] * 3
        replicas.write("stranger", "2999-01-01T00:00:00.000000Z")
        await replicas.step()
        replicas.now_s += TAKE_AFTER_S - 0.1
        await replicas.step()
        assert replicas.held == [False] * 3
        replicas.now_s += 0.2
        await replicas.step()
        assert sorted(replicas.held) == [False, False, True]


async def test_a_holder_decides_no_more_well_before_another_takes_it_and_at_once_when_another_has_it(
    tmp_path: Path,
) -> None:
    async with wanting_a_lease(tmp_path) as replicas:
        await replicas.step()
        holder = replicas.held.index(True)
        assert RENEW_WITHIN_S < TAKE_AFTER_S
        replicas.now_s += RENEW_WITHIN_S - 0.1
        assert replicas.all[holder].is_held()
        replicas.now_s += 0.2
        assert replicas.held == [False] * 3
        await replicas.step()
        assert replicas.all[holder].is_held(), "it can write again"
        replicas.write("stranger", "2026-01-01T00:00:00.000000Z")
        await replicas.step()
        assert replicas.held == [False] * 3, "a holder that finds another's name decides no more at once"


async def test_a_lease_keeps_what_others_wrote_into_it_and_is_given_up_at_the_end(tmp_path: Path) -> None:
    async with wanting_a_lease(tmp_path) as replicas:
        metadata = {"namespace": "sharepod", "name": "leader", "labels": {"team": "a"}}
        replicas.server.put_object("leases", {"metadata": metadata, "spec": {"leaseTransitions": 6, "strategy": "x"}})
        one, two, _ = replicas.all
        await one._step()
        assert one.is_held()
        await one.give_up()
        assert not one.is_held()
        await two._step()
        assert two.is_held(), "it is not waited for a lease that was given up"
        kept = replicas.server.seen("leases")["sharepod", "leader"]
        assert kept["metadata"]["labels"] == {"team": "a"}
        assert kept["spec"] | {"renewTime": "", "acquireTime": ""} == {
            "holderIdentity": "two", "leaseDurationSeconds": 15, "leaseTransitions": 8, "strategy": "x",
            "renewTime": "", "acquireTime": "",
        }  # fmt: skip
