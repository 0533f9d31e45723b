"""Test that each row of the manual's table of failures has tests which fail if the row is not true."""

import re

from rig import REPO_ROOT

ROWS = {
    "the agent is stopped": "timed/agent/test_gates_open.py::test_gates_open_within_50_ms_of_a_planned_stop_and_1_s",
    "the package is upgraded": "node/agent/test_agent_end_to_end.py::test_a_served_hook_stays_while_a_share_lives",
    "the agent is killed": "node/agent/test_agent_starts.py::test_a_killed_agent_is_followed_by_one_that_adopts",
    "the agent stands still": "timed/agent/test_gates_open.py::test_what_runs_while_the_agent_stands_still",
    "a process dies in its turn": "virtual/agent/test_turns.py::test_when_a_process_dies_in_its_turn"
    " node/agent/test_agent_memory.py::test_a_killed_program_gives_every_kind_back"
    " node/hook/test_last_work.py::test_what_processes_used_that_were_killed",
    "a turn does not drain": "virtual/agent/test_turns.py::test_a_drain_that_is_late_is_shared",
    "the owner of a share ends": "node/agent/test_agent_end_to_end.py::test_a_share_ends_with_its_first_owner",
    "a region cannot be adopted": "node/agent/test_agent_starts.py::test_a_region_that_cannot_be_adopted_is_left_alone",
    "the checkpoint cannot be written": "node/agent/test_agent_starts.py::test_an_agent_that_cannot_write",
    "the checkpoint is unreadable": "node/agent/test_agent_starts.py::test_a_checkpoint_that_cannot_be_read",
    "one record of the checkpoint": "node/agent/test_agent_starts.py::test_one_share_that_cannot_be_read",
    "there is a region": "node/agent/test_agent_starts.py::test_a_region_without_a_record_is_adopted",
    "a program cannot use its region": "node/hook/test_unusable.py::test_a_program_without_a_usable_region_obeys",
    "a program gains rights": "node/cli/test_cli_run.py::test_a_program_that_would_shed_the_hook_is_told",
    "a program of a share would be a client of MPS": "node/agent/test_agent_devices.py::test_under_the_closed_policy",
    "a program of a share works on a device": "node/agent/test_agent_programs.py::test_a_program_of_a_share_that_runs",
    "MPS serves a device": "node/agent/test_agent_devices.py::test_a_device_that_mps_serves_takes_no_share",
    "the compute mode": "node/agent/test_agent_devices.py::test_a_device_that_lets_one_process_in_takes_no_share",
    "a process uses a device": "node/agent/test_agent_programs.py::test_a_process_without_a_share_is_found_within_five"
    " node/agent/test_agent_pid_namespaces.py::test_programs_that_are_both_pid_1"  # the metrics
    " node/deviceplugin/test_workload_monitor.py::test_denied_memory_a_stranger_and_a_lost_share_are_told",  # the Event
    "a critical Xid": "node/agent/test_agent_health.py::test_a_new_agent_keeps_the_shares_of_a_lost_device"
    " node/agent/test_agent_health.py::test_a_critical_xid_is_remembered_across_restarts",
    "NVML fails on every device": "node/agent/test_agent_health.py::test_nvml_is_opened_anew_when_no_device_answers",
    "NVML hangs on a device": "node/agent/test_agent_health.py::test_a_device_that_hangs_is_unhealthy_after",
    "NVML hangs when": "pure/agent/test_agent_unlisted.py::test_an_agent_does_not_wait_for_ever_for_a_driver",
    "the agent starts while": "node/agent/test_agent_health.py::test_an_agent_starts_beside_a_device_that_hangs"
    " node/agent/test_agent_health.py::test_a_new_agent_keeps_the_shares_of_a_lost_device"
    " node/agent/test_agent_health.py::test_a_device_that_nvml_no_longer_lists"
    " node/agent/test_agent_health.py::test_a_device_without_a_share_that_nvml_no_longer",
    "… that no share holds": "node/agent/test_agent_health.py::test_a_device_that_no_agent_has_seen_well_is_there"
    " node/agent/test_agent_health.py::test_an_agent_whose_only_device_is_lost_waits",
    "a MIG instance cannot be described": "node/agent/test_agent_health.py::test_an_instance_that_may_not_be_looked_at",
    "the device is well again": "pure/agent/test_agent_pure.py::test_a_critical_xid_is_over_when_the_device",
    "an operator releases": "node/agent/test_agent_health.py::test_a_device_that_is_released_is_in_nobody_s_hands",
    "a program writes nonsense": "node/agent/test_hostile.py::test_random_slots_are_clamped_and_attributed",
    "a program locks its slots": "timed/hook/test_floods.py::test_a_flood_costs_its_own_share_alone"
    " node/agent/test_hostile.py::test_a_flood_is_told_once_of_its_share_alone",
    "a stranger calls the agent": "node/agent/test_agent_users.py::test_a_share_is_changed_with_its_owners_token_alone"
    " node/agent/test_agent_users.py::test_a_gang_is_its_owners_and_so_is_its_pause"
    " node/agent/test_agent_users.py::test_nobody_passes_for_a_pod_there",
    "a launch passes deliberately": "node/hook/test_in_flight.py::test_a_launch_for_which_work_in_flight_spins_passes",
}


def test_each_failure_of_the_manual_has_its_test() -> None:
    manual = (REPO_ROOT / "docs" / "operations.md").read_text()
    table = manual.split("## What happens when something fails")[1].split("###")[0]
    events = re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)[2:]
    assert [[row for row in ROWS if event.startswith(row)] for event in events] == [[row] for row in ROWS]


def test_each_of_these_tests_is_there() -> None:
    for path, name in (place.split("::") for places in ROWS.values() for place in places.split()):
        assert f"def {name}" in (REPO_ROOT / "tests" / path).read_text(), name
