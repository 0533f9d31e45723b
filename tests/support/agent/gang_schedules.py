"""Builds gang_program.c and runs its random schedules of gangs."""

import json
import subprocess
from pathlib import Path

from rig import REPO_ROOT

SOURCES = [
    *(f"tests/support/agent/gang_{name}.c" for name in ("program", "rank", "region")),
    *(
        f"agent/arbiter/{name}.c"
        for name in ("step", "gang", "join", "turn", "slots", "copies", "pressure", "bill", "lead", "shared")
    ),
    *(f"agent/policy/{name}.c" for name in ("policy", "accounts", "rates")),
    "region/region.c",
]


def built(directory: Path, *flags: str) -> Path:
    built = directory / "gang_program"
    command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Werror", *flags, "-I.", "-Wl,--wrap=sp_now_ns"]
    subprocess.run([*command, *SOURCES, "-o", str(built)], cwd=REPO_ROOT, check=True)
    return built


def random_schedules(program: Path, first_seed: int, count: int, *apart: str) -> dict[str, float]:
    done = subprocess.run(
        [str(program), str(first_seed), str(count), *apart], capture_output=True, text=True, check=True, timeout=300
    )
    found: dict[str, float] = json.loads(done.stdout)
    assert found["hangs"] == 0, done.stderr
    assert found["invalid"] == 0
    return found
