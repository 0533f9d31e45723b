"""The entry of the process: the `sharepod` command and `python -m sharepod.cli`.

Everything else is imported inside `main`, so that a Ctrl-C in that tenth of a second prints no traceback either.
"""

import sys


def main() -> None:
    """Run the command."""
    try:
        from sharepod.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
