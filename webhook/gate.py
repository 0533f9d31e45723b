"""A pod that holds shares gets SharePod's scheduling gate when it is made; a gang that cannot be is refused. Pure."""

from __future__ import annotations

from typing import Final

from sharepod.deviceplugin.unit import RESOURCE
from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.gang import read_gang
from sharepod.scheduler.pod import GATE
from sharepod.webhook.patch import difference
from sharepod.webhook.pod import MalformedPod, Refused, read_pod
from sharepod.webhook.review import Decision, Request

SYSTEM: Final = "gates"


def decide(request: Request) -> Decision:
    """Return what becomes of a pod that is being made. Raises MalformedPod.

    One that names its node is bound by that, and no gate could hold it.
    """
    if request.operation != "CREATE":
        return Decision()
    try:
        pod = read_pod(request.object)
    except Refused as refusal:
        return Decision(refusal=str(refusal))
    spec = request.object.get("spec") or {}
    if spec.get("nodeName") or not any(one.resource(RESOURCE) for one in pod.all_containers):
        return Decision()
    try:
        read_gang(pod.annotations)
    except PlacementError as error:
        return Decision(refusal=str(error))
    gates = spec.get("schedulingGates") or []
    if not isinstance(gates, list) or not all(isinstance(gate, dict) for gate in gates):
        raise MalformedPod("spec.schedulingGates is no list of objects")
    if any(gate.get("name") == GATE for gate in gates):
        return Decision()
    gated = {**request.object, "spec": {**spec, "schedulingGates": [*gates, {"name": GATE}]}}
    return Decision(patch=tuple(difference(request.object, gated)), system=SYSTEM)
