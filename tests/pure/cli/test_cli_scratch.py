"""Test scratch directories: they end with their process, or with the next process of that kind."""

import subprocess
import sys
from pathlib import Path

from sharepod.cli.scratch import Scratch

HOLDER = """
import sys
from sharepod.cli.scratch import Scratch
held = Scratch("kind", sys.argv[1])
print(held.path, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_leaves_goes_with_the_next_of_its_kind_and_nothing_else_does(tmp_path: Path) -> None:
    bystanders = [tmp_path / name for name in ("kind-1234", "kind.", "kind.word.1", "other.1.a", "kind.1.file")]
    for directory in bystanders[:-1]:
        directory.mkdir()
    bystanders[-1].write_text("not a directory")
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        held = Path(process.stdout.readline().strip())
        (held / "deep").mkdir()
        with Scratch("kind", str(tmp_path)) as mine:
            assert held.is_dir()
            assert mine.path.stat().st_mode & 0o777 == 0o700
        process.kill()
    assert held.is_dir()
    with Scratch("kind", str(tmp_path)) as mine:
        assert {*tmp_path.iterdir()} == {*bystanders, mine.path}
    mine.remove()
    assert {*tmp_path.iterdir()} == {*bystanders}


CROWD = """
import os, sys
from sharepod.cli.scratch import Scratch
for _ in range(300):
    with Scratch("kind", sys.argv[1]) as scratch:
        assert scratch.path.is_dir()
assert len(os.listdir("/proc/self/fd")) < 6, "no descriptor is left of those that were taken away"
"""


def test_one_that_another_process_takes_away_before_it_is_locked_is_made_again(tmp_path: Path) -> None:
    crowd = [subprocess.Popen([sys.executable, "-c", CROWD, str(tmp_path)]) for _ in range(4)]
    assert [process.wait() for process in crowd] == [0, 0, 0, 0]
    assert [*tmp_path.iterdir()] == []
