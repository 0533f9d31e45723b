"""A pytest plugin that writes which tests passed and failed to a file, and can run only those that failed.

``--outcomes=FILE`` writes at the end
``{"passed": [node id, …], "failed": {node id: what failed first}, "disturbed": [node id, …]}``, where a disturbed test
is one of the failed (`stolen`). ``--failed-in=FILE`` runs only the tests that such a file lists as failed.
`tests/run.py` uses both. Without either, the plugin only says what has to be installed for the tests that were skipped.
"""

import json
import re
from pathlib import Path

import pytest
from stolen import STOLEN

PACKAGE = re.compile(r"apt install ([a-z0-9][a-z0-9.+-]*)")


class Outcomes:
    """The outcomes so far. A test fails with its setup, call or teardown; a file fails if it cannot be collected."""

    def __init__(self) -> None:
        self.passed: set[str] = set()
        self.failed: dict[str, str] = {}
        self.disturbed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.setdefault(report.nodeid, reason(report))
            if STOLEN in dict(report.user_properties) and is_judgement(report):
                self.disturbed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.setdefault(report.nodeid, reason(report))

    def write(self, path: Path) -> None:
        passed = sorted(self.passed - set(self.failed))
        outcomes = {"passed": passed, "failed": self.failed, "disturbed": sorted(self.disturbed)}
        path.write_text(json.dumps(outcomes))


def is_judgement(report: pytest.TestReport) -> bool:
    """Tell whether an assertion of the test itself failed: a crash, or what the test left behind, is no judgement."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return report.when == "call" and crash is not None and crash.message.startswith(("assert ", "AssertionError"))


def reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return one line: where a test failed, with what, and while how much of the processors' time was stolen."""
    stolen = dict(report.user_properties).get(STOLEN) if isinstance(report, pytest.TestReport) else None
    while_stolen = f" (while {stolen:.0%} of the processors' time was stolen)" if isinstance(stolen, float) else ""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        lines = report.longreprtext.strip().splitlines()
        return (lines[-1] if lines else "no reason was given") + while_stolen
    message = crash.message.strip().splitlines() or ["no message"]
    return f"{Path(crash.path).name}:{crash.lineno}: {message[0]}{while_stolen}"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", metavar="FILE", type=Path, help="write which tests passed and failed, as JSON")
    parser.addoption("--failed-in", metavar="FILE", type=Path, help="run only the tests that failed, by such a file")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("outcomes") and not hasattr(config, "workerinput"):  # a worker of xdist sees only its part
        config.pluginmanager.register(Outcomes(), "sharepod-outcomes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    path = config.getoption("failed_in")
    if path is None:
        return
    failed = json.loads(path.read_text())["failed"]
    others = [item for item in items if item.nodeid not in failed]
    items[:] = [item for item in items if item.nodeid in failed]
    config.hook.pytest_deselected(items=others)


def pytest_sessionfinish(session: pytest.Session) -> None:
    outcomes = session.config.pluginmanager.get_plugin("sharepod-outcomes")
    if outcomes is not None:
        outcomes.write(session.config.getoption("outcomes"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    found = [PACKAGE.search(str(report.longrepr)) for report in skipped]
    packages = {match[1] for match in found if match}
    if packages:
        terminalreporter.write_line(
            f"{sum(map(bool, found))} tests were skipped for want of packages: apt install {' '.join(sorted(packages))}"
        )
