"""Runs programs that are written as text: Python that calls the driver through `rig.driver`."""

import sys
import textwrap

from rig import REPO_ROOT

PREAMBLE = f"import sys; sys.path.append({str(REPO_ROOT)!r})\nfrom rig.driver import *\n"
"""The path is appended: the tree's `proto/` must not shadow an installed package."""


def script(text: str) -> list[str]:
    """Return the command that runs `text` with all names of `rig.driver` in it."""
    return [sys.executable, "-c", PREAMBLE + textwrap.dedent(text)]
