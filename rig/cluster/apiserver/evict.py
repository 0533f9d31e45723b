"""Evictions and the budgets that they respect: a disruption controller's arithmetic, and what is refused. Pure.

Simplified: where a budget says `maxUnavailable` or a percentage, the real controller asks the pods' controllers how
many there should be; here that is the most pods that the budget has matched so far (its `status.expectedPods`).
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
    """Tell whether budgets have a say: not of pods that have not started, have ended or are going."""
    over = pod.get("status", {}).get("phase", "Pending") in ("Pending", "Succeeded", "Failed")
    return not over and not pod["metadata"].get("deletionTimestamp")


def budgets_of(pod: Body, budgets: Iterable[Body]) -> list[Body]:
    """Return the budgets that match a pod: one that selects by nothing does."""
    labels = pod["metadata"].get("labels") or {}
    return [one for one in budgets if labels_match(one["spec"].get("selector") or {}, labels)]


def status_of(budget: Body, pods: Iterable[Body]) -> Body:
    """Return a budget's status for the pods of its namespace."""
    spec = budget.get("spec", {})
    matched = [
        pod for pod in pods
        if labels_match(spec.get("selector") or {}, pod["metadata"].get("labels") or {})
        and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ]  # fmt: skip
    healthy = sum(is_ready(pod) and not pod["metadata"].get("deletionTimestamp") for pod in matched)
    before = budget.get("status") or {}
    expected = max(len(matched), before.get("expectedPods", 0))
    if "minAvailable" in spec:
        desired = _scaled(spec["minAvailable"], expected)
    else:
        desired = max(0, expected - _scaled(spec.get("maxUnavailable", 0), expected))
    if isinstance(spec.get("minAvailable"), int):
        expected = len(matched)
    return {
        **before, "observedGeneration": budget["metadata"].get("generation", 1), "expectedPods": expected,
        "desiredHealthy": desired, "currentHealthy": healthy, "disruptionsAllowed": max(0, healthy - desired),
    }  # fmt: skip


def check(pod: Body, budgets: list[Body]) -> None:
    """Raise Refusal where a pod's budgets, with their status, keep it from being evicted."""
    if len(budgets) > 1:
        why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        raise Refusal(500, "InternalError", why)
    for budget in budgets:
        name, status = budget["metadata"]["name"], budget["status"]
        if not is_ready(pod) and status["currentHealthy"] >= status["desiredHealthy"] > 0:
            continue  # it counts for nothing now
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


def _scaled(value: object, whole: int) -> int:
    if isinstance(value, str):
        return -(-whole * int(value.removesuffix("%")) // 100)
    return int(value)  # type: ignore[call-overload,no-any-return]
