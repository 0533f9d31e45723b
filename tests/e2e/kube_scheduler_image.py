"""An image of the kube-scheduler that was built, with the program where upstream's image has it."""

import os
from pathlib import Path

from cluster import Cluster
from image import Image

NAME = "docker.io/library/kube-scheduler:e2e"
PROGRAM = Path("usr/local/bin/kube-scheduler")


def kube_scheduler_image(cluster: Cluster) -> str:
    """Make the image known to the nodes and return its name. A manifest says `command: [kube-scheduler, …]`."""
    root = cluster.shared / "kube-scheduler"
    (root / PROGRAM.parent).mkdir(parents=True, exist_ok=True)
    if not (root / PROGRAM).exists():
        os.link(cluster.servers / PROGRAM.name, root / PROGRAM)
    cluster.import_image(Image(NAME, (), {"PATH": "/usr/local/bin:/usr/bin:/bin"}), root)
    return NAME
