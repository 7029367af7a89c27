"""Code as words, before it is text: a sequence of strings, of which names, strings and comments say what they are.

Whatever has to be known of code that is to be printed, such as what a function takes from outside, is asked of
its words; they are put together to text once, at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

W = TypeVar("W", bound=str)


class Word(str):
    """What isn't a sign of Python, nor white space."""

    __slots__ = ()


class Read(Word):
    """A name that is read."""

    __slots__ = ()


class Bound(Word):
    """A name that a function gives to a value inside of it: a variable, or a parameter."""

    __slots__ = ()


class Default(Bound):
    """A parameter that calls may leave out, or name."""

    __slots__ = ()


class Defined(Word):
    """A name that a file has for what is defined in it."""

    __slots__ = ()


class Member(Word):
    """What a value, or a module, has of this name."""

    __slots__ = ()


class Keyword(Word):
    """The name of an argument in a call."""

    __slots__ = ()


class Said(Word):
    """A string, or a comment."""

    __slots__ = ()


Words = tuple[str, ...]


def named(word: W, name: str) -> W:
    """A word of the same kind."""
    return type(word)(name)


def listed(some: Iterable[Words], separator: str = ", ") -> Words:
    """One behind the other."""
    found: list[str] = []
    for n, x in enumerate(some):
        found += (separator, *x) if n else x
    return tuple(found)


def inset(lines: Iterable[Words], by: str = "    ") -> list[Words]:
    """Lines further to the right."""
    return [(by, *x) if x else x for x in lines]


def definition(lines: Iterable[Words], end: str = "") -> Definition:
    """A function of these lines, with so much white space behind it."""
    return Definition((*listed(lines, "\n"), *([end] if end else [])))


@lru_cache(1 << 14)
def path(name: str, kind: type[Word] = Read) -> Words:
    """A name, or what a module has of it, such as tl.dot.

    Raises ValueError where it is anything else: an expression in a string would hide what it reads.
    """
    if not all(x.isidentifier() for x in name.split(".")):
        raise ValueError(f"expected a name, got {name!r}")
    first, *rest = name.split(".")
    return (kind(first), *(y for x in rest for y in (".", Member(x))))


@dataclass(frozen=True)
class Definition:
    """A function of a file, or another statement that stands at its margin, with the white space behind it."""

    words: Words
    is_function: bool = True

    def __str__(self) -> str:
        return self.text

    @cached_property
    def text(self) -> str:
        return "".join(self.words)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What the file has for it."""
        return tuple(str(x) for x in self.words if isinstance(x, Defined))

    @cached_property
    def bound(self) -> frozenset[str]:
        """The names of its own."""
        return frozenset(str(x) for x in self.words if isinstance(x, Bound))

    @cached_property
    def outside(self) -> frozenset[str]:
        """The names that it takes from outside."""
        return frozenset(str(x) for x in self.words if isinstance(x, Read)) - self.bound

    def before(self, space: str) -> Definition:
        """It with more white space behind it."""
        return Definition((*self.words, space), self.is_function)

    def alone(self) -> Definition:
        """It without the white space behind it."""
        words = list(self.words)
        while words and not isinstance(words[-1], Word):
            last = words.pop().rstrip()
            if last:
                words.append(last)
                break
        return Definition(tuple(words), self.is_function)

    def renamed(self, names: Mapping[str, str]) -> Definition:
        """It with other names for what the file has."""
        own = {n: other for n, other in names.items() if n not in self.bound}
        found = (named(x, own[x]) if isinstance(x, Read | Defined) and x in own else x for x in self.words)
        return Definition(tuple(found), self.is_function)


Definitions = tuple[Definition, ...]


def defined(some: Iterable[Definition]) -> dict[str, Definition]:
    """Definitions by their names."""
    return {n: x for x in some for n in x.names}


def outside(some: Iterable[Definition]) -> frozenset[str]:
    """What definitions take from outside of themselves."""
    return frozenset[str]().union(*(x.outside for x in some))


def text_of(some: Iterable[Definition]) -> str:
    """Their text, one behind the other."""
    return "".join(x.text for x in some)


def joined(some: Iterable[Definitions], space: str = "\n\n\n") -> Definitions:
    """Groups of definitions, with so much white space between each two groups."""
    groups = [x for x in some if x]
    return tuple(y for x in groups[:-1] for y in (*x[:-1], x[-1].before(space))) + (groups[-1] if groups else ())


def apart(some: Iterable[Definition], end: str = "") -> Definitions:
    """Definitions with two empty lines between each two, and so much white space at the end."""
    *others, last = [x.alone() for x in some]
    return joined([*((x,) for x in others), (last.before(end) if end else last,)])


def reached(some: Iterable[Definition], roots: Iterable[str]) -> Iterator[Definition]:
    """The definitions that the roots need, in their order."""
    some = tuple(some)
    by_name = defined(some)
    used: set[str] = set()
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name not in used:
            used.add(name)
            todo += by_name[name].outside & by_name.keys()
    return (x for x in some if used.intersection(x.names))
