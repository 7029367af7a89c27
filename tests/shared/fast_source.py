"""The source of functions that Triton compiles, by the places that Python's parser gives them: Triton asks for it as soon as a
module is imported, and `inspect` looks for the end of each function word by word."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
from collections.abc import Callable
from typing import Any

from triton.runtime import jit


@functools.cache
def functions(file: str, changed: int) -> dict[tuple[str, int], ast.FunctionDef]:
    """The functions at a file's margin by their names and first lines, which those of decorators are."""
    with open(file, encoding="utf-8") as text:
        found = [x for x in ast.parse(text.read()).body if isinstance(x, ast.FunctionDef)]
    return {(x.name, min([x.lineno, *(d.lineno for d in x.decorator_list)])): x for x in found}


def getsourcelines(x: Callable[..., Any]) -> tuple[list[str], int]:
    """As that of `inspect`."""
    code = getattr(x, "__code__", None)
    try:
        node = functions(code.co_filename, os.stat(code.co_filename).st_mtime_ns)[code.co_name, code.co_firstlineno]
    except (AttributeError, OSError, KeyError, SyntaxError):
        return inspect.getsourcelines(x)
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, x.__globals__)
    return lines[code.co_firstlineno - 1 : node.end_lineno], code.co_firstlineno


class _Inspect:
    """The module `inspect`, with this function."""

    getsourcelines = staticmethod(getsourcelines)

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)


jit.inspect = _Inspect()
