"""Tests of what our code takes for granted of an API server: one test per promise, for our double and real servers.

`connection` says how a server is reached, and `there` is what a test gets of it. Each other module holds promises in a
class.
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
