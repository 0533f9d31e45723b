"""Test the policy and random schedules of gangs under the compiler's sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gang_schedules import built, random_schedules


def test_no_sequence_of_calls_makes_the_policy_behave_undefinedly(repo_root: Path) -> None:
    # The tests compile the policy when they load it. With these flags undefined behaviour, such as a share beyond the
    # table, traps.
    flags = {"CFLAGS": "-fsanitize=undefined -fsanitize-undefined-trap-on-error"}
    edges = "test_policy_rules.py::test_calls_on_shares_that_do_not_exist_do_nothing"
    tests = [f"tests/virtual/agent/{name}" for name in ("test_policy_machine.py", edges)]
    command = [Path(sys.executable).with_name("pytest"), "-q", *tests]
    done = subprocess.run(command, cwd=repo_root, env=os.environ | flags, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("how", [(), ("joined",)], ids=["one share", "joined"])
def test_the_schedules_touch_no_foreign_memory(tmp_path: Path, how: tuple[str, ...]) -> None:
    random_schedules(built(tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover"), 7001, 100, *how)
