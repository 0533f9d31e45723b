"""Which shares the driver limits, and in what order it is told: values in, values out."""

from __future__ import annotations

import pytest

from sharepod.agent import cgroup, explain
from sharepod.agent.container import UNSEEN, Place, container_of, places
from sharepod.agent.driver_limits import Answer, DriverLimits, Order, Result
from sharepod.agent.share import DeviceTerms, DeviceUuid, DriverLimit, Share, ShareClass, ShareId, Terms

ID, OTHER_ID = "ab" * 32, "cd" * 32
GPU, GPU_B = DeviceUuid("GPU-a"), DeviceUuid("GPU-b")
GIB = 2**30
A, B = ShareId("a"), ShareId("b")
BOX = f"/sys/fs/cgroup/docker-{ID}.scope"


@pytest.mark.parametrize(
    ("cgroup", "container"),
    [
        (f"/system.slice/docker-{ID}.scope", f"/system.slice/docker-{ID}.scope"),
        (f"/kubepods.slice/kubepods-podx.slice/cri-containerd-{ID}.scope", None),
        (f"/kubepods/besteffort/pod0/{ID}", None),
        (f"/machine.slice/libpod-{ID}.scope/container", f"/machine.slice/libpod-{ID}.scope"),
        (
            f"/docker-{ID}.scope/kubepods/crio-{OTHER_ID}.scope/init",
            f"/docker-{ID}.scope/kubepods/crio-{OTHER_ID}.scope",
        ),
        ("/user.slice/user-1000.slice/session-3.scope", ""),
        (f"/{ID[:-1]}", ""),
        (f"/{ID}0", ""),
        ("/", ""),
    ],
)
def test_a_container_is_the_innermost_cgroup_with_an_id(cgroup: str, container: str | None) -> None:
    assert container_of(cgroup) == (cgroup if container is None else container)


def test_a_container_is_a_shares_when_nobody_else_is_in_it() -> None:
    box, other, agent = f"/docker-{ID}.scope", f"/docker-{OTHER_ID}.scope", "/system.slice/sharepod.service"
    assert places({A: [box, f"{box}/inner"], B: [other]}, agent) == {A: Place(box), B: Place(other)}
    assert places({A: [box], B: []}, agent)[B].is_unknown
    shared = places({A: [box], B: [f"{box}/inner"]}, agent)
    assert "another share" in shared[A].cause
    assert "another share" in shared[B].cause
    nested = places({A: [box], B: [f"{box}/{OTHER_ID}"]}, agent)
    assert "another share" in nested[A].cause  # what is below counts for it
    assert nested[B] == Place(f"{box}/{OTHER_ID}")
    assert "2 containers" in places({A: [box, other]}, agent)[A].cause
    assert "not in a container" in places({A: [box, "/user.slice"]}, agent)[A].cause
    assert "may not see" in places({A: [box], B: [UNSEEN]}, agent)[A].cause
    assert "the agent runs" in places({A: [box]}, f"{box}/agent")[A].cause


def test_a_cgroup_outside_of_our_namespace_is_unseen() -> None:
    assert cgroup.unified(f"9:name=systemd:/x\n0::/docker-{ID}.scope\n") == f"/docker-{ID}.scope"
    assert cgroup.unified(f"0::/../docker-{ID}.scope\n") == UNSEEN
    assert cgroup.unified("4:memory:/x\n") == UNSEEN


def test_mounts_of_cgroup_v2_are_found_in_mountinfo() -> None:
    text = (
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n"
        "42 31 0:38 /kube\\040pods /a\\040b rw - cgroup2 none rw\n"
    )
    assert cgroup.mounts(text) == [("", "/sys/fs/cgroup/unified"), ("/kube pods", "/a b")]
    assert cgroup.directory_of("/no/such/cgroup") == ""
    assert cgroup.cgroup_of(2**22 + 1) is None


def share(memory: int, name: ShareId = A, devices: tuple[DeviceUuid, ...] = (GPU,)) -> Share:
    terms = Terms(10_000, 100_000, memory)
    return Share(name, tuple(DeviceTerms(device, terms) for device in devices), ShareClass.STANDARD, f"/{name}", 0)


def stands(order: Order, standing: int = 0) -> Answer:
    return Answer(order, Result.STANDS, standing or order.limit_bytes)


def test_one_order_at_a_time_and_the_last_wish_wins() -> None:
    limits = DriverLimits(offered=True)
    [first] = limits.step([share(GIB)], {A: Place(BOX)})
    assert first == Order(A, GPU, BOX, GIB)
    assert limits.change(share(2 * GIB)) == limits.change(share(3 * GIB)) == []
    [second], [news] = limits.answered(stands(first))
    assert second == Order(A, GPU, BOX, 3 * GIB, GIB, GIB)
    assert (news.event, news.warning) == ("driver limits memory too", False)
    limits.end(A)
    [third], _ = limits.answered(stands(second))
    assert third == Order(A, GPU, BOX, 0, 3 * GIB, 3 * GIB)
    assert limits.answered(Answer(third, Result.CLEARED))[0] == []
    assert limits.of(A, GPU) == DriverLimit()


def test_a_driver_that_rounds_is_asked_once() -> None:
    limits = DriverLimits(offered=True)
    [order] = limits.step([share(GIB + 1)], {A: Place(BOX)})
    assert order.is_due(None)
    limits.answered(stands(order, GIB))
    assert limits.of(A, GPU) == DriverLimit(BOX, GIB)
    [look] = limits.step([share(GIB + 1)], {A: Place(BOX)})
    assert not look.is_due(GIB)
    assert not look.is_foreign(GIB)
    assert look.is_due(None)  # it was lost
    assert look.is_foreign(GIB // 2)
    limits.answered(stands(look, GIB))
    [clear] = limits.change(share(0))
    assert clear.is_due(GIB)
    assert not clear.is_due(GIB + 1)  # somebody else's
    assert not clear.is_due(None)


def test_what_is_refused_is_told_once_and_tried_again() -> None:
    limits = DriverLimits(offered=True)
    held = share(GIB, devices=(GPU, GPU_B))
    for first in (True, False):
        orders = limits.step([held], {A: Place(BOX)})
        assert [order.device for order in orders] == [GPU, GPU_B]
        told = []
        for order in orders:
            follow, news = limits.answered(Answer(order, Result.REFUSED, cause="no"))
            assert follow == []
            told += [one.warning for one in news]
        assert told == ([True] if first else [])
        assert limits.of(A, GPU_B) == DriverLimit(cause="no")


def test_a_limit_that_the_driver_will_not_change_is_told_as_it_stands() -> None:
    limits = DriverLimits(offered=True)
    limits.adopt(A, GPU, DriverLimit(BOX, GIB))
    for event_count in (1, 0):
        [order] = limits.change(share(2 * GIB))
        follow, news = limits.answered(Answer(order, Result.REFUSED, cause="no"))
        assert (follow, len(news)) == ([], event_count)
        assert limits.of(A, GPU) == DriverLimit(BOX, GIB)
    [clear] = limits.end(A)
    _, [told] = limits.answered(Answer(clear, Result.REFUSED, cause="not now"))
    assert (told.event, told.fields["limit_bytes"]) == ("driver keeps its memory limit", GIB)


def test_what_an_earlier_agent_set_stays_until_the_share_lives_elsewhere() -> None:
    limits = DriverLimits(offered=True)
    limits.adopt(A, GPU, DriverLimit(BOX, GIB))
    [look] = limits.step([share(GIB)], {A: Place()})
    assert look == Order(A, GPU, BOX, GIB, 0, GIB)
    assert not look.is_due(GIB)
    limits.answered(stands(look))
    [clear] = limits.step([share(GIB)], {A: Place(cause="elsewhere")})
    assert clear.limit_bytes == 0
    limits.answered(Answer(clear, Result.CLEARED))
    assert limits.of(A, GPU) == DriverLimit(cause="elsewhere")


def test_a_limit_of_somebody_else_ends_ours() -> None:
    limits = DriverLimits(offered=True)
    [order] = limits.step([share(GIB)], {A: Place(BOX)})
    limits.answered(stands(order))
    [look] = limits.step([share(GIB)], {A: Place(BOX)})
    assert look.is_foreign(5 * GIB)
    _, [news] = limits.answered(Answer(look, Result.FOREIGN, 5 * GIB))
    assert "limit its container to 5 GiB" in str(news.fields["cause"])
    assert limits.end(A) == []  # nothing of ours is left to clear


def test_an_older_driver_gets_no_order() -> None:
    limits = DriverLimits(offered=False)
    limits.adopt(A, GPU, DriverLimit(BOX, GIB))
    assert limits.step([share(GIB)], {A: Place(BOX)}) == limits.change(share(GIB)) == limits.end(A) == []
    assert limits.of(A, GPU) == DriverLimit()


def test_explain_says_how_high_the_drivers_limit_is_when_it_is_not_at_the_cap() -> None:
    assert explain._enforcers(DriverLimit(BOX, GIB), GIB) == f"hook and driver (cgroup {BOX})"
    assert explain._enforcers(DriverLimit(BOX, GIB), 2 * GIB) == f"hook and driver (cgroup {BOX}, at 1 GiB)"
