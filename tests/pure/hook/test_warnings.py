"""Test that the hook's sources compile without a warning, as of an `if` without a body."""

from hooklab import HOOK_FLAGS, HOOK_SOURCES, run

from rig import REPO_ROOT


def test_the_hook_compiles_without_a_warning() -> None:
    done = run(["cc", "-fsyntax-only", f"-I{REPO_ROOT}", *HOOK_FLAGS, *HOOK_SOURCES])
    assert done.returncode == 0, done.stderr
