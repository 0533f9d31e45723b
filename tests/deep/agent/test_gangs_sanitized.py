"""Random schedules of gangs under sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from gang_schedules import built, random_schedules


@pytest.mark.parametrize("how", [(), ("joined",)], ids=["one share", "joined"])
def test_the_schedules_touch_no_foreign_memory(tmp_path: Path, how: tuple[str, ...]) -> None:
    random_schedules(built(tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover"), 7001, 100, *how)
