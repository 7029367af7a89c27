"""Kernels as a pass would leave them that is wrong in one place: a mask or a guard is dropped or another's, operands are swapped,
a tile isn't transposed, an edge or a place is off by one, a stride or a tensor is another's, a loop is a round short, a
store or a barrier is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from chunkform.codegen.ir.code import Binary, Call, Code, Either, Name
from chunkform.codegen.ir.code_parts import rebuilt, walk_code
from chunkform.codegen.ir.kernel_ir import (
    Barrier,
    Body,
    For,
    If,
    KernelFunction,
    Let,
    Statement,
    Store,
    argument_of,
    changed,
    expressions,
    reads,
    statements,
    stores,
)

Change = Callable[[Code], Code | None]
Corrupted = tuple[str, KernelFunction]


def corrupted(f: KernelFunction) -> Iterator[Corrupted]:
    """A kernel wrong in each of its places, with what is wrong."""
    yield from _wrong(f, CODES.items(), STATEMENTS)


def misplaced(f: KernelFunction, shared: frozenset[str]) -> Iterator[Corrupted]:
    """A kernel in which something stands where another of its kind should. `shared`: arguments that may have fewer heads."""
    off = [("a place off by one", partial(_off_by, n)) for n in (1, -1)]
    yield from _wrong(f, [("from zero", _from_zero), *off, *_exchanged(f, shared)], {"a round short": _a_round_short})


def _wrong(
    f: KernelFunction, codes: Iterable[tuple[str, Change]], edits: Mapping[str, Callable[[Statement], Body | None]]
) -> Iterator[Corrupted]:
    for what, change in codes:
        yield from ((f"{what}: {x}", g) for x, g in _in_code(f, change))
    for what, of in edits.items():
        for x in statements(f.body):
            if (wrong := of(x)) is not None:
                shown = next((e.text for e in expressions(x)), "")
                yield f"{what}: {shown}", _edited(f, x, wrong)


def _edited(f: KernelFunction, which: Statement, wrong: Body) -> KernelFunction:
    return replace(f, body=changed(f.body, lambda x: wrong if x == which else (x,)))


def _in_code(f: KernelFunction, change: Change) -> Iterator[Corrupted]:
    """The kernel with one expression changed, for each that can be and is of use."""
    read = frozenset().union(*map(reads, f.body))
    for x in statements(f.body):
        if not isinstance(x, Let | Store | If) or (isinstance(x, Let) and read.isdisjoint(x.names)):
            continue
        for y in dict.fromkeys(z for e in expressions(x) for z in walk_code(e)):
            wrong = change(y)
            if wrong is not None:

                def of(z: Code, y: Code = y, wrong: Code = wrong) -> Code:
                    return wrong if z is y else rebuilt(z, of)

                if isinstance(x, If):
                    new: Statement = replace(x, condition=of(x.condition))
                elif isinstance(x, Let):
                    new = replace(x, value=of(x.value))
                else:
                    mask = None if x.mask is None else of(x.mask)
                    new = replace(x, pointer=of(x.pointer), value=of(x.value), mask=mask)
                where = f" in {x.pointer.text}" if isinstance(x, Store) else ""
                yield f"{y.text} -> {wrong.text}{where}", _edited(f, x, (new,))


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


PLACES = frozenset("b c h n t0 begin first segment tile step at".split())


def _off_by(n: int, x: Code) -> Code | None:
    return x + n if isinstance(x, Name) and x.id in PLACES else None


def _from_zero(x: Code) -> Code | None:
    """A product that isn't added to a value, such as what decays leave of a state."""
    if isinstance(x, Call) and x.function == "tl.dot" and len(x.arguments) > 2 and not isinstance(x.arguments[2], Name):
        return replace(x, arguments=x.arguments[:2])
    return None


def _a_round_short(x: Statement) -> Body | None:
    if isinstance(x, For) and isinstance(x.over, Call) and x.over.function in ("tl.static_range", "tl.range"):
        *before, most = x.over.arguments
        return (replace(x, over=replace(x.over, arguments=(*before, most - 1))),)
    return None


def _is_guard(x: Code) -> bool:
    return isinstance(x, Binary) and x.operator == "is not"


def _exchanged(f: KernelFunction, shared: frozenset[str]) -> Iterator[tuple[str, Change]]:
    """What stands for something else of the same kind: a guard, a stride, a tensor that is stored to."""
    guards = {
        y.text: y for x in statements(f.body) if isinstance(x, If) for y in walk_code(x.condition) if _is_guard(y)
    }
    for other in guards.values():
        yield "another guard", lambda x, other=other: other if _is_guard(x) and x != other else None
    rooms = {argument_of(x.pointer, frozenset(line[0].name for line in f.parameters)) for x in stores(f.body)} - {None}
    strides = {p.name: line[0].name for line in f.parameters for p in line[1:]}
    for n, tensor in strides.items():

        def other_stride(x: Code, n: str = n, tensor: str = tensor) -> Code | None:
            if not isinstance(x, Name) or x.id == n or x.id not in strides:
                return None
            if x.id[-1] == n[-1]:
                return Name(n) if n[-1] != "g" or len({tensor, strides[x.id]} & shared) == 1 else None
            return Name(n) if strides[x.id] == tensor else None

        yield "another stride", other_stride
    for n in sorted(rooms):
        yield "another room", lambda x, n=n: Name(n) if isinstance(x, Name) and x.id in rooms and x.id != n else None


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
