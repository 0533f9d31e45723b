"""The manifests, rendered."""

from pathlib import Path
from typing import Any

import pytest
from kustomize import render

from rig import REPO_ROOT

VERSIONS = ("1.31", "1.34", "1.37")
"""The oldest Kubernetes that is served, and the two that `make e2e` starts."""
DAEMONSET = REPO_ROOT / "daemonset"
INSTALLS = {"default": DAEMONSET, **{path.name: path for path in sorted((DAEMONSET / "overlays").iterdir())}}
"""What `kubectl apply -k` may be given to install SharePod."""
ADDITIONS = {
    name: DAEMONSET / name
    for name in (
        "policy",
        "monitoring",
        "gates",
        "gates/cert-manager",
        "compatibility",
        "compatibility/cert-manager",
        "kueue",
        "kueue/example",
    )
}
"""What may be applied beside one of these."""


@pytest.fixture(params=sorted(INSTALLS))
def install(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Return all objects of one way to install SharePod."""
    return render(INSTALLS[request.param])


@pytest.fixture
def daemonset(install: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the DaemonSet of one way to install SharePod."""
    [found] = [item for item in install if item["kind"] == "DaemonSet"]
    return found


@pytest.fixture
def pod(daemonset: dict[str, Any]) -> dict[str, Any]:
    """Return the pod of one way to install SharePod."""
    return dict(daemonset["spec"]["template"]["spec"])


@pytest.fixture(scope="session")
def manifests() -> Path:
    """Return the folder of the manifests."""
    return DAEMONSET
