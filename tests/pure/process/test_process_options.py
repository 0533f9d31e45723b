"""Test settings from flags, environment and file; each error is one line that says where, what, and the remedy."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from rig import REPO_ROOT
from sharepod.process.errors import SettingsError
from sharepod.process.kinds import FILE, FLAG, PATH, WORDS, address, choice, is_loopback, percent, text, whole
from sharepod.process.manual import with_settings
from sharepod.process.options import Options
from sharepod.process.setting import setting, shown


@dataclass(frozen=True, slots=True)
class Settings:
    """One setting of each kind."""

    state_directory: Path = setting(Path("/var/lib/x"), PATH, "Where it keeps things.")
    key: str = setting("", FILE, "PEM file with the key.")
    listen: str = setting("127.0.0.1:1", address("give HOST:PORT", off="off"), "Where it listens.")
    binding: str = setting("late", choice("late", "on", "off"), "When it binds.")
    limit_percent: int = setting(100, percent(1, 100), "The limit.")
    drain_seconds: int = setting(5, whole(0, 60), "How long it goes on.")
    offer: tuple[str, ...] = setting(("a", "b"), WORDS, "What it offers.")
    overcommit: bool = setting(False, FLAG, "Take more.")
    name: str = setting("x", text(r"[a-z]+", "give small letters"), "Its name.")


def complete(settings: Settings, where: Callable[[str], str], environment: Mapping[str, str]) -> Settings:
    """Refuse a name that does not match the environment."""
    if settings.name != environment.get("NAME", settings.name):
        raise SettingsError(f"{where('name')} is not {environment['NAME']}")
    return settings


OPTIONS = Options(Settings, "x-process", "Do x.", "X_", others=("X_OTHER", "X_HOOK_"), complete=complete)


def test_a_flag_beats_the_environment_and_that_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("binding: on\nlimit_percent: 1\ndrain_seconds: 1\noffer: [c, d]\novercommit: true\n")
    environment = {"X_CONFIG": str(file), "X_LIMIT_PERCENT": "2", "X_DRAIN_SECONDS": "2", "X_OTHER": "", "X_HOOK_A": ""}
    settings = OPTIONS.parse(["--drain-seconds", "3", "--no-overcommit"], environment)
    assert settings == Settings(binding="on", limit_percent=2, drain_seconds=3, offer=("c", "d"))
    other = tmp_path / "other.yaml"
    other.write_text("")
    assert OPTIONS.parse(["--config", str(other), "--overcommit"], {"X_CONFIG": str(file)}) == Settings(overcommit=True)
    assert OPTIONS.load({}, {"X_CONFIG": str(file)}, str(other)) == Settings()
    # A flag overrides the environment also if it gives the default.
    assert OPTIONS.parse(["--drain-seconds", "5"], {"X_DRAIN_SECONDS": "2"}).drain_seconds == 5
    assert OPTIONS.parse(["--no-overcommit"], {"X_OVERCOMMIT": "1"}).overcommit is False


def test_what_is_shown_is_read_again() -> None:
    settings = OPTIONS.parse(["--offer", " e , f,", "--listen", "[::1]:80", "--overcommit", "--key", "/k"], {})
    assert shown(settings)["offer"] == "e,f"
    environment = {OPTIONS.variable(name): value for name, value in shown(settings).items()}
    assert OPTIONS.load({}, environment) == settings


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--binding", "lat"], {}, "--binding is 'lat': give late, on or off"),
        (["--limit-percent", "101"], {}, "--limit-percent is '101': give a percentage from 1 to 100"),
        (["--drain-seconds", "-1"], {}, "--drain-seconds is '-1': give a whole number from 0 to 60"),
        (["--drain-seconds", "١"], {}, "--drain-seconds is '١': give a whole number from 0 to 60"),
        (["--state-directory", "x"], {}, "--state-directory is 'x': give an absolute path"),
        (["--key", "x"], {}, "--key is 'x': give an absolute path"),
        (["--listen", "127.0.0.1:65536"], {}, "--listen is '127.0.0.1:65536': give HOST:PORT"),
        (["--name", "A"], {}, "--name is 'A': give small letters"),
        ([], {"X_OVERCOMMIT": "maybe"}, "environment X_OVERCOMMIT is 'maybe': give true or false"),
        ([], {"X_NAMED": "a"}, "unknown environment variable X_NAMED: did you mean X_NAME?"),
        ([], {"X_SERVICE_HOST": "a"}, "unknown environment variable X_SERVICE_HOST: known are X_BINDING, X_CONFIG, "),
        (["--bindin", "late"], {}, "unknown flag --bindin: did you mean --binding?"),
        (["--bind", "late"], {}, "unknown flag --bind: "),
        (["--zzz=1"], {}, "unknown flag --zzz: see `x-process --help`"),
        (["late"], {}, "unknown argument late: see `x-process --help`"),
        (["--name"], {}, "argument --name: expected one argument: see `x-process --help`"),
        (["--name", "b"], {"NAME": "c"}, "--name is not c"),
        ([], {"NAME": "c", "X_NAME": "b"}, "environment X_NAME is not c"),
        ([], {"NAME": "c"}, "--name is not c"),
        (["--config", "/nowhere"], {}, "configuration /nowhere: No such file or directory: name a readable file"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_its_remedy(
    arguments: list[str], environment: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        OPTIONS.parse(arguments, environment)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("named: a\n", "unknown key in FILE: named: did you mean name?"),
        ("- a\n", "configuration FILE is no mapping: write lines of key: value"),
        ("a: [\n", "configuration FILE is no YAML: while parsing"),
        ("name: [a]\n", "FILE: name is ['a']: give text"),
        ("limit_percent: 0\n", "FILE: limit_percent is 0: give a percentage from 1 to 100"),
        ("binding: maybe\n", "FILE: binding is 'maybe': give late, on or off"),
    ],
)
def test_a_wrong_file_is_named_with_its_remedy(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(content)
    with pytest.raises(SettingsError) as caught:
        OPTIONS.load({}, {}, str(file))
    assert str(caught.value).startswith(message.replace("FILE", str(file)))
    assert "\n" not in str(caught.value)


def test_yaml_may_switch_off_without_quotes(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("listen: off\nbinding: off\nlimit_percent: '7'\n")
    settings = OPTIONS.load({}, {}, str(file))
    assert (settings.listen, settings.binding, settings.limit_percent) == ("off", "off", 7)


def test_the_help_has_every_setting_with_its_bounds_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        OPTIONS.start(["--help"])
    assert ended.value.code == 0
    said = " ".join(re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    assert "Usage: x-process [OPTIONS]" in said
    assert "--name is X_NAME and name" in said
    for name in (*shown(Settings()), "config", "help"):
        assert f"--{name.replace('_', '-')} " in said
    for part in ("One of late, on, off. [default: late]", "From 0 to 60. [default: 5]", "[default: a,b]"):
        assert part in said


@pytest.mark.parametrize("name", ["agent", "deviceplugin", "scheduler", "webhook"])
def test_no_word_of_a_help_is_cut_at_80_columns(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        import_module(f"sharepod.{name}.settings").OPTIONS.start(["--help"])
    said = capsys.readouterr().out
    assert "--log-level" in said
    assert "…" not in said


def test_a_wrong_start_ends_with_its_line_and_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        OPTIONS.start(["--bindin", "late"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "x-process: unknown flag --bindin: did you mean --binding?\n"


def test_loopback_is_told_from_what_others_reach() -> None:
    assert all(map(is_loopback, ("127.0.0.1:1", "[::1]:1", "localhost:1")))
    assert not any(map(is_loopback, ("0.0.0.0:1", "host:1")))


@pytest.mark.parametrize(
    ("page", "module"),
    [
        ("operations.md", "sharepod.agent.settings"),
        ("device-plugin.md", "sharepod.deviceplugin.settings"),
        ("scheduler.md", "sharepod.scheduler.settings"),
        ("compatibility.md", "sharepod.webhook.settings"),
    ],
)
def test_the_manual_has_the_current_settings(page: str, module: str) -> None:
    written = (REPO_ROOT / "docs" / page).read_text()
    assert with_settings(written, module) == written
    with pytest.raises(ValueError, match="has lost its markers"):
        with_settings("nothing", module)
