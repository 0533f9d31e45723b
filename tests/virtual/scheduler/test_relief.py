"""Test that lower shares yield step by step while a higher one waits, and go back when it no longer waits."""

from dataclasses import replace

from rounds_world import DEFAULT, decided, nodes, pod_of

from sharepod.agent.shares.share import ShareClass
from sharepod.scheduler.placement.request import PodAsk, ShareAsk
from sharepod.scheduler.simulation.job_run import Task
from sharepod.scheduler.simulation.timeline import Timeline
from sharepod.scheduler.state.usage import DeviceNumbers, ShareTerms, ShareUse

WAITS, CALM = 8_000, 200
RESUMED = {"batch-a": "", "batch-b": ""}


def share(milli: int, share_class: str = "standard") -> PodAsk:
    return PodAsk(1000, 1024, (ShareAsk(milli, 1, 1000, None, share_class, 1000),))


def cluster() -> Timeline:
    line = Timeline(nodes(1, 1), DEFAULT)
    line.come(Task("batch-a", "team", 0, share(200, "batch"), 0.0, 1e6))
    line.come(Task("batch-b", "team", 0, share(300, "batch"), 0.0, 1e6))
    line.come(Task("serve", "team", 100, share(400, "latency"), 0.0, 1e6))
    line.step()
    return line


def measure(line: Timeline, waited: int, used: int = 10_000) -> None:
    """Let the agent report what each share waited and used in the last minute, in 1/1000 %."""
    use = line.cluster.use("n00")
    assert use is not None
    shares = []
    for pod in line.cluster.pods():
        one = pod.ask.shares[0]
        terms = ShareTerms(
            pod.uid, pod.uid, pod.namespace, pod.name, "main", ShareClass[one.share_class.upper()], one.milli * 100,
            100_000, 2**30, paused=False,
        )  # fmt: skip
        shares.append(ShareUse(terms, used, waited if pod.name == "serve" else WAITS))
    device = replace(
        use.devices[0], numbers=DeviceNumbers(waited_1m_millipercent=waited + 2 * WAITS), shares=tuple(shares)
    )
    line.cluster.set_use("n00", replace(use, devices=(device,)))


def yielded(line: Timeline, now_s: float) -> dict[str, str]:
    """Play a round, and let the API server show the pods that yield after it."""
    yields = decided(line, now_s).yields
    for name, how in yields.items():
        counted = [pod.yields for pod in line.cluster.pods() if pod.name == name]
        assert counted == [how], "at once, before it is seen"
        pod_of(line, name, yields=how)
    return yields


def test_the_lower_ones_are_limited_then_paused_one_by_one_and_come_back_when_nobody_waits() -> None:
    line = cluster()
    measure(line, CALM)
    assert yielded(line, 100.0) == {}
    measure(line, WAITS)
    assert yielded(line, 200.0) == {"batch-a": "limit", "batch-b": "limit"}
    measure(line, WAITS)
    assert yielded(line, 230.0) == {}, "what the first step does is not measured yet"
    assert yielded(line, 265.0) == {"batch-b": "pause"}
    assert yielded(line, 330.0) == {"batch-a": "pause"}
    measure(line, CALM)
    assert yielded(line, 400.0) == {}
    back = yielded(line, 460.0) | yielded(line, 520.0) | yielded(line, 580.0)
    assert back == RESUMED


def test_a_share_that_has_what_it_is_due_presses_nobody() -> None:
    line = cluster()
    measure(line, WAITS, used=45_000)
    assert yielded(line, 200.0) == {}, "it bursts above its request, and waits for that"


def test_equals_do_not_yield_to_who_waits() -> None:
    line = Timeline(nodes(1, 1), DEFAULT)
    for name in ("one", "serve"):
        line.come(Task(name, "team", 5, share(400), 0.0, 1e6))
    line.step()
    measure(line, WAITS)
    assert yielded(line, 200.0) == {}


def test_who_was_limited_by_another_replica_goes_back_after_a_calm_time() -> None:
    line = cluster()
    pod_of(line, "batch-a", yields="limit")
    measure(line, CALM)
    assert [yielded(line, at_s) for at_s in (10.0, 60.0, 129.0)] == [{}, {}, {}]
    assert yielded(line, 131.0) == {"batch-a": ""}


def test_an_order_to_go_on_that_did_not_arrive_is_given_again() -> None:
    line = cluster()
    limited = pod_of(line, "batch-a", yields="limit")
    measure(line, CALM)
    times = []
    for at_s in range(10, 400, 10):
        times += [at_s for _ in decided(line, float(at_s)).yields]
        line.cluster.set_pod(limited)  # the API server still shows the pod as limited
    assert times == [130, 280]


def test_when_the_one_that_waited_has_left_the_others_go_back_at_once() -> None:
    line = cluster()
    measure(line, WAITS)
    assert len(yielded(line, 200.0)) == 2
    assert yielded(line, 265.0) == {"batch-b": "pause"}
    line.cluster.remove_pod(pod_of(line, "serve").uid)
    measure(line, CALM)
    assert yielded(line, 266.0) | yielded(line, 267.0) == RESUMED
