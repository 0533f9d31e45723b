"""Draws what policies allocate against what was asked for, and what is used over time, as PNG. Pure."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sharepod.scheduler.courses import Curves


def png(curves: Mapping[str, Sequence[tuple[float, float]]]) -> bytes:
    """Return the picture of curves of (asked for, allocated), both as parts of all devices."""
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


def timed_png(plays: Mapping[str, Curves]) -> bytes:
    """Return the picture of plays: what each priority uses and wants beyond that, and what each user has."""
    figure = Figure(figsize=(11, 3.2 * len(plays)), dpi=120, layout="constrained")
    rows = figure.subplots(len(plays), 2, squeeze=False, sharex=True)
    for (name, curves), (levels, users) in zip(plays.items(), rows, strict=True):
        days = [at_s / 86_400 for at_s in curves.at_s]
        stacked = {f"priority {level}": values for level, values in curves.used.items()}
        levels.stackplot(days, *stacked.values(), labels=stacked.keys(), alpha=0.8)
        asked = [sum(values) for values in zip(*curves.used.values(), *curves.wanted.values(), strict=True)]
        used = [sum(values) for values in zip(*curves.used.values(), strict=True)]
        levels.plot(days, asked, color="black", linewidth=0.8, label="wanted")
        levels.set_ylim(0, max(1.0, 1.6 * max(used)))
        levels.set_title(f"{name}: devices by priority", fontsize="medium")
        levels.legend(fontsize="x-small", loc="upper right")
        users.stackplot(days, *curves.by_user.values(), labels=curves.by_user.keys(), alpha=0.8)
        users.set_title("devices by user", fontsize="medium")
        if len(curves.by_user) <= 16:
            users.legend(fontsize="x-small", loc="upper right", ncols=2)
        for axes in (levels, users):
            axes.grid(alpha=0.3)
    for axes in rows[-1]:
        axes.set_xlabel("days")
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()
