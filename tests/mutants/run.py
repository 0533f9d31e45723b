"""Puts slips into a room, one at a time, and says which test notices each: `make mutants ROOM=agent N=20 SEED=1`.

Each mutant is built and tested on an overlay over the tree, in namespaces of its own: the checkout is never touched,
and the mutant's processes, mounts and shared memory end with it. A mutant that does not compile is replaced by another.
The tests that a change of the file needs run room by room, without the timed tests. A test that fails must fail twice,
so that a busy machine catches no mutant. Then it must pass without the slip: a test that fails anyway ends the run.
`equivalent.txt` lists slips that change nothing that can be observed, each with its reason; they are not drawn.
"""

import argparse
import difflib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

from slips import Slip, mutated, slips

TREE = Path(__file__).resolve().parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
ENOUGH = 0.85
"""The fraction of the mutants that must be caught."""
AT_A_TIME = 2
HANGS_S = 900
ALSO = {
    "agent/*.c": ("hook",),
    "hook/*.c": ("agent", "simgpu"),
    "region/*.c": ("hook", "agent"),
    "cli/*/pod*.py": ("scheduler",),
}
"""Further rooms, beside the file's own, with tests that a change of the file needs, in the order in which they run."""
UNBUILT = 90
"""The exit status that says that a mutant does not compile."""
RED_ANYWAY = 91
"""The exit status that says that the tests fail without the mutant too."""
SIGNALLED = 128
"""A shell's exit status is above this if a signal ended the tests."""

INSIDE = """
set -euo pipefail
mount -t tmpfs tmpfs /dev/shm
mkdir -p /dev/shm/.mutant/upper /dev/shm/.mutant/work /dev/shm/.mutant/tmp
mount -t overlay overlay -o "lowerdir=$TREE,upperdir=/dev/shm/.mutant/upper,workdir=/dev/shm/.mutant/work" "$TREE"
export TMPDIR=/dev/shm/.mutant/tmp
cd "$TREE"
cp "$SCRATCH/mutant" "$MUTATED"
make -s build >"$SCRATCH/build.log" 2>&1 || exit 90
exec </dev/null
while read -r -u 3 folders; do
  for time in first second third; do # what fails, and passes alone, hides all that would have come after it
    status=0
    .venv/bin/pytest --outcomes="$SCRATCH/first.json" --maxfail=1 -n 3 --dist=worksteal "$@" $folders || status=$?
    test $status != 0 || break
    test $status != 3 || continue # pytest's own error: a worker that ended with its test took it along
    test $status = 1 -o $status = 2 || exit $status
    status=0
    .venv/bin/pytest --outcomes="$SCRATCH/second.json" --failed-in="$SCRATCH/first.json" "$@" $folders || status=$?
    test $status = 0 && continue
    test $status = 1 || exit $status
    cp "$SCRATCH/original" "$MUTATED"
    make -s build >"$SCRATCH/build.log" 2>&1
    .venv/bin/pytest --failed-in="$SCRATCH/second.json" "$@" $folders || exit 91
    exit 1
  done
  test $status != 3 || exit 129
done 3<<<"$FOLDERS"
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A file, by its path in the tree, and the slip in it."""

    path: str
    slip: Slip

    def diff(self) -> str:
        """Return the change in the form of a patch."""
        before = (TREE / self.path).read_text()
        lines = difflib.unified_diff(before.splitlines(), mutated(before, self.slip).splitlines(), lineterm="", n=1)
        return "\n".join(f"    {line}" for line in list(lines)[2:])


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a mutant: which tests failed twice, whether it hung or crashed them, whether it was built."""

    mutant: Mutant
    seconds: float
    built: bool = True
    ended: str = ""
    """How the mutant ended the tests early, if it did: hung or crashed."""
    caught_by: tuple[str, ...] = ()

    @property
    def caught(self) -> bool:
        return bool(self.ended or self.caught_by)


def equivalent() -> set[tuple[str, str, str]]:
    """Return the slips that change nothing: path, line before and after."""
    found = set()
    for line in EQUIVALENT.read_text().splitlines():
        if line and not line.startswith("#"):
            path, before, after, _reason = line.split("\t")
            found.add((path, before, after))
    return found


def drawn(room: str, seed: int) -> Iterator[Mutant]:
    """Draw mutants of a room until it has no more lines; each line is drawn once."""
    listed = subprocess.run(["git", "ls-files", "--", room], cwd=TREE, capture_output=True, text=True, check=True)
    known = equivalent()
    lines: dict[tuple[str, int], list[Slip]] = {}
    for path in listed.stdout.split():
        language = Path(path).suffix[1:]
        if language not in ("c", "py") or Path(path).name.startswith(("build_", "__")):
            continue
        for slip in slips((TREE / path).read_text(), language):
            if (path, slip.before, slip.after) not in known:
                lines.setdefault((path, slip.line), []).append(slip)
    chance = random.Random(f"{room} {seed}")
    places = sorted(lines)
    chance.shuffle(places)
    for place in places:
        yield Mutant(place[0], chance.choice(lines[place]))


def judged(mutant: Mutant, room: str) -> Verdict:
    """Build a mutant and run on it the tests of its room and of the further rooms."""
    began = time.monotonic()
    rooms = [room, *(also for files, more in ALSO.items() if fnmatch(mutant.path, files) for also in more)]
    places = [[f"tests/{way}/{each}" for way in ("pure", "virtual", "node")] for each in rooms]
    folders = "\n".join(" ".join(place for place in of if (TREE / place).is_dir()) for of in places)
    arguments = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--timed=without", "--timeout=60"]
    with tempfile.TemporaryDirectory(prefix="sharepod-mutant-") as name:
        scratch = Path(name)
        (scratch / "original").write_text((TREE / mutant.path).read_text())
        (scratch / "mutant").write_text(mutated((TREE / mutant.path).read_text(), mutant.slip))
        told = {"TREE": str(TREE), "SCRATCH": name, "MUTATED": mutant.path, "FOLDERS": folders}
        alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
        command = [*alone, "bash", "-c", INSIDE, "mutant", *arguments]
        ended = ""
        with (scratch / "log").open("w") as log:
            try:
                done = subprocess.run(
                    command, env=os.environ | told, stdout=log, stderr=log, timeout=HANGS_S, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                done, ended = 1, "hung"
        if done == RED_ANYWAY:
            failed = json.loads((scratch / "second.json").read_text())["failed"]
            raise SystemExit(f"red without a mutant too: {' '.join(failed)}")
        if done > SIGNALLED:
            ended = "crashed"
        seconds = time.monotonic() - began
        second = scratch / "second.json"
        caught_by = tuple(json.loads(second.read_text())["failed"]) if second.exists() else ()
        if done and done != UNBUILT and not ended and not caught_by:
            raise SystemExit(f"{mutant.path}:{mutant.slip.line}: {(scratch / 'log').read_text()[-2000:]}")
    return Verdict(mutant, seconds, built=done != UNBUILT, ended=ended, caught_by=caught_by)


def tell(verdict: Verdict) -> None:
    """Print the result of a mutant in a line, and for a survivor its diff too."""
    if verdict.ended:
        how = verdict.ended
    elif verdict.caught:
        how = f"by {verdict.caught_by[0]}"
    else:
        how = "SURVIVED"
    print(f"{verdict.mutant.path}:{verdict.mutant.slip.line}: {how} ({verdict.seconds:.0f} s)", flush=True)
    if not verdict.caught:
        print(verdict.mutant.diff(), flush=True)


def main() -> int:
    """Run the command; return 0 if enough mutants were caught."""
    parser = argparse.ArgumentParser(prog="make mutants", usage="make mutants ROOM=agent [N=20] [SEED=1]")
    parser.add_argument("room")
    parser.add_argument("number", type=int)
    parser.add_argument("seed", type=int)
    asked = parser.parse_args()
    if not asked.room or not all((TREE / folder / asked.room).is_dir() for folder in ("tests/node", ".")):
        parser.error(f"ROOM={asked.room} is no room with tests: give ROOM=agent, hook, scheduler …")
    if os.geteuid() != 0:
        parser.error("namespaces and overlays need root")
    mutants = drawn(asked.room, asked.seed)
    verdicts: list[Verdict] = []
    print(f"{asked.number} mutants of {asked.room}, seed {asked.seed}", flush=True)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        while missing := asked.number - len(verdicts):
            batch = list(islice(mutants, missing))
            if not batch:
                break  # the room has no more lines
            for verdict in pool.map(lambda mutant: judged(mutant, asked.room), batch):
                if verdict.built:
                    tell(verdict)
                    verdicts.append(verdict)
    caught = sum(verdict.caught for verdict in verdicts)
    print(f"{caught} of {len(verdicts)} mutants of {asked.room} were caught (seed {asked.seed})")
    return 0 if caught >= ENOUGH * len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
