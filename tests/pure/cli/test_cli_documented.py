"""Test that each `sharepod …` line of the docs, and of the product's own remedies, is one that the command takes."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from sharepod.agent.settings import OPTIONS
from sharepod.cli.main import app
from sharepod.process.errors import SettingsError

ROOT = Path(__file__).resolve().parents[3]
TEXTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("*/README.md"))]
ROOMS = ("agent", "cli", "deviceplugin", "explain", "process", "region", "scheduler", "webhook")
PRODUCT = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
LINE = re.compile(r"^(?:\$ |ExecStart=|@reboot |kubectl .* -- )?(?:/usr/local/bin/)?sharepod (?!agent: )(.*)")
"""A command in a block of code; what `sharepod agent: ` begins is an error in its output."""
INLINE = re.compile(r"`sharepod ([^`]+)`")
FIELD = re.compile(r"\{[^{}]*\}|\$\([^()]*\)")
"""What is filled in: a part of a Python string, a shell's command."""
SHORT = re.compile("MissingParameter|NoArgsIsHelp|.* requires an argument")
"""What is said of a line that names a verb or a flag without what it needs: a sentence may."""
COMMAND = typer.main.get_command(app)


def in_blocks(text: str) -> list[str]:
    """Return what follows `sharepod` on the lines of a text's code blocks; a line that ends in a backslash goes on."""
    blocks = "\n".join(re.findall(r"^```.*?\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    return [found[1] for line in blocks.replace("\\\n", " ").splitlines() if (found := LINE.match(line))]


def words(line: str) -> list[str]:
    """Return the arguments of a command line as a shell would split it."""
    return shlex.split(FIELD.sub("0", line), comments=True)


def refusal(words: list[str]) -> str:
    """Return the command's error for these arguments; empty if it takes them. No verb is run."""
    if words[0] == "agent":
        try:
            OPTIONS.parse(words[1:], {"XDG_RUNTIME_DIR": "/run/user/1"})
        except SettingsError as error:
            return str(error)
        except SystemExit:  # --help
            pass
        return ""
    command, name = COMMAND, "sharepod"
    try:
        context = command.make_context(name, list(words))
        while hasattr(command, "resolve_command"):
            name, command, rest = command.resolve_command(context, context._protected_args + context.args)
            context = command.make_context(name, rest, parent=context)
    except typer.Exit:  # --help, --version
        return ""
    except typer.TyperException as error:
        return f"{type(error).__name__}: {error.format_message()}"
    return ""


def test_the_command_takes_every_line_of_the_docs_code_blocks() -> None:
    lines = [(path.name, line) for path in TEXTS for line in in_blocks(path.read_text())]
    assert len(lines) > 30, "the pattern finds them"
    refused = [(name, line, said) for name, line in lines if (said := refusal(words(line)))]
    assert refused == []


@pytest.mark.parametrize("paths", [TEXTS, PRODUCT], ids=["texts", "remedies"])
def test_the_command_has_every_verb_and_flag_that_a_text_or_a_remedy_names(paths: list[Path]) -> None:
    named = [(path.name, line) for path in paths for line in INLINE.findall(path.read_text())]
    assert len(named) > 20, "the pattern finds them"
    refused = [(name, line, refusal(words(line))) for name, line in named]
    assert [one for one in refused if one[2] and not SHORT.match(one[2])] == []


def test_a_verb_or_a_flag_that_does_not_exist_is_noticed() -> None:
    assert refusal(["run", "--request", "30", "--", "true"]).startswith("NoSuchOption")
    assert refusal(["release-device", "0"])
    assert refusal(["device", "reset", "0"])
    assert refusal(["ps", "--nonsense"])
    assert refusal(["agent", "--nonsense", "1"])
    assert in_blocks("```sh\n$ sharepod run \\\n  --gpu 3 -- x\nls\n```\nsharepod no\n") == ["run    --gpu 3 -- x"]
