"""Draws the allocated part of the devices against the requested part, per policy, as PNG. Pure."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def png(curves: Mapping[str, Sequence[tuple[float, float]]]) -> bytes:
    """Return a picture of curves: on the left as a whole, on the right their ends enlarged.

    `curves`: by name, points (requested, allocated), both as parts of all devices.
    """
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    whole, top = figure.subplots(1, 2)
    for axes in (whole, top):
        for name, points in curves.items():
            axes.plot([100 * x for x, _ in points], [100 * y for _, y in points], label=name)
        axes.set_xlabel("asked for, % of all devices")
        axes.grid(alpha=0.3)
    whole.set_ylabel("allocated, % of all devices")
    whole.legend()
    ends = [100 * points[-1][1] for points in curves.values() if points]
    if ends:
        top.set_xlim(left=min(90.0, *ends))
        top.set_ylim(min(ends) - 4, max(ends) + 1)
    top.set_title("where it is full", fontsize="medium")
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()
