"""Test that bench.gpu's calibration finds the settings of a simulated GPU, and writes a profile that one can load."""

import dataclasses
import json
from pathlib import Path
from typing import cast

import pytest

from bench.gpu.__main__ import CALIBRATION
from bench.gpu.build import build
from bench.gpu.host import Host
from bench.gpu.report import Report
from bench.scale import DRY

SCALE = dataclasses.replace(DRY, slices_ms=250, drift_ms=3500, call_group=32)
ROWS = ("slices", "visits", "commands", "streams", "start", "events", "calls", "clock")
PROPERTIES: dict[str, tuple[int | None, int]] = {
    "slice_us": (2000, 700),
    "switch_us": (180, 61),
    "drain_switch_us": (10, 33),
    "drain_stay_us": (0, 150),
    "intrusion_us": (0, 44),
    "latency_ns": (3000, 6200),
    "launch_cost_ns": (2500, 4000),
    "record_cost_ns": (1000, 6000),
    "plain_record_cost_ns": (1000, 1500),
    "record_gap_ns": (0, 1700),
    "write_cost_ns": (1000, 2600),
    "query_cost_ns": (300, 900),
    "event_resolution_ns": (1, 300),
    "event_drift_ppm": (0, 140),
    "event_drift_period_s": (None, 1),
    "streams_share_sms": (0, 1),
    "interference_percent": (None, 12),
}
"""Values of a benign device, and of an odd one that is like no profile and has no two values alike; None: default."""
KIND, ODD = (
    {name: value for name, both in PROPERTIES.items() if (value := both[which]) is not None} for which in (0, 1)
)


def tolerance(name: str, value: int, own_ns: float = 0) -> float:
    """Return how far off a measurement may be; a call also takes the simulator's own time, measured as `own_ns`."""
    if name == "slice_us":
        return 0.01 * value
    if name.endswith("cost_ns"):
        return max(1500, 2 * own_ns)
    return {"interference_percent": 2, "event_drift_ppm": 8, "latency_ns": 200, "record_gap_ns": 50}.get(
        name, 4 if name.endswith("_us") else 0
    )


def calibrated(path: Path, *rows: str) -> Path:
    """Calibrate a simulated GPU with the settings of the environment; return the file that the bench writes."""
    with Host(build(), SCALE, simulated=True, results=path) as host:
        for row in rows:
            CALIBRATION[row].measure(host)
        found = host.rounded_profile
    return Report("some-gpu", {"simulated": True}, profile=found).save(path)[0]


def profile(written: Path) -> dict[str, float]:
    return cast("dict[str, float]", json.loads(written.read_text(encoding="utf-8"))["profile"])


@pytest.mark.parametrize("values", [KIND, ODD], ids=["kind", "odd"])
def test_what_a_simulated_gpu_was_set_to_is_found_again_and_sets_another_one(
    values: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in values:
        if name.endswith("cost_ns"):
            monkeypatch.setenv(f"SIMGPU_{name.upper()}", "0")
    own = profile(calibrated(tmp_path / "own", "calls"))
    for name, value in values.items():
        monkeypatch.setenv(f"SIMGPU_{name.upper()}", str(value))
    written = calibrated(tmp_path / "first", *ROWS)
    found = profile(written)
    allowed = {name: tolerance(name, value, own.get(name, 0)) for name, value in values.items()}
    assert {n: (found.get(n), v) for n, v in values.items() if abs(found.get(n, v + 1e9) - v) > allowed[n]} == {}
    assert set(found) - set(values) <= {"interference_percent"}
    for name in values:
        monkeypatch.delenv(f"SIMGPU_{name.upper()}")
    monkeypatch.setenv("SIMGPU_PROFILE", str(written))
    again = profile(calibrated(tmp_path / "second", "events", "streams"))
    assert again == {name: pytest.approx(found[name], abs=max(1, tolerance(name, 0))) for name in again}
