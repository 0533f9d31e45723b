"""Test the hook file that an agent serves: its name, its content, and what happens if it cannot be served."""

import errno
import os
from pathlib import Path

import pytest

from sharepod.agent.errors import AgentUnavailable
from sharepod.agent.shares import hook_file


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a library as a package holds it."""
    path = tmp_path / "libsharepod.so"
    path.write_bytes(b"one")
    return path


def names(runtime: Path) -> list[str]:
    return sorted(path.name for path in (runtime / "hook").iterdir())


def test_each_content_is_served_under_a_name_of_its_own_and_never_written_again(source: Path, tmp_path: Path) -> None:
    one, cause = hook_file.serve(source, tmp_path, "1.2.3", lambda _: True)
    assert cause == ""
    inode = one.stat().st_ino
    source.write_bytes(b"two")
    two, _ = hook_file.serve(source, tmp_path, "1.2.3", lambda _: True)
    assert hook_file.serve(source, tmp_path, "1.2.3", lambda _: True)[0] == two
    assert (one.read_bytes(), two.read_bytes(), one.stat().st_ino) == (b"one", b"two", inode)
    assert names(tmp_path) == sorted([one.name, two.name])
    assert one.name.startswith("libsharepod-1.2.3-")
    hook_file.remove(tmp_path, keep=two)
    assert names(tmp_path) == [two.name]
    hook_file.remove(tmp_path)
    assert not (tmp_path / "hook").exists()


def test_a_damaged_copy_is_replaced_under_its_name_and_what_is_mapped_stays(source: Path, tmp_path: Path) -> None:
    served, _ = hook_file.serve(source, tmp_path, "1", lambda _: True)
    served.write_bytes(b"damaged")
    with served.open("rb") as mapped:
        assert hook_file.serve(source, tmp_path, "1", lambda _: True)[0] == served
        assert (mapped.read(), served.read_bytes()) == (b"damaged", b"one")


def test_a_full_directory_is_one_clear_line_and_leaves_no_part_of_a_file(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AgentUnavailable, match=r"hook .*: No space left on device: put it right \(space for 3 bytes\)"):
        hook_file.serve(source, tmp_path, "1", lambda _: True)
    assert names(tmp_path) == []


def test_where_nothing_may_be_executed_the_packages_own_file_is_served(source: Path, tmp_path: Path) -> None:
    served, cause = hook_file.serve(source, tmp_path, "1", lambda _: False)
    assert (served, cause) == (source, f"{tmp_path} is mounted noexec")
    assert not (tmp_path / "hook").exists()


def test_a_hook_that_was_not_built_is_told_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(AgentUnavailable, match="No such file or directory: build it with `make build`"):
        hook_file.serve(tmp_path / "none.so", tmp_path, "1", lambda _: True)
