"""A file is one noun, a function one thought: the limits, and how lines are counted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tidy.sources import Source

FILE_LINES = 500
TEST_FILE_LINES = 800
FUNCTION_LINES = 70
_NOT_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'""", re.DOTALL
)
_SCOPE = re.compile(
    r"^(?:\[\[.*?\]\]\s*|template\s*<.*>\s*|inline\s+)*(?:namespace|class|struct|union|enum|extern)\b", re.S
)


def _blank(match: re.Match[str]) -> str:
    """Comments and literals become blanks of the same lines."""
    return re.sub(r"[^\n]", " ", match[0])


def _opens_function(header: str) -> bool:
    """Whether a brace after this text, outside of any function, starts a function's body."""
    header = re.sub(r"\boperator\s*[^\s\w(]+", "operator", header.strip())
    if not header or _SCOPE.match(header) or "(" not in header:
        return False
    depth = 0
    for character in header:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "=" and depth == 0:
            return False
    return depth == 0


def cpp_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """(header, first line, lines) of each function body at namespace or class level."""
    text = re.sub(r"^\s*#.*?(?<!\\)$", _blank, _NOT_CODE.sub(_blank, text), flags=re.MULTILINE | re.DOTALL)
    stack: list[tuple[bool, str, int]] = []
    header_start = 0
    for position, character in enumerate(text):
        inside = any(is_function for is_function, _, _ in stack)
        if character == "{":
            header = text[header_start:position]
            is_function = not inside and _opens_function(header)
            first = position - len(header.lstrip()) if is_function else position
            stack.append((is_function, " ".join(header.split()), first))
            header_start = position + 1
        elif character == "}" and stack:
            is_function, header, first = stack.pop()
            if is_function:
                yield header, text.count("\n", 0, first) + 1, text.count("\n", first, position) + 1
            header_start = position + 1
        elif character == ";":
            header_start = position + 1


def python_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, lines) of each function, nested ones too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def check_size(source: Source) -> Iterator[str]:
    if not (source.cpp or source.python):
        return
    lines = source.text.count("\n")
    limit = TEST_FILE_LINES if source.test else FILE_LINES
    if lines >= limit:
        yield f"{source.path}: {lines} lines, the limit is {limit}"
    functions = cpp_functions(source.text) if source.cpp else python_functions(source.text)
    for name, first, count in functions:
        if count >= FUNCTION_LINES:
            yield f"{source.path}:{first}: {name[:60]} has {count} lines, the limit is {FUNCTION_LINES}"
