"""Test that in any order of events on a node no live container loses its share, and no share is left behind."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from model_node import Container, ModelNode, NodePod
from valid_record import validate
from virtual_time import run_virtually, virtually

from sharepod.deviceplugin.errors import PluginError

EVENTS = st.one_of(  # methods of ModelNode
    st.tuples(st.just("create"), st.integers(1, 5), st.integers(0, 5)),
    st.tuples(st.just("create"), st.just(0), st.integers(1, 5)),
    st.tuples(st.just("delete"), st.integers(0, 5), st.sampled_from(["calm", "forced", "early"])),
    st.tuples(st.just("crash"), st.integers(0, 5)),
    st.tuples(st.just("make_yield"), st.integers(0, 5), st.sampled_from(["limit", "pause", ""])),
    st.tuples(st.just("wait"), st.sampled_from([0.01, 0.5, 5.0, 12.0, 70.0, 200.0])),
    st.tuples(st.just("restart_kubelet"), st.sampled_from([0.0, 8.0, 90.0])),
    st.tuples(st.just("reboot"), st.sampled_from([0.0, 8.0, 90.0])),
    st.tuples(st.just("restart_plugin")),
    st.tuples(st.just("put_up"), st.sampled_from(["api", "agent"]), st.booleans()),
    st.tuples(st.just("fill"), st.booleans()),
)


async def play(directory: Path, seed: int, events: list[tuple[Any, ...]]) -> None:
    node = ModelNode(directory, seed)
    try:
        await node.start_plugin()
        for event in events:
            name, *arguments = event
            await getattr(node, name)(*arguments)
            check(node)
        await node.settle()
        check(node)
        for pod in node.pods:
            main = pod.containers[-1]
            assert main.lives or pod.failed or pod.doomed, f"{pod.pod.name} does not start: {node.api.events[-3:]}"
            if main.lives and not pod.doomed and main.units:
                check_yields(node, pod, main)
            if main.lives and not main.units:
                assert pod.containers[0].token not in node.agent.held, "the share of an init container outlives it"
        while any(not pod.doomed and pod.admitted for pod in node.pods):
            await node.delete(0, "calm")
        for pod in node.pods:
            node.api.remove(pod.pod.name)
        node.add_other()
        await asyncio.sleep(900)
        check(node)
        assert node.plugin is not None
        assert node.agent.held == {}, "a share is left behind"
        assert node.plugin.record.all() == (), "an allocation is left behind"
    finally:
        await node.end()


def check(node: ModelNode) -> None:
    """Raise the error of a failed task. Check the record, and that all live containers have their shares."""
    if node.plugin is not None:
        validate(node.plugin.record)
    tasks = [pod.task for pod in [*node.pods, *node.leaving]] + (node.plugin.tasks if node.plugin else [])
    for task in tasks:
        if task is not None and task.done() and not task.cancelled() and isinstance(task.exception(), AssertionError):
            raise task.exception()  # type: ignore[misc]
    containers = [item for pod in [*node.pods, *node.leaving] for item in pod.containers]
    shares = [item.token for item in containers if item.created and item.units]
    assert len(shares) == len(set(shares)), "two live containers have one share"
    assert set(shares) <= set(node.agent.held), "a live container has no share"


def check_yields(node: ModelNode, pod: NodePod, container: Container) -> None:
    """Check that a live container's share yields as its pod says, and otherwise runs."""
    says = node.api.pods[pod.pod.name].annotations.get("sharepod.io/yield", "")
    share, terms = node.agent.held[container.token], node.agent.terms[container.token]
    assert (terms.yields, share.yielding, share.paused) == (says, says == "pause", says == "pause"), pod.pod.name
    assert terms.limit_now_millipercent == (terms.request_millipercent if says == "limit" else 100_000)


def playing(seed: int, events: list[tuple[Any, ...]]) -> None:
    directory = Path(tempfile.mkdtemp(prefix="sharepod-test-", dir="/dev/shm"))
    try:
        run_virtually(play(directory, seed, events))
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize("_part", range(6))  # one test with all examples would take minutes on a busy machine
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), events=st.lists(EVENTS, min_size=1, max_size=25))
@example(  # the API server goes away right after the admission of a pod with only an init container
    seed=717,
    events=[
        ("create", 3, 0), ("wait", 0.5), ("create", 0, 2), ("restart_kubelet", 8.0), ("delete", 0, "calm"),
        ("wait", 0.5), ("create", 3, 3), ("fill", False), ("crash", 0), ("crash", 0), ("create", 0, 2), ("wait", 0.01),
        ("create", 0, 1), ("create", 0, 5), ("fill", True), ("put_up", "api", False), ("delete", 0, "calm"),
        ("create", 0, 1), ("fill", False), ("wait", 70.0), ("create", 0, 1), ("restart_kubelet", 8.0),
    ],
)  # fmt: skip
@example(  # the owner changes the yield of a pod while the agent is away; the plugin tells the agent later
    seed=1,
    events=[
        ("create", 3, 0), ("wait", 200.0), ("put_up", "agent", False), ("make_yield", 0, "limit"), ("wait", 5.0),
        ("put_up", "agent", True),
    ],
)  # fmt: skip
def test_no_live_container_loses_its_share_and_none_leaks(_part: int, seed: int, events: list[tuple[Any, ...]]) -> None:
    playing(seed, events)


@virtually
async def test_a_start_that_takes_too_long_ends_with_our_words_and_not_with_kubelets(tmp_path: Path) -> None:
    """Check a start in which API server and agent each answer in time and find no room, after over 30 s together."""

    async def slow(node: ModelNode, delay_s: float) -> str:
        node.lag.always_s = delay_s
        (pod,) = node.pods
        assert node.plugin is not None
        begun = asyncio.get_running_loop().time()
        with pytest.raises(PluginError) as caught:
            await node.plugin.allocator.pre_start(pod.containers[0].units)
        assert asyncio.get_running_loop().time() - begun <= 26
        return str(caught.value)

    node = ModelNode(tmp_path, 0)
    await node.start_plugin()
    node.agent.full = True
    await node.create(3, 0)
    await asyncio.sleep(10)
    assert (await slow(node, 2)).startswith("no room")
    text = await slow(node, 4.5)
    assert text == "25 s were not enough, the agent was waited for: it is tried again"
    assert text in node.api.events[-1][2]
    assert await slow(node, 30) == (
        "25 s were not enough, kubelet to say which container holds the units was waited for: it is tried again"
    )
    await node.end()


@pytest.mark.parametrize("order", ["calm", "forced", "early"])
@pytest.mark.parametrize("gap_s", [0.0, 4.0])
@virtually
async def test_a_share_is_released_a_moment_after_the_last_sign_of_its_container(
    tmp_path: Path, order: str, gap_s: float
) -> None:
    """Check that a share is released at once: the next pod's device is picked around shares, used or not."""
    node = ModelNode(tmp_path, 1)
    await node.start_plugin()
    await node.create(3, 0)
    await asyncio.sleep(200)
    node.lag.always_s = 0
    await asyncio.sleep(20)
    (pod,) = node.pods
    node.random.choice = lambda _: gap_s  # type: ignore[method-assign, assignment]
    await node.delete(0, order)
    assert pod.task is not None
    await pod.task
    assert node.agent.held
    await asyncio.sleep(1.5)
    assert not node.agent.held
    await node.end()


@virtually
async def test_a_pod_that_kubelet_and_the_watch_have_lost_keeps_its_share_while_the_api_server_has_it(
    tmp_path: Path,
) -> None:
    node = ModelNode(tmp_path, 1)
    await node.start_plugin()
    await node.create(3, 0)
    await asyncio.sleep(200)
    (pod,) = node.pods
    node.pods.clear()
    pod.containers[-1].lives = False
    node.api.lose(pod.pod.name)
    await asyncio.sleep(120)
    assert node.agent.held
    node.api.remove(pod.pod.name)
    await asyncio.sleep(120)
    assert not node.agent.held
    await node.end()


@pytest.mark.parametrize("seed", range(20))
@virtually
async def test_a_share_that_yielded_runs_a_moment_after_there_is_room_and_its_owner_is_told(
    tmp_path: Path, seed: int
) -> None:
    node = ModelNode(tmp_path, seed)

    def events() -> list[tuple[str, str]]:
        return [(reason, text) for _, reason, text in node.api.events if not reason.endswith("Ready")]

    await node.start_plugin()
    await node.create(3, 0)
    await asyncio.sleep(200)
    (pod,) = node.pods
    token = pod.containers[-1].token
    await node.make_yield(0, "pause")
    await asyncio.sleep(30)
    assert node.agent.held[token].yielding
    node.agent.full = True
    await node.make_yield(0, "")
    await asyncio.sleep(60)
    assert node.agent.held[token].yielding
    assert events() == [("ShareStaysPaused", "container main: no room to go on")]  # told once
    await node.crash(0)  # its container may start again meanwhile, and waits
    await asyncio.sleep(60)
    assert pod.containers[-1].lives
    assert node.agent.held[token].yielding

    node.lag.always_s = 0
    await asyncio.sleep(20)
    node.agent.full = False
    await asyncio.sleep(1.5)
    share = node.agent.held[token]
    assert not share.paused
    assert not share.yielding
    await asyncio.sleep(60)
    assert [reason for reason, _ in events()] == ["ShareStaysPaused", "ShareResumed"]
    await node.end()
