"""The lease by which replicas agree on who decides: races for it, clocks that differ, a holder that falls silent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from apiserver import ApiServer

from sharepod.deviceplugin.api import Api
from sharepod.scheduler.lease import RENEW_WITHIN_S, TAKE_AFTER_S, Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path


class Replicas:
    """Replicas with one clock that the test sets."""

    def __init__(self, api: Api, url: str, server: ApiServer) -> None:
        self.server, self.now_s = server, 1000.0
        self.all = [
            Lease(api, url, namespace="sharepod", name="leader", holder=name, clock=lambda: self.now_s)
            for name in ("one", "two", "three")
        ]

    async def step(self) -> None:
        """Have all look at the lease at the same time."""
        await asyncio.gather(*(lease._step() for lease in self.all))

    @property
    def held(self) -> list[bool]:
        return [lease.is_held() for lease in self.all]

    def write(self, holder: str, renewed: str) -> None:
        """Have somebody else write the lease."""
        body = {"metadata": {"namespace": "sharepod", "name": "leader"}}
        self.server.put_object("leases", body | {"spec": {"holderIdentity": holder, "renewTime": renewed}})


def with_replicas(directory: Path, test: Callable[[Replicas], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        async with ApiServer() as server:
            server.put_namespace("sharepod")
            access = server.cluster(directory / "account")
            async with Api(access) as api:
                await test(Replicas(api, access.server, server))

    asyncio.run(run())


def test_of_those_who_make_it_at_the_same_time_one_has_it(tmp_path: Path) -> None:
    async def test(replicas: Replicas) -> None:
        replicas.server.faults.delay(0.2, "post leases")  # all have seen that it is not there
        await replicas.step()
        assert sorted(replicas.held) == [False, False, True]

    with_replicas(tmp_path, test)


def test_of_those_who_take_a_free_one_at_the_same_time_one_has_it(tmp_path: Path) -> None:
    async def test(replicas: Replicas) -> None:
        replicas.write("", "2026-01-01T00:00:00.000000Z")
        replicas.server.faults.delay(0.2, "put leases")  # all have read it as it was
        for _ in range(5):
            await replicas.step()
            assert sorted(replicas.held) == [False, False, True]
            replicas.now_s += 2.0

    with_replicas(tmp_path, test)


def test_who_holds_it_is_believed_whatever_his_clock_says_for_as_long_as_he_writes(tmp_path: Path) -> None:
    async def test(replicas: Replicas) -> None:
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

    with_replicas(tmp_path, test)


def test_who_could_not_write_it_decides_no_more_well_before_another_takes_it(tmp_path: Path) -> None:
    async def test(replicas: Replicas) -> None:
        await replicas.step()
        holder = replicas.held.index(True)
        assert RENEW_WITHIN_S < TAKE_AFTER_S
        replicas.now_s += RENEW_WITHIN_S - 0.1
        assert replicas.all[holder].is_held()
        replicas.now_s += 0.2
        assert replicas.held == [False] * 3

    with_replicas(tmp_path, test)


def test_who_finds_anothers_name_on_it_decides_no_more_at_once(tmp_path: Path) -> None:
    async def test(replicas: Replicas) -> None:
        await replicas.step()
        replicas.write("stranger", "2026-01-01T00:00:00.000000Z")
        await replicas.step()
        assert replicas.held == [False] * 3

    with_replicas(tmp_path, test)
