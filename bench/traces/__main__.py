"""`python -m bench.traces`: write the synthesised traces anew. A recorded trace of the same name is left alone."""

import sys
from pathlib import Path

from bench.entry import Parser
from bench.traces.format import parse
from bench.traces.shapes import SHAPES

FOLDER = Path(__file__).resolve().parent


def main() -> int:
    """Write what is synthesised; return the exit code."""
    Parser(prog="python -m bench.traces", description=__doc__).parse_args()
    for shape in SHAPES:
        trace = shape()
        path = FOLDER / f"{trace.name}.trace"
        if path.exists() and parse(path.read_text(encoding="utf-8")).origin == "recorded":
            print(f"{path.name} is a recording: left alone", file=sys.stderr)
            continue
        path.write_text(trace.text(), encoding="utf-8")
        print(f"{path.name}: {len(trace.kernels)} kernels, {path.stat().st_size} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
