"""kube-scheduler's JSON, and what is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sharepod.scheduler import wire
from sharepod.scheduler.decision import Filtered, Ranked

POD = {"metadata": {"uid": "u", "name": "p", "namespace": "n"}, "spec": {"containers": []}}
RESOURCE = "sharepod.io/gpu"


def test_keys_are_read_in_any_case_and_written_as_the_go_fields_are() -> None:
    for keys in (("Pod", "NodeNames", "Nodes"), ("pod", "nodenames", "nodes"), ("pod", "nodeNames", "nodes")):
        given = dict(zip(keys, (POD, ["a", "b"], None), strict=True))
        asked = wire.read_arguments(json.dumps(given).encode(), RESOURCE)
        assert (asked.pod.title, asked.names) == ("n/p", ["a", "b"])
    answer = json.loads(wire.filter_answer(Filtered(["a"], {"b": "full"}, {"c": "never"})))
    assert answer == {
        "NodeNames": ["a"], "FailedNodes": {"b": "full", "c": "never"}, "FailedAndUnresolvableNodes": {"c": "never"},
        "Error": "",
    }, "a kube-scheduler of 1.20 reads FailedNodes alone"  # fmt: skip
    scores = json.loads(wire.priority_answer(["a", "b"], Ranked([10, 3], "a", ())))
    assert scores == [{"Host": "a", "Score": 10}, {"Host": "b", "Score": 3}]
    assert json.loads(wire.filter_error("not yet"))["Error"] == "not yet"


def test_victims_are_read_and_written() -> None:
    victims = {"n1": {"Pods": [{"UID": "x"}, {"UID": "y"}], "NumPDBViolations": 1}, "n2": {"Pods": None}}
    given = {"Pod": POD, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
    asked = wire.read_preemption(json.dumps(given).encode(), RESOURCE)
    assert asked.victims == {"n1": (["x", "y"], 1), "n2": ([], 0)}
    answer = json.loads(wire.preemption_answer({"n1": (["x"], 1)}))
    assert answer == {"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "x"}], "NumPDBViolations": 1}}}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the body is no JSON"),
        (b"[" * 100_000, "the body is no JSON"),
        (b"[]", "the body is no object"),
        ({"Pod": POD}, "NodeNames is no list of names"),
        ({"Pod": POD, "Nodes": {"items": []}}, "set nodeCacheCapable: true"),
        ({"Pod": POD, "NodeNames": ["a", 1]}, "NodeNames is no list of names"),
        ({"Pod": POD, "NodeNames": ["a" * 300]}, "a name of more than 253 characters"),
        ({"Pod": {}, "NodeNames": []}, "Pod is no pod"),
        ({"NodeNames": []}, "Pod is no pod"),
    ],
)
def test_what_are_no_arguments_is_one_clear_line(body: Any, says: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(wire.MalformedArguments, match=says) as error:
        wire.read_arguments(data, RESOURCE)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"Pod": POD}, "NodeNameToMetaVictims is no map"),
        ({"Pod": POD, "NodeNameToVictims": {"n": {}}}, "set nodeCacheCapable: true"),
        ({"Pod": POD, "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": 1}]}}}, "victims on node 'n' are none"),
        ({"Pod": POD, "NodeNameToMetaVictims": {"n": {"Pods": "x"}}}, "victims on node 'n' are none"),
        ({"Pod": POD, "NodeNameToMetaVictims": {"n": {"NumPDBViolations": "x"}}}, "victims on node 'n' are none"),
    ],
)
def test_what_are_no_victims_is_one_clear_line(body: Any, says: str) -> None:
    with pytest.raises(wire.MalformedArguments, match=says):
        wire.read_preemption(json.dumps(body).encode(), RESOURCE)
