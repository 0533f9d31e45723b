"""Gives a new pod that asks for shares SharePod's scheduling gate, and refuses a wrong gang. Pure."""

from __future__ import annotations

from typing import Final

from sharepod.deviceplugin.core.unit import RESOURCE
from sharepod.kube.objects import at, entries
from sharepod.scheduler.controller.gang_annotations import read_gang
from sharepod.scheduler.errors import PlacementError
from sharepod.scheduler.state.pod import GATE
from sharepod.webhook.ask import Refused, read_named
from sharepod.webhook.patch import difference
from sharepod.webhook.review import Decision, Request

SYSTEM: Final = "gates"


def decide(request: Request) -> Decision:
    """Return the decision: a new pod that asks for shares gets the gate, or is refused if its gang is wrong.

    Any other pod is admitted unchanged, also one that names its node: it is bound already, and no gate could hold it.
    """
    if request.operation != "CREATE":
        return Decision()
    try:
        pod = read_named(request.object, RESOURCE)
        if pod.node or GATE in pod.gates or not any(one.units for one in pod.all_containers):
            return Decision()
        read_gang(pod.annotations)
    except (Refused, PlacementError) as refusal:
        return Decision(refusal=str(refusal))
    spec = at(request.object, "spec")
    gated = {**request.object, "spec": {**spec, "schedulingGates": [*entries(spec, "schedulingGates"), {"name": GATE}]}}
    return Decision(patch=tuple(difference(request.object, gated)), system=SYSTEM)
