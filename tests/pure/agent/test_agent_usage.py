"""Test what each row of usage.def, a share's account, becomes in C, in Python, in the protocol and in the metrics."""

import runpy
import subprocess
from pathlib import Path

import pytest

from rig import REPO_ROOT
from sharepod.agent._native_usage import METRICS
from sharepod.agent.build_native import cdef_block, usage_fields, usage_module, usage_rows
from sharepod.agent.metrics.collector import SHARE_ROWS
from sharepod.agent.shares.share import COUNTERS, NUMBERS
from sharepod.proto import v1_pb2 as pb

AGENT = REPO_ROOT / "agent"
TABLE = (AGENT / "arbiter" / "usage.def").read_text()
NEW = 'SP_USAGE(uint64_t, yawns, "sharepod_share_yawns_total",\n         "Turns in which "\n         "nothing ran.")\n'


def test_one_more_row_is_one_more_number_in_c_in_python_and_in_the_metrics(tmp_path: Path) -> None:
    rows = usage_rows(TABLE.replace("#undef", NEW + "#undef"))
    assert [row.name for row in rows] == [*NUMBERS, "yawns"]
    assert usage_fields(rows).endswith("  uint64_t yawns;\n")
    (tmp_path / "usage.py").write_text(usage_module(rows))
    module = runpy.run_path(str(tmp_path / "usage.py"))
    assert module["Numbers"](yawns=3).yawns == 3
    assert module["METRICS"] == {**METRICS, "yawns": ("sharepod_share_yawns_total", "Turns in which nothing ran.")}


def test_a_malformed_row_is_refused() -> None:
    with pytest.raises(ValueError, match="a row is not SP_USAGE"):
        usage_rows(TABLE.replace("#undef", "SP_USAGE(uint64_t, yawns)\n#undef"))


def test_the_compiler_and_cffi_see_the_same_fields() -> None:
    command = ["cc", "-E", "-P", "-I", str(REPO_ROOT), str(AGENT / "arbiter" / "arbiter.h")]
    compiled = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    [struct] = [part for part in compiled.split("};") if "struct sp_usage {" in part]
    fields = [" ".join(line.split()) for line in struct.partition("sp_usage {")[2].splitlines() if line.strip()]
    expected = [line.strip() for line in usage_fields(usage_rows(TABLE)).splitlines()]
    assert fields[: len(expected)] == expected
    assert '#include "agent/arbiter/usage.def"' in cdef_block((AGENT / "arbiter" / "arbiter.h").read_text())


def test_every_number_has_a_field_of_the_protocol_and_its_metric() -> None:
    told = {field.name for field in pb.Usage.DESCRIPTOR.fields}
    assert set(NUMBERS) == {name for name in told if not name.endswith("_millipercent")}
    assert {metric for metric, _ in METRICS.values() if metric} <= {row.name for row in SHARE_ROWS}
    assert set(NUMBERS) - set(COUNTERS) == {
        "memory_used_bytes", "memory_overhead_bytes", "memory_refusals", "memory_refused_bytes", "processes",
    }  # fmt: skip
