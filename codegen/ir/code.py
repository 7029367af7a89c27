"""Expressions of Python and Triton as data: what kernels compute, before it is printed.

A tree prints with the parentheses that it needs; operators of Python make trees, so that `p + h * width` is one. What a tree
reads is found in its names (`names_in`, `loads_in`), never in its text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cached_property, reduce
from typing import TYPE_CHECKING, TypeVar

from .words import Keyword, Member, Said, Words, listed, path

CONDITIONAL, OR, AND, NOT, COMPARE, EITHER, DIFFER, BOTH, ADD, MUL, UNARY, ATOM = range(
    -8, 4
)  # how tightly a text binds
LEVELS = {
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!=", "is", "is not", "in", "not in"), COMPARE),
    "or": OR, "and": AND, "|": EITHER, "^": DIFFER, "&": BOTH,
    "+": ADD, "-": ADD, "*": MUL, "/": MUL, "//": MUL, "%": MUL, "@": MUL,
}  # fmt: skip
Operand = TypeVar("Operand", bound="Code | int | float | str | None")


class Code:
    """An expression."""

    if TYPE_CHECKING:

        @property
        def text(self) -> str: ...
        @property
        def words(self) -> Words: ...
        @property
        def level(self) -> int: ...

    def at(self, level: int) -> str:
        """The text, in parentheses where something binds more tightly than it."""
        return self.text if self.level >= level else f"({self.text})"

    def words_at(self, level: int) -> Words:
        """The words of this."""
        return self.words if self.level >= level else ("(", *self.words, ")")

    @property
    def width(self) -> int:
        """How many columns it takes."""
        return len(self.text)

    def __add__(self, other: Code | float | str) -> Code:
        return Binary("+", self, code(other))

    def __radd__(self, other: float) -> Code:
        return Binary("+", code(other), self)

    def __sub__(self, other: Code | float | str) -> Code:
        return Binary("-", self, code(other))

    def __rsub__(self, other: float) -> Code:
        return Binary("-", code(other), self)

    def __mul__(self, other: Code | float | str) -> Code:
        return Binary("*", self, code(other))

    def __rmul__(self, other: float) -> Code:
        return Binary("*", code(other), self)

    def __truediv__(self, other: Code | float | str) -> Code:
        return Binary("/", self, code(other))

    def __rtruediv__(self, other: float) -> Code:
        return Binary("/", code(other), self)

    def __floordiv__(self, other: Code | float | str) -> Code:
        return Binary("//", self, code(other))

    def __mod__(self, other: Code | float | str) -> Code:
        return Binary("%", self, code(other))

    def __lt__(self, other: Code | float | str) -> Code:
        return Binary("<", self, code(other))

    def __le__(self, other: Code | float | str) -> Code:
        return Binary("<=", self, code(other))

    def __gt__(self, other: Code | float | str) -> Code:
        return Binary(">", self, code(other))

    def __ge__(self, other: Code | float | str) -> Code:
        return Binary(">=", self, code(other))

    def __neg__(self) -> Code:
        return Negative(self)

    def __and__(self, other: Code) -> Code:
        return Binary("&", self, other)

    def equals(self, other: Code | float | str) -> Code:
        return Binary("==", self, code(other))

    def __str__(self) -> str:
        raise TypeError(f"an expression in a string would lose what it reads: {self.text}")

    def __getitem__(self, index: object) -> Code:
        return Item(self, _index(index))

    __iter__ = None  # an entry of it is an expression as well: there are as many as one asks for

    @property
    def missing(self) -> Code:
        """Is it None?"""
        return Binary("is", self, Literal(None))

    @property
    def given(self) -> Code:
        """Is it there, and not None?"""
        return Binary("is not", self, Literal(None))

    @property
    def parts(self) -> tuple[Code, ...]:
        """The expressions that it is made of."""
        kept = self.__dict__
        if "_parts" in kept:
            known: tuple[Code, ...] = kept["_parts"]
            return known
        found: list[Code] = []
        for name in fields_of(type(self)):
            part = kept[name]
            if isinstance(part, Code):
                found.append(part)
            elif isinstance(part, tuple):
                found += [y for y in (z[1] if isinstance(z, tuple) else z for z in part) if isinstance(y, Code)]
        kept["_parts"] = tuple(found)
        return tuple(found)

    @property
    def names(self) -> frozenset[str]:
        """The names that it reads."""
        kept = self.__dict__  # `cached_property` takes a lock each time
        if "_names" not in kept:
            own = frozenset({self.id}) if isinstance(self, Name) else frozenset[str]()
            kept["_names"] = own.union(*(x.names for x in self.parts))
        found: frozenset[str] = kept["_names"]
        return found

    @property
    def loads(self) -> tuple[Load, ...]:
        """What it loads."""
        kept = self.__dict__
        if "_loads" not in kept:
            inside = tuple(y for x in self.parts for y in x.loads)
            kept["_loads"] = (self, *inside) if isinstance(self, Load) else inside
        found: tuple[Load, ...] = kept["_loads"]
        return found

    def to(self, dtype: str) -> Code:
        return Cast(self, dtype)

    def along(self, axis: int, rank: int) -> Code:
        """A vector, so that it broadcasts over a tile of so many axes."""
        return self if rank < 2 else Expanded(self, tuple(n == axis for n in range(rank)))


class Tree(Code):
    """What is one; its words, and their text, are made once."""

    if not TYPE_CHECKING:
        level = ATOM

    @cached_property
    def text(self) -> str:
        return "".join(self.words)

    @cached_property
    def words(self) -> Words:
        return self.printed()

    def printed(self) -> Words:
        raise NotImplementedError


@dataclass(frozen=True)
class Name(Tree):
    id: str

    def printed(self) -> Words:
        return path(self.id)


@dataclass(frozen=True)
class Literal(Tree):
    """A number as it is printed, and the one that it stands for: `exact`, where that isn't what the decimal says."""

    value: float | str | None
    exact: Fraction | None = field(default=None, compare=False)

    @property
    def level(self) -> int:
        return UNARY if isinstance(self.value, int | float) and self.value < 0 else ATOM

    def printed(self) -> Words:
        return (Said(f'"{self.value}"') if isinstance(self.value, str) else repr(self.value),)


@dataclass(frozen=True)
class Decimal(Tree):
    """A number in the digits in which a kernel has it."""

    digits: str

    def __post_init__(self) -> None:
        float(self.digits)

    @property
    def level(self) -> int:
        return UNARY if float(self.digits) < 0 else ATOM

    def printed(self) -> Words:
        return (self.digits,)


@dataclass(frozen=True)
class Group(Tree):
    """In parentheses, needed or not."""

    value: Code

    def printed(self) -> Words:
        return ("(", *self.value.words, ")")


@dataclass(frozen=True)
class Binary(Tree):
    operator: str
    left: Code
    right: Code

    @property
    def level(self) -> int:
        return LEVELS[self.operator]

    def printed(self) -> Words:
        return (*self.left.words_at(self.level), f" {self.operator} ", *self.right.words_at(self.level + 1))


@dataclass(frozen=True)
class Negative(Tree):
    value: Code

    @property
    def level(self) -> int:
        return MUL

    def printed(self) -> Words:
        return ("-", *self.value.words_at(MUL))


@dataclass(frozen=True)
class Not(Tree):
    value: Code

    @property
    def level(self) -> int:
        return NOT

    def printed(self) -> Words:
        return ("not ", *self.value.words_at(NOT))


@dataclass(frozen=True)
class Inverted(Tree):
    """Where a mask doesn't hold, entry by entry."""

    value: Code

    def printed(self) -> Words:
        return ("~", *self.value.words_at(ATOM))


@dataclass(frozen=True)
class Either(Tree):
    """One value or another, as a condition says that is known when the kernel is compiled."""

    then: Code
    condition: Code
    otherwise: Code

    @property
    def level(self) -> int:
        return CONDITIONAL

    def printed(self) -> Words:
        first, rest = (*self.then.words_at(OR), " if "), self.otherwise.words_at(CONDITIONAL)
        return (*first, *self.condition.words_at(OR), " else ", *rest)


@dataclass(frozen=True)
class Items(Tree):
    """Several values: a tuple, `bare` of parentheses where names are assigned, or the list of a shape's sizes. `closed`: with a
    comma after the last."""

    values: tuple[Code, ...]
    shape: bool = False
    bare: bool = False
    closed: bool = False

    def printed(self) -> Words:
        inner = listed(x.words for x in self.values)
        if self.shape or self.bare:
            return ("[", *inner, "]") if self.shape else inner
        return ("(", *inner, ",)" if len(self.values) == 1 or self.closed else ")")


@dataclass(frozen=True)
class Slice(Tree):
    """The entries from `start` to `stop` along an axis; `rest`: all, along the axes that aren't named."""

    start: Code | None = None
    stop: Code | None = None
    step: Code | None = None
    rest: bool = False

    def printed(self) -> Words:
        if self.rest:
            return ("...",)
        start, stop, step = (() if x is None else x.words for x in (self.start, self.stop, self.step))
        return (*start, ":", *stop, *((":", *step) if step else ()))


@dataclass(frozen=True)
class Starred(Tree):
    """All that a value has, one after the other."""

    value: Code

    def printed(self) -> Words:
        return ("*", *self.value.words_at(ATOM))


@dataclass(frozen=True)
class Call(Tree):
    function: str
    arguments: tuple[Code, ...]
    keywords: tuple[tuple[str, Code], ...] = ()

    @property
    def inside(self) -> Words:
        keywords = ((Keyword(n), "=", *x.words) for n, x in self.keywords)
        return listed([*(x.words for x in self.arguments), *keywords])

    def printed(self) -> Words:
        return (*path(self.function), "(", *self.inside, ")")


@dataclass(frozen=True)
class Method(Tree):
    """A method of a value, called."""

    value: Code
    name: str
    arguments: tuple[Code, ...]
    keywords: tuple[tuple[str, Code], ...] = ()

    def printed(self) -> Words:
        keywords = ((Keyword(n), "=", *x.words) for n, x in self.keywords)
        arguments = listed([*(x.words for x in self.arguments), *keywords])
        return (*self.value.words_at(ATOM), ".", Member(self.name), "(", *arguments, ")")


@dataclass(frozen=True)
class Attribute(Tree):
    """What a value has of this name, such as its dtype."""

    value: Code
    name: str

    def printed(self) -> Words:
        return (*self.value.words_at(ATOM), ".", *(path(self.name, Member)))


@dataclass(frozen=True)
class Item(Tree):
    """An entry of a tuple."""

    value: Code
    index: Code

    def printed(self) -> Words:
        return (*self.value.words_at(ATOM), "[", *self.index.words, "]")


@dataclass(frozen=True)
class Cast(Tree):
    value: Code
    dtype: str

    def printed(self) -> Words:
        return (*self.value.words_at(ATOM), ".", Member("to"), "(", *path(self.dtype), ")")


@dataclass(frozen=True)
class CastLike(Tree):
    """A value in the dtype of what a pointer points to, as memory will have it."""

    value: Code
    pointer: Code

    def printed(self) -> Words:
        dtype = (*self.pointer.words_at(ATOM), ".", Member("dtype"), ".", Member("element_ty"))
        return (*self.value.words_at(ATOM), ".", Member("to"), "(", *dtype, ")")


@dataclass(frozen=True)
class RoundedLike(Tree):
    """A value in float32, rounded as memory will have it."""

    value: Code
    pointer: Code

    def printed(self) -> Words:
        dtype = (*self.pointer.words_at(ATOM), ".", Member("dtype"), ".", Member("element_ty"))
        return (*path("rounded_to"), "(", *listed([self.value.words, dtype]), ")")


@dataclass(frozen=True)
class Expanded(Tree):
    """A value with new axes of one entry, wherever `own` says that an axis isn't its own. `batched`: others come before these."""

    value: Code
    own: tuple[bool, ...]
    batched: bool = False

    def printed(self) -> Words:
        axes = ", ".join(":" if x else "None" for x in self.own)
        return (*self.value.words_at(ATOM), f"[{'..., ' if self.batched else ''}{axes}]")


@dataclass(frozen=True)
class Load(Tree):
    """What lies in memory at a pointer, a name plus a place; `other` where there is a mask that doesn't hold."""

    pointer: Code
    mask: Code | None = None
    other: Code | None = None

    def printed(self) -> Words:
        mask = () if self.mask is None else (", ", Keyword("mask"), "=", *self.mask.words)
        other = () if self.other is None else (", ", Keyword("other"), "=", *self.other.words)
        return (*path("tl.load"), "(", *self.pointer.words, *mask, *other, ")")


@dataclass(frozen=True)
class Raised(Tree):
    """A power as Python writes it."""

    value: Code
    exponent: Code

    @property
    def level(self) -> int:
        return UNARY

    def printed(self) -> Words:
        return (*self.value.words_at(ATOM), " ** ", *self.exponent.words_at(UNARY))


def _index(x: object) -> Code:
    """What Python has between brackets."""
    match x:
        case Code():
            return x
        case slice(start=start, stop=stop, step=step):
            first, last, each = (None if y is None else _index(y) for y in (start, stop, step))
            return Slice(first, last, each)
        case tuple():
            return Items(tuple(map(_index, x)), bare=True)
        case str() | int() | None:
            return Literal(x)
    if x is Ellipsis:
        return Slice(rest=True)
    raise TypeError(f"expected an expression, a string, an integer or a slice of an axis, got {x!r}")


# --- making and reading trees ---------------------------------------------------------------------------------------


def code(x: Code | float | str | None) -> Code:
    """A tree of what stands for one: a name, or a number."""
    return x if isinstance(x, Code) else Name(x) if isinstance(x, str) else Literal(x)


def call(function: str, *arguments: Code | float | str, **keywords: Code | float | str) -> Call:
    return Call(function, tuple(map(code, arguments)), tuple((n, code(x)) for n, x in keywords.items()))


def shape(*sizes: Code | float | str) -> Items:
    return Items(tuple(map(code, sizes)), shape=True)


def plus(*parts: Code | float | str) -> Code:
    """A sum as it is read from left to right, also of sums."""
    return _chain("+", parts)


def times(*parts: Code | float | str) -> Code:
    """A product as it is read from left to right, also of products."""
    return _chain("*", parts)


def both(*conditions: Code | str) -> Code:
    """Where all of these hold, entry by entry."""
    return _chain("&", conditions)


def _chain(operator: str, parts: tuple[Code | float | str, ...]) -> Code:
    first, *others = map(code, parts)
    for part in others:
        for x in _links(operator, part):
            first = Binary(operator, first, x)
    return first


def _links(operator: str, x: Code) -> list[Code]:
    return [*_links(operator, x.left), x.right] if isinstance(x, Binary) and x.operator == operator else [x]


def where(condition: Code, then: Code | float, otherwise: Code | float) -> Call:
    return call("tl.where", condition, then, otherwise)


def zeros(sizes: Items) -> Call:
    return call("tl.zeros", sizes, "tl.float32")


def summed(*terms: Code) -> Code:
    """The sum of terms that may be sums themselves, without parentheses."""
    return reduce(lambda a, b: Binary("+", a, b), [x for term in terms for x in _terms(term)])


def _terms(x: Code) -> list[Code]:
    return [*_terms(x.left), x.right] if isinstance(x, Binary) and x.operator == "+" else [x]


def atom(x: Code) -> Code:
    """x, in parentheses where it isn't one operand already."""
    return x if x.level >= ATOM else Group(x)


def product(factors: Iterable[Code]) -> Code:
    """The product of factors, from left to right."""
    return reduce(lambda a, b: Binary("*", a, b), factors)


_FIELDS: dict[type, tuple[str, ...]] = {}  # of each kind of expression, which `fields` looks for anew


def fields_of(of: type) -> tuple[str, ...]:
    if of not in _FIELDS:
        _FIELDS[of] = tuple(f.name for f in fields(of))
    return _FIELDS[of]


def names_in(x: Code) -> frozenset[str]:
    """The names that an expression reads."""
    return x.names


def loads_in(x: Code) -> list[Load]:
    """What it loads."""
    return list(x.loads)
