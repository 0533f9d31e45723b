"""Writes what Prometheus reads (text format 0.0.4): headers, labels, places for values. Pure: values in, text out.

A node with a hundred shares is asked for thousands of samples at a time. Nearly all of that text is the same from one
scrape to the next: it is written once, as a template with a place for each value. prometheus_client, which writes it
anew each time, takes over twenty times as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PLACE: Final = "\0"
_DOC_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", _PLACE: "\ufffd"})
_LABEL_ESCAPES: Final = _DOC_ESCAPES | str.maketrans({'"': r"\""})


def labelled(names: Sequence[str], values: Sequence[str]) -> str:
    """Return the labels of a sample, without the braces."""
    pairs = zip(names, values, strict=True)
    return ",".join(f'{name}="{value.translate(_LABEL_ESCAPES)}"' for name, value in pairs)


def header(name: str, kind: str, doc: str) -> str:
    """Return the lines before the samples of a metric."""
    return f"# HELP {name} {doc.translate(_DOC_ESCAPES)}\n# TYPE {name} {kind}\n"


def sample(name: str, labels: str) -> str:
    """Return one sample, with a place for its value."""
    return f"{name}{{{labels}}} {_PLACE}\n"


def histogram(name: str, labels: str, bounds: Sequence[float]) -> str:
    """Return the samples of one histogram: places for each bucket, all below it included, their number and the sum."""
    ends = [f"{bound:g}" for bound in bounds] + ["+Inf"]
    buckets = [sample(f"{name}_bucket", f'{labels},le="{end}"') for end in ends]
    return "".join((*buckets, sample(f"{name}_count", labels), sample(f"{name}_sum", labels)))


class Template:
    """A text with places."""

    def __init__(self, text: str) -> None:
        self._pieces = text.split(_PLACE)

    def filled(self, values: Sequence[float]) -> str:
        """Return the text. Raises ValueError unless there is one value for each place."""
        parts = [""] * (2 * len(self._pieces) - 1)
        parts[::2] = self._pieces
        parts[1::2] = map(repr, map(float, values))
        return "".join(parts)
