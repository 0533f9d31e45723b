"""`python -m bench`. rows.py measures; `main` imports it late, so that an early Ctrl-C ends in order too."""

from bench.entry import run
from rig.programs import ProgramFailed
from sharepod.cli.errors import CliError


def main() -> int:
    """Run the rows that were asked for. Return the exit code."""
    from bench.rows import main as measure

    return measure()


if __name__ == "__main__":
    run(main, ProgramFailed, CliError, OSError)
