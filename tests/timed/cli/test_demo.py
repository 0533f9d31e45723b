"""Test that the demo divides the simulated GPU as it says."""

import re
from pathlib import Path

import pytest
from hosts import Host


def test_the_demo_shows_its_result_and_leaves_nothing(host: Host) -> None:
    before = set(Path("/dev/shm").iterdir())
    picture = host.directory.parent / "turns.svg"
    answer = host.sharepod("demo", "--simulate", "--seconds", "6", "--picture", str(picture))
    assert answer.returncode == 0, answer.stderr
    last = answer.stdout[answer.stdout.index("All three") :]
    for name, asked in (("train", 50), ("serve", 30), ("late", 20)):
        (row,) = [line.split() for line in last.splitlines() if line.split()[:1] == [name] and "pp" in line]
        assert row[1] == str(asked)
        assert float(row[-2]) == pytest.approx(0, abs=2)
    assert re.search(r"^Together they used \d+\.\d % of the device's time; GOT is of that\.$", last, re.MULTILINE)
    assert "█" in last
    assert f"the picture is in {picture}" in answer.stderr
    assert picture.read_text().startswith("<svg ")
    assert {path.name for path in set(Path("/dev/shm").iterdir()) - before if "sharepod-demo" in path.name} == set()
