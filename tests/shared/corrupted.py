"""Kernels as a pass would leave them that is wrong in one place: a mask or a guard is dropped, or that of another, operands are
swapped, a tile isn't transposed, an edge or loop is off by one, a load is of the round before, a store or barrier is missing, a
stride is another tensor's, heads are read as if each had its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from chunkform.codegen.ir.code import Binary, Call, Code, Either, Literal, Load, Name, Negative, call
from chunkform.codegen.ir.code_parts import rebuilt, substituted, walk_code
from chunkform.codegen.ir.kernel_ir import (
    Barrier,
    Body,
    For,
    If,
    KernelFunction,
    Let,
    Statement,
    Store,
    changed,
    expressions,
    reads,
    statements,
)

Change = Callable[[Code], Iterable[Code]]
Corrupted = tuple[str, KernelFunction]
PLACES = frozenset({"c", "t0", "at", "step"})  # where a round's chunk lies


def corrupted(f: KernelFunction) -> Iterator[Corrupted]:
    """A kernel wrong in each of its places, with what is wrong."""
    for what, change in CODES.items():
        yield from ((f"{what}: {x}", g) for x, g in _in_code(f, change))
    for what, inside in POINTERS.items():
        yield from ((f"{what}: {x}", g) for x, g in _in_code(f, _of_pointers(f, inside)))
    for what, of in STATEMENTS.items():
        for x in statements(f.body):
            if (wrong := of(x)) is not None:
                shown = next((e.text for e in expressions(x)), "")
                yield f"{what}: {shown}", _edited(f, x, wrong)
    yield from (x for of_kernel in (_exchanged_guards, _late, _rounds, _strides) for x in of_kernel(f))


def _edited(f: KernelFunction, which: Statement, wrong: Body) -> KernelFunction:
    """The kernel with others in the place of this very statement."""
    return replace(f, body=changed(f.body, lambda x: wrong if x == which else (x,)))


def _in_code(f: KernelFunction, change: Change) -> Iterator[Corrupted]:
    """The kernel with one expression changed, for each that can be, of what anything reads."""
    read = {n for x in statements(f.body) for n in reads(x)}
    for x in statements(f.body):
        if not isinstance(x, Let | Store | If) or (isinstance(x, Let) and not read & set(x.names)):
            continue
        for y in dict.fromkeys(z for e in expressions(x) for z in walk_code(e)):
            for wrong in change(y):
                yield y.text, _edited(f, x, (_with(x, y, wrong),))


def _with(x: Statement, y: Code, wrong: Code) -> Statement:
    """A statement with another expression in the place of one of its own."""

    def of(z: Code) -> Code:
        return wrong if z is y else rebuilt(z, of)

    match x:
        case Let():
            return replace(x, value=of(x.value))
        case Store():
            mask = None if x.mask is None else of(x.mask)
            return replace(x, pointer=of(x.pointer), value=of(x.value), mask=mask)
        case If():
            return replace(x, condition=of(x.condition))
    raise TypeError(x)


def _strides(f: KernelFunction) -> Iterator[Corrupted]:
    """The kernel with a tensor's stride, or how many heads share one of its own, in the place of that of the next tensor."""
    names = [p.name for line in f.parameters for p in line]
    for what in ("_b", "_t", "_h", "_g"):
        some = [n for n in names if n.endswith(what) and f"{n.removesuffix(what)}_p" in names]
        for name, other in itertools.pairwise(some):
            kind = "group of another" if what == "_g" else "stride of another"
            yield f"{kind}: {name}, {other}", _renamed(f, {name: Name(other)})
        for name in some if what == "_g" else ():
            yield f"no group: {name}", _renamed(f, {name: Literal(1)})


def _renamed(f: KernelFunction, names: Mapping[str, Code]) -> KernelFunction:
    return replace(f, body=changed(f.body, lambda x: (_named(x, names),)))


def _named(x: Statement, names: Mapping[str, Code]) -> Statement:
    match x:
        case Let():
            return replace(x, value=substituted(x.value, names))
        case Store():
            mask = None if x.mask is None else substituted(x.mask, names)
            return replace(x, pointer=substituted(x.pointer, names), value=substituted(x.value, names), mask=mask)
    return x


# --- in expressions -------------------------------------------------------------------------------------------------------


def _swapped(x: Code) -> Iterator[Code]:
    match x:
        case Call(function="tl.dot", arguments=(a, b, *rest)):
            yield replace(x, arguments=(b, a, *rest))
        case Binary(operator="-", left=a, right=b):
            yield replace(x, left=b, right=a)


def _as_it_lay(x: Code) -> Iterator[Code]:
    if isinstance(x, Call) and x.function == "tl.trans":
        yield x.arguments[0]


def _edge(by: int) -> Change:
    """The edge of a chunk's steps, or of an axis, so many further."""

    def change(x: Code) -> Iterator[Code]:
        if isinstance(x, Binary) and x.operator in ("<", "<=") and isinstance(x.left, Name):
            yield replace(x, right=x.right + by if by > 0 else x.right - -by)

    return change


def _no_mask_of_load(x: Code) -> Iterator[Code]:
    if isinstance(x, Load) and x.mask is not None:
        yield replace(x, mask=None, other=None)


def _part_of_mask(x: Code) -> Iterator[Code]:
    """A mask that asks for one of two things alone."""
    if isinstance(x, Binary) and x.operator == "&":
        yield from (x.left, x.right)


def _other_filling(x: Code) -> Iterator[Code]:
    if isinstance(x, Load) and isinstance(x.other, Literal) and x.other.value == 0:
        yield replace(x, other=Literal(1.0))


def _other_sign(x: Code) -> Iterator[Code]:
    match x:
        case Binary(operator="+"):
            yield replace(x, operator="-")
        case Negative(value=value):
            yield value


def _no_factor(x: Code) -> Iterator[Code]:
    if isinstance(x, Binary) and x.operator == "*":
        yield from (x.left, x.right)


CODES: dict[str, Change] = {
    "operands swapped": _swapped,
    "not transposed": _as_it_lay,
    "an edge one further": _edge(1),
    "an edge one nearer": _edge(-1),
    "no mask of a load": _no_mask_of_load,
    "half a mask": _part_of_mask,
    "filled with ones": _other_filling,
    "another sign": _other_sign,
    "no factor": _no_factor,
}


# --- in pointers ----------------------------------------------------------------------------------------------------------


def _of_pointers(f: KernelFunction, inside: Callable[[KernelFunction, Code], Iterable[Code]]) -> Change:
    """Changes of what is loaded and stored."""
    pointers = {
        id(p)
        for x in statements(f.body)
        for p in (
            *(y.pointer for e in expressions(x) for y in walk_code(e) if isinstance(y, Load)),
            *((x.pointer,) if isinstance(x, Store) else ()),
        )
    }
    return lambda x: inside(f, x) if id(x) in pointers else ()


def _one_further(f: KernelFunction, x: Code) -> Iterator[Code]:
    yield x + 1


def _other_stride(f: KernelFunction, x: Code) -> Iterator[Code]:
    """A stride, or a size, that is another one."""
    strides = [p.name for line in f.parameters for p in line[1:]]
    sizes = [n for n in f.words if n.isupper() and len(n) == 1] + ["H", "T"]
    for names in (strides, sizes):
        for a in (y for y in dict.fromkeys(walk_code(x)) if isinstance(y, Name) and y.id in names):
            b = next((n for n in names[names.index(a.id) + 1 :] + names if n != a.id), a.id)
            if b != a.id:
                yield _replaced(x, a, Name(b))


def _other_tensor(f: KernelFunction, x: Code) -> Iterator[Code]:
    """What lies where another tensor is."""
    tensors = [line[0].name for line in f.parameters]
    for a in (y for y in dict.fromkeys(walk_code(x)) if isinstance(y, Name) and y.id in tensors):
        for b in (tensors * 2)[tensors.index(a.id) + 1 :][:1]:
            yield _replaced(x, a, Name(b))


def _replaced(x: Code, a: Code, b: Code) -> Code:
    return b if x == a else rebuilt(x, lambda y: _replaced(y, a, b))


POINTERS = {
    "a place further": _one_further,
    "another stride": _other_stride,
    "another tensor": _other_tensor,
}


# --- statements -----------------------------------------------------------------------------------------------------------


def _guard(x: Statement) -> Body | None:
    return x.body if isinstance(x, If) and _guarded(x) else None


def _guarded(x: If) -> str | None:
    """The argument that a condition asks for."""
    c = x.condition
    if isinstance(c, Binary) and c.operator == "is not" and isinstance(c.left, Name):
        return c.left.id
    return None


def _mask(x: Statement) -> Body | None:
    return (replace(x, mask=None),) if isinstance(x, Store) and x.mask is not None else None


def _moved(x: Statement) -> Body | None:
    """A chunk that begins a step late."""
    return (replace(x, value=x.value + 1),) if isinstance(x, Let) and x.names == ("t0",) and x.sign == "=" else None


def _not_added(x: Statement) -> Body | None:
    return () if isinstance(x, Let) and x.sign != "=" else None


def _always(x: Statement) -> Body | None:
    """What is for some programs or some launches, done by all."""
    return x.body if isinstance(x, If) and not _guarded(x) else None


def _never(x: Statement) -> Body | None:
    return x.otherwise if isinstance(x, If) else None


def _is(kind: type) -> Callable[[Statement], Body | None]:
    return lambda x: () if isinstance(x, kind) else None


STATEMENTS: dict[str, Callable[[Statement], Body | None]] = {
    "no store": _is(Store),
    "no barrier": _is(Barrier),
    "no guard": _guard,
    "no mask": _mask,
    "a chunk a step late": _moved,
    "not added": _not_added,
    "always": _always,
    "never": _never,
}


# --- of kernels as a whole ------------------------------------------------------------------------------------------------


def _exchanged_guards(f: KernelFunction) -> Iterator[Corrupted]:
    """What is done where an argument is given, where another one is."""
    guards = {name: x for x in statements(f.body) if isinstance(x, If) and (name := _guarded(x))}
    for a, b in itertools.permutations(guards, 2):
        new = replace(guards[a], condition=Name(b).given)
        yield f"guard of another: {a} by {b}", _edited(f, guards[a], (new,))
    for a, b in itertools.combinations(guards, 2):

        def exchanged(x: Statement, a: str = a, b: str = b) -> Body:
            name = _guarded(x) if isinstance(x, If) else None
            assert isinstance(x, If) or name is None
            if name in (a, b):
                return (replace(x, condition=Name(b if name == a else a).given),)  # type: ignore[arg-type]
            return (x,)

        yield f"guards exchanged: {a}, {b}", replace(f, body=changed(f.body, exchanged))


def _called(x: Code, others: dict[str, Code]) -> Code:
    """An expression in which names stand for something else."""
    if isinstance(x, Name):
        return others.get(x.id, x)
    return rebuilt(x, lambda y: _called(y, others))


def _late(f: KernelFunction) -> Iterator[Corrupted]:
    """A load in a loop over chunks that is of the round before."""
    for loop in (x for x in statements(f.body) if isinstance(x, For)):
        places = [x for x in loop.body if isinstance(x, Let) and set(x.names) <= PLACES]
        if not places:
            continue
        before = call("tl.maximum", Name(loop.name) - 1, 0)
        names = {n: f"{n}_late" for n in PLACES}

        others: dict[str, Code] = {loop.name: before, **{n: Name(late) for n, late in names.items()}}
        own = [replace(x, names=tuple(names[n] for n in x.names), value=_called(x.value, others)) for x in places]
        for x in statements(loop.body):
            if not isinstance(x, Let) or x in places:
                continue
            for y in dict.fromkeys(z for e in expressions(x) for z in walk_code(e) if isinstance(z, Load)):
                if y.pointer.names & PLACES:
                    late = _with(x, y, replace(y, pointer=_called(y.pointer, others)))
                    yield f"of the round before: {y.text}", _edited(f, x, (*own, late))


def _rounds(f: KernelFunction) -> Iterator[Corrupted]:
    """A loop with a round more or less."""
    for x in (x for x in statements(f.body) if isinstance(x, For) and isinstance(x.over, Call)):
        assert isinstance(x.over, Call)
        first, *others = x.over.arguments
        bounds = [first] if not others else [first, others[0]]
        for n, y in enumerate(bounds):
            for what, wrong in (("more", y + 1), ("less", y - 1)):
                made = list(x.over.arguments)
                made[n] = wrong
                new = replace(x, over=replace(x.over, arguments=tuple(made)))
                yield f"a round {what}: {x.over.text}", _edited(f, x, (new,))


def two_ways(f: KernelFunction) -> frozenset[str]:
    """The masks that say which of two ways a row is made in: both make the same."""
    found = [x.mask for x in statements(f.body) if isinstance(x, Store) and isinstance(x.mask, Either)]
    return frozenset(x.text for x in found)
