"""Test that work which is marked late, or never, is not billed for the time in which its program stood still."""

from pathlib import Path

import pytest
from last_work import BESIDE_CAPTURES, IN_DESTROYED_STREAMS
from metered import run_metered

from rig.gpu import MakeSimgpu


@pytest.mark.parametrize(
    ("program", "above"),
    [(BESIDE_CAPTURES, 0.25), (IN_DESTROYED_STREAMS, 0.1)],
    ids=["beside captures", "in destroyed streams"],
)
def test_work_that_cannot_be_marked_in_time_is_billed_for_what_ran(
    program: str, above: float, make_simgpu: MakeSimgpu, tmp_path: Path
) -> None:
    done = run_metered(make_simgpu(), tmp_path, program)
    assert done.usage[0].used_ns <= (1 + above) * done.busy_ns[0]
