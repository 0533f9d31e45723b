"""A setting: a field of a frozen dataclass, with its kind and its description."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Kind(Generic[Value]):
    """How the values of a setting are read and shown."""

    metavar: str
    """The value's placeholder in `--help`."""
    read: Callable[[object], Value]
    """Takes the text of a flag or variable, or a value from YAML. Raises ValueError with the remedy, `give …`."""
    show: Callable[[Value], str] = str
    bounds: str = ""
    """A sentence with the bounds of the value, which follows the description of the setting; empty: there are none."""


def setting(default: Value, kind: Kind[Value], doc: str) -> Value:
    """Return a field of a dataclass of settings, as if it were its value. `doc` is its text in `--help` and manual."""
    return dataclasses.field(default=default, metadata={"kind": kind, "doc": doc})


@dataclass(frozen=True, slots=True)
class Setting:
    """The description of one setting: a field of a dataclass of settings."""

    name: str
    doc: str
    kind: Kind[Any]
    default: str
    """The default as text; empty: there is none."""

    @property
    def meaning(self) -> str:
        """The description with its bounds."""
        return f"{self.doc} {self.kind.bounds}".rstrip()

    @property
    def flag(self) -> str:
        """The flag's name."""
        return "--" + self.name.replace("_", "-")


def described(settings: Any) -> tuple[Setting, ...]:
    """Return the settings of a dataclass, or of its instance, in order. Each field must be made with `setting`."""
    return tuple(
        Setting(field.name, field.metadata["doc"], field.metadata["kind"], field.metadata["kind"].show(field.default))
        for field in dataclasses.fields(settings)
    )


def shown(settings: Any) -> dict[str, str]:
    """Return the value of every setting in the instance `settings` as text, by its name."""
    return {item.name: item.kind.show(getattr(settings, item.name)) for item in described(settings)}
