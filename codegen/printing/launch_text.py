"""The text of a function that launches kernels."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.launch_ir import (
    Alloc,
    Body,
    Call,
    Define,
    Do,
    Expr,
    For,
    Free,
    Function,
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
from ..ir.warp_schedule import with_roles_name
from .formatting import AS_LAID, in_lines

INDENT = "    "


def launch_text(f: Function) -> str:
    """The text of a function as it is."""
    doc = [f'{INDENT}"""{f.doc}"""'] if f.doc else []
    body = [f"{INDENT}{x}" if x else "" for x in lines_of(f.body)]
    return "\n".join([f"def {f.name}{f.head}:", *doc, *body]) + "\n"


def lines_of(body: Body) -> list[str]:
    return [line for x in body for line in _lines(x)]


def _lines(x: Statement) -> list[str]:
    match x:
        case Alloc():
            return [f"{f'{x.entry.text} = ' if x.entry is not None else ''}{x.name} = {_alloc(x)}"]
        case Table(name, entries):
            inside = [
                f'"{y.name}": {_alloc(y)},' if isinstance(y, Alloc) else f'"{y.names[0]}": {y.value.text},'
                for y in entries
            ]
            return [f"{name} = {{", *(f"{INDENT}{line}" for line in inside), "}"]
        case Set(names, value, in_place):
            return [f"{_targets_of(x)}{value.text}{'  # in place' if in_place else ''}"]
        case Define(names, value):
            return [f"{_targets(names)}{value.text}"]
        case Call(names, function, arguments, True):
            return [f"{_targets(names)}{function}(", *(f"{INDENT}{a.text}," for a in arguments), ")"]
        case Call(names, function, arguments):
            return [f"{_targets(names)}{function}({', '.join(a.text for a in arguments)})"]
        case Launch():
            return _launch(x)
        case Update(name, value):
            return [f"{name} |= {value.text}"]
        case Do(text):
            return [text.text]
        case Return(Call(_, function, arguments)):
            return [f"return {function}(", f"{INDENT}{', '.join(a.text for a in arguments)}", ")"]
        case Return(Expr() as value):
            return [f"return {value.text}"]
        case Free(names):
            return [" = ".join([*names, "None"])]
        case Note(text):
            return [f"# {text}"]
    return _block(x)


def _block(x: Statement) -> list[str]:
    """A statement with others inside it."""
    match x:
        case Local(function):
            return ["", *launch_text(function).splitlines(), ""]
        case If(condition, then, otherwise, comment):
            found = [f"if {condition.text}:{f'  # {comment}' if comment else ''}", *_inside(then)]
            return [*found, "else:", *_inside(otherwise)] if otherwise else found
        case For(names, over, inside):
            return [f"for {', '.join(names)} in {over.text}:", *_inside(inside)]
    raise AssertionError(x)


def _alloc(x: Alloc) -> str:
    """What makes room."""
    made = f"{x.like.text}.new_empty(({x.shape.text}){'' if x.dtype is None else f', dtype={x.dtype}'})"
    if x.when is not None:
        made += f" if {x.when.text} else None"
    if x.unless is not None:
        made = f"None if {x.unless.text} else {made}"
    if x.instead is not None:
        made = f"{x.instead.text}.pop() if {x.instead.text} else {made}"
    return made


def _inside(body: Body) -> list[str]:
    return [f"{INDENT}{x}" for x in lines_of(body)]


def _targets(names: tuple[str, ...]) -> str:
    return f"{', '.join(names)} = " if names else ""


def _targets_of(x: Set) -> str:
    if x.each:
        return " = ".join([*x.names, ""])
    if x.groups:
        parts = [_tuple(n) for n in x.groups]
        return f"{_tuple(parts) if len(parts) == 1 else ', '.join(parts)} = "
    return f"({', '.join(x.names)},) = " if x.several else _targets(x.names)


def _tuple(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _launch(x: Launch) -> list[str]:
    lines = ["launch(", f"{INDENT}{x.kernel}, ({x.grid.text},),"]
    if x.roles:
        axes = ", ".join(f'"{n}"' for n in x.roles)
        plain = "" if x.alone else f"{x.kernel}, "
        kernels = f"config, {plain}{with_roles_name(x.kernel)}, ({axes})"
        lines = [f"{x.chooser}(", f"{INDENT}{kernels},", f"{INDENT}({x.grid.text},),"]
    tensors, places = ([(a.value.text,) for a in x.arguments], [(p.text,) for p in x.places])
    words = [(_word(w),) for w in (*x.words, *x.more)]
    lines += [f"{INDENT}{line}" for some in (tensors, places, words) for line in in_lines(some)]
    return [*lines, f"){AS_LAID}"]


def _word(word: tuple[str, Expr]) -> str:
    return f"{word[0]}={word[1].text}"
