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
    """Return a check for Options.complete, which raises SettingsError if an address is not protected.

    `needed`: by the name of the setting that is an address, the names of the settings that protect it. If other hosts
    can reach the address, all of these must be given. Otherwise either all or none must be.
    """

    def complete(settings: Settings, where: Callable[[str], str], _: Mapping[str, str]) -> Settings:
        """Return the settings unchanged. Raises SettingsError, with the place `where` the address was given."""
        for name, protecting in needed.items():
            address = getattr(settings, name)
            missing = [item for item in protecting if not getattr(settings, item)]
            some_given = len(missing) < len(protecting)
            if missing and (some_given or (address != "off" and not is_loopback(address))):
                flags = ", ".join("--" + item.replace("_", "-") for item in missing)
                raise SettingsError(
                    f"{where(name)} is {address!r}, which others reach, and would not be protected: "
                    f"give {flags}, or an address of 127.0.0.1"
                )
        return settings

    return complete
