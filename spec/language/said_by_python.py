"""What Python, numpy, torch and SymPy say of a mistake in a spec, in the words of specs: what was expected, and what was got."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable

import sympy

from chunkform.errors import nearest

from .foreign import instead_of
from .methods_of_tensors import METHODS

_KINDS = {  # types that Python names, in words
    "Matrix": "a vector or matrix",
    "State": "a state",
    "Dim": "a dim",
    "Recurrence": "a recurrence",
    "Declared": "the list of what is declared",
    "NoneType": "None",
    "str": "text",
    "int": "a number",
    "float": "a number",
    "bool": "a truth value",
    "list": "a list",
    "tuple": "a tuple",
    "dict": "a dict",
    "set": "a set",
    "function": "a function that isn't called",
    "method": "a method that isn't called",
    "builtin_function_or_method": "a function that isn't called",
    "Tensor": "a tensor of torch",
    "ndarray": "an array of numpy",
    "module": "a module",
}
_SCALARS = ("Atom", "Contraction", "sigmoid_", "softplus_")
_VALUELESS = "a term has no value in a spec; use the functions of chunkform.spec.language"
_NO_BRANCH = "a spec has no branches; write Max, Min, relu or sigmoid"
_OPERATORS = "of Python's operators a spec has + - * / ** and unary -"
_SIZE = "the size of a dim is r.size(d), where r declares d"
_NOTHING = "None, which is what r.update and r.output give back"


def in_words(error: BaseException, line: str) -> str | None:
    """The sentence for an error that Python, or a library, has raised in a line of a spec; None where Python's is as good."""
    said = str(error)
    if isinstance(error, TypeError) and (call := _call(said)):
        return call
    if isinstance(error, AttributeError) and (attribute := _attribute(said)):
        return attribute
    if found := re.search(r"truth value of Relational: (.+)", said):
        return f"{found[1]} has no truth value: {_NO_BRANCH}"
    if found := re.search(r"values to unpack \(expected (\d+)(?:, got (\d+))?\)", said):
        return f"{found[1]} names are given to {found[2] or 'more'} quantities: each has one name"
    for pattern, told in _SAID:
        if found := re.search(pattern, said):
            kinds = [_word(x) for x in found.groups() if x is not None]
            if any(_ours(x) for x in found.groups() if x is not None) or not found.groups():
                return told(*kinds)
    return _library(error, line)


def _library(error: BaseException, line: str) -> str | None:
    """Of a function of another library, which takes no terms."""
    found = re.search(r"\b(np|numpy|torch|math)((?:\.\w+)+)", line)
    if found is None or not isinstance(error, TypeError | ValueError):
        return None
    home, name = {"np": "numpy"}.get(found[1], found[1]), found[2].rpartition(".")[2]
    what = "tensors" if home == "torch" else "numbers"
    said = f" ({home} says: {error})" if isinstance(error, ValueError) else ""  # it may be of numbers that the file has
    return f"{home}'s {name} takes {what}, and a spec is symbolic: use {instead_of(name)}{said}"


def _ours(name: str) -> bool:
    """Is this type, or attribute, of a spec's terms?"""
    return name in ("Matrix", "State", "Dim", "Recurrence", "Declared", "NoneType", "function", "method") or _scalar(
        name
    )


def _scalar(name: str) -> bool:
    """Is this a type of SymPy's expressions?"""
    of_sympy = getattr(sympy, name, None)
    return name in _SCALARS or (isinstance(of_sympy, type) and issubclass(of_sympy, sympy.Basic))


def _word(name: str) -> str:
    return _KINDS.get(name) or ("a scalar" if _scalar(name) else name)


def _operands(operator: str, left: str, right: str) -> str:
    both = f"{left} and {right}"
    if operator == "@":
        return f"@ multiplies vectors and matrices, got {both}: a product with a scalar is written with *"
    if operator not in ("+", "-", "*", "/", "**"):
        power = ", and ** is a power" if operator == "^" else ""
        return f"{_OPERATORS}, got {operator} of {both}{power}"
    return f"{operator} takes terms of the spec and numbers, got {both}{_why(both)}"


def _why(kinds: str) -> str:
    if "None" in kinds:
        return ": r.update and r.output give nothing back, and a state after a step is S.next"
    return ": call it, as in exp(x)" if "called" in kinds else ""


def _unary(operator: str, kind: str) -> str:
    if kind == "a dim":
        return f"a dim is no number: {_SIZE}"
    if kind == "a state":
        return "a state is read by .prev or .next, before or after the step"
    if operator == "-":
        return f"- takes terms of the spec and numbers, got {kind}{_why(kind)}"
    return f"{_OPERATORS}, got {operator} of {kind}"


def _unset(kind: str) -> str:
    if kind == "a state":
        return "a state is set as a whole, by r.update(S, ..)"
    return f"{kind} of a spec can't be set or deleted: what has another value is another name, or a state by r.update"


_SAID: list[tuple[str, Callable[..., str]]] = [
    (r"unsupported operand type\(s\) for (\S+?)(?:\(\))?(?: or pow\(\))?: '(\w+)' and '(\w+)'", _operands),
    (r"bad operand type for (?:unary )?(\S+?)(?:\(\))?: '(\w+)'", _unary),
    (r"can only concatenate (\w+) \(not \"(\w+)\"\)", lambda a, b: _operands("+", a, b)),
    (
        r"can't multiply sequence by non-int of type '(\w+)'",
        lambda a: _operands("*", a, "text or a list"),
    ),
    (
        r"'\S+' not supported between instances of '(\w+)' and '(\w+)'",
        lambda a, b: f"{a} is compared with {b}: {_NO_BRANCH}",
    ),
    (r"Cannot (?:round|truncate) symbol", lambda: f"{_VALUELESS}, none of which rounds"),
    (
        r"type (\w+) doesn't define __(?:round|trunc|floor|ceil)__",
        lambda a: f"rounding takes a number, got {a}: {_VALUELESS}",
    ),
    (r"[Cc](?:annot|an't) convert (?:expression|symbols?|complex)", lambda: _VALUELESS),
    (
        r"'(\w+)' object cannot be interpreted as an integer",
        lambda a: f"expected a whole number, got {a}: {_VALUELESS}",
    ),
    (
        r"indices must be integers or slices, not (\w+)",
        lambda a: f"a list is read at a whole number, got {a}: {_VALUELESS}",
    ),
    (
        r"unsupported format string passed to (\w+)\.",
        lambda a: f"only numbers are formatted by digits, got {a}: {_VALUELESS}",
    ),
    (r"a real number is required, not (\w+)", lambda a: f"expected a number, got {a}: {_VALUELESS}"),
    (r"must be real number, not (\w+)", lambda a: f"expected a number, got {a}: {_VALUELESS}"),
    (r"object of type '(\w+)' has no len\(\)", lambda a: f"{a} has no length; {_SIZE}"),
    (r"'(\w+)' object is not subscriptable", lambda a: f"{a} has no entries"),
    (r"'(\w+)' object is not (?:iterable|an iterator|reversible)", lambda a: f"{a} has no entries to loop over"),
    (r"cannot unpack non-iterable (\w+) object", lambda a: f"{a} can't be unpacked"),
    (r"'(\w+)' object is not callable", lambda a: f"{a} isn't called like a function{_calls(a)}"),
    (r"'(\w+)' object does(?: not|n't) support item ", _unset),
    (r"'(\w+)' object does not support the ", lambda a: f"{a} is no context: a spec has no with"),
    (r"property '\w+' of '(\w+)' object has no", _unset),
    (r"cannot (?:assign to|delete) field", lambda: _unset("a dim")),
    (r"BooleanAtom not allowed", lambda: "expected a term of the spec or a number, got a truth value"),
    (r"unhashable type: '(\w+)'", lambda a: f"{a} can't be a key"),
]


def _calls(kind: str) -> str:
    if kind == "a recurrence":
        return ": what it compiles to is called, as in op = r.compile()"
    return f": {_SIZE}" if kind == "a dim" else ""


def _attribute(said: str) -> str | None:
    """Of something that a spec's quantity hasn't."""
    language = sys.modules[__package__]
    if (found := re.match(r"module '(\w+)' has no attribute '(\w+)'", said)) and found[2] in language.__all__:
        return f"{found[1]} has no {found[2]!r}: {found[2]} is of chunkform.spec.language"
    found = re.match(r"'(\w+)' object has no attribute '(\w+)'", said)
    if found is None:
        return None
    kind, name = found.groups()
    if kind == "NoneType":
        return f"{_NOTHING}, has no {name!r}"
    if kind == "Dim":
        return f"a dim has no {name!r}: {_SIZE}"
    if kind in ("tuple", "list"):
        return (
            f"{_word(kind)} has no {name!r}: quantities that were declared together get a name each, as in `a, b = ...`"
        )
    if kind in ("function", "method"):
        return f"{_word(kind)} has no {name!r}: a quantity is what a call of it returned"
    if kind == "Declared":
        return f"the list of what is declared has no {name!r}: a quantity is what declared it returned"
    if _scalar(kind):
        return f"a scalar has no {name!r}{': ' + METHODS[name] if name in METHODS else ''}"
    return None


def _call(said: str) -> str | None:
    """Of a function of the language, or a method of a declaration, whose call doesn't fit: how it is called."""
    found = re.match(r"(?:(\w+)\.)?(\w+)\(\) (missing|takes|got)", said)
    function = _called(found[1], found[2]) if found else None
    if found is None or function is None:
        return None
    kind, name = found[1], found[2]
    known = [*inspect.signature(function).parameters.values()][1 if kind else 0 :]
    shown = [str(x.replace(annotation=x.empty)) for x in known if not x.name.startswith("_")]
    how = kind if name == "__init__" else f"r.{name}" if kind else name
    right = f"write {how}({', '.join(shown)})"
    if unknown := re.search(r"unexpected keyword argument '(\w+)'", said):
        near = nearest(unknown[1], [x.name for x in known if x.kind != x.VAR_POSITIONAL])
        return f"{how}() takes no {unknown[1]!r}{near}{' ' if near else ': '}{right}"
    if lacking := re.search(r"missing .* arguments?: (.*)", said):
        return f"{how}() lacks its argument {lacking[1]}: {right}"
    if many := re.search(r"takes (?:from \d+ to )?(\d+) positional arguments? but (\d+) (?:was|were) given", said):
        less = 1 if kind else 0
        most = int(many[1]) - less
        return f"{how}() takes at most {most} argument{'s' * (most != 1)}, got {int(many[2]) - less}: {right}"
    return f"{how}() doesn't take these arguments together: {right}"


def _called(kind: str | None, name: str) -> Callable[..., object] | None:
    """The function of the language that has this name; of a `kind`, a method of whatever derives from it."""
    language = sys.modules[__package__]
    if kind is None:
        return getattr(language, name, None) if name in language.__all__ else None
    kinds = [x for x in vars(language).values() if isinstance(x, type)]
    if name != "__init__" and name.startswith("_"):
        return None
    for x in kinds:
        own = getattr(x, name, None)
        if x.__name__ == kind or getattr(own, "__qualname__", "") == f"{kind}.{name}":
            return own
    return None


def near_name(error: BaseException, beside: Iterable[str] = ()) -> str:
    """What a name that a file doesn't know, or can't import, is spelt like: functions of the language, and names `beside` it."""
    from . import formula

    imported = re.match(r"cannot import name '(\w+)' from 'chunkform", str(error))
    unknown = imported[1] if imported else getattr(error, "name", None) if isinstance(error, NameError) else None
    if unknown is None:
        return ""
    language = sys.modules[__package__]
    if unknown in language.__all__ and not imported and unknown not in beside:
        return f": write `from {language.__name__} import {unknown}`"
    if unknown in METHODS and len(unknown) > 2 and not imported and unknown not in beside:
        return f": {METHODS[unknown]}"
    public = [x for x, value in vars(formula).items() if callable(value) and not x.startswith("_")]
    public = [x for x in public if x != unknown]
    return nearest(unknown, [*(x for x in beside if not x.startswith("_")), *language.__all__, *public])
