"""Test that the bench's row about the feed measures the real server."""

import pytest

from bench.cluster import feed
from bench.scale import TEST


def test_the_row_measures_the_real_server() -> None:
    lines = feed.feed(TEST)
    cores = [line for line in lines if line.what.endswith("of a core")]
    assert len(cores) == len(feed.LOADS)
    for line in cores:
        assert line.met is None  # a run with forty agents is no verdict on ten thousand
        assert line.detail["whole"] is True, line
        assert line.detail["messages_per_s"] == pytest.approx(TEST.agents, rel=0.1)
