"""Gangs of several shares: together on their devices, in turn on one, and the others keep their targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rig.loads import Load, Terms
from rig.node import Node

if TYPE_CHECKING:
    from pathlib import Path

    from rig.programs import Program
from joint_gang_runs import MS, go, job_beside_others


def rounds(program: Program) -> int:
    """Wait for the end of a rank; return how many collectives it made."""
    made: int = program.result(20).other["rounds"]
    return made


def test_pods_of_a_gang_get_their_devices_together_and_the_others_keep_their_targets(tmp_path: Path) -> None:
    made, part = {}, {}
    for gang in ("", "team/job"):
        (tmp_path / "words").unlink(missing_ok=True)
        with job_beside_others(tmp_path, gang) as (node, programs):
            start_ns = go(programs, 4)
            part[gang] = node.parts(2, start_ns + 1000 * MS)
            made[gang] = min(rounds(programs[name]) for name in ("rank0", "rank1"))
    # Each by itself, nearly every turn ends with a rank that spins for the other one.
    assert made["team/job"] > 5 * made[""], made
    assert made["team/job"] > 1350, made
    assert min(part["team/job"][name] for name in ("other0", "other1")) > 0.57, part


def test_two_shares_of_a_gang_on_one_device_take_turns() -> None:
    with Node("1xH200") as node:
        programs = {}
        for name in "abc":
            gang = "" if name == "c" else "job"
            load = Load(Terms(60 if name == "c" else 20, devices=("0",), gang=gang), "saturate", {"unit": "500us"})
            programs[name] = node.start(name, load)
        start_ns = go(programs, 4)
        part = node.parts(3, start_ns + 500 * MS)
    assert part == pytest.approx({"a": 0.2, "b": 0.2, "c": 0.6}, abs=0.02)
