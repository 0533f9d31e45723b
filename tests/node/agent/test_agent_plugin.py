"""Test the device plugin's counters in the agent's metrics: the agent shows what it was told while that is fresh."""

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rig.agent import MakeAgent, free_port, scrape
from sharepod.agent.api.plugin import CALL_BOUNDS_NS, SIDES, STALE_NS, STARTS, Report, check, fresh, nothing_yet
from sharepod.agent.errors import InvalidInput
from sharepod.agent.metrics.plugin import TABLES
from sharepod.process.metrics import families
from sharepod.proto import v1_pb2 as pb

CALLS = (1, 2, *(0,) * (len(CALL_BOUNDS_NS) - 2), 3)


def numbers(exposed: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(exposed):
        for one in family.samples:
            labels = {key: value for key, value in one.labels.items() if key not in ("node", "le")}
            if one.name.startswith("sharepod_plugin_") and one.labels.get("le") in (None, "0.001"):
                found[" ".join([one.name.removeprefix("sharepod_plugin_"), *labels.values()])] = one.value
    return found


def test_what_the_plugin_tells_is_shown(make_agent: MakeAgent) -> None:
    address = f"127.0.0.1:{free_port()}"
    agent = make_agent("--metrics-listen", address).start()
    assert numbers(scrape(address)) == {"reporting": 0}
    request = pb.ReportPluginRequest(
        serving=True, allocations=5, unbound_allocations=2, rival_devices=1, registrations=4,
        starts=dict(zip(STARTS, (6, 7, 8, 9, 10), strict=True)), errors=dict(zip(SIDES, (11, 12, 13), strict=True)),
        allocate=pb.CallTimes(counts=CALLS, sum_ns=1_500_000_000), pre_start=nothing_yet().pre_start,
    )  # fmt: skip
    agent.stub.ReportPlugin(request)
    assert numbers(scrape(address)) == {
        "reporting": 1, "serving": 1, "allocations": 5, "unbound_allocations": 2, "rival_devices": 1,
        "registrations_total": 4, "container_starts_total ready": 6, "container_starts_total no_room": 7,
        "container_starts_total waiting": 8, "container_starts_total refused": 9, "container_starts_total failed": 10,
        "errors_total api_server": 11, "errors_total kubelet": 12, "errors_total agent": 13,
        "allocate_seconds_bucket": 3, "allocate_seconds_count": 6, "allocate_seconds_sum": 1.5,
        "pre_start_seconds_bucket": 0, "pre_start_seconds_count": 0, "pre_start_seconds_sum": 0,
    }  # fmt: skip
    request.starts["maybe"] = 1
    with pytest.raises(grpc.RpcError, match=r"starts of the plugin are .*maybe"):
        agent.stub.ReportPlugin(request)


def test_a_report_is_shown_until_it_is_stale_and_a_plugin_that_is_silent_does_not_look_well() -> None:
    report = Report(serving=True)
    told = (1000, report)
    assert fresh(told, 1000 + STALE_NS) is report
    assert fresh(told, 1001 + STALE_NS) is None
    assert fresh(None, 0) is None
    shown = [sample for family in families(TABLES, ("n", None)) for sample in family.metric().samples]
    assert [(one.name, one.value) for one in shown] == [("sharepod_plugin_reporting", 0)]


def test_counts_by_other_bounds_are_refused() -> None:
    report = nothing_yet()
    check(report)
    report.allocate.counts[:] = [1, 2, 3]
    with pytest.raises(InvalidInput, match="3 counts of the plugin"):
        check(report)
