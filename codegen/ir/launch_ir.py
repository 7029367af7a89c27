"""What a function does that launches kernels, as data: tensors are allocated, kernels launched, functions of the runtime called.

Names of tensors, of states and of what else is made on the way are fields (`Expr.names`, `assigned`, `Launch.loads`), and so is
which results a statement is wanted for (`Wanted`, `If.wanted`). Sizes, the configuration and the layout of chunks are words
(`Define`): nothing frees them. `printing/code_passes` is what is done to a function before it is printed;
`printing/launch_text.py` prints it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .code import Code, Literal, Name
from .expr import plain_name
from .python_code import Entry, EntryName, Fixed, Part, SetOf, isin, of, said


def assign_groups(groups: Iterable[tuple[str, ...]], value: Code) -> Set:
    """Names are those in tuples, of which the value is a tuple."""
    found = tuple(groups)
    return Set(tuple(n for x in found for n in x), value, groups=found)


def assign(names: str | tuple[str, ...], value: Code, several: bool = False) -> Set:
    """names = value; `several`: the value is a tuple, of one name too."""
    return Set((names,) if isinstance(names, str) else names, value, several=several)


NONE = Literal(None)


def ref(name: str) -> Name:
    """What a statement has given this name."""
    return EntryName(name) if isinstance(name, Entry) else Name(name)


class Entries(str):
    """What stands for the entries of a dictionary that have the names of another one's, where a loop over that assigns them."""

    def __new__(cls, table: str, names_of: str) -> Entries:
        return super().__new__(cls, f"{table}[names of {names_of}]")

    def __init__(self, table: str, names_of: str) -> None:
        self.table, self.names_of = table, names_of


def entry(table: str, key: str) -> EntryName:
    """An entry of a dictionary."""
    return EntryName(Entry(table, key))


def item(table: str, key: str) -> Code:
    """An entry of a dictionary that the function has made as a whole: whoever reads it reads the dictionary."""
    return ref(table)[key]


def put(target: Code, value: Code, sign: str = "=", stores: frozenset[str] = frozenset()) -> Do:
    """What is at a place is another value from here on, or has one added."""
    return Do(value, stores, target, sign)


def in_needs(result: str) -> Code:
    """The condition that a result is wanted."""
    return isin(said(result), "needs")


def any_wanted(wanted: frozenset[str] | set[str]) -> Code:
    """The condition that one of these results is wanted."""
    return Fixed("needs") & SetOf(tuple(said(n) for n in sorted(wanted, key=plain_name)))


SOME = Fixed("some")


@dataclass(frozen=True)
class Alloc:
    """Room for a tensor of this shape, which a launch fills; `when`: else there is None, as there is under `unless`. `instead`:
    the list of places that it may have; `entry`: what else it is called. Where there is no `dtype`, it is that of
    `like`, which is on the same device."""

    name: str
    shape: Code
    dtype: str | Code | None = "torch.float32"
    when: Code | None = None
    unless: Code | None = None
    instead: Code | None = None
    entry: Code | None = None
    like: Code = SOME


@dataclass(frozen=True)
class Set:
    """names = value, for what is neither room nor the result of a function of the runtime. `each`: of each name it is the value;
    `groups`: it is a tuple of tuples of them; `several`: a tuple, of one too. `in_place`: it is room for another tensor, where
    that of the value lay. `empty`: these are dictionaries that have no entries yet."""

    names: tuple[str, ...]
    value: Code
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
    arguments: tuple[Code, ...]
    lines: bool = False


@dataclass(frozen=True)
class Define:
    """names = value, for words: sizes, the configuration, the layout of chunks, of which nothing is freed."""

    names: tuple[str, ...]
    value: Code


STEPS, HEADS, TILES = "steps", "heads", "tiles"


@dataclass(frozen=True)
class Passed:
    """An argument of a launch; does the kernel load what it is given, and does it store there? `over`: of what programs differ
    in, that which the places differ in where it stores. `wanted`: the results that it is given for, if not for any."""

    value: Code
    loads: bool = True
    stores: bool = False
    over: frozenset[str] = frozenset()
    wanted: frozenset[str] | None = None


def stored(value: Code, tiles: bool = False) -> Passed:
    """An argument that a kernel stores to alone, each program to places of its own; if there are `tiles`, each of these."""
    return Passed(value, loads=False, stores=True, over=frozenset({STEPS, HEADS, *([TILES] if tiles else [])}))


@dataclass(frozen=True)
class Launch:
    """The launch of a kernel over a grid of programs: tensors, then where chunks are, then words by name; `more` on a line
    of their own. `programs`: what programs differ in, of STEPS (or chunks, or parts of sequences), HEADS and TILES. `roles`: the
    words for the sizes and blocks of a state's axes, where a kernel whose warps have roles may take the kernel's place;
    `chooser`: the function of the runtime that says whether it does; `instead`: that kernel, where it is none with roles.
    `alone`: there is none without roles. `small_range`: it stores what it makes of the chunks whose decays have a small range, or
    (False) of the others; None: of all."""

    kernel: str
    grid: Code
    arguments: tuple[Passed, ...]
    places: tuple[Code, ...]
    words: tuple[tuple[str, Code], ...]
    more: tuple[tuple[str, Code], ...] = ()
    programs: frozenset[str] = frozenset({STEPS, HEADS})
    roles: tuple[str, ...] = ()
    chooser: str = "launch_with_roles"
    instead: str = ""
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
    value: Code


@dataclass(frozen=True)
class Do:
    """What assigns no name: an entry is set to a value, or added to, as `sign` has it; or a function is called for what it does.
    `stores`: names of room that it stores to, each time to a part of its own, or `Entries`, where a loop sets one at a time."""

    value: Code
    stores: frozenset[str] = frozenset()
    target: Code | None = None
    sign: str = "="


@dataclass(frozen=True)
class Break:
    """No more rounds of the loop."""


@dataclass(frozen=True)
class Return:
    value: Code | Call


@dataclass(frozen=True)
class Free:
    """The last use of these has been: their memory may be used anew."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class If:
    """`wanted`: the results that the body is for, where the condition says that one of these is wanted."""

    condition: Code
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
    over: Code
    body: Body
    tensors: tuple[str, ...] = ()


Statement = (
    Alloc
    | Set
    | Table
    | Call
    | Define
    | Launch
    | Update
    | Do
    | Break
    | Return
    | Free
    | If
    | Wanted
    | For
    | Note
    | Local
)
Body = tuple[Statement, ...]


@dataclass(frozen=True)
class Given:
    """What a function is given, under this name, or what it is where it isn't given. `type` and `named`: how it is annotated, and
    whether it is given by name alone."""

    name: str
    default: Code | None = None
    type: str = ""
    named: bool = False

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"expected a name, got {self.name!r}")


def takes(*names: str, **defaults: Part) -> tuple[Given, ...]:
    """What a function is given; those that may be left out are last, with what they are then."""
    return (*map(Given, names), *(Given(n, of(x)) for n, x in defaults.items()))


@dataclass(frozen=True)
class Function:
    """A function. `results` are all that may be wanted of it; `frees`: it lets go of large tensors on the way; `returns`: the
    type of what it returns, where it is annotated."""

    name: str
    given: tuple[Given, ...]
    doc: str
    body: Body
    results: frozenset[str] = frozenset()
    frees: bool = True
    returns: str = ""

    @property
    def parameters(self) -> frozenset[str]:
        return frozenset(x.name for x in self.given)


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


def expressions(x: Statement) -> list[Code]:
    """The expressions of a statement itself, without those of the statements inside it."""
    match x:
        case Alloc():
            return [x.shape, x.like, *(e for e in (x.when, x.unless, x.instead, x.entry) if e is not None)]
        case Table(entries=entries):
            return [e for y in entries for e in expressions(y)]
        case Return(value=Call(arguments=arguments)):
            return [*arguments]
        case Set(value=value) | Define(value=value) | Return(value=Code() as value):
            return [value]
        case Call(arguments=arguments):
            return [*arguments]
        case Launch(grid=grid, arguments=arguments, places=places, words=words, more=more):
            return [grid, *(a.value for a in arguments), *places, *(w for _, w in (*words, *more))]
        case Update(name=name, value=value):
            return [ref(name), value]
        case Do(value=value, target=target):
            return [value] if target is None else [target, value]
        case If(condition=condition):
            return [condition]
        case For(over=over):
            return [over]
        case Local():
            return [*map(ref, sorted(x.outer))]
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
