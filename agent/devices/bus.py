"""Finds GPUs on the PCI bus by what the kernel has of them in sysfs: that answers where a sick GPU does not."""

from __future__ import annotations

from pathlib import Path
from typing import Final

DEVICES: Final = Path("/sys/bus/pci/devices")
DRIVER: Final = Path("/sys/bus/pci/drivers/nvidia")
"""Has a link for each device that the driver serves, those among them that no longer answer."""


def address_of(bus_id: str) -> str:
    """Return a PCI address as the kernel writes it, 0000:3b:00.0, from NVML's form of it; empty if that is none."""
    domain, _, place = bus_id.lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{place}"  # NVML writes the domain with eight digits, the kernel with four
    except ValueError:
        return ""


def driven(directory: Path = DRIVER) -> tuple[str, ...]:
    """Return the addresses of all devices that the driver serves, in the order in which NVML lists them."""
    try:
        names = [path.name for path in directory.iterdir()]
    except OSError:
        return ()
    places = [name for name in names if name.count(":") == 2]
    return tuple(sorted(places, key=lambda place: (len(place), place)))  # a domain may have more than four digits


def file_of(address: str, devices: Path = DEVICES) -> Path | None:
    """Return a file of sysfs that only the device at `address` has, for a lock on it; None: the address is empty."""
    return devices / address / "uevent" if address else None


def numa_node_of(address: str, devices: Path = DEVICES) -> int:
    """Return the NUMA node of the device at `address`; -1: the kernel does not tell, or has a single node."""
    try:
        return int((devices / address / "numa_node").read_text(encoding="ascii")) if address else -1
    except (OSError, ValueError):
        return -1
