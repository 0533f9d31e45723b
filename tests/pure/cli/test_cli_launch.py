"""Finding the program and making its environment; becoming it is tested end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharepod.cli.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, CliError
from sharepod.cli.launch import find_program, program_environment


def test_a_program_is_found_as_a_shell_finds_it(tmp_path: Path) -> None:
    hidden, seen = tmp_path / "first" / "tool", tmp_path / "second" / "tool"
    for file in (hidden, seen):
        file.parent.mkdir()
        file.touch()
    seen.chmod(0o755)
    path = f"{hidden.parent}:{seen.parent}"
    assert find_program("tool", path) == str(seen)
    assert find_program(str(seen), None) == str(seen)


@pytest.mark.parametrize(("name", "code"), [("no-such-tool", EXIT_NOT_FOUND), ("./no-such", EXIT_NOT_FOUND)])
def test_a_command_that_does_not_exist_is_127(name: str, code: int) -> None:
    with pytest.raises(CliError, match="command not found: ") as refused:
        find_program(name, "/usr/bin:/bin")
    assert refused.value.exit_code == code


def test_a_file_without_the_right_to_execute_and_a_directory_are_126(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    for name in (str(tmp_path / "data"), str(tmp_path)):
        with pytest.raises(CliError) as refused:
            find_program(name, "/bin")
        assert refused.value.exit_code == EXIT_NOT_EXECUTABLE
    with pytest.raises(CliError, match="not executable") as refused:
        find_program("data", str(tmp_path))
    assert refused.value.exit_code == EXIT_NOT_EXECUTABLE


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


def test_variables_that_were_not_there_are_not_left_with_empty_parts() -> None:
    assert program_environment({"LD_PRELOAD": ""}, {}, "/hook.so") == {"LD_PRELOAD": "/hook.so"}
