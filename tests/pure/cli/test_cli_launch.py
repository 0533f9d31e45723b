"""Test how a launch finds the program and makes its environment; the exec itself is tested end to end."""

import os
import re
from pathlib import Path

import pytest
from cli_fixtures import Agent, Sharepod

from sharepod.cli import console
from sharepod.cli.commands.launch import find_program, program_environment
from sharepod.cli.demo import stage
from sharepod.cli.errors import CliError


def test_a_program_is_found_as_a_shell_finds_it(tmp_path: Path) -> None:
    hidden, seen = tmp_path / "first" / "tool", tmp_path / "second" / "tool"
    for file in (hidden, seen):
        file.parent.mkdir()
        file.touch()
    seen.chmod(0o755)
    path = f"{hidden.parent}:{seen.parent}"
    assert find_program("tool", path) == str(seen)
    assert find_program(str(seen), None) == str(seen)


@pytest.mark.parametrize(
    ("program", "code"),
    [("no-such-program-here", 127), ("./no-such", 127), ("{directory}/data", 126), ("{directory}", 126), ("data", 126)],
)
def test_nothing_is_registered_for_a_command_that_cannot_run(
    sharepod: Sharepod, agent: Agent, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str, code: int
) -> None:
    (tmp_path / "data").touch(0o644)
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = sharepod("run", "--gpu", "30", "--", program.format(directory=tmp_path))
    assert answer.code == code
    assert ("command not found: " in answer.err) is (code == 127)
    assert answer.err.count("\n") == 1
    assert agent.asked == []


def test_the_hook_and_the_library_path_go_first_and_keep_what_was_there() -> None:
    base = {"LD_PRELOAD": "/jemalloc.so", "LD_LIBRARY_PATH": "/mine", "HOME": "/root", "CUDA_VISIBLE_DEVICES": "3"}
    additions = {"SHAREPOD_REGION": "/r", "LD_LIBRARY_PATH": "/simgpu", "CUDA_VISIBLE_DEVICES": "GPU-1"}
    assert program_environment(base, additions, "/hook.so") == {
        "LD_PRELOAD": "/hook.so:/jemalloc.so",
        "LD_LIBRARY_PATH": "/simgpu:/mine",
        "HOME": "/root",
        "SHAREPOD_REGION": "/r",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
    }
    assert base["LD_PRELOAD"] == "/jemalloc.so"
    assert program_environment({"LD_PRELOAD": ""}, {}, "/hook.so") == {"LD_PRELOAD": "/hook.so"}


def test_what_a_stage_adds_to_the_environment_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "mine")
    before = dict(os.environ)
    with stage._environment({"ONE": "its", "TWO": "its"}):
        assert (os.environ["ONE"], os.environ["TWO"]) == ("its", "its")
    assert dict(os.environ) == before


def test_a_place_where_nothing_can_be_written_is_refused_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console.check_writable(tmp_path / "new")
    for path, cause in ((tmp_path, "it is a directory"), (tmp_path / "no/file", f"{tmp_path / 'no'} is not there")):
        with pytest.raises(CliError, match=re.escape(f"cannot write {path}: {cause}: choose another file")):
            console.check_writable(path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(CliError, match="permission denied"):
        console.check_writable(tmp_path / "new")
