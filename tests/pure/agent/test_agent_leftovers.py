"""Test what an agent does with the leftovers of an earlier one, and with calls under way when it ends itself."""

import asyncio
from pathlib import Path

import pytest
from agent_doubles import H200, MemoryArbiter, ask, identity

from sharepod.agent import node as node_module
from sharepod.agent.devices.device import DeviceLook
from sharepod.agent.native import NativeArbiter
from sharepod.agent.node import Node
from sharepod.agent.shares.leftovers import Leftovers
from sharepod.agent.shares.registry import Registry

ID = "abcdefghjk"


def left_behind(tmp_path: Path, *, tenants: int) -> tuple[Leftovers, MemoryArbiter, Path]:
    """Return leftovers, the arbiter, and a directory that is no region and has this number of tenants."""
    directory = tmp_path / "shares" / ID
    directory.mkdir(parents=True)
    arbiter = MemoryArbiter()
    arbiter.tenants[str(directory)] = tenants
    leftovers = Leftovers(arbiter, directory.parent, tmp_path, "boot")
    assert leftovers.read().records == ()
    return leftovers, arbiter, directory


def test_a_directory_goes_when_no_process_is_in_it(tmp_path: Path) -> None:
    leftovers, arbiter, directory = left_behind(tmp_path, tenants=2)
    for _ in range(3):
        leftovers.clear(())
        assert directory.exists()
    arbiter.tenants[str(directory)] = 0
    leftovers.clear(())
    assert not directory.exists()


def test_a_process_that_has_just_lost_its_lock_is_looked_at_twice(tmp_path: Path) -> None:
    leftovers, arbiter, directory = left_behind(tmp_path, tenants=1)
    leftovers.clear(())
    arbiter.tenants[str(directory)] = 2  # the process has its lock again
    leftovers.clear(())
    arbiter.tenants[str(directory)] = 1
    leftovers.clear(())
    assert directory.exists()
    leftovers.clear(())
    assert not directory.exists()


def test_a_directory_that_a_share_was_registered_in_anew_is_that_shares(tmp_path: Path) -> None:
    leftovers, arbiter, directory = left_behind(tmp_path, tenants=2)
    arbiter.tenants[str(directory)] = 0
    leftovers.clear({ID})
    leftovers.clear(())
    assert directory.exists()


@pytest.mark.parametrize("mode", [0o600, 0o666], ids=["of-an-owner", "of-a-container"])
async def test_only_a_share_that_had_an_owner_ends_when_no_process_is_left_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    shares = tmp_path / "shares"
    shares.mkdir()
    arbiter = NativeArbiter()
    first = Registry(arbiter, shares, [H200])
    share = first.register(ask(), unix_ns=1, now_ns=0)
    arbiter.close()
    (shares / share.id / "slots").chmod(mode)
    (tmp_path / "checkpoint.json").write_text("{", encoding="utf-8")
    arbiter = NativeArbiter()
    node = Node(identity(tmp_path), Registry(arbiter, shares, [H200]), arbiter, tmp_path, ())
    node.adopt(())
    node.look_after_shares()
    assert [status.share.id for status in node.statuses()] == [share.id]
    monkeypatch.setattr(node_module, "OWNERLESS_NS", 0)
    node.look_after_shares()
    assert len(node.statuses()) == (0 if mode == 0o600 else 1)
    node.close()


async def test_a_look_and_a_scrape_that_come_too_late_find_no_arbiter_and_do_no_harm(tmp_path: Path) -> None:
    arbiter = NativeArbiter()
    node = Node(identity(tmp_path), Registry(arbiter, tmp_path, [H200]), arbiter, tmp_path, ())
    node.serve_threads(asyncio.get_running_loop())
    node.close()
    node.looked([DeviceLook(H200.uuid)])
    assert await asyncio.to_thread(node.status_from_thread) is node.published
