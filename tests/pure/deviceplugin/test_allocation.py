"""Test the rules about which pod holds which units. `test_interleavings.py` plays orders of events on a whole node."""

from sharepod.deviceplugin.core.allocation import AllocationId, Allocations, Binding
from sharepod.deviceplugin.core.unit import UnitId


def units(*numbers: int) -> frozenset[UnitId]:
    return frozenset(UnitId(f"u{number:04}") for number in numbers)


def binding(pod: str, container: str = "main") -> Binding:
    return Binding("default", pod, container, f"uid-{pod}", f"uid-{pod}")


def test_units_that_come_back_while_their_container_lives_are_another_allocation() -> None:
    allocations = Allocations()
    allocations.issue(units(1), AllocationId("old"), 1)
    allocations.claim(units(1), binding("leaving"))
    assert allocations.issue(units(1), AllocationId("new"), 2).id == "new"
    assert allocations.claim(units(9), binding("p")) is None
    for pod, has in (("leaving", "old"), ("coming", "new"), ("leaving", "old")):  # the old pod may restart meanwhile
        claimed = allocations.claim(units(1), binding(pod))
        assert claimed is not None
        assert claimed.id == has
        assert allocations.superseded(claimed) == (), "another pod's: it may live"


def test_a_pods_next_container_supersedes_the_one_whose_units_it_got() -> None:
    allocations = Allocations()
    allocations.issue(units(1, 2, 3), AllocationId("init"), 1)
    allocations.issue(units(1, 2), AllocationId("main"), 2)
    allocations.claim(units(1, 2, 3), binding("p", "init"))
    main = allocations.claim(units(1, 2), binding("p"))
    assert main is not None
    assert [item.id for item in allocations.superseded(main)] == ["init"]


def test_a_static_pod_keeps_what_it_has_when_its_mirror_is_another_one() -> None:
    allocations = Allocations()
    allocations.issue(units(1), AllocationId("a"), 1)
    allocations.claim(units(1), Binding("default", "static-n1", "main", "uid-1", "hash"))
    again = allocations.claim(units(1), Binding("default", "static-n1", "main", "uid-2", "hash"))
    assert again is not None
    assert (again.id, again.binding and again.binding.pod_uid) == ("a", "uid-2")
