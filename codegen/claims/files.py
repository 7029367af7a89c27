"""The claims of a file: those of its recurrences and of its documents, in the order in which they are stated.

A claim that can't even be stated, as its own line raises an error, is one too: it gets the verdict `error`."""

from __future__ import annotations
import __future__

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chunkform.errors import ChunkformError, LoadError, page_of
from chunkform.spec.language.branches import looked_at
from chunkform.spec.language.claims import Claim, Document, Setting
from chunkform.spec.language.declaration import Declaration
from chunkform.spec.language.load import declared, executed
from chunkform.spec.language.said_by_python import near_name
from chunkform.spec.language.source import Source
from chunkform.spec.language.statements import Unreadable


def claims_of_file(path: str) -> list[Claim]:
    """Every claim of a file, in order.

    Raises:
        LoadError: the file can't be read, or states no claims.
    """
    unstated: list[Claim] = []
    module = executed(path, lambda made, file: run(made, file, unstated))
    values = [x for x in vars(module).values() if isinstance(x, Declaration | Document)]
    if any(isinstance(x, Declaration) for x in values):
        declared(module, path)  # which refuses what isn't whole
    holders: list[Any] = list({id(x): x for x in values}.values())
    found = [c for x in holders for c in x.claims] + unstated
    if not found:
        raise LoadError(
            f"{path} states no claims: write r.claim(...) in it, or a Document with its sections, see {page_of('claims')}"
        )
    return sorted(found, key=lambda c: _line(c, path))


def _line(claim: Claim, path: str) -> int:
    """Where a claim stands in the file; those that come from elsewhere stay behind."""
    own = claim.where is not None and Path(claim.where.file).resolve() == Path(path).resolve()
    return claim.where.line if own and claim.where is not None else 10**9


def run(module: object, file: Path, unstated: list[Claim]) -> None:
    """Execute a file statement by statement, so that one which states a claim may fail alone."""
    tree = looked_at(ast.parse(file.read_bytes(), str(file)))
    module.__doc__ = ast.get_docstring(tree)
    flags = 0
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            flags |= __future__.annotations.compiler_flag
        code = compile(ast.Module([statement], []), str(file), "exec", flags, dont_inherit=True)
        try:
            exec(code, vars(module))
        except Exception as error:
            if not _states(statement, vars(module)):
                raise
            unstated.append(_unreadable(statement, error, file, vars(module)))


def _states(statement: ast.stmt, names: Mapping[str, object]) -> bool:
    """Does a statement state a claim: r.claim(...), or the function of a document's section?"""
    if not isinstance(statement, ast.Expr | ast.Assign | ast.For | ast.While | ast.If | ast.With):
        return False
    for x in ast.walk(statement):
        if isinstance(x, ast.Call):
            f = x.func
            if isinstance(f, ast.Attribute) and f.attr == "claim":
                return True
            if isinstance(f, ast.Name) and getattr(names.get(f.id), "__qualname__", "").startswith("Document.section"):
                return True
    return False


def _unreadable(statement: ast.stmt, error: Exception, file: Path, names: Mapping[str, object]) -> Claim:
    """The claim that a statement would have stated."""
    line, trace = statement.lineno, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = getattr(error, "where", None) or Source(str(file), line)
    message = str(error).removeprefix(f"{where}: ")
    if not isinstance(error, ChunkformError):
        message = f"{type(error).__name__}: {message}{near_name(error, names)}"
    value = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
    first = value.args[0] if isinstance(value, ast.Call) and value.args else None
    name = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else f"line {line}"
    expected = f"a formula of the quantities that there are; see {page_of('claims')}"
    return Claim(name, Unreadable(message, expected), Setting(file.stem), where=Source(str(file), line))
