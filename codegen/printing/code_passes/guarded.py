"""A pass: what loads from an argument that may be missing, or stores there, does so where it is given."""

from __future__ import annotations

from dataclasses import replace

from ...ir.code import Binary, Code, Literal, Name, loads_in
from ...ir.kernel_ir import Body, For, If, KernelFunction, Statement, Store, argument_of, expressions


def guarded(k: KernelFunction) -> KernelFunction:
    """What loads from an argument that may be missing, or stores there, does so where it is given; before what it loads there is
    its fallback. A loop that does nothing else is guarded as a whole; what stands under that condition is left alone."""
    return replace(k, body=_guarded(k.body, k.optional))


def _guarded(body: Body, optional: frozenset[str]) -> Body:
    found: list[Statement] = []
    for x in body:
        arguments = {_argument(y, optional) for y in (x.body if isinstance(x, For) else (x,))}
        if len(arguments) == 1 and (argument := arguments.pop()) is not None:
            found.append(If(Name(argument).given, (x,)))
        elif isinstance(x, If):
            there = optional - _given(x.condition)
            found.append(replace(x, body=_guarded(x.body, there), otherwise=_guarded(x.otherwise, optional)))
        elif isinstance(x, For):
            found.append(replace(x, body=_guarded(x.body, optional)))
        else:
            found.append(x)
    return tuple(found)


def _given(condition: Code) -> frozenset[str]:
    """The arguments that are given where a condition holds."""
    match condition:
        case Binary("is not", Name(name), Literal(None)):
            return frozenset({name})
        case Binary("and", left, right):
            return _given(left) | _given(right)
    return frozenset()


def _argument(x: Statement, optional: frozenset[str]) -> str | None:
    """The argument among these that a statement itself loads from, or stores to."""
    pointers = [y.pointer for e in expressions(x) for y in loads_in(e)]
    pointers += [x.pointer] if isinstance(x, Store) else []
    found = {a for p in pointers if (a := argument_of(p, optional)) is not None}
    assert len(found) < 2, found
    return found.pop() if found else None
