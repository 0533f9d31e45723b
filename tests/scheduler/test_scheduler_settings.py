"""The scheduler's flags and variables: what is unprotected or misspelt is one clear line."""

from __future__ import annotations

import pytest

from sharepod.agent.errors import SettingsError
from sharepod.scheduler.settings import Settings, is_loopback, parse_settings

FEED = {"SHAREPOD_SCHEDULER_USAGE_CERTIFICATE": "/c", "SHAREPOD_SCHEDULER_USAGE_KEY": "/k"}


def test_a_flag_beats_a_variable_and_what_is_not_given_is_the_default() -> None:
    found = parse_settings(["--policy", "binpack"], {**FEED, "SHAREPOD_SCHEDULER_POLICY": "spread"})
    assert found == Settings(policy="binpack", usage_certificate="/c", usage_key="/k")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "best"], "--policy is 'best': give worth, fgd, binpack"),
        (["--listen", "0.0.0.0:9467"], "would not be protected: give --tls-certificate, --tls-key, --client-ca"),
        (["--tls-certificate", "/x"], "--listen 127.0.0.1:9467 .* give --tls-key, --client-ca"),
        (["--listen", "9467"], "--listen is '9467': give HOST:PORT, such as 127.0.0.1:9467"),
        (["--listen", "off"], "--listen is 'off': give HOST:PORT"),
        (["--metrics-listen", ":9468"], "--metrics-listen is ':9468': give HOST:PORT"),
        (["--metrics-listen", "10.0.0.1:9468"], "give --metrics-tls-certificate, --metrics-tls-key, --metrics-token"),
        (["--usage-certificate", "x"], "--usage-certificate is 'x': give an absolute path"),
        (["--drain-seconds", "61"], "--drain-seconds is '61': give a whole number from 0 to 60"),
        (["--resource", "gpu"], "--resource is 'gpu', no such name"),
        (["--log-level", "loud"], "--log-level is 'loud': give debug"),
    ],
)
def test_what_cannot_be_is_one_clear_line(arguments: list[str], says: str) -> None:
    with pytest.raises(SettingsError, match=says) as error:
        parse_settings(arguments, FEED)
    assert "\n" not in str(error.value)


def test_agents_reports_are_not_taken_in_the_clear_from_others() -> None:
    with pytest.raises(SettingsError, match=r"--usage-listen 0.0.0.0:9466 .* give --usage-certificate, --usage-key"):
        parse_settings([], {})
    assert parse_settings(["--usage-listen", "127.0.0.1:0"], {}).usage_listen == "127.0.0.1:0"
    assert parse_settings(["--usage-listen", "off"], {}).usage_listen == "off"


def test_an_unknown_variable_is_named() -> None:
    with pytest.raises(SettingsError, match="unknown environment variable SHAREPOD_SCHEDULER_POLICE"):
        parse_settings([], {**FEED, "SHAREPOD_SCHEDULER_POLICE": "worth"})


@pytest.mark.parametrize(
    ("address", "own"),
    [("127.0.0.1:1", True), ("[::1]:1", True), ("localhost:1", True), ("0.0.0.0:1", False), ("host:1", False)],
)
def test_loopback_is_told_from_what_others_reach(address: str, own: bool) -> None:
    assert is_loopback(address) is own
