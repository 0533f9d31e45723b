"""What our code takes for granted of an API server: each promise one test, for the double and for real servers alike.

`connection` says how one is reached, `there` what a test has of it; the other modules hold the promises, a class each.
A test module gives a fixture `connected` and imports all of this.
"""

from .deletions import TestDeletions
from .events import TestEvents
from .evictions import TestEvictions
from .gates import TestGates
from .leases import TestLeases
from .lists import TestLists
from .patches import TestPatches
from .pods import TestPods
from .watches import TestWatches

__all__ = [
    "TestDeletions", "TestEvents", "TestEvictions", "TestGates", "TestLeases", "TestLists",
    "TestPatches", "TestPods", "TestWatches",
]  # fmt: skip
