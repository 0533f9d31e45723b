"""Selects the programs of the cluster: which release of Kubernetes is wanted, and where its programs are.

``make e2e KUBERNETES=1.34`` selects the oldest release that is tested; without the variable it is the newest.
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
"""Further programs in the header of a run: the name, the module that pins its version, and its own module path."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The folders of a cluster's programs: those of Kubernetes; and etcd, containerd, runc and the network plugins."""

    kubernetes: Path
    runtime: Path


def chosen() -> Module:
    """Return the module of the wanted Kubernetes. Raises BuildError for a release that is not tested."""
    asked = os.environ.get(VARIABLE) or next(iter(RELEASES))
    if asked not in RELEASES:
        raise BuildError(f"KUBERNETES={asked} is not tested: give {' or '.join(RELEASES)}")
    return RELEASES[asked]


def versions() -> str:
    """Return the names and versions of the programs in one line."""
    told = [f"Kubernetes {chosen().version}", *(f"{name} {module.pinned(path)}" for name, module, path in TOLD)]
    return ", ".join(told)
