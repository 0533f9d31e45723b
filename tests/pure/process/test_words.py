"""Test the words of comments, docstrings and documents: things have names in them, and are not "who" or "he"."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig import REPO_ROOT
from tests.pure.process.test_rooms import ROOMS

FOLDERS = (*ROOMS, "bench", "daemonset", "docs", "proto", "rig", "tests")
OF_PEOPLE = re.compile(r"\b(who|whom|whose|he|his|him)\b", re.IGNORECASE)
"""A pod, a process or a share is "it" or has a role's name; a person is "the user" or "an operator"."""
CUT_OFF = re.compile(r"\b(so long|so much|as it is)(?=[.;:]|\s*$)", re.IGNORECASE)
"""At the end of a sentence these words leave the reader to guess: as long as what?"""
EXCEPTIONS = {
    "tests/pure/process/test_words.py": "it names the words",
}
"""Files, each with the reason why they may have the words."""
MADE = ("_pb2", "_native_usage")
"""Parts of the names of generated files."""
HASH = (".yaml", ".yml", ".toml", ".sh", ".txt", "Makefile", "Containerfile", ".rules")
SLASH = (".c", ".h", ".def", ".cu", ".S", ".proto", ".go")


def _of_python(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def _of_slashes(text: str) -> Iterator[str]:
    without_strings = re.sub(r'"(\\.|[^"\\\n])*"', '""', text)
    for found in re.finditer(r"/\*.*?\*/|//[^\n]*", without_strings, re.DOTALL):
        yield re.sub(r"\n\s*\*? ?", " ", found.group().removesuffix("*/"))


def _of_hashes(text: str) -> Iterator[str]:
    yield from re.findall(r"(?:^|\s)#\s(.*)", text)


def _of_markdown(text: str) -> Iterator[str]:
    prose = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    yield from prose.split("\n\n")


def prose(path: Path) -> Iterator[str]:
    """Yield the comments and docstrings of a source, or the paragraphs of a document."""
    readers = {".py": _of_python, ".md": _of_markdown, **dict.fromkeys(SLASH, _of_slashes)}
    reader = readers.get(path.suffix, _of_hashes if path.name.endswith(HASH) else None)
    return reader(path.read_text()) if reader else iter(())


def sources() -> list[Path]:
    """Return the files that people read, of the tree and not generated."""
    top = [path for path in REPO_ROOT.iterdir() if path.is_file() and path.name != "LICENSE"]
    below = [path for folder in FOLDERS for path in (REPO_ROOT / folder).rglob("*") if path.is_file()]
    return [
        path
        for path in (*top, *below)
        if "__pycache__" not in path.parts and not any(part in path.name for part in MADE) and path.suffix != ".log"
    ]


@pytest.mark.parametrize("words", [OF_PEOPLE, CUT_OFF], ids=["of people", "cut off"])
def test_no_sentence_calls_a_thing_who_or_ends_in_the_air(words: re.Pattern[str]) -> None:
    found = [
        f"{name}: {' '.join(sentence.split())[:160]}"
        for path in sources()
        if (name := str(path.relative_to(REPO_ROOT))) not in EXCEPTIONS
        for sentence in prose(path)
        if words.search(sentence)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", 'x = "who"  # whose it is\n'),
        ("a.py", '"""Who runs."""\n'),
        ("a.c", "int x; /* the one\n * who waits */\n"),
        ("a.md", "Text.\n\nHe waits.\n"),
        ("a.yaml", "key: who # for whom\n"),
    ],
)
def test_the_words_are_found_where_people_read(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert sum(bool(OF_PEOPLE.search(sentence)) for sentence in prose(tmp_path / name)) == 1
