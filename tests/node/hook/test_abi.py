"""Test the layout of the region: every field of every struct has the place that ABI 1 gives it."""

import re
import subprocess
from pathlib import Path

import pytest

from rig import REPO_ROOT

HEADER = (REPO_ROOT / "region" / "region.h").read_text()
SHARED = ("sp_header", "sp_grant", "sp_slot_device", "sp_slot_copies", "sp_slots_header", "sp_slot")
# Offsets of ABI 1, written by hand: running programs have this layout while the agent is upgraded.
ABI_1 = {
    "sp_header": "magic 0 abi 8 header_size 12 grant_size 16 grant_count 20 slot_size 24 slot_count 28 flags 32 "
    "heartbeat_ns 64 = 128",
    "sp_grant": "uuid 0 memory_limit_bytes 48 request_millipercent 56 limit_millipercent 60 word 64 flags 68 "
    "budget_ns 72 lookahead_ns 80 granted_ns 88 share_class 96 spare_pages 100 used_ns 104 context_bytes 112 "
    "overhead_bytes 120 = 128",
    "sp_slot_device": "waiting 0 put_off_us 4 waiting_since_ns 8 memory_used_bytes 16 first_ended_ns 24 "
    "context_bytes 32 refused_bytes 40 refusals 48 beside_until_us 52 beside_ns 56 sequence 64 held_turn 68 "
    "drained_turn 72 check 76 drained_ns 80 entered_ns 88 residue_until_ns 96 idle_ns 104 launches 112 passed 120 "
    "longest_unit_us 124 = 128",
    "sp_slot_copies": "to_device_bytes 0 to_host_bytes 8 to_device_count 16 to_host_count 24 = 64",
    "sp_slots_header": "claimed 0 = 64",
    "sp_slot": "index 0 pid 4 claimed_ns 8 diagnostics 16 devices 64 copies 2112 = 3136",
}


def members(struct: str) -> list[tuple[str, str]]:
    """Return the type and the name of each member of a struct."""
    body = re.search(rf"^struct {struct} {{\n(.*?)^}};", HEADER, re.DOTALL | re.MULTILINE)
    assert body
    plain = re.sub(r"/\*.*?\*/", "", body.group(1), flags=re.DOTALL)
    found = re.findall(r"^\s+(struct \w+|\w+) (\w+)(?:\[\w+\])?;", plain, re.MULTILINE)
    assert len(found) == plain.count(";")
    return found


@pytest.mark.parametrize("struct", SHARED)
def test_every_field_is_where_abi_1_has_it_and_the_compiler_checks_it_as_well(struct: str, tmp_path: Path) -> None:
    names = [name for _, name in members(struct) if not name.startswith("reserved")]
    probes = "".join(f'printf("{name} %zu ", offsetof(struct {struct}, {name}));' for name in names)
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    probes += f'printf("= %zu", sizeof(struct {struct}));'
    source.write_text(f'#include "region/region.h"\n#include <stdio.h>\nint main(void) {{ {probes} }}\n')
    subprocess.run(["cc", f"-I{REPO_ROOT}", "-o", program, source], check=True)
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == ABI_1[struct]
    assert re.findall(rf"^SP_ASSERT_OFFSET\({struct}, (\w+), \d+\);$", HEADER, re.MULTILINE) == names
    assert f'"ABI 1: {struct}"' in HEADER


def test_only_types_of_one_width_everywhere_are_shared() -> None:
    nested = {"struct sp_slot_device", "struct sp_slot_copies"}
    for struct in SHARED:
        types = {kind for kind, _ in members(struct)}
        assert types <= {"uint8_t", "uint32_t", "uint64_t", "int32_t", "int64_t", "char", *nested}, struct
