"""What a function does that launches kernels, as data: tensors are allocated, kernels launched, functions of the runtime called.

Names of tensors, of states and of what else is made on the way are fields (`Expr.names`, `assigned`, `Launch.loads`), and so is
which results a statement is wanted for (`Wanted`, `If.wanted`). Sizes, the configuration and the layout of chunks are words
(`Define`): nothing frees them. `printing/code_passes` is what is done to a function before it is printed;
`printing/launch_text.py` prints it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from .code import Code
from .expr import plain_name
from .quoted import filled, parameters, quoted
from .words import Bound, Words


@dataclass(frozen=True)
class Expr:
    """A Python expression, and the names in it that statements of the function assign. `made_of`: a tree, or a template and
    its parts."""

    text: str
    names: frozenset[str] = frozenset()
    made_of: Code | tuple[str, tuple[Expr | str, ...]] | None = field(default=None, compare=False, repr=False)

    @cached_property
    def words(self) -> Words:
        if self.made_of is None:
            return quoted(self.text)
        if isinstance(self.made_of, Code):
            return self.made_of.words
        template, parts = self.made_of
        return filled(template, [x.words if isinstance(x, Expr) else x for x in parts])

    def __str__(self) -> str:
        raise TypeError(f"an expression in a string would lose what it reads: {self.text}; use py(..)")


def assign_groups(groups: Iterable[tuple[str, ...]], value: Expr) -> Set:
    """Names are those in tuples, of which the value is a tuple."""
    found = tuple(groups)
    return Set(tuple(n for x in found for n in x), value, groups=found)


def assign(names: str | tuple[str, ...], value: Code, several: bool = False) -> Set:
    """names = value; `several`: the value is a tuple, of one name too."""
    return Set((names,) if isinstance(names, str) else names, of_code(value), several=several)


def of_code(x: Code) -> Expr:
    """An expression that is a tree, with the names that it reads."""
    return Expr(x.text, x.names, x)


NONE = Expr("None")


def ref(name: str) -> Expr:
    """What a statement has given this name."""
    return Expr(name, frozenset({name}))


class Entry(str):
    """What stands for an entry of a dictionary, of this name, where statements read or assign it."""

    def __new__(cls, table: str, key: str) -> Entry:
        return super().__new__(cls, f'{table}["{key}"]')

    def __init__(self, table: str, key: str) -> None:
        self.table, self.key = table, key


class Entries(str):
    """What stands for the entries of a dictionary that have the names of another one's, where a loop over that assigns them."""

    def __new__(cls, table: str, names_of: str) -> Entries:
        return super().__new__(cls, f"{table}[names of {names_of}]")

    def __init__(self, table: str, names_of: str) -> None:
        self.table, self.names_of = table, names_of


def entry(table: str, key: str) -> Expr:
    """An entry of a dictionary."""
    name = Entry(table, key)
    return Expr(str(name), frozenset({name}))


def item(table: str, key: str) -> Expr:
    """An entry of a dictionary that the function has made as a whole: whoever reads it reads the dictionary."""
    return Expr(f'{table}["{key}"]', frozenset({table}), ('{}["{}"]', (ref(table), key)))


def py(template: str, *parts: Expr | str | int) -> Expr:
    """An expression of others, put where the template has {}; words are strings."""
    texts = [x.text if isinstance(x, Expr) else str(x) for x in parts]
    names = frozenset[str]().union(*(x.names for x in parts if isinstance(x, Expr)))
    made_of = template, tuple(x if isinstance(x, Expr) else str(x) for x in parts)
    return Expr(template.format(*texts), names, made_of)


def joined(parts: Iterable[Expr | str], separator: str = ", ") -> Expr:
    """Expressions one after the other."""
    found = list(parts)
    return py(separator.join(["{}"] * len(found)), *found)


def dictionary(entries: Iterable[tuple[str, Expr]]) -> Expr:
    """A dictionary with these entries."""
    return py("{{{}}}", joined(py('"{}": {}', n, x) for n, x in entries))


def in_needs(result: str) -> Expr:
    """The condition that a result is wanted."""
    return Expr(f'"{result}" in needs')


def any_wanted(wanted: frozenset[str] | set[str]) -> Expr:
    """The condition that one of these results is wanted."""
    return Expr("needs & {" + ", ".join(f'"{n}"' for n in sorted(wanted, key=plain_name)) + "}")


SOME = Expr("some")


@dataclass(frozen=True)
class Alloc:
    """Room for a tensor of this shape, which a launch fills; `when`: else there is None, as there is under `unless`. `instead`:
    the list of places that it may have; `entry`: what else it is called. Where there is no `dtype`, it is that of
    `like`, which is on the same device."""

    name: str
    shape: Expr
    dtype: str | None = "torch.float32"
    when: Expr | None = None
    unless: Expr | None = None
    instead: Expr | None = None
    entry: Expr | None = None
    like: Expr = SOME


@dataclass(frozen=True)
class Set:
    """names = value, for what is neither room nor the result of a function of the runtime. `each`: of each name it is the value;
    `groups`: it is a tuple of tuples of them; `several`: a tuple, of one too. `in_place`: it is room for another tensor, where
    that of the value lay. `empty`: these are dictionaries that have no entries yet."""

    names: tuple[str, ...]
    value: Expr
    in_place: bool = False
    each: bool = False
    groups: tuple[tuple[str, ...], ...] = ()
    empty: bool = False
    several: bool = False


@dataclass(frozen=True)
class Table:
    """name = a dictionary of rooms and of values, which have their keys for names here."""

    name: str
    entries: tuple[Alloc | Set, ...]

    @property
    def assigns(self) -> tuple[str, ...]:
        keys = [key for x in self.entries for key in ((x.name,) if isinstance(x, Alloc) else x.names)]
        return (self.name, *(f'{self.name}["{key}"]' for key in keys))


@dataclass(frozen=True)
class Call:
    """names = function(arguments), of the runtime or of torch; `lines`: with each argument on a line of its own."""

    names: tuple[str, ...]
    function: str
    arguments: tuple[Expr, ...]
    lines: bool = False


@dataclass(frozen=True)
class Define:
    """names = value, for words: sizes, the configuration, the layout of chunks, of which nothing is freed."""

    names: tuple[str, ...]
    value: Expr


STEPS, HEADS, TILES = "steps", "heads", "tiles"


@dataclass(frozen=True)
class Passed:
    """An argument of a launch; does the kernel load what it is given, and does it store there? `over`: of what programs differ
    in, that which the places differ in where it stores. `wanted`: the results that it is given for, if not for any."""

    value: Expr
    loads: bool = True
    stores: bool = False
    over: frozenset[str] = frozenset()
    wanted: frozenset[str] | None = None


def stored(value: Expr, tiles: bool = False) -> Passed:
    """An argument that a kernel stores to alone, each program to places of its own; if there are `tiles`, each of these."""
    return Passed(value, loads=False, stores=True, over=frozenset({STEPS, HEADS, *([TILES] if tiles else [])}))


@dataclass(frozen=True)
class Launch:
    """The launch of a kernel over a grid of programs: tensors, then where chunks are, then words by name; `more` on a line
    of their own. `programs`: what programs differ in, of STEPS (or chunks, or parts of sequences), HEADS and TILES. `roles`: the
    words for the sizes and blocks of a state's axes, where a kernel whose warps have roles may take the kernel's place;
    `chooser`: the function of the runtime that says whether it does. `alone`: there is none without roles. `small_range`: it
    stores what it makes of the chunks whose decays have a small range, or (False) of the others; None: of all."""

    kernel: str
    grid: Expr
    arguments: tuple[Passed, ...]
    places: tuple[Expr, ...]
    words: tuple[tuple[str, Expr], ...]
    more: tuple[tuple[str, Expr], ...] = ()
    programs: frozenset[str] = frozenset({STEPS, HEADS})
    roles: tuple[str, ...] = ()
    chooser: str = "launch_with_roles"
    alone: bool = False
    small_range: bool | None = None

    @property
    def loads(self) -> frozenset[str]:
        return frozenset[str]().union(*(x.value.names for x in self.arguments if x.loads))

    @property
    def stores(self) -> frozenset[str]:
        return frozenset[str]().union(*(x.value.names for x in self.arguments if x.stores))


@dataclass(frozen=True)
class Update:
    """name |= value, for a dictionary."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Do:
    """What assigns no name: an entry is set, or a function called for what it does. `stores`: names of room that it
    stores to, each time to a part of its own, or `Entries`, where a loop sets one at a time."""

    text: Expr
    stores: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Return:
    value: Expr | Call


@dataclass(frozen=True)
class Free:
    """The last use of these has been: their memory may be used anew."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class If:
    """`wanted`: the results that the body is for, where the condition says that one of these is wanted."""

    condition: Expr
    body: Body
    otherwise: Body = ()
    comment: str = ""
    wanted: frozenset[str] | None = None


@dataclass(frozen=True)
class Wanted:
    """Statements that are for some results alone: gradients of variables, and of initial states."""

    wanted: frozenset[str]
    body: Body


@dataclass(frozen=True)
class Note:
    """A comment, of what follows."""

    text: str


@dataclass(frozen=True)
class Local:
    """A function inside another one, whose names it reads."""

    function: Function

    @property
    def outer(self) -> frozenset[str]:
        """The names that it reads of the other one's."""
        body = self.function.body
        own = self.function.parameters.union(*map(assigned, body))
        return frozenset[str]().union(*map(reads, body)) - own


@dataclass(frozen=True)
class For:
    """for names in over; `tensors` are those of them that are parts of the tensors in `over`, or entries of a dictionary
    there; the others are words, or what a function in `over` makes of tensors."""

    names: tuple[str, ...]
    over: Expr
    body: Body
    tensors: tuple[str, ...] = ()


Statement = (
    Alloc | Set | Table | Call | Define | Launch | Update | Do | Return | Free | If | Wanted | For | Note | Local
)
Body = tuple[Statement, ...]


@dataclass(frozen=True)
class Function:
    """A function. `results` are all that may be wanted of it; `frees`: it lets go of large tensors on the way."""

    name: str
    head: str
    doc: str
    body: Body
    results: frozenset[str] = frozenset()
    frees: bool = True

    @property
    def head_words(self) -> Words:
        return parameters(self.head)

    @property
    def parameters(self) -> frozenset[str]:
        return frozenset(str(x) for x in self.head_words if isinstance(x, Bound))


def inner(x: Statement) -> Body:
    """The statements inside a statement."""
    match x:
        case If(body=body, otherwise=otherwise):
            return (*body, *otherwise)
        case Wanted(body=body) | For(body=body):
            return body
    return ()


def statements(body: Iterable[Statement]) -> Iterator[Statement]:
    """All statements of a body, those inside others too."""
    for x in body:
        yield x
        yield from statements(inner(x))


def expressions(x: Statement) -> list[Expr]:
    """The expressions of a statement itself, without those of the statements inside it."""
    match x:
        case Alloc():
            return [x.shape, x.like, *(e for e in (x.when, x.unless, x.instead, x.entry) if e is not None)]
        case Table(entries=entries):
            return [e for y in entries for e in expressions(y)]
        case Return(value=Call(arguments=arguments)):
            return [*arguments]
        case Set(value=value) | Define(value=value) | Return(value=Expr() as value):
            return [value]
        case Call(arguments=arguments):
            return [*arguments]
        case Launch(grid=grid, arguments=arguments, places=places, words=words, more=more):
            return [grid, *(a.value for a in arguments), *places, *(w for _, w in (*words, *more))]
        case Update(name=name, value=value):
            return [ref(name), value]
        case Do(text=text):
            return [text]
        case If(condition=condition):
            return [condition]
        case For(over=over):
            return [over]
        case Local(function=function):
            return [Expr(function.name, x.outer)]
    return []


def reads(x: Statement) -> frozenset[str]:
    """The names that a statement reads, with those inside it."""
    own = frozenset[str]().union(*(e.names for e in expressions(x)))
    return own.union(*map(reads, inner(x)))


def assigned(x: Statement) -> frozenset[str]:
    """The names that a statement assigns, with those inside it."""
    own: tuple[str, ...] = ()
    match x:
        case Table():
            own = x.assigns
        case Local(function=function):
            own = (function.name,)
        case Alloc(name=name) | Update(name=name):
            own = (name,)
        case Set(names=names) | Call(names=names) | Define(names=names) | Free(names=names) | For(names=names):
            own = names
    return frozenset(own).union(*map(assigned, inner(x)))
