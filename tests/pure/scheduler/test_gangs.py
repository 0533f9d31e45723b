"""Gangs and queues as tenants and operators write them."""

from __future__ import annotations

import pytest

from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.gang import Gang, read_gang
from sharepod.scheduler.queues import Queue, Queues, read_queues

P = "sharepod.io/"


def test_a_pod_without_a_gang_is_of_none() -> None:
    assert read_gang({"sharepod.io/limit": "40"}) is None


def test_a_gang_is_read_with_all_that_it_says() -> None:
    given = {
        P + "gang": "train",
        P + "gang-size": "8",
        P + "gang-min": "4",
        P + "gang-timeout": "2h",
        P + "gang-restart": "whole",
    }
    assert read_gang(given) == Gang("train", 8, 4, 7200, "whole")
    assert read_gang({P + "gang": "train", P + "gang-size": "8"}) == Gang("train", 8, 8, 600, "never")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"gang": "g"}, "say how many pods"),
        ({"gang-size": "2"}, "name the gang"),
        ({"gang": "g", "gang-size": "0"}, "from 1 to 4096"),
        ({"gang": "g", "gang-size": "4097"}, "from 1 to 4096"),
        ({"gang": "g", "gang-size": "-1"}, "from 1 to 4096"),
        ({"gang": "g", "gang-size": "2.5"}, "from 1 to 4096"),
        ({"gang": "g", "gang-size": "9" * 5000}, "from 1 to 4096"),
        ({"gang": "g", "gang-size": "4", "gang-min": "5"}, "at most the size"),
        ({"gang": "g", "gang-size": "4", "gang-min": "0"}, "from 1 to 4096"),
        ({"gang": "g/h", "gang-size": "4"}, "one word"),
        ({"gang": "", "gang-size": "4"}, "one word"),
        ({"gang": "g", "gang-size": "4", "gang-timeout": "soon"}, "give a time"),
        ({"gang": "g", "gang-size": "4", "gang-restart": "yes"}, "never or whole"),
    ],
)
def test_what_cannot_be_is_one_clear_error(given: dict[str, str], says: str) -> None:
    with pytest.raises(PlacementError, match=says) as error:
        read_gang({P + key: value for key, value in given.items()})
    assert len(str(error.value)) < 250
    assert "\n" not in str(error.value)


def test_queues_have_the_rules_that_are_given_and_the_rest_of_the_default() -> None:
    text = """
default: {longest-wait: 30m, idle: 1h}
team-a: {weight: 2, cap: 12.5, longest-run: 7d, overrun: end}
team-b: {idle: none, cap: none}
"""
    queues = read_queues({"queues.yaml": text})
    assert queues.default == Queue(longest_wait_s=1800.0, idle_s=3600.0)
    assert queues.of("team-a") == Queue(2.0, 12_500, 1800.0, 604_800.0, "end", 3600.0)
    assert queues.of("team-b") == Queue(longest_wait_s=1800.0)
    assert queues.of("other") == queues.default


def test_no_rules_are_the_default_ones() -> None:
    assert read_queues({}) == read_queues({"queues.yaml": ""}) == Queues()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: {weight: 0}", "above 0"),
        ("a: {weight: -1}", "above 0"),
        ("a: {weight: .nan}", "above 0"),
        ("a: {weight: true}", "above 0"),
        ("a: {cap: -1}", "from 0"),
        ("a: {cap: many}", "from 0"),
        ("a: {longest-wait: none}", "give a time"),
        ("a: {longest-run: 5}", "give a time"),
        ("a: {overrun: kill}", "yield or end"),
        ("a: {share: 2}", "no rule: give weight"),
        ("a: 5", "give rules"),
        ("[a, b]", "give a queue's name"),
        ("a: {", "line 1"),
        ("!!python/object/apply:os.system [true]", "no YAML"),
    ],
)
def test_rules_that_cannot_be_are_one_clear_error(text: str, says: str) -> None:
    with pytest.raises(PlacementError, match=says) as error:
        read_queues({"queues.yaml": text})
    assert "\n" not in str(error.value)
