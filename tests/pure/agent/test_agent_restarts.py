"""Test whether an agent that has lost NVML may end: only where something starts it again."""

import pytest

from sharepod.agent.devices.session import is_restarted


@pytest.mark.parametrize(
    ("pid", "parent", "environment", "first", "restarted"),
    [
        (1, 0, {}, "sharepod", True),
        (7, 1, {}, "tini", True),
        (7, 1, {}, "docker-init", True),
        (7, 1, {}, "systemd", False),  # an orphan on a host
        (7, 6, {}, "tini", False),  # a child of the container's program
        (7, 6, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "systemd", True),
        (7, 1, {"SYSTEMD_EXEC_PID": "7"}, "systemd", True),
        (7, 6, {"SYSTEMD_EXEC_PID": "6"}, "systemd", False),  # started by hand in a unit's shell
        (7, 6, {}, "", False),
    ],
)
def test_a_container_a_pod_and_a_unit_are_started_again(
    pid: int, parent: int, environment: dict[str, str], first: str, restarted: bool
) -> None:
    assert is_restarted(pid, parent, environment, first) == restarted
