"""Gangs of several shares: one process a device, each in its own share, and all of them one entity to the arbiter.

The programs make collectives across processes (`load spin`): each round, every rank says "I am here" in memory that
they share and spins on its device until the next rank has said so, as NCCL's kernels do.
"""

from __future__ import annotations

import errno
import signal
from typing import TYPE_CHECKING

import pytest

from rig.loads import Terms
from rig.node import Node
from rig.until import until
from sharepod.agent.native import NativeArbiter
from sharepod.agent.share import Handle, ShareClass
from sharepod.agent.share import Terms as ShareTerms
from sharepod.cli.errors import CliError

if TYPE_CHECKING:
    from pathlib import Path

    from sharepod.cli import model
from joint_gang_runs import MS, go, job_beside_others

PATIENT_S = 120
"""Longer than any wait; what still runs then ends with its node."""


def share(node: Node, name: str) -> model.Share:
    return next(share for share in node.client.list_shares().shares if share.name == name)


def until_used(node: Node, name: str) -> None:
    """Wait until a program has used more of its device."""
    before_ns = node.sample().busy_ns[name]
    until(lambda: node.sample().busy_ns[name] - before_ns > 100 * MS, f"{name} does not run")


def test_a_gang_of_which_one_share_is_paused_leaves_all_of_its_devices(tmp_path: Path) -> None:
    with job_beside_others(tmp_path, "job", request=50, others=50) as (node, programs):
        go(programs, PATIENT_S)
        for paused in ("rank0", "rank1", "rank0"):  # most pauses fall between the launches of one collective
            for rank in ("rank0", "rank1"):
                until_used(node, rank)
            node.client.pause(paused)
            until(lambda: [node.parts(0.1)[rank] for rank in ("rank0", "rank1")] == [0, 0])
            before = node.sample().busy_ns
            for other in ("other0", "other1"):
                until(lambda other=other: node.parts(0.2)[other] > 0.9, f"{other} has not all of its device")
            mate = "rank1" if paused == "rank0" else "rank0"
            assert (share(node, mate).paused, share(node, mate).devices[0].state) == (False, "paused")
            [told] = node.client.explain(mate)[1]
            assert told.reason == f"paused with its gang: nothing of it runs while {paused} is paused"
            assert f"of gang job, with {paused}: they get their devices together" in told.facts
            after = node.sample().busy_ns
            assert all(after[rank] == before[rank] for rank in ("rank0", "rank1"))
            node.client.resume(paused)
        until_used(node, "rank0")


def test_a_new_agent_knows_the_gang(tmp_path: Path) -> None:
    with job_beside_others(tmp_path, "job") as (node, programs):
        go(programs, PATIENT_S)
        until_used(node, "rank0")
        node.restart_agent(signal.SIGKILL)
        until(lambda: share(node, "rank1").processes)
        node.client.pause("rank1")
        until(lambda: share(node, "rank0").devices[0].state == "paused")
        assert share(node, "rank0").gang == "job"
        node.client.resume("rank1")
        until_used(node, "rank0")


def test_who_is_left_of_a_gang_is_held_up_by_nobody(tmp_path: Path) -> None:
    with job_beside_others(tmp_path, "job") as (node, programs):
        go(programs, PATIENT_S)
        until_used(node, "rank0")
        node.client.pause("rank0")
        programs["rank0"].kill()
        node.client.release("rank0")  # paused as it is: with it goes the pause
        until(lambda: share(node, "rank1").devices[0].state != "paused")
        until(lambda: node.parts(0.3)["other0"] > 0.9)
        programs["rank1"].kill()  # it spins for one that is gone, as it would on bare metal


def test_a_gang_whose_name_is_malformed_is_refused_in_one_line() -> None:
    with Node("1xH200") as node:
        for gang in ("no spaces", "-first", "x" * 254):
            with pytest.raises(CliError) as refused:
                node.share_environment("a", Terms(10, gang=gang))
            text = str(refused.value)
            assert "is no gang's name: use 1–253 letters, digits" in text
            assert "\n" not in text
        assert node.client.list_shares().shares == ()


def test_the_arbiter_joins_and_parts_shares_in_any_order(tmp_path: Path) -> None:
    arbiter = NativeArbiter()
    try:
        devices = [arbiter.add_device(f"GPU-{index}") for index in range(3)]
        shares = []
        for index, on in enumerate(([0], [0], [1, 2], [1], [2])):
            directory = tmp_path / str(index)
            directory.mkdir()
            terms = [(devices[device], ShareTerms(10_000, 100_000, 0)) for device in on]
            shares.append(arbiter.add_share(str(directory), terms, ShareClass.STANDARD, []))
        for key in (1, 1, 2, 0, 1, 3):
            for share_handle in shares:
                arbiter.join_gang(share_handle, key)
        for share_handle in shares:
            arbiter.join_gang(share_handle, 5)  # the second one of device 0 and those after the third are a second gang
        arbiter.pause_share(shares[0], True)
        paused = [arbiter.read_usage(one, 0).state.name == "PAUSED" for one in shares]
        assert paused == [True, False, True, False, False]
        arbiter.join_gang(shares[0], 2)
        assert arbiter.read_usage(shares[2], 0).state.name == "IDLE"
        for share_handle, key in zip(reversed(shares), (2, 2, 3, 2, 0), strict=True):
            arbiter.join_gang(share_handle, key)
        arbiter.remove_share(shares[0])
        assert [arbiter.read_usage(one, 0).state.name for one in shares[1:]] == ["IDLE"] * 4
        with pytest.raises(OSError) as refused:  # noqa: PT011 - the errno is what is asked for
            arbiter.join_gang(Handle(999), 1)
        assert refused.value.errno == errno.ENOENT
        for share_handle in shares[1:]:
            arbiter.remove_share(share_handle)
    finally:
        arbiter.close()
