"""Test gangs beside other shares: a gang gets its devices together, and each share keeps its target and limit."""

from pathlib import Path
from typing import Any

from gang_runs import gang_node, go, job_beside_others, ring, single

from rig.loads import MS
from rig.programs import Program


def _collectives(program: Program) -> tuple[int, float]:
    """Wait for the end of a ring; return how many collectives it made, and how long the longest took, in ms."""
    result = program.result(20)
    return result.other["collectives"], result.other["longest_ns"] / MS


def _granted_together(turns: list[Any]) -> float:
    """Return the fraction of the longer turns that began on both devices within a millisecond."""
    whole = [turn for turn in turns if turn.closed_ns - turn.granted_ns > 4 * MS]
    return sum(
        any(other.device != turn.device and abs(other.granted_ns - turn.granted_ns) < MS for other in turns)
        for turn in whole
    ) / len(whole)


def test_two_gangs_and_two_single_shares_never_deadlock_and_keep_their_targets() -> None:
    cast = {"a": ring(), "b": ring(), "one": single(0), "two": single(1)}
    with gang_node(cast) as (node, programs):
        start_ns = go(programs, 4)
        part = node.parts(3, start_ns + 1000 * MS)
        made = {name: _collectives(programs[name]) for name in ("a", "b")}
        turns = node.turns()
    # Without gangs there were about 20 a second: nearly every turn ended with one rank spinning for the other.
    assert sum(count for count, _ in made.values()) > 1000, made
    # The bound is a round of turns of the four shares, and what a busy host adds.
    assert max(longest for _, longest in made.values()) < 400, made
    assert part["one"] > 0.36, part
    assert part["two"] > 0.36, part
    together = _granted_together([turn for turn in turns if turn.share == "a"])
    assert together > 0.5


def test_a_gang_with_a_limit_keeps_it_and_makes_its_collectives() -> None:
    with gang_node({"gang": ring(30, limit=40.0), "one": single(0), "two": single(1)}) as (node, programs):
        start_ns = go(programs, 3)
        used = node.parts(2, start_ns + 1000 * MS)["gang"] / 2
        count, longest_ms = _collectives(programs["gang"])
    assert count > 100
    assert longest_ms < 600
    assert used < 0.42


def test_pods_of_a_gang_get_their_devices_together_and_the_others_keep_their_targets(tmp_path: Path) -> None:
    made, part = {}, {}
    for gang in ("", "team/job"):
        (tmp_path / "words").unlink(missing_ok=True)
        with job_beside_others(tmp_path, gang) as (node, programs):
            start_ns = go(programs, 3)
            part[gang] = node.parts(2, start_ns + 1000 * MS)
            made[gang] = min(programs[name].result(20).other["rounds"] for name in ("rank0", "rank1"))
    # Without the gang, nearly every turn ends with a rank that spins for the other one.
    assert made["team/job"] > 5 * made[""], made
    assert made["team/job"] > 1010, made
    assert min(part["team/job"][name] for name in ("other0", "other1")) > 0.57, part
