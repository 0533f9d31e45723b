"""Reads the settings of a process, the fields of a frozen dataclass: from flags, the environment and a YAML file.

`state_directory` of a process with the prefix `SHAREPOD_PLUGIN_` is the flag `--state-directory`, the variable
`SHAREPOD_PLUGIN_STATE_DIRECTORY` and the key `state_directory`. A flag beats the variable, the variable beats the file.
An unknown name or a wrong value is an error of one line: where the value stands, what it is, what to give instead.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from sharepod.process.errors import SettingsError, unknown
from sharepod.process.flags import read_flags
from sharepod.process.setting import described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sharepod.process.setting import Setting

Settings = TypeVar("Settings")
Given = dict[str, tuple[str, object]]
"""By the name of a setting: where its value was given, for errors, and the value, not checked yet."""

CONFIG: Final = "config"
"""The name of the file is no setting: it is given by `--config` or the variable `PREFIX_CONFIG`."""


@dataclass(frozen=True, slots=True)
class Options(Generic[Settings]):
    """The settings of one process: their class, and the sources of their values."""

    settings: type[Settings]
    program: str
    """Its name, in front of every error and in `--help`."""
    purpose: str
    """What the process does: the head of `--help`."""
    prefix: str
    """The prefix of its environment variables."""
    others: tuple[str, ...] = ()
    """Variables of other programs that have the same prefix. A name that ends in `_` is the begin of several."""
    complete: Callable[[Settings, Callable[[str], str], Mapping[str, str]], Settings] = lambda settings, *_: settings
    """Checks what several settings must agree on, and fills in those that depend on others. It takes the settings, a
    function from a setting's name to where its value was given, and the environment. Raises SettingsError."""

    def parse(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
        """Return the settings from the arguments of the command line, the environment and the file that they name.

        Raises SettingsError; ends the process after `--help`.
        """
        flags = read_flags(self.program, self._head(), described(self.settings), arguments)
        config = flags.pop(CONFIG, None)
        return self.load(flags, environment, None if config is None else str(config))

    def start(self, arguments: Sequence[str] | None = None) -> Settings:
        """Return the settings of this process, or end it with the error on stderr and its exit code.

        `arguments`: None means those of the command line.
        """
        try:
            return self.parse(sys.argv[1:] if arguments is None else arguments, os.environ)
        except SettingsError as error:
            sys.stderr.write(f"{self.program}: {error}\n")
            raise SystemExit(error.exit_code) from None

    def load(self, flags: Mapping[str, object], environment: Mapping[str, str], config: str | None = None) -> Settings:
        """Return the settings from flags (by the names of settings), the environment and the YAML file `config`.

        `config` None: the file that the environment names, if it names one. Raises SettingsError.
        """
        items = {item.name: item for item in described(self.settings)}
        path = config or environment.get(self.variable(CONFIG))
        given: Given = {
            **(_from_file(path, items) if path else {}),
            **self._from_environment(environment, items),
            **{name: (items[name].flag, value) for name, value in flags.items()},
        }
        values = {name: _read(items[name], *found) for name, found in given.items()}
        where = {item.name: item.flag for item in items.values()} | {name: found[0] for name, found in given.items()}
        return self.complete(self.settings(**values), where.__getitem__, environment)

    def variable(self, name: str) -> str:
        """Return the environment variable of a setting."""
        return self.prefix + name.upper()

    def _head(self) -> str:
        """Return the text at the top of `--help`. Its example is the last setting."""
        example = described(self.settings)[-1]
        return (
            f"{self.purpose}\n\n"
            f"Every flag is also an environment variable and a key of the YAML file that `--config` or "
            f"`{self.variable(CONFIG)}` names: `{example.flag}` is `{self.variable(example.name)}` and "
            f"`{example.name}`. A flag beats the variable, the variable beats the file."
        )

    def _from_environment(self, environment: Mapping[str, str], items: Iterable[str]) -> Given:
        """Return those of the settings named `items` that have a variable in the environment.

        Raises SettingsError for an unknown variable with our prefix.
        """
        variables = {self.variable(name): name for name in items}
        known = {*variables, self.variable(CONFIG)}
        for key in environment:
            if key.startswith(self.prefix) and key not in known and not self._is_of_others(key):
                raise unknown("environment variable", key, sorted(known))
        return {name: (f"environment {key}", environment[key]) for key, name in variables.items() if key in environment}

    def _is_of_others(self, key: str) -> bool:
        """Tell whether a variable with our prefix belongs to another program, by `others`."""
        return any(key == other or (other.endswith("_") and key.startswith(other)) for other in self.others)


def _read(item: Setting, where: str, value: object) -> object:
    """Return the value of a setting as its kind reads it from `value`, which was given at `where`.

    Raises SettingsError, which names this place.
    """
    try:
        return item.kind.read(value)
    except ValueError as error:
        raise SettingsError(f"{where} is {value!r}: {error}") from None


def _from_file(path: str, items: Mapping[str, Setting]) -> Given:
    """Return the settings that a YAML file gives. Raises SettingsError, also for an unknown key."""
    import yaml  # imported late: a process without a file does not need it

    try:
        loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"configuration {path}: {error.strerror}: name a readable file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"configuration {path} is no YAML: {' '.join(str(error).split())}") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict):
        raise SettingsError(f"configuration {path} is no mapping: write lines of key: value")
    for key in loaded:
        if key not in items:
            raise unknown(f"key in {path}:", str(key), list(items))
    return {name: (f"{path}: {name}", value) for name, value in loaded.items()}
