"""Functions that launch kernels printed: the one place where Python is made of what `codegen/ir/launch_ir.py` has, as words."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.code import Code
from ..ir.launch_ir import (
    Alloc,
    Body,
    Break,
    Call,
    Define,
    Do,
    For,
    Free,
    Function,
    Given,
    If,
    Launch,
    Local,
    Note,
    Return,
    Set,
    Statement,
    Table,
    Update,
)
from ..ir.python_code import Entry, of
from ..ir.warp_schedule import with_roles_name
from ..ir.words import (
    Bound,
    Default,
    Defined,
    Definition,
    Keyword,
    Member,
    Read,
    Said,
    Word,
    Words,
    definition,
    inset,
    listed,
    path,
)
from .formatting import AS_LAID, in_lines


def launch_text(f: Function) -> str:
    """The text of a function as it is."""
    return launch_definition(f).text


def launch_definition(f: Function) -> Definition:
    """A function as a file has it."""
    return definition(_function(f, Defined(f.name)), "\n")


def statement(x: Set | Call) -> Definition:
    """What a file has under a name beside its functions."""
    words = listed(_lines(x), "\n")
    return Definition((*(Defined(y) if isinstance(y, Bound) else y for y in words), "\n"), is_function=False)


def _function(f: Function, name: Word) -> list[Words]:
    doc: list[Words] = [(Said(f'"""{f.doc}"""'),)] if f.doc else []
    returns = (f" -> {f.returns}",) if f.returns else ()
    return [("def ", name, "(", *_given(f.given), ")", *returns, ":"), *inset([*doc, *word_lines(f.body)])]


def _given(given: Sequence[Given]) -> Words:
    """What stands between the parentheses of a function."""
    before, after = ([_parameter(x) for x in given if x.named == named] for named in (False, True))
    return listed([*before, *([("*",), *after] if after else [])])


def _parameter(x: Given) -> Words:
    kind = (": ", x.type) if x.type else ()
    if x.default is None:
        return (Bound(x.name), *kind)
    return (Default(x.name), *kind, " = " if x.type else "=", *x.default.words)


def lines_of(body: Body) -> list[str]:
    """The lines of a body as text."""
    return ["".join(x) for x in word_lines(body)]


def word_lines(body: Body) -> list[Words]:
    """The lines of a body."""
    return [line for x in body for line in _lines(x)]


def _lines(x: Statement) -> list[Words]:
    match x:
        case Alloc():
            entry = () if x.entry is None else (*x.entry.words, " = ")
            return [(*entry, *_target(x.name), " = ", *_alloc(x))]
        case Table(name, entries):
            inside = [
                (Said(f'"{y.name}"'), ": ", *_alloc(y), ",")
                if isinstance(y, Alloc)
                else (Said(f'"{y.names[0]}"'), ": ", *y.value.words, ",")
                for y in entries
            ]
            return [(Bound(name), " = {"), *inset(inside), ("}",)]
        case Set(value=value, in_place=in_place):
            return [(*_targets_of(x), *value.words, *(("  ", Said("# in place")) if in_place else ()))]
        case Define(names, value):
            return [(*_targets(names), *value.words)]
        case Call(names, function, arguments, True):
            lines = ((*a.words, ",") for a in arguments)
            return [(*_targets(names), *path(function), "("), *inset(lines), (")",)]
        case Call(names, function, arguments):
            return [(*_targets(names), *_called(function, arguments))]
        case Launch():
            return _launch(x)
        case Update(name, value):
            return [(Bound(name), " |= ", *value.words)]
        case Do(value, _, target, sign):
            return [value.words if target is None else (*target.words, f" {sign} ", *value.words)]
        case Break():
            return [("break",)]
        case Return(Call(_, function, arguments)):
            return [("return ", *path(function), "("), *inset([listed(a.words for a in arguments)]), (")",)]
        case Return(Code() as value):
            return [("return ", *value.words)]
        case Free(names):
            return [(*listed(map(_target, names), " = "), " = None")]
        case Note(text):
            return [(Said(f"# {text}"),)]
    return _block(x)


def _block(x: Statement) -> list[Words]:
    """A statement with others inside it."""
    match x:
        case Local(function):
            return [(), *_function(function, Bound(function.name)), ()]
        case If(condition, then, otherwise, comment):
            note = ("  ", Said(f"# {comment}")) if comment else ()
            found = [("if ", *condition.words, ":", *note), *inset(word_lines(then))]
            return [*found, ("else:",), *inset(word_lines(otherwise))] if otherwise else found
        case For(names, over, inside):
            return [("for ", *listed(map(_target, names)), " in ", *over.words, ":"), *inset(word_lines(inside))]
    raise AssertionError(x)


def _alloc(x: Alloc) -> Words:
    """What makes room."""
    dtype = () if x.dtype is None else (", ", Keyword("dtype"), "=", *of(x.dtype).words)
    made = (*x.like.words, ".", Member("new_empty"), "((", *x.shape.words, ")", *dtype, ")")
    if x.when is not None:
        made = (*made, " if ", *x.when.words, " else None")
    if x.unless is not None:
        made = ("None if ", *x.unless.words, " else ", *made)
    if x.instead is not None:
        made = (*x.instead.words, ".", Member("pop"), "() if ", *x.instead.words, " else ", *made)
    return made


def _called(function: str, arguments: tuple[Code, ...]) -> Words:
    return (*path(function), "(", *listed(a.words for a in arguments), ")")


def _target(name: str) -> Words:
    """What is assigned: a name, or an entry of something."""
    if isinstance(name, Entry):
        return (Read(name.table), "[", Said(f'"{name.key}"'), "]")
    return (Bound(name),)


def _targets(names: tuple[str, ...]) -> Words:
    return (*listed(map(_target, names)), " = ") if names else ()


def _targets_of(x: Set) -> Words:
    names = list(map(_target, x.names))
    if x.each:
        return (*listed(names, " = "), " = ")
    if x.groups:
        parts = [_tuple(list(map(_target, n))) for n in x.groups]
        return (*(_tuple(parts) if len(parts) == 1 else listed(parts)), " = ")
    return ("(", *listed(names), ",) = ") if x.several else _targets(x.names)


def _tuple(parts: Sequence[Words]) -> Words:
    return ("(", *listed(parts), ",)" if len(parts) == 1 else ")")


def _launch(x: Launch) -> list[Words]:
    head: list[Words] = [(*path("launch"), "("), ("    ", Read(x.kernel), ", (", *x.grid.words, ",),")]
    if x.roles:
        axes = listed((Said(f'"{n}"'),) for n in x.roles)
        kernels = [Read(x.kernel)] if not x.alone else []
        given = listed((y,) for y in (Read("config"), *kernels, Read(x.instead or with_roles_name(x.kernel))))
        head = [(*path(x.chooser), "("), ("    ", *given, ", (", *axes, "),"), ("    (", *x.grid.words, ",),")]
    tensors, places = [[a.value.words] for a in x.arguments], [[p.words] for p in x.places]
    words = [[(Keyword(name), "=", *value.words)] for name, value in (*x.words, *x.more)]
    return [*head, *inset(line for some in (tensors, places, words) for line in in_lines(some)), (")", AS_LAID)]
