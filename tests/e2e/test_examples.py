"""Test that the examples do what their READMEs show."""

import os
import shlex
from pathlib import Path

import pytest
from console import kinds, shown_in, write
from kubectl import wait_until
from sharepod_cluster import SharePod

from rig import REPO_ROOT

EXAMPLES = sorted(path.parent for path in (REPO_ROOT / "daemonset" / "examples").glob("*/pods.yaml"))

WRITE = bool(os.environ.get("SHAREPOD_E2E_WRITE"))
"""Whether to write the output into the READMEs, for a person to read over and commit."""


def test_a_line_is_compared_by_kinds() -> None:
    said = "hkqbmxwxqd  standard  0  70 %  69.9 %  3.71 s  holding\ntrain  1/1  Running  0  9s\n"
    assert kinds(said) == ["<share> standard 0 70 % <measured> <time> <state>", "train 1/1 Running 0 <age>"]


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda path: path.name)
def test_an_example_prints_what_its_readme_shows(sharepod: SharePod, folder: Path) -> None:
    sharepod.wait_until_empty()
    # Delete all Events in one request: one by one those of a long run take a minute.
    sharepod.kubectl("delete", "--raw", "/api/v1/namespaces/default/events")
    shown = shown_in(folder / "README.md")
    assert len(shown) >= 3
    outputs: list[str] = []
    try:
        for each in shown:
            words = shlex.split(each.command)
            assert words[0] == "kubectl"
            if words[1] != "apply":
                ready(sharepod)
            words = [str(folder / word) if word.endswith(".yaml") else word for word in words]
            outputs.append(sharepod.kubectl(*words[1:]))
            assert kinds(outputs[-1]) == kinds(each.output) or WRITE, each.command
    finally:
        sharepod.kubectl("delete", "-f", str(folder / "pods.yaml"), timeout_seconds=150)
    if WRITE:
        write(folder / "README.md", outputs)


def ready(sharepod: SharePod) -> None:
    """Wait until all pods are ready and their programs run."""
    sharepod.kubectl.wait_for("condition=Ready", "pod", "--all")
    wait_until("a program in every share", lambda: all(programs(share) for share in sharepod.listed()))


def programs(share: dict[str, list[dict[str, int]]]) -> bool:
    return any(device["usage"]["used_1s_millipercent"] > 1000 for device in share["devices"])
