"""The claims of a file: those of its recurrences and of its documents, in the order in which they are stated.

A claim that can't even be stated, as its own line raises an error, is one too: it gets the verdict `error`. So does the
definition of a quantity for claims, and with it whatever is said of that quantity later on."""

from __future__ import annotations
import __future__

import ast
import difflib
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

from chunkform.errors import ChunkformError, LoadError, page_of
from chunkform.spec.language.branches import looked_at
from chunkform.spec.language.claims import Claim, Document, Setting
from chunkform.spec.language.declaration import Declaration
from chunkform.spec.language.load import declared, executed
from chunkform.spec.language.said_by_python import in_words, near_name
from chunkform.spec.language.source import Source
from chunkform.spec.language.statements import Unreadable

STATING = (
    "claim",
    "same_as",
    "define",
    "recursive",
    "ambiguous",
    "given",
    "rows",
)  # methods that state something for claims
LIKE = 0.8  # how much alike a misspelt one is, at least


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
    names = vars(module)
    lost: dict[str, int] = {}  # names that statements would have made that failed, and the lines of these
    flags = 0
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            flags |= __future__.annotations.compiler_flag
        code = compile(ast.Module([statement], []), str(file), "exec", flags, dont_inherit=True)
        try:
            exec(code, names)
        except (Exception, SystemExit, GeneratorExit) as error:
            missing = getattr(error, "name", None) if isinstance(error, NameError) else None
            if missing not in lost and not _states(statement, names):
                raise
            unstated.append(_unreadable(statement, error, file, names, lost))
            for name in _stored(statement):  # half of it may be there, or what was called so before
                names.pop(name, None)
                lost[name] = statement.lineno
        else:
            for name in _stored(statement):
                lost.pop(name, None)


def _stored(statement: ast.stmt) -> set[str]:
    """The names that a statement gives values to."""
    return {x.id for x in ast.walk(statement) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}


def _states(statement: ast.stmt, names: Mapping[str, object]) -> bool:
    """Does a statement state a claim, or a quantity for claims: with r.claim(...), by another name for that, or by a function
    of the file that does?"""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.Import | ast.ImportFrom):
        return False
    for x in ast.walk(statement):
        if isinstance(x, ast.Attribute) and difflib.get_close_matches(x.attr, STATING, 1, LIKE):
            return True
        if isinstance(x, ast.Name) and _is_stating(names.get(x.id), names, set()):
            return True
    return False


def _is_stating(value: object, names: Mapping[str, object], seen: set[object]) -> bool:
    """Is it a method that states something, the function of a document's section, or a function that calls such a thing?"""
    if isinstance(value, MethodType):
        return value.__name__ in STATING
    if not isinstance(value, FunctionType) or value in seen:
        return False
    seen.add(value)
    if value.__qualname__.startswith("Document.section"):
        return True
    if value.__globals__ is not names:  # it isn't the file's own
        return False
    used = _names_in(value.__code__)
    return not used.isdisjoint(STATING) or any(_is_stating(names.get(n), names, seen) for n in used)


def _names_in(code: CodeType) -> set[str]:
    inner = (x for x in code.co_consts if isinstance(x, CodeType))
    return set(code.co_names).union(*map(_names_in, inner))


def _unreadable(
    statement: ast.stmt, error: BaseException, file: Path, names: Mapping[str, object], lost: Mapping[str, int]
) -> Claim:
    """The claim that a statement would have stated."""
    line, trace = statement.lineno, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = getattr(error, "where", None) or Source(str(file), line)
    message = str(error).removeprefix(f"{where}: ")
    if isinstance(error, NameError) and error.name is not None and error.name in lost:
        message = f"there is no {error.name}: line {lost[error.name]}, which would have made it, failed"
    elif not isinstance(error, ChunkformError):
        message = in_words(error, str(where)) or f"{type(error).__name__}: {message}{near_name(error, names)}"
    value = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
    first = value.args[0] if isinstance(value, ast.Call) and value.args else None
    name = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else f"line {line}"
    expected = f"a formula of the quantities that there are; see {page_of('claims')}"
    return Claim(name, Unreadable(message, expected), Setting(file.stem), where=Source(str(file), line))
