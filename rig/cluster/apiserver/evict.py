"""Evictions and the budgets that they respect: the arithmetic of a disruption controller, and the refusals. Pure.

A budget has `minAvailable` as a number. Percentages and `maxUnavailable` are not known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .refusal import Refusal
from .selector import labels_match

if TYPE_CHECKING:
    from collections.abc import Iterable

Body = dict[str, Any]

REFUSAL = "Cannot evict pod as it would violate the pod's disruption budget."


def is_guarded(pod: Body) -> bool:
    """Tell whether budgets protect the pod: not if it has not started, has ended or is being deleted."""
    over = pod.get("status", {}).get("phase", "Pending") in ("Pending", "Succeeded", "Failed")
    return not over and not pod["metadata"].get("deletionTimestamp")


def budgets_of(pod: Body, budgets: Iterable[Body]) -> list[Body]:
    """Return the budgets that match a pod."""
    labels = pod["metadata"].get("labels") or {}
    return [one for one in budgets if labels_match(one["spec"]["selector"], labels)]


def status_of(budget: Body, pods: Iterable[Body]) -> Body:
    """Return a budget's status for the pods of its namespace."""
    spec = budget["spec"]
    matched = [
        pod for pod in pods
        if labels_match(spec["selector"], pod["metadata"].get("labels") or {})
        and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ]  # fmt: skip
    healthy = sum(is_ready(pod) and not pod["metadata"].get("deletionTimestamp") for pod in matched)
    desired = spec["minAvailable"]
    return {
        "observedGeneration": 1, "expectedPods": len(matched), "desiredHealthy": desired, "currentHealthy": healthy,
        "disruptionsAllowed": max(0, healthy - desired),
    }  # fmt: skip


def check(budgets: list[Body]) -> None:
    """Raise Refusal if a pod's budgets, by their status, forbid its eviction."""
    for budget in budgets:
        name, status = budget["metadata"]["name"], budget["status"]
        if not status["disruptionsAllowed"]:
            why = (
                f"The disruption budget {name} needs {status['desiredHealthy']} healthy pods and has "
                f"{status['currentHealthy']} currently"
            )
            raise Refusal(429, "TooManyRequests", REFUSAL, causes=[{"reason": "DisruptionBudget", "message": why}])


def is_ready(pod: Body) -> bool:
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in pod.get("status", {}).get("conditions") or ()
    )
