"""Expressions that kernels don't have: names of a file, dictionaries, sets, functions and loops inside of an expression."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .code import ATOM, CONDITIONAL, OR, Binary, Call, Code, Either, Items, Literal, Method, Name, Tree, code
from .words import Bound, Keyword, Read, Said, Words, listed, path

Part = Code | str | float | None  # of an expression: a string is a name that is fixed


@dataclass(frozen=True)
class Fixed(Tree):
    """A name of which nothing is freed: of a size, of the configuration, of what the file has."""

    id: str

    def __post_init__(self) -> None:
        path(self.id)  # which refuses what is none

    def printed(self) -> Words:
        return path(self.id)


class Entry(str):
    """What stands for an entry of a dictionary, of this name, where statements read or assign it."""

    def __new__(cls, table: str, key: str) -> Entry:
        return super().__new__(cls, f'{table}["{key}"]')

    def __init__(self, table: str, key: str) -> None:
        self.table, self.key = table, key


@dataclass(frozen=True)
class EntryName(Name):
    """An entry of a dictionary that is read and assigned as a name is."""

    id: Entry

    def printed(self) -> Words:
        return (Read(self.id.table), "[", Said(f'"{self.id.key}"'), "]")


@dataclass(frozen=True)
class Row(Tree):
    """A tuple, with a comma after each."""

    values: tuple[Code, ...]

    def printed(self) -> Words:
        return ("(", *(y for x in self.values for y in (*x.words, ", ")), ")")


@dataclass(frozen=True)
class Constant(Tree):
    """A value that a file has, such as a tuple of strings, as Python shows it."""

    value: object

    def printed(self) -> Words:
        return (Said(repr(self.value)),)


@dataclass(frozen=True)
class Named(Tree):
    """An argument that is given by its name."""

    name: str
    value: Code

    def printed(self) -> Words:
        return (Keyword(self.name), "=", *self.value.words)


@dataclass(frozen=True)
class Spread(Tree):
    """All entries of a dictionary, in another one, or as arguments of these names."""

    value: Code

    def printed(self) -> Words:
        return ("**", *self.value.words_at(ATOM))


@dataclass(frozen=True)
class Dictionary(Tree):
    """`closed`: with a comma after the last entry."""

    entries: tuple[tuple[str, Code] | Spread, ...] = ()
    closed: bool = False

    def printed(self) -> Words:
        entries = (x.words if isinstance(x, Spread) else (Said(f'"{x[0]}"'), ": ", *x[1].words) for x in self.entries)
        return ("{", *listed(entries), ",}" if self.closed else "}")


@dataclass(frozen=True)
class SetOf(Tree):
    values: tuple[Code, ...]

    def printed(self) -> Words:
        return ("{", *listed(x.words for x in self.values), "}")


@dataclass(frozen=True)
class Each(Tree):
    """A value for each of what is `bound` in `over`, of which `when` holds: a list; a dictionary of these, where there is a
    `key`; where it is `bare`, what a function is given."""

    value: Code
    bound: tuple[str, ...]
    over: Code
    when: Code | None = None
    key: str = ""
    bare: bool = False

    def printed(self) -> Words:
        before, after = ("", "") if self.bare else ("{", "}") if self.key else ("[", "]")
        key = (Read(self.key), ": ") if self.key else ()
        when = () if self.when is None else (" if ", *self.when.words_at(OR))
        names = listed((Bound(x),) for x in self.bound)
        return (before, *key, *self.value.words, " for ", *names, " in ", *self.over.words_at(OR), *when, after)


@dataclass(frozen=True)
class Invoked(Tree):
    """What a function makes that is a value itself."""

    function: Code
    arguments: tuple[Code, ...] = ()

    def printed(self) -> Words:
        return (*self.function.words_at(ATOM), "(", *listed(x.words for x in self.arguments), ")")


@dataclass(frozen=True)
class Lambda(Tree):
    """A function without a name."""

    parameters: tuple[str, ...]
    value: Code

    @property
    def level(self) -> int:
        return CONDITIONAL

    def printed(self) -> Words:
        names = listed((Bound(x),) for x in self.parameters)
        return ("lambda", *((" ", *names) if names else ()), ": ", *self.value.words_at(CONDITIONAL))


# --- making them ----------------------------------------------------------------------------------------------------


def of(x: Part) -> Code:
    """An expression of what stands for one: a fixed name, or a number."""
    return Fixed(x) if isinstance(x, str) else code(x)


def leaf_code(x: Code | str) -> Code:
    """What a leaf is called: a name of the function's, or a member of one."""
    return x if isinstance(x, Code) else Name(x) if x.isidentifier() else Fixed(x)


def made_by(function: str, *arguments: Part, **keywords: Part) -> Call:
    """What a function makes."""
    return Call(function, _apart(arguments), tuple((n, of(x)) for n, x in keywords.items()))


def method(value: Part, name: str, *arguments: Part, **keywords: Part) -> Method:
    """What a method of a value makes."""
    return Method(of(value), name, _apart(arguments), tuple((n, of(x)) for n, x in keywords.items()))


def said(x: str) -> Literal:
    """A string."""
    return Literal(x)


def literal(x: object) -> Code:
    """A value as Python has it: a string, a number, a tuple, or a dictionary, of such."""
    if isinstance(x, list | tuple):
        return Row(tuple(map(literal, x)))
    if isinstance(x, dict):
        return dictionary((n, literal(y)) for n, y in x.items())
    if x is None or isinstance(x, str | int | float):
        return Literal(x)
    raise TypeError(f"expected a string, a number or a tuple of these, got {x!r}")


def several(*values: Part) -> Items:
    """A tuple, in parentheses."""
    return Items(_apart(values))


def beside(*values: Part) -> Code:
    """A tuple without parentheses, or the only one that there is."""
    found = _apart(values)
    return found[0] if len(found) == 1 else Items(found, bare=True)


def a_list(*values: Part) -> Items:
    return Items(_apart(values), shape=True)


def _apart(values: Iterable[Part]) -> tuple[Code, ...]:
    """Values, with those of a tuple without parentheses as such."""
    found: list[Code] = []
    for x in map(of, values):
        found += x.values if isinstance(x, Items) and x.bare else (x,)
    return tuple(found)


def dictionary(entries: Iterable[tuple[str, Code] | Spread]) -> Dictionary:
    """A dictionary with these entries."""
    return Dictionary(tuple(entries))


def choice(then: Part, condition: Part, otherwise: Part) -> Either:
    """One value if a condition holds, else the other."""
    return Either(of(then), of(condition), of(otherwise))


def either(*conditions: Part) -> Code:
    return _chained("or", conditions)


def also(*conditions: Part) -> Code:
    """Where all of these conditions hold."""
    return _chained("and", conditions)


def isin(x: Part, some: Part) -> Code:
    return Binary("in", of(x), of(some))


def _chained(operator: str, parts: tuple[Part, ...]) -> Code:
    first, *others = [y for x in map(of, parts) for y in _links(operator, x)]
    for x in others:
        first = Binary(operator, first, x)
    return first


def _links(operator: str, x: Code) -> list[Code]:
    """The conditions of a chain, one after the other."""
    return [*_links(operator, x.left), x.right] if isinstance(x, Binary) and x.operator == operator else [x]


EMPTY = Dictionary()
TRUE, FALSE = Literal(True), Literal(False)
