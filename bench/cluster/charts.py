"""Draws the panels of the dashboard as an SVG page: numbers in, text out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from bench.cluster.prometheus import Panel

WIDTH, ROW = 1320, 34
"""Pixels: the width of the page, which has 24 columns; and the height of one row."""
GAP, HEAD, FOOT = 8, 32, 20
"""Pixels: between two panels; above a panel's chart, for its title; below the chart, for the times."""
LEFT, LEGEND, LETTER = 62, 15, 6
"""Pixels: left of a chart, for the values; the height of a line of the legend; the width of a letter in it."""
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#eeca3b", "#ff9da6")
DASHES = {"request": "7 4", "limit": "2 3", "cap": "2 3", "paused": "7 4", "promised": "7 4", "total": "2 3"}
"""By the last word of a legend: lines about one thing have the same colour and different strokes."""
STYLE = (
    "text{font:11px sans-serif;fill:#333}.t{font-weight:bold;font-size:13px}.h{font-weight:bold;font-size:15px}"
    ".n{font-size:24px;font-weight:bold;fill:#37872d}.a{fill:#777}"
)


@dataclass(frozen=True, slots=True)
class Line:
    """One series: its legend, and its samples as (seconds from the start, value)."""

    title: str
    samples: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A panel and its lines."""

    panel: Panel
    lines: Sequence[Line]


def shown(value: float, unit: str) -> str:
    """Write a value with its unit."""
    if unit == "percentunit":
        return f"{value * 100:.4g} %"
    if unit == "bytes":
        power = min(4, int(math.log(value, 1024))) if value >= 1 else 0
        return f"{value / 1024**power:.4g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
    if unit == "s" and 0 < value < 1:
        return f"{value * 1e3:.3g} ms" if value >= 1e-3 else f"{value * 1e6:.3g} µs"
    return f"{value:.4g}{ {'s': ' s', 'ops': '/s'}.get(unit, '') }"


def page(charts: Sequence[Chart], seconds: float) -> str:
    """Return the whole picture."""
    height = max(chart.panel.place["y"] + chart.panel.place["h"] for chart in charts) * ROW + GAP
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"><style>{STYLE}</style>']
    parts.append(f'<rect width="{WIDTH}" height="{height}" fill="#f4f5f5"/>')
    parts += [_panel(chart, seconds) for chart in charts]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(chart: Chart, seconds: float) -> str:
    """Draw a panel in its place on the page: a frame, a title and the chart of its kind."""
    x, y = chart.panel.place["x"] * WIDTH / 24 + GAP / 2, chart.panel.place["y"] * ROW + GAP / 2
    width, height = chart.panel.place["w"] * WIDTH / 24 - GAP, chart.panel.place["h"] * ROW - GAP
    if chart.panel.kind == "row":
        return f'<text class="h" x="{x + 4:.0f}" y="{y + 19:.0f}">{escape(chart.panel.title)}</text>'
    body = {"timeseries": _curves, "stat": _stat, "table": _table}[chart.panel.kind](chart, width, height, seconds)
    frame = f'<rect width="{width:.0f}" height="{height:.0f}" fill="white" stroke="#ddd"/>'
    title = f'<text class="t" x="8" y="17">{escape(chart.panel.title)}</text>'
    return f'<g transform="translate({x:.0f},{y:.0f})">{frame}{title}{body}</g>'


def _stat(chart: Chart, width: float, height: float, _seconds: float) -> str:
    """Draw the last value of each line as a large number, side by side."""
    parts = []
    for number, line in enumerate(chart.lines):
        x = width * (number + 0.5) / len(chart.lines)
        value = shown(line.samples[-1][1], chart.panel.unit)
        parts.append(f'<text class="n" x="{x:.0f}" y="{height / 2:.0f}" text-anchor="middle">{value}</text>')
        parts.append(f'<text x="{x:.0f}" y="{height / 2 + 22:.0f}" text-anchor="middle">{escape(line.title)}</text>')
    return "".join(parts)


def _table(chart: Chart, width: float, _height: float, _seconds: float) -> str:
    """Draw a row with the last value of each line, the largest first."""
    parts = []
    for number, line in enumerate(sorted(chart.lines, key=lambda line: -line.samples[-1][1])):
        y = HEAD + 22 + number * 24
        parts.append(f'<text x="16" y="{y}">{escape(line.title)}</text>')
        value = shown(line.samples[-1][1], chart.panel.unit)
        parts.append(f'<text x="{width - 16:.0f}" y="{y}" text-anchor="end">{value}</text>')
        parts.append(f'<path d="M8 {y + 8}H{width - 8:.0f}" stroke="#eee"/>')
    return "".join(parts)


def _curves(chart: Chart, width: float, height: float, seconds: float) -> str:
    """Draw the lines over time, with ticks and a legend below. A stacked line has its area filled."""
    longest = max((len(line.title) for line in chart.lines), default=0)
    colours, columns = _colours(chart.lines), max(1, int((width - 16) // (longest * LETTER + 32)))
    rows = math.ceil(len(chart.lines) / columns)
    right, bottom = width - 12, height - FOOT - rows * LEGEND - 4
    lines = _stacked(chart.lines) if chart.panel.is_stacked else [(line, None) for line in chart.lines]
    tops = [value for line, _ in lines for _, value in line.samples if math.isfinite(value)]
    step = _step(max(tops, default=0), chart.panel.unit)
    top = step * max(1, math.ceil(max(tops, default=0) / step - 1e-9))

    def px(at_s: float) -> float:
        return LEFT + (right - LEFT) * min(1.0, at_s / seconds)

    def py(value: float) -> float:
        return bottom - (bottom - HEAD) * value / top

    parts = []
    for tick in range(round(top / step) + 1):
        y = py(tick * step)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right:.0f}" stroke="#eee"/>')
        text = shown(tick * step, chart.panel.unit)
        parts.append(f'<text class="a" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    tick_s = 10 if width > 500 else 20
    parts += [
        f'<text class="a" x="{px(at_s):.1f}" y="{bottom + 15:.0f}" text-anchor="middle">{at_s} s</text>'
        for at_s in range(0, int(seconds) + 1, tick_s)
    ]
    for number, (line, floor) in enumerate(lines):
        colour, dash = colours[number], DASHES.get(line.title.rpartition(" ")[2], "")
        for piece in _pieces(line.samples):
            points = [f"{px(at_s):.1f} {py(value):.1f}" for at_s, value in piece]
            if floor is not None:
                ends = [f"{px(at_s):.1f} {py(floor.get(round(at_s), 0)):.1f}" for at_s, _ in reversed(piece)]
                parts.append(f'<path d="M{"L".join(points + ends)}Z" fill="{colour}" opacity=".3"/>')
            path = "L".join(points if len(points) > 1 else points * 2)  # a single point needs a line to be seen
            stroke = f' stroke-dasharray="{dash}"' if dash else ""
            parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.6"{stroke}/>')
    for number, line in enumerate(chart.lines):
        column, row = number % columns, number // columns
        x, y = 10 + column * (width - 16) / columns, height - (rows - row) * LEGEND + 6
        stroke = f' stroke-dasharray="{dash}"' if (dash := DASHES.get(line.title.rpartition(" ")[2], "")) else ""
        parts.append(f'<path d="M{x:.0f} {y - 4:.0f}h18" stroke="{colours[number]}" stroke-width="2"{stroke}/>')
        parts.append(f'<text x="{x + 23:.0f}" y="{y:.0f}">{escape(line.title)}</text>')
    return "".join(parts)


def _colours(lines: Sequence[Line]) -> list[str]:
    """Return a colour for each line. All lines about one thing have the same colour."""
    things = []
    for line in lines:
        thing, _, aspect = line.title.rpartition(" ")
        things.append(thing if aspect.isalpha() else line.title)
    order = list(dict.fromkeys(things))
    return [COLOURS[order.index(thing) % len(COLOURS)] for thing in things]


def _stacked(lines: Sequence[Line]) -> list[tuple[Line, dict[int, float] | None]]:
    """Return each line on top of those before it, with the values below it by second."""
    floor: dict[int, float] = {}
    found: list[tuple[Line, dict[int, float] | None]] = []
    for line in lines:
        under = dict(floor)
        raised = [(at_s, value + floor.get(round(at_s), 0)) for at_s, value in line.samples if math.isfinite(value)]
        floor |= {round(at_s): value for at_s, value in raised}
        found.append((Line(line.title, raised), under))
    return found


def _pieces(samples: Sequence[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Cut a line where a value is missing."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for at_s, value in samples:
        if math.isfinite(value):
            pieces[-1].append((at_s, value))
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]


def _step(largest: float, unit: str) -> float:
    """Return the distance between ticks: about four fit."""
    if largest <= 0:
        return 1.0
    rough = largest / 4
    base = 2.0 ** math.floor(math.log2(rough)) if unit == "bytes" else 10.0 ** math.floor(math.log10(rough))
    factors, least = ((1, 2, 5, 10), 1.0) if unit == "none" else ((1, 2, 2.5, 5, 10), 0.0)
    return max(least, next(base * factor for factor in factors if base * factor >= rough * 0.999))
