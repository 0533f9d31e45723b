"""Test that even work has exactly two units in flight: on a machine with a free core no launch passes its budget."""

from pathlib import Path

import pytest
from in_flight import BEFORE, even_work_in_flight

from rig.gpu import MakeSimgpu


@pytest.mark.parametrize("before", BEFORE)
def test_even_work_has_two_units_in_flight_and_no_more(before: str, make_simgpu: MakeSimgpu, tmp_path: Path) -> None:
    most, _ = even_work_in_flight(make_simgpu, tmp_path, before)
    assert most == 2
