"""Test which devices are offered, and when a device that another plugin gave out is ours again."""

import pytest

from sharepod.deviceplugin.core.agent import NodeView
from sharepod.deviceplugin.core.device_filter import CLEAR_S, RIVAL_REASON, DeviceFilter
from sharepod.proto import v1_pb2 as pb

NODE = NodeView(
    tuple(pb.Device(uuid=f"GPU-{name}", index=index, healthy=True) for index, name in enumerate("abc")),
    "/hook", "/run/shares", closed=False, environment={},
)  # fmt: skip


@pytest.mark.parametrize("text", ["GPU-b", "GPU-b::7", "1", "1::0"])
def test_ids_of_nvidias_plugin_name_devices_by_uuid_or_index_and_replica(text: str) -> None:
    device_filter = DeviceFilter()
    assert device_filter.observe(NODE, [text, "GPU-elsewhere", "17"], 0.0) == {"GPU-b"}
    assert device_filter.observe(NODE, [text], 5.0) == set()  # each rival is told once
    seen = device_filter.seen(NODE)
    assert [(one.healthy, one.health_reason) for one in seen.devices] == [(True, ""), (False, RIVAL_REASON), (True, "")]
    assert not seen.all_offered


def test_a_device_is_ours_again_when_kubelet_has_not_had_it_for_a_while() -> None:
    device_filter = DeviceFilter()
    device_filter.observe(NODE, ["GPU-a"], 0.0)
    device_filter.observe(NODE, [], CLEAR_S - 1)  # kubelet or the other plugin may only be restarting
    assert device_filter.rivals == {"GPU-a"}
    device_filter.observe(NODE, [], CLEAR_S)
    assert device_filter.rivals == frozenset()
