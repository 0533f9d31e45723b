"""Makes `bench` importable. Appended, not put first: the tree's `proto/` must not shadow an installed package."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)
