"""Test that a file is replaced as a whole or stays unchanged."""

import os
from pathlib import Path

import pytest

from sharepod.process import files


def test_a_reader_of_the_old_file_keeps_it_and_a_new_one_finds_the_new(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    files.replace(path, "old")
    with path.open() as reader:
        found = files.replace(path, b"new", 0o600)
        assert reader.read() == "old"
    assert path.read_text() == "new"
    assert os.path.samestat(found, path.stat())
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_modes_do_not_depend_on_the_umask_or_on_what_a_crash_left(tmp_path: Path) -> None:
    path = tmp_path / "x"
    (tmp_path / "x.new").write_text("a longer part of another content")
    (tmp_path / "x.new").chmod(0o666)
    before = os.umask(0o077)
    try:
        files.replace(path, "y", 0o644)
    finally:
        os.umask(before)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("y", 0o644)


def test_what_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x"
    files.replace(path, "old")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("another's")
    (tmp_path / "x.new").symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic links"):
        files.replace(path, "new")
    assert (path.read_text(), elsewhere.read_text()) == ("old", "another's")
    files.replace(path, "new")
    assert path.read_text() == "new"


def test_a_full_disk_keeps_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    files.replace(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.replace(path, "new")
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "old"
