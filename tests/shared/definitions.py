"""What a text of Python defines, as words: tests write definitions so, and read generated files."""

import ast

from chunkform.codegen.ir.quoted import words_in
from chunkform.codegen.ir.words import Definition, Definitions


def read_definitions(text: str) -> Definitions:
    """The statements at the margin of a text, each with the white space behind it."""
    body = ast.parse(text).body
    ends = [0]
    for line in text.splitlines(keepends=True):
        ends.append(ends[-1] + len(line))
    begins = [0, *(ends[_first_line(x) - 1] for x in body[1:])]
    return tuple(
        Definition(words_in(text, [(x, is_function)], begin, end), is_function)
        for x, begin, end in zip(body, begins, [*begins[1:], len(text)], strict=True)
        for is_function in (isinstance(x, ast.FunctionDef),)
    )


def _first_line(x: ast.stmt) -> int:
    return min([x.lineno, *(d.lineno for d in (x.decorator_list if isinstance(x, ast.FunctionDef) else ()))])
