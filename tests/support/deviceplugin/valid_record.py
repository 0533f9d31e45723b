"""Checks what must hold of a plugin's allocations after any event."""

from collections import Counter

from sharepod.deviceplugin.core.allocation_table import Record


def validate(record: Record) -> None:
    """Check the allocations in memory, against each other and against what the record says is on disk."""
    items = record.all()
    assert len({item.id for item in items}) == len(items), "two allocations have one id"
    holders = Counter((item.units, item.binding.cgroup_uid if item.binding else None) for item in items)
    assert set(holders.values()) <= {1}, "a pod has two allocations of the same units, or two of them are unbound"
    assert all(item.units for item in items), "an allocation without units"
    taken = record.taken()
    assert set().union(*taken.values()) == {unit for item in items for unit in item.units}, "units in use are not told"
    for device, units in taken.items():
        own = {unit for item in items for unit in item.units if device in (item.devices or ("",))}
        assert units <= own, f"units of another device are told of {device or 'no device'}"
    assert record._last_moves.keys() <= {item.id for item in items}, "an allocation that was dropped has moved"
    assert sorted(record._last_moves.values()) == sorted(set(record._last_moves.values())), "two moves have one number"
    assert max(record._last_moves.values(), default=0) <= record.moves
    assert record._failing or record._saved == items, "what is on disk is something else, and nothing has failed"
