"""Test that allocations outlive the plugin, a crash in the middle of a write, and a damaged file."""

from dataclasses import replace
from pathlib import Path

import pytest

from sharepod.deviceplugin.core.allocation import Allocation, AllocationId, Binding
from sharepod.deviceplugin.core.checkpoint import NAME, Store
from sharepod.deviceplugin.core.unit import UnitId

ALLOCATIONS = (
    Allocation(AllocationId("abcdefghjk"), frozenset({UnitId("u0001"), UnitId("u0002")}), 17),
    Allocation(
        AllocationId("mnpqrstuvw"),
        frozenset({UnitId("1b2c3d4e-07")}),
        18,
        Binding("team", "pod", "train", "uid", "hash"),
        ("GPU-1", "GPU-2"),
    ),
)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.load() == ()
    store.save(ALLOCATIONS)
    assert Store(tmp_path).load() == ALLOCATIONS
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    (tmp_path / f"{NAME}.new").write_text('{"format": 1, "alloc')  # a write that was cut short
    assert Store(tmp_path).load() == ALLOCATIONS


def test_what_says_the_same_is_not_written_again_unless_the_file_is_gone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(ALLOCATIONS)
    first = (tmp_path / NAME).stat().st_ino
    store.save([*ALLOCATIONS])
    assert (tmp_path / NAME).stat().st_ino == first
    (tmp_path / NAME).unlink()
    store.save(ALLOCATIONS)
    assert store.load() == ALLOCATIONS
    changed = (replace(ALLOCATIONS[0], devices=("GPU-3",)), ALLOCATIONS[1])
    store.save(changed)
    assert Store(tmp_path).load() == changed


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 2, "allocations": []}', '{"format": 1}', '{"format": 1, "allocations": [{}]}']
)
def test_a_damaged_file_is_put_aside_and_told(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / NAME).write_text(text)
    assert Store(tmp_path).load() == ()
    assert (tmp_path / NAME).with_suffix(".damaged").read_text() == text
    assert "allocations lost" in caplog.text
