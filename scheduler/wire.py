"""kube-scheduler's requests and our answers in JSON (extender/v1). Values in, values out.

The Go types have no JSON names: keys are written as the fields are, and read in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from sharepod.scheduler.pod import Pod, read_pod

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sharepod.kube.objects import Object
    from sharepod.scheduler.decision import Filtered, Ranked
    from sharepod.scheduler.explanation import Explanation

NAMES_MAX: Final = 100_000
_NAME_MAX: Final = 253


class MalformedArguments(Exception):
    """A body that is no ExtenderArgs; the text is one line with the remedy."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What filter and prioritise are asked."""

    pod: Pod
    names: list[str]


@dataclass(frozen=True, slots=True)
class PreemptionArguments:
    """What preempt is asked: by node, the uids of the pods that are to go, and how many budgets that breaks."""

    pod: Pod
    victims: dict[str, tuple[list[str], int]]


def read_arguments(body: bytes, resource: str) -> Arguments:
    """Return what filter and prioritise are asked. Raises MalformedArguments."""
    given = _object(body)
    names = given.get("nodenames")
    if names is None and given.get("nodes") is not None:
        raise MalformedArguments("whole nodes came: set nodeCacheCapable: true for this extender")
    if not isinstance(names, list) or not {str}.issuperset(map(type, names)):
        raise MalformedArguments("NodeNames is no list of names: send extender/v1 ExtenderArgs")
    if len(names) > NAMES_MAX or max(map(len, names), default=0) > _NAME_MAX:
        raise MalformedArguments(f"more than {NAMES_MAX} nodes, or a name of more than {_NAME_MAX} characters")
    return Arguments(_pod(given, resource), names)


def read_preemption(body: bytes, resource: str) -> PreemptionArguments:
    """Return what preempt is asked. Raises MalformedArguments."""
    given = _object(body)
    nodes = given.get("nodenametometavictims")
    if nodes is None and given.get("nodenametovictims") is not None:
        raise MalformedArguments("whole pods came: set nodeCacheCapable: true for this extender")
    if not isinstance(nodes, dict) or len(nodes) > NAMES_MAX:
        raise MalformedArguments("NodeNameToMetaVictims is no map: send extender/v1 ExtenderPreemptionArgs")
    victims: dict[str, tuple[list[str], int]] = {}
    for name, entry in nodes.items():
        fields = _lowered(entry)
        pods, broken = fields.get("pods") or [], fields.get("numpdbviolations") or 0
        uids = [_lowered(pod).get("uid") for pod in pods] if isinstance(pods, list) else [None]
        if not isinstance(broken, int) or not all(isinstance(uid, str) for uid in uids):
            raise MalformedArguments(f"victims on node {str(name)[:_NAME_MAX]!a} are none: send their uids")
        victims[name] = ([str(uid) for uid in uids], broken)
    return PreemptionArguments(_pod(given, resource), victims)


def filter_answer(filtered: Filtered) -> bytes:
    """Return an ExtenderFilterResult.

    A kube-scheduler of 1.20 does not know FailedAndUnresolvableNodes, and where both name a node that one counts.
    """
    return _json(
        {
            "NodeNames": filtered.fitting,
            "FailedNodes": filtered.failed | filtered.hopeless,
            "FailedAndUnresolvableNodes": filtered.hopeless,
            "Error": "",
        }
    )


def filter_error(text: str) -> bytes:
    """Return an ExtenderFilterResult that has kube-scheduler try the pod again later."""
    return _json({"NodeNames": [], "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": text})


def priority_answer(names: Sequence[str], ranked: Ranked) -> bytes:
    """Return a HostPriorityList."""
    return _json([{"Host": name, "Score": score} for name, score in zip(names, ranked.scores, strict=True)])


def preemption_answer(victims: Mapping[str, tuple[Sequence[str], int]]) -> bytes:
    """Return an ExtenderPreemptionResult."""
    nodes = {
        name: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": broken}
        for name, (uids, broken) in victims.items()
    }
    return _json({"NodeNameToMetaVictims": nodes})


def explanation_answer(explanation: Explanation) -> bytes:
    """Return what is said of a pod, as JSON."""
    return _json(explanation)


def _pod(given: Object, resource: str) -> Pod:
    pod = read_pod(given.get("pod"), resource)
    if pod is None:
        raise MalformedArguments("Pod is no pod with a uid, a namespace and a name: send extender/v1 ExtenderArgs")
    return pod


def _object(body: bytes) -> Object:
    try:
        value = orjson.loads(body)
    except ValueError:
        raise MalformedArguments("the body is no JSON: send extender/v1 ExtenderArgs") from None
    if not isinstance(value, dict):
        raise MalformedArguments("the body is no object: send extender/v1 ExtenderArgs")
    return _lowered(value)


def _lowered(value: object) -> Object:
    return {str(key).lower(): item for key, item in value.items()} if isinstance(value, dict) else {}


def _json(value: object) -> bytes:
    return orjson.dumps(value)
