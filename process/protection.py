"""Refuses settings that would serve to the network without TLS, or to clients without a check."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from sharepod.process.errors import SettingsError
from sharepod.process.kinds import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Settings = TypeVar("Settings")


def protected(
    needed: Mapping[str, Sequence[str]],
) -> Callable[[Settings, Callable[[str], str], Mapping[str, str]], Settings]:
    """Return a check of settings, for Options.complete: what an address needs if other hosts can reach it.

    For an address on loopback all of it is given, or none. The check raises SettingsError.
    """

    def complete(settings: Settings, where: Callable[[str], str], _: Mapping[str, str]) -> Settings:
        for name, names in needed.items():
            place = getattr(settings, name)
            missing = [item for item in names if not getattr(settings, item)]
            given = len(missing) < len(names)
            if missing and (given or (place != "off" and not is_loopback(place))):
                flags = ", ".join("--" + item.replace("_", "-") for item in missing)
                raise SettingsError(
                    f"{where(name)} is {place!r}, which others reach, and would not be protected: "
                    f"give {flags}, or an address of 127.0.0.1"
                )
        return settings

    return complete
