"""Runs the commands that a page of the project shows, exactly as the page has them."""

import re
import textwrap
from pathlib import Path

from kubectl import Kubectl

from rig import REPO_ROOT

BLOCK = re.compile(r"^( *)```\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """Return the blocks of commands of a page, in order. A block with prompts shows output and does not count."""
    blocks = [textwrap.dedent(block) for _, block in BLOCK.findall(page.read_text(encoding="utf-8"))]
    return [block for block in blocks if re.match(r"kubectl |openssl ", block)]


def follow(kubectl: Kubectl, folder: Path, *blocks: str) -> None:
    """Run blocks in one folder, in which the manifests are at the path that the pages use."""
    if not (manifests := folder / "daemonset").exists():
        manifests.symlink_to(REPO_ROOT / "daemonset")
    for block in blocks:
        kubectl.follow(block, folder)
