"""Test that the record of allocations stays true on full disks and while an allocation is made and ended at once."""

import logging
import shutil
from pathlib import Path

import pytest

from sharepod.deviceplugin.core.allocation import AllocationId, Binding
from sharepod.deviceplugin.core.allocation_table import Record
from sharepod.deviceplugin.core.checkpoint import NAME, Store
from sharepod.deviceplugin.core.unit import NOT_BOUND, UnitId
from sharepod.deviceplugin.errors import PluginError

UNITS = frozenset({UnitId("u0001"), UnitId("u0002")})
BINDING = Binding("default", "pod", "main", "uid", "uid")
ID = AllocationId("abcdefghjk")


def test_units_are_given_out_without_a_disk_and_start_only_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    place = tmp_path / "state"  # this directory does not exist, so every write fails
    record = Record(Store(place))
    assert record.issue(UNITS, ID).id == ID
    assert record.issue(frozenset({UnitId("u0003")}), AllocationId("mnpqrstuvw")).units == {"u0003"}
    for _ in range(3):
        with pytest.raises(PluginError, match="No such file or directory: make room, or choose another --state-direc"):
            record.claim(UNITS, BINDING)
    assert [item.message for item in caplog.records] == ["allocations not written"]
    assert not list(tmp_path.iterdir())
    place.mkdir()
    claim = record.claim(UNITS, BINDING)
    assert claim.allocation.binding == BINDING
    assert not claim.is_first  # after a failed write it counts as known: asking the agent once too often costs nothing
    assert [item.message for item in caplog.records] == ["allocations not written", "allocations written again"]
    assert Record(Store(place)).all() == record.all()


def test_a_container_that_starts_again_needs_no_disk(tmp_path: Path) -> None:
    place = tmp_path / "state"
    place.mkdir()
    record = Record(Store(place))
    record.issue(UNITS, ID)
    record.claim(UNITS, BINDING)
    record.set_devices(ID, ("GPU-1",))
    shutil.rmtree(place)
    assert record.claim(UNITS, BINDING).allocation.devices == ("GPU-1",)
    record.set_devices(ID, ("GPU-1",))
    with pytest.raises(PluginError, match="make room"):
        record.set_devices(ID, ("GPU-2",))


def test_an_end_is_an_end_although_the_disk_is_full(tmp_path: Path) -> None:
    record = Record(Store(tmp_path))
    record.issue(UNITS, ID)
    (tmp_path / f"{NAME}.new").mkdir()  # a directory in the way of the new file
    record.drop(ID)
    assert record.all() == ()
    assert len(Record(Store(tmp_path)).all()) == 1  # a new plugin would find it again
    (tmp_path / f"{NAME}.new").rmdir()
    record.save()
    assert Record(Store(tmp_path)).all() == ()


def test_an_allocation_that_was_released_meanwhile_does_not_come_back(tmp_path: Path) -> None:
    record = Record(Store(tmp_path))
    record.issue(UNITS, ID)
    claimed = record.claim(UNITS, BINDING).allocation
    record.drop(claimed.id)
    with pytest.raises(PluginError, match="was released while its container started"):
        record.set_devices(claimed.id, ("GPU-1",))
    assert record.all() == ()


def test_only_the_first_start_of_an_allocation_is_its_first_whichever_plugin_had_it(tmp_path: Path) -> None:
    old, new = Record(Store(tmp_path)), Record(Store(tmp_path))
    old.issue(UNITS, ID)
    assert old.claim(UNITS, BINDING).is_first
    assert not old.claim(UNITS, BINDING).is_first
    assert not new.claim(UNITS, BINDING).is_first
    old.set_devices(ID, ())  # its share was released, and the pod's next container starts
    assert not old.claim(UNITS, BINDING).is_first


def test_what_changed_meanwhile_is_not_put_back(tmp_path: Path) -> None:
    record = Record(Store(tmp_path))
    record.issue(UNITS, ID)
    assert record.taken() == {NOT_BOUND: UNITS}
    record.claim(UNITS, Binding("default", "pod", "init", "uid", "uid"))
    since = record.moves
    record.claim(UNITS, BINDING)  # by the next container, while the first one's start still waits for the agent
    record.set_devices(ID, ("GPU-1",))
    (item,) = record.all()
    assert item.binding == BINDING
    assert record.has_moved(ID, since)
    assert not record.has_moved(ID, record.moves)
    assert record.taken() == {"GPU-1": UNITS}


OTHER = frozenset({UnitId("u0003")})


def test_what_the_plugin_before_gave_out_after_the_new_one_began_is_known_to_the_new_one(tmp_path: Path) -> None:
    old, new = Record(Store(tmp_path)), Record(Store(tmp_path))
    late = old.issue(UNITS, ID)
    assert new.issue(UNITS, AllocationId("mnpqrstuvw")).id == ID  # the pod's next container gets the same allocation
    old.claim(UNITS, BINDING)
    old.set_devices(ID, ("GPU-1",))
    new.issue(OTHER, AllocationId("xyz2345678"))  # the new plugin's write must keep the old plugin's allocation
    assert {item.id for item in Record(Store(tmp_path)).all()} == {late.id, "xyz2345678"}
    assert new.claim(UNITS, BINDING).allocation.id == ID


def test_who_stands_by_writes_nothing_and_has_all_of_it_again_when_it_steps_in(tmp_path: Path) -> None:
    old, new = Record(Store(tmp_path)), Record(Store(tmp_path))
    old.issue(UNITS, ID)
    new.reload()
    assert new.get(ID) is not None
    old.active = lambda: False
    new.drop(ID)
    new.issue(OTHER, AllocationId("mnpqrstuvw"))
    with pytest.raises(PluginError, match="another device plugin serves this node"):
        old.claim(UNITS, BINDING)  # a start that was under way; kubelet retries it with the new plugin
    assert [item.id for item in Record(Store(tmp_path)).all()] == ["mnpqrstuvw"]
    old.active = lambda: True
    old.reload()
    assert old.all() == new.all()


def test_a_file_that_cannot_be_read_while_the_plugin_serves_costs_nothing_that_is_known(tmp_path: Path) -> None:
    record = Record(Store(tmp_path))
    record.issue(UNITS, ID)
    (tmp_path / NAME).write_text("{")
    record.reload()
    record.issue(OTHER, AllocationId("mnpqrstuvw"))
    assert [item.id for item in record.all()] == [ID, "mnpqrstuvw"]
    assert Record(Store(tmp_path)).all() == record.all()
