"""A kernel as data: what one program of a launch does, statement by statement.

What a statement reads, loads and assigns is found in its expressions (`code.py`). Passes over kernels are functions from one to
another; `codegen/printing/kernel_text.py` prints one, and `codegen/exact/run_kernel.py` runs one over exact numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from .code import Code, Load, Name, code, loads_in, names_in
from .code_parts import rebuilt, walk_code


@dataclass(frozen=True)
class Let:
    """names = value, or += or *=, as `sign` has it. `fallback`: what it is where an argument that it loads isn't given. `broken`:
    the arguments of the call that makes it are on a line of their own. `constant`: the kernel is compiled for each value.
    `prefetch`: what it loads in a loop is loaded a round before, and held under this name."""

    names: tuple[str, ...]
    value: Code
    sign: str = "="
    note: str = ""
    fallback: Code | None = None
    broken: bool = False
    constant: bool = False
    prefetch: str = ""


@dataclass(frozen=True)
class Store:
    """A value goes into memory, where the mask holds if there is one."""

    pointer: Code
    value: Code
    mask: Code | None = None
    note: str = ""


@dataclass(frozen=True)
class If:
    condition: Code
    body: Body
    otherwise: Body = ()
    note: str = ""


@dataclass(frozen=True)
class Prefetch:
    """Where the first round of a loop is, and where the next one is: `first` and `next` say what stands for which names there,
    once the statements of `before` and of `each` have run, before the loop and in each round."""

    first: tuple[tuple[str, Code], ...] = ()
    next: tuple[tuple[str, Code], ...] = ()
    before: Body = ()
    each: Body = ()


@dataclass(frozen=True)
class For:
    """for name in over: `over` is a call of range, tl.range or tl.static_range. `prefetch`: where its first round is, and each
    next one, for which statements may load a round before. `together`: so many rounds are to be taken at once, `when` that holds
    where there is a condition; `ahead`: what they load is loaded while those before them are computed."""

    name: str
    over: Code
    body: Body
    prefetch: Prefetch | None = None
    note: str = ""
    together: int = 1
    when: Code | None = None
    ahead: bool = False


@dataclass(frozen=True)
class Do:
    """A call for what it does, such as one that stores."""

    call: Code
    note: str = ""


@dataclass(frozen=True)
class Note:
    """A comment on a line of its own, on what follows."""

    text: str


@dataclass(frozen=True)
class Barrier:
    """All threads of a program wait here for what each has stored and loaded."""

    note: str = ""


@dataclass(frozen=True)
class Return:
    value: Code | None = None


Statement = Let | Store | If | For | Do | Note | Barrier | Return
Body = tuple[Statement, ...]


@dataclass(frozen=True)
class Parameter:
    """A tensor, a stride or a number that a kernel is given; None where it is `optional` and a launch has no use for it."""

    name: str
    optional: bool = False


@dataclass(frozen=True)
class Slices:
    """An axis of which a kernel has one slice at a time: the name of a slice's number, how many there are, and the names of what
    is carried along the sequence for each."""

    counter: str
    count: Code
    carried: tuple[str, ...]


@dataclass(frozen=True)
class KernelFunction:
    """A kernel. `parameters` are of tensors and constants, with those of a tensor's strides beside it; then come `integers`, such
    as lengths, `counts`, and `words` that a kernel is compiled for, with `more_words`, of which those of an axis are together;
    it isn't compiled for integers that are `unspecialised`."""

    name: str
    parameters: tuple[tuple[Parameter, ...], ...]
    integers: tuple[str, ...]
    words: tuple[str, ...]
    doc: str
    body: Body
    unspecialised: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    more_words: tuple[tuple[str, ...], ...] = ()
    slices: tuple[Slices, ...] = ()

    @property
    def optional(self) -> frozenset[str]:
        """The arguments that may be missing."""
        return frozenset(p.name for line in self.parameters for p in line if p.optional)


@dataclass(frozen=True)
class TileFunction:
    """A function of tiles and numbers that kernels call: it is compiled into each that does."""

    name: str
    parameters: tuple[str, ...]
    doc: str
    body: Body


# --- making statements ----------------------------------------------------------------------------------------------


def let(name: str, value: Code | float | str, fallback: Code | None = None, note: str = "") -> Let:
    return Let((name,), code(value), fallback=fallback, note=note)


def added(name: str, value: Code | float | str) -> Let:
    return Let((name,), code(value), "+=")


# --- reading them ---------------------------------------------------------------------------------------------------


def inner(x: Statement) -> Body:
    """The statements inside a statement."""
    match x:
        case If(body=body, otherwise=otherwise):
            return (*body, *otherwise)
        case For(body=body):
            return body
    return ()


def statements(body: Iterable[Statement]) -> Iterator[Statement]:
    """All statements of a body, those inside others too."""
    for x in body:
        yield x
        yield from statements(inner(x))


def expressions(x: Statement) -> tuple[Code, ...]:
    """The expressions of a statement itself, without those of the statements inside it."""
    match x:
        case Let(value=value, fallback=fallback):
            return (value,) if fallback is None else (value, fallback)
        case Store(pointer=pointer, value=value, mask=mask):
            return (pointer, value) if mask is None else (pointer, value, mask)
        case If(condition=condition):
            return (condition,)
        case For(over=over):
            return (over,)
        case Do(call=call):
            return (call,)
        case Return(value=Code() as value):
            return (value,)
    return ()


def reads(x: Statement) -> frozenset[str]:
    """The names that a statement reads, with those inside it."""
    own = frozenset[str]().union(*map(names_in, expressions(x)))
    if isinstance(x, Let) and x.sign != "=":
        own |= frozenset(x.names)
    return own.union(*map(reads, inner(x)))


def assigned(x: Statement) -> frozenset[str]:
    """The names that a statement assigns, with those inside it."""
    own = frozenset(x.names) if isinstance(x, Let) else frozenset({x.name}) if isinstance(x, For) else frozenset()
    return own.union(*map(assigned, inner(x)))


def names_of(k: KernelFunction) -> frozenset[str]:
    """All names that a kernel has: its parameters, and what statements read and assign."""
    given = frozenset(p.name for line in k.parameters for p in line).union(k.integers, k.counts, k.words, *k.more_words)
    return given.union(*map(reads, k.body), *map(assigned, k.body))


def loads(body: Iterable[Statement]) -> list[Load]:
    """All that a body loads, in order."""
    return [y for x in statements(body) for e in expressions(x) for y in loads_in(e)]


def stores(body: Iterable[Statement]) -> list[Store]:
    """All that it stores."""
    return [x for x in statements(body) if isinstance(x, Store)]


def argument_of(pointer: Code, among: frozenset[str]) -> str | None:
    """Which of these arguments a pointer points into: the first name in it."""
    return next((y.id for y in walk_code(pointer) if isinstance(y, Name) and y.id in among), None)


def renamed(x: Statement, read: Callable[[str], Code], made: Callable[[str], str]) -> Statement:
    """A statement with other names: what stands in the place of each that it reads, and of each that it assigns."""

    def of(y: Code) -> Code:
        return read(y.id) if isinstance(y, Name) else rebuilt(y, of)

    def maybe(y: Code | None) -> Code | None:
        return None if y is None else of(y)

    def each(body: Body) -> Body:
        return tuple(renamed(y, read, made) for y in body)

    match x:
        case Let(names=names, value=value, fallback=fallback):
            return replace(x, names=tuple(map(made, names)), value=of(value), fallback=maybe(fallback))
        case Store(pointer=pointer, value=value, mask=mask):
            return replace(x, pointer=of(pointer), value=of(value), mask=maybe(mask))
        case If(condition=condition, body=body, otherwise=otherwise):
            return replace(x, condition=of(condition), body=each(body), otherwise=each(otherwise))
        case For(name=name, over=over, body=body):
            return replace(x, name=made(name), over=of(over), body=each(body))
        case Do(call=call):
            return replace(x, call=of(call))
        case Return(value=value):
            return Return(maybe(value))
    return x


def changed(body: Body, change: Callable[[Statement], Body]) -> Body:
    """A body with what `change` makes of each statement, whose own body is changed before."""
    found: list[Statement] = []
    for x in body:
        match x:
            case If(body=inside, otherwise=otherwise):
                x = replace(x, body=changed(inside, change), otherwise=changed(otherwise, change))
            case For(body=inside):
                x = replace(x, body=changed(inside, change))
        found += change(x)
    return tuple(found)
