"""Test that a small bench of the usage feed runs and would report lost messages."""

from bench.cluster.feed_messages import agents
from sharepod.scheduler.feed.usage_reader import read_report
from sharepod.scheduler.state.usage import UsageBook


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
