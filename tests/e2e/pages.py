"""What a page of the project says is to be typed, typed as it stands there."""

import re
import textwrap
from pathlib import Path

from kubectl import Kubectl

from rig import REPO_ROOT

BLOCK = re.compile(r"^( *)```\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """Return the blocks of commands of a page, in order. A block with prompts shows output, and is none."""
    blocks = [textwrap.dedent(block) for _, block in BLOCK.findall(page.read_text(encoding="utf-8"))]
    return [block for block in blocks if re.match(r"kubectl |openssl ", block)]


def follow(kubectl: Kubectl, folder: Path, *blocks: str) -> None:
    """Run blocks in one folder, from which the manifests are where the pages have them."""
    if not (manifests := folder / "daemonset").exists():
        manifests.symlink_to(REPO_ROOT / "daemonset")
    for block in blocks:
        kubectl.follow(block, folder)
