"""The programs that the cluster is made of: which Kubernetes was asked for, and where its programs are.

``make e2e KUBERNETES=1.34`` asks for the oldest release that is tested; nothing said asks for the newest.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from build_tools import KUEUE, NEWEST, NVIDIA, OLDEST, RUNTIME, BuildError, Module

VARIABLE = "SHAREPOD_E2E_KUBERNETES"
RELEASES = {module.name.partition("-")[2]: module for module in (NEWEST, OLDEST)}
TOLD = (
    ("etcd", RUNTIME, "go.etcd.io/etcd/server/v3"),
    ("containerd", RUNTIME, RUNTIME.source),
    ("runc", RUNTIME, "github.com/opencontainers/runc"),
    ("Kueue", KUEUE, KUEUE.source),
    ("NVIDIA's container toolkit", NVIDIA, NVIDIA.source),
)
"""What the header of a run tells beside Kubernetes: the name, the module that pins it, and its own path."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The folders of a cluster's programs: Kubernetes' own, and etcd, containerd, runc and the network plugins."""

    kubernetes: Path
    runtime: Path


def chosen() -> Module:
    """Return the Kubernetes that was asked for. Raises BuildError for one that is not tested."""
    asked = os.environ.get(VARIABLE) or next(iter(RELEASES))
    if asked not in RELEASES:
        raise BuildError(f"KUBERNETES={asked} is not tested: give {' or '.join(RELEASES)}")
    return RELEASES[asked]


def versions() -> str:
    """Return the names and versions of what runs, in one line."""
    told = [f"Kubernetes {chosen().version}", *(f"{name} {module.pinned(path)}" for name, module, path in TOLD)]
    return ", ".join(told)
