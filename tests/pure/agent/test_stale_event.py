"""Test that the arbiter believes the event of a process's end only if the slot's process has ended.

Between the event and its handling a share can be removed and its handle be given to a new share.
"""

from pathlib import Path

from hooklab import STRICT, compile_c, run

from rig import REPO_ROOT

SOURCES = ("tests/support/agent/stale_event.c", "agent/arbiter/slots.c", "region/region.c")


def test_an_event_of_an_earlier_share_ends_no_process_of_the_next_one(tmp_path: Path) -> None:
    sources = [REPO_ROOT / path for path in SOURCES]
    # Functions that are never called have no definition here.
    flags = [*STRICT, "-no-pie", "-Wno-unused-function", "-Wl,--unresolved-symbols=ignore-all"]
    program = compile_c(tmp_path / "stale_event", *flags, *sources, "-lpthread")
    done = run([program])
    assert (done.returncode, done.stdout.splitlines()) == (0, ["ended 1", "lives 0", "none 0"])
