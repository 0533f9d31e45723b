"""Test the scheduler's own settings: nothing is served to the network unprotected."""

import pytest

from sharepod.process.errors import SettingsError
from sharepod.scheduler.settings import OPTIONS

FEED = {"SHAREPOD_SCHEDULER_USAGE_CERTIFICATE": "/c", "SHAREPOD_SCHEDULER_USAGE_KEY": "/k"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "best"], "--policy is 'best': give worth, fgd, binpack"),
        (["--listen", "0.0.0.0:9467"], "would not be protected: give --tls-certificate, --tls-key, --client-ca"),
        (["--tls-certificate", "/x"], "--listen is '127.0.0.1:9467', .* give --tls-key, --client-ca"),
        (["--listen", "9467"], "--listen is '9467': give HOST:PORT, such as 127.0.0.1:9467"),
        (["--listen", "off"], "--listen is 'off': give HOST:PORT"),
        (["--metrics-listen", ":9468"], "--metrics-listen is ':9468': give HOST:PORT"),
        (["--metrics-listen", "10.0.0.1:9468"], "give --metrics-tls-certificate, --metrics-tls-key, --metrics-token"),
        (["--usage-certificate", "x"], "--usage-certificate is 'x': give an absolute path"),
        (["--resource", "gpu"], "--resource is 'gpu': give the name of a resource, such as sharepod.io/gpu"),
        (["--lease", "lease"], "--lease is 'lease': give NAMESPACE/NAME"),
        (["--topology", "a,,b"], "--topology is 'a,,b': give at most eight labels of nodes"),
        (["--usage-account", "node"], "--usage-account is 'node': give system:serviceaccount:NAMESPACE:NAME"),
    ],
)
def test_what_cannot_be_is_one_clear_line(arguments: list[str], says: str) -> None:
    with pytest.raises(SettingsError, match=says) as error:
        OPTIONS.parse(arguments, FEED)
    assert "\n" not in str(error.value)


def test_agents_reports_are_not_taken_in_the_clear_from_others() -> None:
    with pytest.raises(
        SettingsError, match=r"--usage-listen is '\[::\]:9466', .* give --usage-certificate, --usage-key"
    ):
        OPTIONS.parse([], {})
    assert OPTIONS.parse(["--usage-listen", "127.0.0.1:0"], {}).usage_listen == "127.0.0.1:0"
    assert OPTIONS.parse(["--usage-listen", "off"], {}).usage_listen == "off"
