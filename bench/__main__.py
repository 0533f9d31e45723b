"""`python -m bench`: what measures is in rows.py, and is imported once a Ctrl-C in that moment ends in order too."""

from bench.entry import run
from rig.programs import ProgramFailed
from sharepod.cli.errors import CliError


def main() -> int:
    """Run what was asked for; return the exit code."""
    from bench.rows import main as measure

    return measure()


if __name__ == "__main__":
    run(main, ProgramFailed, CliError, OSError)
