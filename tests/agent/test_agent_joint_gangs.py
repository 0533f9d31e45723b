"""Gangs of several shares: one process a device, each in its own share, and all of them one entity to the arbiter.

The programs make collectives across processes (`load spin`): each round, every rank says "I am here" in memory that
they share and spins on its device until the next rank has said so, as NCCL's kernels do.
"""

from __future__ import annotations

import errno
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from rig.node import Load, Node, Terms
from rig.programs import load_command
from sharepod.agent.native import NativeArbiter
from sharepod.agent.share import Handle, ShareClass
from sharepod.agent.share import Terms as ShareTerms
from sharepod.cli.errors import CliError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rig.programs import Program
    from sharepod.cli import model

MS = 1_000_000
ROUNDS = 200_000


@contextmanager
def job_beside_others(
    directory: Path, gang: str, *, request: float = 40, others: float = 60
) -> Iterator[tuple[Node, dict[str, Program]]]:
    """Two ranks of one job, `rank0` and `rank1`, each with a share of its own device, beside two that saturate."""
    with Node("2xH200") as node:
        programs = {}
        for device in (0, 1):
            options = {"unit": "100us", "ranks": 2, "rank": device, "words": directory / "words", "count": ROUNDS}
            terms = Terms(request, devices=(str(device),), gang=gang)
            name = f"rank{device}"
            programs[name] = node.add(name, load_command("spin", options), node.share_environment(name, terms))
            load = Load(Terms(others, devices=(str(device),)), "saturate", {"unit": "500us"})
            programs[f"other{device}"] = node.start(f"other{device}", load)
        yield node, programs


def go(programs: dict[str, Program], seconds: float) -> int:
    start_ns = time.monotonic_ns() + 100 * MS
    for program in programs.values():
        program.go(start_ns, start_ns + round(seconds * 1e9))
    return start_ns


def rounds(program: Program) -> int:
    """Wait for the end of a rank; return how many collectives it made."""
    made: int = program.result(20).other["rounds"]
    return made


def parts(node: Node, names: list[str], from_ns: int, seconds: int) -> dict[str, float]:
    """Return what part of its device each had, by the truth of the devices."""
    samples = node.samples(from_ns, seconds)
    span_ns = samples[-1].now_ns - samples[0].now_ns
    return {name: (samples[-1].busy_ns[name] - samples[0].busy_ns[name]) / span_ns for name in names}


def share(node: Node, name: str) -> model.Share:
    return next(share for share in node.client.list_shares().shares if share.name == name)


@pytest.mark.realtime
def test_pods_of_a_gang_get_their_devices_together_and_the_others_keep_their_targets(tmp_path: Path) -> None:
    made, part = {}, {}
    for gang in ("", "team/job"):
        (tmp_path / "words").unlink(missing_ok=True)
        with job_beside_others(tmp_path, gang) as (node, programs):
            start_ns = go(programs, 6)
            part[gang] = parts(node, ["other0", "other1"], start_ns + 1000 * MS, 4)
            made[gang] = min(rounds(programs[name]) for name in ("rank0", "rank1"))
    # Each by itself, nearly every turn ends with a rank that spins for the other one.
    assert made["team/job"] > 5 * made[""], made
    assert made["team/job"] > 2000, made
    assert min(part["team/job"].values()) > 0.57, part


@pytest.mark.realtime
def test_a_gang_of_which_one_share_is_paused_leaves_all_of_its_devices(tmp_path: Path) -> None:
    used: list[dict[str, float]] = []
    with job_beside_others(tmp_path, "job", request=50, others=50) as (node, programs):
        start_ns = go(programs, 9)
        time.sleep(max(0.0, start_ns / 1e9 + 1 - time.monotonic()))
        for paused in ("rank0", "rank1", "rank0"):  # most pauses fall between the launches of one collective
            node.client.pause(paused)
            time.sleep(0.2)
            used.append(parts(node, list(programs), time.monotonic_ns(), 1))
            mate = "rank1" if paused == "rank0" else "rank0"
            assert (share(node, mate).paused, share(node, mate).devices[0].state) == (False, "paused")
            [told] = node.client.explain(mate)[1]
            assert told.reason == f"paused with its gang: nothing of it runs while {paused} is paused"
            assert f"of gang job, with {paused}: they get their devices together" in told.facts
            node.client.resume(paused)
            time.sleep(0.2)
        made = rounds(programs["rank0"])
    assert max(one[name] for one in used for name in ("rank0", "rank1")) < 0.01, used
    assert min(one[name] for one in used for name in ("other0", "other1")) > 0.9, used
    assert made > 500


@pytest.mark.realtime
def test_a_new_agent_knows_the_gang(tmp_path: Path) -> None:
    with job_beside_others(tmp_path, "job") as (node, programs):
        start_ns = go(programs, 6)
        time.sleep(max(0.0, start_ns / 1e9 + 1 - time.monotonic()))
        node.restart_agent(signal.SIGKILL)
        time.sleep(0.5)
        node.client.pause("rank1")
        time.sleep(0.2)
        assert share(node, "rank0").devices[0].state == "paused"
        assert share(node, "rank0").gang == "job"
        node.client.resume("rank1")
        made = rounds(programs["rank0"])
    assert made > 500


@pytest.mark.realtime
def test_who_is_left_of_a_gang_is_held_up_by_nobody(tmp_path: Path) -> None:
    with job_beside_others(tmp_path, "job") as (node, programs):
        start_ns = go(programs, 5)
        time.sleep(max(0.0, start_ns / 1e9 + 1 - time.monotonic()))
        node.client.pause("rank0")
        programs["rank0"].kill()
        node.client.release("rank0")  # paused as it is: with it goes the pause
        time.sleep(0.2)
        state = share(node, "rank1").devices[0].state
        assert state != "paused"
        part = parts(node, ["other0"], time.monotonic_ns(), 1)
        programs["rank1"].kill()  # it spins for one that is gone, as it would on bare metal
    assert part["other0"] > 0.9


@pytest.mark.realtime
def test_two_shares_of_a_gang_on_one_device_take_turns(tmp_path: Path) -> None:
    del tmp_path
    with Node("1xH200") as node:
        names = ["a", "b", "c"]
        programs = {}
        for name in names:
            gang = "" if name == "c" else "job"
            load = Load(Terms(60 if name == "c" else 20, devices=("0",), gang=gang), "saturate", {"unit": "500us"})
            programs[name] = node.start(name, load)
        start_ns = go(programs, 5)
        part = parts(node, names, start_ns + 1000 * MS, 3)
        for program in programs.values():
            program.result(20)
    assert part == pytest.approx({"a": 0.2, "b": 0.2, "c": 0.6}, abs=0.02)


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
