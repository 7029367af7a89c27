"""Kernels as a pass would leave them that is wrong in one place: a mask or a guard is dropped, operands are swapped, a tile isn't
transposed, an edge is off by one, a store or a barrier is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from chunkform.codegen.ir.code import Binary, Call, Code, Either, Name
from chunkform.codegen.ir.code_parts import rebuilt, walk_code
from chunkform.codegen.ir.kernel_ir import (
    Barrier,
    Body,
    If,
    KernelFunction,
    Let,
    Statement,
    Store,
    changed,
    expressions,
    statements,
)

Change = Callable[[Code], Code | None]
Corrupted = tuple[str, KernelFunction]


def corrupted(f: KernelFunction) -> Iterator[Corrupted]:
    """A kernel wrong in each of its places, with what is wrong."""
    for what, change in CODES.items():
        yield from ((f"{what}: {x}", g) for x, g in _in_code(f, change))
    for what, of in STATEMENTS.items():
        for x in statements(f.body):
            if (wrong := of(x)) is not None:
                shown = next((e.text for e in expressions(x)), "")
                yield f"{what}: {shown}", _edited(f, x, wrong)


def _edited(f: KernelFunction, which: Statement, wrong: Body) -> KernelFunction:
    return replace(f, body=changed(f.body, lambda x: wrong if x == which else (x,)))


def _in_code(f: KernelFunction, change: Change) -> Iterator[Corrupted]:
    """The kernel with one expression changed, for each that can be."""
    for x in statements(f.body):
        if not isinstance(x, Let | Store):
            continue
        for y in dict.fromkeys(z for e in expressions(x) for z in walk_code(e)):
            wrong = change(y)
            if wrong is not None:

                def of(z: Code, y: Code = y, wrong: Code = wrong) -> Code:
                    return wrong if z is y else rebuilt(z, of)

                if isinstance(x, Let):
                    new: Statement = replace(x, value=of(x.value))
                else:
                    mask = None if x.mask is None else of(x.mask)
                    new = replace(x, pointer=of(x.pointer), value=of(x.value), mask=mask)
                yield y.text, _edited(f, x, (new,))


def _swapped(x: Code) -> Code | None:
    match x:
        case Call(function="tl.dot", arguments=(a, b, *rest)):
            return replace(x, arguments=(b, a, *rest))
        case Binary(operator="-", left=a, right=b):
            return replace(x, left=b, right=a)
    return None


def _as_it_lay(x: Code) -> Code | None:
    return x.arguments[0] if isinstance(x, Call) and x.function == "tl.trans" else None


def _one_more(x: Code) -> Code | None:
    """The edge of a chunk's steps, one row further."""
    if isinstance(x, Binary) and x.operator == "<" and "last" in x.names and isinstance(x.left, Name):
        return replace(x, right=x.right + 1)
    return None


def _one_less(x: Code) -> Code | None:
    if isinstance(x, Binary) and x.operator == "<" and "last" in x.names and isinstance(x.left, Name):
        return replace(x, right=x.right - 1)
    return None


def _guard(x: Statement) -> Body | None:
    guard = isinstance(x, If) and isinstance(x.condition, Binary) and x.condition.operator == "is not"
    return x.body if guard and isinstance(x, If) else None


def _mask(x: Statement) -> Body | None:
    return (replace(x, mask=None),) if isinstance(x, Store) and x.mask is not None else None


def _moved(x: Statement) -> Body | None:
    """A chunk that begins a step late."""
    return (replace(x, value=x.value + 1),) if isinstance(x, Let) and x.names == ("t0",) and x.sign == "=" else None


def _is(kind: type) -> Callable[[Statement], Body | None]:
    return lambda x: () if isinstance(x, kind) else None


CODES: dict[str, Change] = {
    "operands swapped": _swapped,
    "not transposed": _as_it_lay,
    "an edge one further": _one_more,
    "an edge one nearer": _one_less,
}
STATEMENTS: dict[str, Callable[[Statement], Body | None]] = {
    "no store": _is(Store),
    "no barrier": _is(Barrier),
    "no guard": _guard,
    "no mask": _mask,
    "a chunk a step late": _moved,
}


def two_ways(f: KernelFunction) -> frozenset[str]:
    """The masks that say which of two ways a row is made in: both make the same."""
    found = [x.mask for x in statements(f.body) if isinstance(x, Store) and isinstance(x.mask, Either)]
    return frozenset(x.text for x in found)
