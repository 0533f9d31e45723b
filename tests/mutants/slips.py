"""Makes slips in C and Python: one-line changes of the kind that engineers make by mistake.

It is a pure function from a text to its slips. It leaves out what no test of behaviour can or should notice: comments,
strings, imports, annotations, logs, assertions, `__repr__`, and constants in capitals, mostly times and sizes.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

TOKEN = re.compile(
    r"""
      (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    | (?P<number>\b(?<!\.)\d+(?:u|ull)?\b(?!\.))
    | (?P<word>[A-Za-z_]\w*)
    | (?P<operator>->|<<=?|>>=?|\+\+|--|[-+*/%&|^<>=!]=|&&|\|\||\*\*|//|[-+*/%&|^<>=!~])
    """,
    re.VERBOSE | re.DOTALL,
)
PYTHON_TOKEN = re.compile(TOKEN.pattern.replace(r"//[^\n]*|/\*.*?\*/", r"\#[^\n]*"), TOKEN.flags)

SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+", "+=": "-=", "-=": "+=",
    "&&": "||", "||": "&&", "and": "or", "or": "and", "++": "--", "--": "++", "!": "", "not": "",
    "true": "false", "false": "true", "True": "False", "False": "True", "min": "max", "max": "min",
    "min_i64": "max_i64", "max_i64": "min_i64", "min_u64": "max_u64", "max_u64": "min_u64",
    "continue": "break", "break": "continue", "any": "all", "all": "any", "first": "last",
}  # fmt: skip
"""The token that each token becomes in a slip."""

OPERAND = r"(?:[\w.]|->)+(?:\([^()]*\)|\[[^\[\]]*\])?"
DROPS = re.compile(rf"\s*(?:(?<=\s)(?:and not|or not|and|or)(?=\s)|&& !?|\|\| !?|(?<=\s)[-+](?=\s))\s*{OPERAND}")
"""A part of a condition or a sum that an engineer may forget."""

STATEMENT = {
    "c": re.compile(r"(?:[\w.\[\]>*-]+\s*(?:[-+*/|&^]|<<|>>)?=\s[^=].*|[\w.>-]+\(.*\)|[\w.\[\]>-]+(?:\+\+|--));"),
    "py": re.compile(r"(?:[\w.\[\]]+\s*(?:[-+*/|&^])?=\s[^=].*|(?:await )?[\w.]+\(.*\))"),
}
"""A statement on one line, an assignment or a call, that an engineer may forget."""

UNTOLD = {
    "c": re.compile(r"#|\*|/\*|//|assert|_Static_assert|extern|typedef|static const|case |default:|SP_UNCANCELLED"),
    "py": re.compile(
        r"#|@|import |from |assert |raise |log\.|class |def |async def |[fr]?[\"']|[A-Z_]+(:.*)? = |if TYPE_CHECKING"
    ),
}
"""The beginnings of the lines that are left out."""


@dataclass(frozen=True, slots=True)
class Slip:
    """The change of one line: its number from 1, and its text before and after, without the indent."""

    line: int
    before: str
    after: str


def slips(text: str, language: str) -> list[Slip]:
    """Return every slip of a source in the order of the lines; `language` is ``c`` or ``py``."""
    lines = text.splitlines()
    found: list[Slip] = []
    for number in sorted(_tellable(text, language)):
        line = lines[number - 1].strip()
        if not line or UNTOLD[language].match(line):
            continue
        found += [
            Slip(number, line, after)
            for after in dict.fromkeys(_of_line(line, language))
            if after != line and _is_whole(lines, number, after, language)
        ]
    return found


def mutated(text: str, slip: Slip) -> str:
    """Return the source with the slip in it."""
    lines = text.splitlines(keepends=True)
    old = lines[slip.line - 1]
    lines[slip.line - 1] = old.replace(slip.before, slip.after)
    return "".join(lines)


def _of_line(line: str, language: str) -> Iterator[str]:
    pattern = TOKEN if language == "c" else PYTHON_TOKEN
    for match in pattern.finditer(line):
        token = match[0]
        if match["number"]:
            swapped = str(int(re.sub(r"\D", "", token)) + 1) + re.sub(r"\d", "", token)
        elif match["operator"] or match["word"]:
            if token not in SWAPS or line.endswith("strict=", 0, match.start()):  # zip's `strict` is an assertion
                continue
            swapped = SWAPS[token]
        else:
            continue
        yield line[: match.start()] + swapped + line[match.end() :].removeprefix(" " if not swapped else "")
    code = next((match.start() for match in pattern.finditer(line) if match["comment"]), len(line))
    for match in DROPS.finditer(line, 0, code):
        yield line[: match.start()] + line[match.end() :]
    if STATEMENT[language].fullmatch(line):
        yield ";" if language == "c" else "pass"


def _tellable(text: str, language: str) -> set[int]:
    """Return the lines of code: in Python those of statements in functions, in C those that are indented."""
    if language == "c":
        code = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), text, flags=re.DOTALL)
        numbered = enumerate(code.splitlines(), 1)
        continued = False
        found = set()
        for number, line in numbered:
            if line[:1].isspace() and line.strip() and not continued:
                found.add(number)
            continued = line.endswith("\\")  # a macro of several lines
        return found
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name != "__repr__":
            for statement in node.body:
                if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                    found |= set(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):  # a string over several lines
            found -= set(range(node.lineno + 1, (node.end_lineno or node.lineno) + 1))
    return found


def _is_whole(lines: list[str], number: int, after: str, language: str) -> bool:
    """Return whether the source can still be parsed; for C only the compiler can tell."""
    if language == "c":
        return True
    old = lines[number - 1]
    changed = [*lines[: number - 1], old[: len(old) - len(old.lstrip())] + after, *lines[number:]]
    try:
        ast.parse("\n".join(changed))
    except SyntaxError:
        return False
    return True
