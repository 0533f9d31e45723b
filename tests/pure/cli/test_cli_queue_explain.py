"""Test what is told of a pod that waits for devices or makes room, from what the gate controller knows of it."""

from typing import Any

import pytest

from sharepod.cli.render.queue_explain import lines

BEFORE = [{"job": "team/a", "devices": 1.5, "why": "it came earlier"}]
WAITS: dict[str, Any] = {
    "decides": True, "waits": True, "job": "team/train", "waited_s": 3600.0, "priority": 5, "position": 4,
    "in_line": 9, "in_queue": 3, "before": BEFORE,
    "standing": {"queue": "team", "held_devices": 2.5, "cap_devices": 4.0, "share": 0.25, "weight": 1.5,
                 "longest_wait_s": 172_800.0},
    "gang": {"waiting": 2, "released": 1, "size": 6, "least": 4, "missing": 1},
    "yields": "none of a lower priority",
    "ways": [
        {"node": "n1", "paused": [], "evicted": [], "more": 0, "lost_s": 0.0},
        {"node": "n2", "paused": ["team/b"], "evicted": [], "more": 0, "lost_s": 0.0},
        {"node": "n3", "paused": ["team/b"], "evicted": ["team/c", "team/d"], "more": 7, "lost_s": 59.6},
    ],
    "barred": [
        {"nodes": 1, "examples": ["n4"], "why": "it is cordoned"},
        {"nodes": 3, "examples": ["n5", "n6"], "why": "its agent is silent"},
    ],
}  # fmt: skip
YIELDS: dict[str, Any] = {
    "decides": True, "waits": False, "waited_s": 0.9, "why": "team/high needs it", "position": None, "in_line": 9,
    "before": [],
}  # fmt: skip


LOSES = (
    "  on n3 a pod of it would fit if team/b were paused and if team/c, team/d were evicted and 7 more, which loses "
    "1 min 0 s of a device's work"
)
QUEUE = (
    "  queue team: holds {} devices, 0.250 of the cluster by its weight 1.5; after {} of waiting it goes before all "
    "others"
)


def test_all_that_is_known_of_a_pod_that_waits_is_told() -> None:
    assert list(lines(WAITS)) == [
        "  its turn: 4 of 9 jobs in the line, 3 of its queue; team/train has waited for 1 h, with priority 5",
        "      before it team/a, 1.5 devices: it came earlier",
        "      and 2 more",
        QUEUE.format("2.5 of at most 4", "2 days"),
        "  gang: 3 of 6 members are there, 1 of them released; 4 start together, and 1 of these have still to come",
        "  nobody makes room: none of a lower priority",
        "  on n1 a pod of it would fit as it is",
        "  on n2 a pod of it would fit if team/b were paused",
        LOSES,
        "  1 node (n4): it is cordoned",
        "  3 nodes (n5, n6, ...): its agent is silent",
    ]


def test_what_does_not_hold_is_not_told() -> None:
    standing = WAITS["standing"] | {"cap_devices": None, "longest_wait_s": 86_400.0 * 1.9}
    bare = {"position": 2, "gang": WAITS["gang"] | {"missing": 0}, "yields": "", "ways": [], "barred": []}
    told = list(lines(WAITS | bare | {"standing": standing, "waited_s": None}))
    assert told == [
        "  its turn: 2 of 9 jobs in the line, 3 of its queue; team/train has waited for less than 1 s, with priority 5",
        "      before it team/a, 1.5 devices: it came earlier",
        QUEUE.format("2.5", "45.6 h"),
        "  gang: 3 of 6 members are there, 1 of them released; 4 start together",
    ]
    unlisted = list(lines(WAITS | bare | {"position": None, "before": [], "gang": None, "waited_s": 3599.4}))
    assert len(unlisted) == 2
    assert unlisted[0] == ("  its turn: it is not in the line; team/train has waited for 59 min 59 s, with priority 5")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, ["  it makes room for less than 1 s: team/high needs it"]),
        (
            {"waited_s": None, "why": ""},
            ["  it makes room since before this replica looked: another replica has decided it; see its Events"],
        ),
        (
            {"waited_s": 1.0, "position": 2, "before": BEFORE},
            [
                "  it makes room for 1 s: team/high needs it",
                "  to go on: 2 of 9 jobs in the line",
                "      before it team/a, 1.5 devices: it came earlier",
            ],
        ),
    ],
)
def test_why_a_pod_makes_room_and_when_it_goes_on(change: dict[str, object], told: list[str]) -> None:
    assert list(lines(YIELDS | change)) == told


def test_a_replica_that_does_not_decide_says_where_to_ask() -> None:
    assert list(lines({"decides": False})) == [
        "This replica does not decide: of its turn another one knows, ask each pod of the Deployment."
    ]
