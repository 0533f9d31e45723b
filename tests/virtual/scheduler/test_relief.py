"""Test that lower shares yield step by step while a higher one waits, and go back when it no longer waits."""

from dataclasses import replace

from rounds_world import DEFAULT, decided, nodes, pod_of

from sharepod.agent.shares.share import ShareClass
from sharepod.scheduler.placement.request import PodRequest, ShareRequest
from sharepod.scheduler.simulation.job_run import Task
from sharepod.scheduler.simulation.timeline import Timeline
from sharepod.scheduler.state.usage import DeviceNumbers, ShareTerms, ShareUse

WAITS, CALM = 8_000, 200
RESUMED = {"batch-a": "", "batch-b": ""}


def share(milli: int, share_class: str = "standard") -> PodRequest:
    return PodRequest(1000, 1024, (ShareRequest(milli, 1, 1000, None, share_class, 1000),))


def cluster() -> Timeline:
    timeline = Timeline(nodes(1, 1), DEFAULT)
    timeline.come(Task("batch-a", "team", 0, share(200, "batch"), 0.0, 1e6))
    timeline.come(Task("batch-b", "team", 0, share(300, "batch"), 0.0, 1e6))
    timeline.come(Task("serve", "team", 100, share(400, "latency"), 0.0, 1e6))
    timeline.step()
    return timeline


def measure(timeline: Timeline, waited: int, used: int = 10_000) -> None:
    """Let the agent report what each share waited and used in the last minute, in 1/1000 %."""
    use = timeline.cluster.use("n00")
    assert use is not None
    shares = []
    for pod in timeline.cluster.pods():
        one = pod.request.shares[0]
        terms = ShareTerms(
            pod.uid, pod.uid, pod.namespace, pod.name, "main", ShareClass[one.share_class.upper()], one.milli * 100,
            100_000, 2**30, paused=False,
        )  # fmt: skip
        shares.append(ShareUse(terms, used, waited if pod.name == "serve" else WAITS))
    device = replace(
        use.devices[0], numbers=DeviceNumbers(waited_1m_millipercent=waited + 2 * WAITS), shares=tuple(shares)
    )
    timeline.cluster.set_use("n00", replace(use, devices=(device,)))


def yielded(timeline: Timeline, now_s: float) -> dict[str, str]:
    """Play a cycle, and let the API server show the pods that yield after it."""
    yields = decided(timeline, now_s).yields
    for name, how in yields.items():
        counted = [pod.yields for pod in timeline.cluster.pods() if pod.name == name]
        assert counted == [how], "at once, before it is seen"
        pod_of(timeline, name, yields=how)
    return yields


def test_the_lower_ones_are_limited_then_paused_one_by_one_and_come_back_when_nobody_waits() -> None:
    timeline = cluster()
    measure(timeline, CALM)
    assert yielded(timeline, 100.0) == {}
    measure(timeline, WAITS)
    assert yielded(timeline, 200.0) == {"batch-a": "limit", "batch-b": "limit"}
    measure(timeline, WAITS)
    assert yielded(timeline, 230.0) == {}, "what the first step does is not measured yet"
    assert yielded(timeline, 265.0) == {"batch-b": "pause"}
    assert yielded(timeline, 330.0) == {"batch-a": "pause"}
    measure(timeline, CALM)
    assert yielded(timeline, 400.0) == {}
    back = yielded(timeline, 460.0) | yielded(timeline, 520.0) | yielded(timeline, 580.0)
    assert back == RESUMED


def test_a_share_that_has_what_it_is_due_presses_nobody() -> None:
    timeline = cluster()
    measure(timeline, WAITS, used=45_000)
    assert yielded(timeline, 200.0) == {}, "it bursts above its request, and waits for that"


def test_equals_do_not_yield_to_who_waits() -> None:
    timeline = Timeline(nodes(1, 1), DEFAULT)
    for name in ("one", "serve"):
        timeline.come(Task(name, "team", 5, share(400), 0.0, 1e6))
    timeline.step()
    measure(timeline, WAITS)
    assert yielded(timeline, 200.0) == {}


def test_who_was_limited_by_another_replica_goes_back_after_a_calm_time() -> None:
    timeline = cluster()
    pod_of(timeline, "batch-a", yields="limit")
    measure(timeline, CALM)
    assert [yielded(timeline, at_s) for at_s in (10.0, 60.0, 129.0)] == [{}, {}, {}]
    assert yielded(timeline, 131.0) == {"batch-a": ""}


def test_an_order_to_go_on_that_did_not_arrive_is_given_again() -> None:
    timeline = cluster()
    limited = pod_of(timeline, "batch-a", yields="limit")
    measure(timeline, CALM)
    times = []
    for at_s in range(10, 400, 10):
        times += [at_s for _ in decided(timeline, float(at_s)).yields]
        timeline.cluster.set_pod(limited)  # the API server still shows the pod as limited
    assert times == [130, 280]


def test_when_the_one_that_waited_has_left_the_others_go_back_at_once() -> None:
    timeline = cluster()
    measure(timeline, WAITS)
    assert len(yielded(timeline, 200.0)) == 2
    assert yielded(timeline, 265.0) == {"batch-b": "pause"}
    timeline.cluster.remove_pod(pod_of(timeline, "serve").uid)
    measure(timeline, CALM)
    assert yielded(timeline, 266.0) | yielded(timeline, 267.0) == RESUMED
