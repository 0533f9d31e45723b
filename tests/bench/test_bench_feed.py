"""The bench of the usage feed runs, small, and would say when not all messages arrive."""

import pytest

from bench import feed
from bench.feed_messages import agents
from bench.scale import TEST
from sharepod.scheduler.usage import UsageBook
from sharepod.scheduler.usage_reader import read_report


def test_what_synthetic_agents_tell_is_what_the_scheduler_takes() -> None:
    book = UsageBook()
    for agent in agents(3, devices=2, shares=4):
        book.apply(agent.name, read_report(agent.complete), 0.0)
        for change in agent.changes:
            report = read_report(change)
            assert (len(report.device_numbers), len(report.share_numbers)) == (2, 4)
            book.apply(agent.name, report, 1.0)
    assert len(book) == 3
    book.validate()


@pytest.mark.deep
@pytest.mark.realtime
def test_the_row_measures_the_real_server() -> None:
    lines = feed.feed(TEST)
    cores = [line for line in lines if line.what.endswith("of a core")]
    assert len(cores) == len(feed.LOADS)
    for line in cores:
        assert line.met is None  # forty agents prove nothing about ten thousand
        assert line.detail["whole"] is True, line
        assert line.detail["messages_per_s"] == pytest.approx(TEST.agents, rel=0.1)
