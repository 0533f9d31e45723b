"""Reads with readelf from debug information how compiled functions take parameters and return results."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hooklab import run

ENTRY = re.compile(r" <(\d+)><(\w+)>: Abbrev Number: \d+ \(DW_TAG_(\w+)\)")
FACT = re.compile(r" +<\w+> +DW_AT_(name|type|byte_size|encoding|declaration) *: (?:\([^)]*\): )?<?([^\s>]+)")
REAL, SIGNED = {"4"}, {"5", "6"}  # encodings of DWARF
NAMES = {"typedef", "const_type", "restrict_type", "volatile_type"}


@dataclass(slots=True)
class Entry:
    """An entry of the debug information: a type, a function, or a part of one."""

    tag: str
    source: str
    facts: dict[str, str] = field(default_factory=dict)
    parts: list["Entry"] = field(default_factory=list)


class Shape(NamedTuple):
    """How a value is passed.

    Attributes:
        kind: integer, pointer, or DWARF's name of another type.
        size: in bytes.
        detail: what else counts: whether an integer that is narrower than a register is signed, and how many bytes a
            pointer leads to. None fits all: it stands for enumerations, as the compiler chooses their sign, and for
            pointers to void or to what is hidden.
    """

    kind: str
    size: int
    detail: int | None = None

    def fits(self, other: "Shape") -> bool:
        """Return whether a value of the one may be taken for the other."""
        return self[:2] == other[:2] and (self.detail == other.detail or None in (self.detail, other.detail))


class DebugInfo:
    """The types and functions of an object file or a library."""

    def __init__(self, path: Path) -> None:
        self.entries: dict[str, Entry] = {}
        ancestors: list[Entry] = []
        source = ""
        for line in run(["readelf", "--debug-dump=info", "--dwarf-depth=3", path]).stdout.splitlines():
            if begin := ENTRY.match(line):
                entry = self.entries["0x" + begin[2]] = Entry(begin[3], source)
                ancestors[int(begin[1]) :] = [entry]
                if len(ancestors) > 1:
                    ancestors[-2].parts.append(entry)
            elif (fact := FACT.match(line)) and ancestors:
                ancestors[-1].facts[fact[1]] = fact[2]
                if fact[1] == "name" and len(ancestors) == 1:
                    source = fact[2]

    def named(self, tag: str) -> Iterator[tuple[str, Entry]]:
        """Yield each entry of a kind that has a name and is not only declared."""
        for entry in self.entries.values():
            if entry.tag == tag and "name" in entry.facts and "declaration" not in entry.facts:
                yield entry.facts["name"], entry

    def type_of(self, entry: Entry) -> Entry:
        """Return the type without its names and qualifiers; for a pointer, the type that it leads to."""
        found = self.entries.get(entry.facts.get("type", ""), Entry("void", entry.source))
        return self.type_of(found) if found.tag in NAMES else found

    def shape(self, entry: Entry) -> Shape:
        """Return how a parameter, or the result of a function, is passed."""
        kind = self.type_of(entry)
        size, encoding = int(kind.facts.get("byte_size", "0"), 0), kind.facts.get("encoding")
        if kind.tag == "pointer_type":
            return Shape("pointer", size, int(self.type_of(kind).facts.get("byte_size", "0"), 0) or None)
        if kind.tag == "base_type" and encoding not in REAL:
            return Shape("integer", size, encoding in SIGNED if size < 8 else None)
        return Shape("integer" if kind.tag == "enumeration_type" else kind.tag, size)

    def signature(self, function: Entry) -> list[Shape]:
        """Return how the result and the parameters of a function, or of a function type, are passed."""
        parameters = [part for part in function.parts if part.tag == "formal_parameter"]
        return [self.shape(part) for part in [function, *parameters]]
