"""Who holds what: the rules about allocations, with a kubelet that plays every trick it is known for."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sharepod.deviceplugin.allocation import Allocation, AllocationId, Allocations, Binding
from sharepod.deviceplugin.unit import UnitId


def units(*numbers: int) -> frozenset[UnitId]:
    return frozenset(UnitId(f"u{number:04}") for number in numbers)


def binding(pod: str, container: str = "main") -> Binding:
    return Binding("default", pod, container, f"uid-{pod}", f"uid-{pod}")


def test_units_that_come_back_while_their_container_lives_are_another_allocation() -> None:
    allocations = Allocations()
    allocations.issue(units(1), AllocationId("old"), 1)
    allocations.claim(units(1), binding("leaving"))
    assert allocations.issue(units(1), AllocationId("new"), 2).id == "new"
    fresh = allocations.claim(units(1), binding("coming"))
    assert fresh is not None
    assert fresh.id == "new"
    restarted = allocations.claim(units(1), binding("leaving"))
    assert restarted is not None
    assert restarted.id == "old"
    assert allocations.superseded(fresh) == ()  # another pod's: it may live


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


def test_units_that_were_never_given_out_are_nobodys() -> None:
    assert Allocations().claim(units(1), binding("p")) is None


@dataclass
class Container:
    """A container as kubelet sees it; `token` is what it was told when it was admitted."""

    pod: str
    units: frozenset[UnitId]
    token: AllocationId
    lives: bool = False
    ever: set[AllocationId] = field(default_factory=set)


class Kubelet(RuleBasedStateMachine):
    """Admits, starts, restarts and ends containers, and gives units away while their last container still lives."""

    def __init__(self) -> None:
        super().__init__()
        self.allocations = Allocations()
        self.free = set(range(12))
        self.containers: list[Container] = []
        self.leaving: list[Container] = []
        self.count = 0

    @rule(size=st.integers(1, 5), init=st.booleans())
    def admit(self, size: int, init: bool) -> None:
        if len(self.free) < size:
            return
        self.count += 1
        wanted = units(*sorted(self.free)[:size])
        self.free -= set(sorted(self.free)[:size])
        tokens = [
            self.allocations.issue(wanted, AllocationId(f"{self.count}-{turn}"), self.count).id
            for turn in range(1 + init)
        ]
        assert len(set(tokens)) == 1
        self.containers.append(Container(f"p{self.count}", wanted, tokens[0]))

    @precondition(lambda self: self.containers)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        container = data.draw(st.sampled_from(self.containers))
        claimed = self.allocations.claim(container.units, binding(container.pod))
        assert claimed is not None
        assert claimed.id == container.token  # what kubelet replays is what this start means
        container.lives = True
        container.ever.add(claimed.id)

    @precondition(lambda self: self.containers)
    @rule(data=st.data())
    def give_units_away(self, data: st.DataObject) -> None:
        container = data.draw(st.sampled_from(self.containers))
        self.containers.remove(container)
        self.free |= {int(unit[1:]) for unit in container.units}
        if container.lives:
            self.leaving.append(container)

    @precondition(lambda self: self.leaving)
    @rule(data=st.data())
    def be_gone(self, data: st.DataObject) -> None:
        container = data.draw(st.sampled_from(self.leaving))
        self.leaving.remove(container)
        self.allocations.drop(container.token)

    @invariant()
    def no_two_live_containers_share(self) -> None:
        live = [container.token for container in [*self.containers, *self.leaving] if container.lives]
        assert len(live) == len(set(live))

    @invariant()
    def every_live_container_is_known(self) -> None:
        known = {item.id: item for item in self.allocations.all()}
        for container in [*self.containers, *self.leaving]:
            if container.lives:
                bound: Allocation = known[container.token]
                assert bound.binding == binding(container.pod)


TestKubelet = Kubelet.TestCase
