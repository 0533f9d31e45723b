"""Draws turns: one row per share, time to the right. Unicode blocks for a terminal, SVG for a page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

from sharepod.cli.render.quantities import format_duration
from sharepod.cli.render.turns import Turn, Window, held_fractions, share_names

BLOCKS: Final = " ▁▂▃▄▅▆▇█"
COLORS: Final = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#eeca3b", "#9d755d")
STYLES: Final = ("blue", "yellow", "green", "magenta", "red", "cyan", "bright_yellow", "white")
"""Colours of the shares in their order: COLORS for pages, STYLES for rich."""

_ROW: Final = 28
"""The height of a share's row."""
_MARGIN: Final = 130
"""The width at the left, for the names of the shares."""


def text_rows(turns: Sequence[Turn], window: Window, columns: int) -> list[tuple[str, str]]:
    """Return (share, bar) per share. A bar has `columns` characters, for equal parts of the window.

    The height of a character is the fraction of its part in which the share held a turn.
    """
    rows = []
    for share in share_names(turns):
        fractions = held_fractions(turns, share, window, columns)
        rows.append((share, "".join(BLOCKS[_level(fraction)] for fraction in fractions)))
    return rows


def _level(fraction: float) -> int:
    """Return the index of the block for a part of the time. If there is any, it is not the empty block."""
    level = round(fraction * (len(BLOCKS) - 1))
    return max(level, 1) if fraction > 0 else 0


def svg(turns: Sequence[Turn], window: Window, title: str, width: int = 900) -> str:
    """Return the window as an SVG document.

    A red edge marks a turn that drained late: the next share was granted before its drain had ended.
    """
    names = share_names(turns)
    height = _ROW * (len(names) + 2)
    scale = (width - _MARGIN - 10) / max(1, window.length_ns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        "<style>text { font: 12px sans-serif }</style>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="18" font-weight="bold">{escape(title)}</text>',
    ]
    for row, share in enumerate(names):
        top = _ROW * (row + 1)
        parts.append(f'<text x="10" y="{top + 18}">{escape(share)}</text>')
        for turn in turns:
            length_ns = window.overlap_ns(turn.granted_ns, turn.drained_ns)
            if turn.share != share or length_ns == 0:
                continue
            left = _MARGIN + (max(turn.granted_ns, window.start_ns) - window.start_ns) * scale
            edge = ' stroke="red"' if turn.cogranted else ""
            parts.append(
                f'<rect x="{left:.2f}" y="{top + 3}" width="{max(0.3, length_ns * scale):.2f}" height="{_ROW - 6}" '
                f'fill="{COLORS[row % len(COLORS)]}"{edge}/>'
            )
    parts.extend(_axis(window, scale, _ROW * (len(names) + 1)))
    return "\n".join([*parts, "</svg>\n"])


def _axis(window: Window, scale: float, top: int, ticks: int = 5) -> list[str]:
    """Return the lines and labels of the time axis as SVG.

    `scale` is the width of a nanosecond. `top` is where the axis begins, below the rows of shares.
    """
    parts = []
    for tick in range(ticks + 1):
        at_ns = window.length_ns * tick // ticks
        left = _MARGIN + at_ns * scale
        anchor = "end" if tick == ticks else "start"
        parts.append(f'<line x1="{left:.1f}" y1="{_ROW}" x2="{left:.1f}" y2="{top + 5}" stroke="#bbb"/>')
        label = format_duration(at_ns) if at_ns else "0"
        parts.append(f'<text x="{left:.1f}" y="{top + 18}" text-anchor="{anchor}" fill="#555">{label}</text>')
    return parts
