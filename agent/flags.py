"""Settings that are a flag and an environment variable each: --state-directory is PREFIX_STATE_DIRECTORY.

A flag beats the environment. Nothing else of a program reads either.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final, NoReturn

from sharepod.agent.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

EXIT_USAGE: Final = 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line."""
        self.exit(EXIT_USAGE, f"{self.prog}: {message}: see `{self.prog} --help`\n")


def read_flags(
    parser: tuple[str, str],
    prefix: str,
    docs: Mapping[str, str],
    read: Callable[[str, str, str], object],
    arguments: Sequence[str],
    environment: Mapping[str, str],
) -> dict[str, object]:
    """Return the settings that are given, by name.

    `parser` is the program's name and what it is; `docs` has a line of help for each setting; `read` takes a setting's
    name, its text and where that stands, and raises SettingsError. Raises SettingsError on an unknown variable too;
    leaves the program with a line on an unknown flag.
    """
    program, description = parser
    flags = _Parser(prog=program, description=description, allow_abbrev=False)
    for name, doc in docs.items():
        flags.add_argument("--" + name.replace("_", "-"), help=doc.replace("%", "%%"))
    given = {name: text for name, text in vars(flags.parse_args(arguments)).items() if text is not None}
    variables = {prefix + name.upper(): name for name in docs}
    for key in environment:
        if key.startswith(prefix) and key not in variables:
            raise SettingsError(f"unknown environment variable {key}: known are {', '.join(sorted(variables))}")
    values: dict[str, object] = {}
    for variable, name in variables.items():
        if name in given:
            values[name] = read(name, given[name], "--" + name.replace("_", "-"))
        elif variable in environment:
            values[name] = read(name, environment[variable], variable)
    return values
