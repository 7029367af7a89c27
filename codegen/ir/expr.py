"""The compiler's expression graph: small, immutable, hash-consed tensor expressions over named axes.

An axis is a name; primes tell apart several axes of one size (`d` and `d'` both have the size of dim d). Terms broadcast
over the union of their axes, so an outer product is `mul` and a contraction is `sum` of `mul`. Two equal expressions are the
same object. Constructors simplify as they build, and keep meaning exactly.

Operations (`op`): leaf, const, number, size, eye, add, mul, pow, fn, max, sum, peak, and those of chunk programs (see
`chunk_program.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import lru_cache
from operator import attrgetter
from typing import Any, ClassVar
from weakref import WeakValueDictionary

LETTERS = (
    0x14400  # an alphabet in which the names of specs are printed (`letters.py`): the letter of code n is LETTERS + n
)
_PLAIN = {LETTERS + n: chr(n % 128) for n in range(256)}
UNIT = Fraction(1)
BY_KEY = attrgetter("key")
ROW, COL = "%i", "%j"  # the steps of a chunk, as rows and as columns
INNER = "%ik"  # and once more; sorts between the two, so that renamed matrices keep rows before columns

# What stands in keys for operations and kinds of leaves. Keys order terms, and so the statements of kernels, by which registers
# spill or don't: where a word changes, its key stays, and with it all kernels as they were verified and measured.
IN_KEYS = {
    "state-adjoint product": "pairing",
    "raw state-adjoint product": "raw pairing",
    "prologue": "ahead",
    "transition": "weight",
    **{f"transition_{x}": f"mix_{x}" for x in ("mask", "in", "out", "all", "products")},
}


class Node:
    """One expression. `axes` are its free axes, sorted; `attrs` whatever else the operation needs.

    `key` orders nodes, whichever alphabet their names are in; `identity` tells them apart.
    """

    __slots__ = ("__weakref__", "args", "attrs", "axes", "identity", "key", "made_of", "op")
    made_of: frozenset[tuple[str, str]] | None  # see `leaf_names`
    op: str
    args: tuple[Node, ...]
    attrs: tuple
    axes: tuple[str, ...]
    key: str
    identity: str
    written: ClassVar[Callable[[Node], str]]  # for people: `notation.plain`, put here by this package's __init__

    def __repr__(self) -> str:
        return Node.written(self)

    def __lt__(self, other: Node) -> bool:
        return self.key < other.key

    def __add__(self, other: object) -> Node:
        return add(self, other)

    def __sub__(self, other: object) -> Node:
        return add(self, mul(-1, other))

    def __neg__(self) -> Node:
        return mul(-1, self)

    def __mul__(self, other: object) -> Node:
        return mul(self, other)

    __radd__, __rmul__ = __add__, __mul__


_interned: WeakValueDictionary[str, Node] = WeakValueDictionary()
_made: WeakValueDictionary[tuple, Node] = (
    WeakValueDictionary()
)  # by parts, of operations whose attributes say their types
PLAIN = frozenset("leaf const number size eye add mul pow fn max sum expand".split())


def make(op: str, args: tuple[Node, ...] = (), attrs: tuple = (), axes: Iterable[str] = ()) -> Node:
    """The node with these parts, as it is: no simplification."""
    free = tuple(sorted(set(axes)))
    parts = (op, args, attrs, free)
    if op in PLAIN:  # in other attributes 1 and True are equal, and not the same
        known = _made.get(parts)
        if known is not None:
            return known
    if not all(map(str.isascii, free)):
        free = tuple(sorted(free, key=plain_name))
    own = repr(_in_order(op, attrs, free))
    key = identity = _digest(plain_name(own) + "".join([a.key for a in args]))
    if not own.isascii() or any(a.identity is not a.key for a in args):
        identity = _digest("other letters " + own + "".join([a.identity for a in args]))
    node = _interned.get(identity)
    if node is None:
        node = Node()
        node.op, node.args, node.attrs, node.axes, node.made_of = op, args, attrs, free, None
        node.key, node.identity = key, identity
        _interned[identity] = node
    if op in PLAIN:
        _made[parts] = node
    return node


def _in_order(op: str, attrs: tuple, free: tuple[str, ...]) -> tuple:
    """What a key is made of: these, with what stands for words."""
    if op == "leaf":
        attrs = (in_keys(attrs[0]), *attrs[1:])
    return in_keys(op), attrs, free


def in_keys(word: str) -> str:
    """What stands in keys, and in names that are made of them, for an operation or a kind of leaves."""
    return IN_KEYS.get(word, word)


def plain_name(text: str) -> str:
    """A text in ASCII letters, where it has names in the other alphabet."""
    return text if text.isascii() else text.translate(_PLAIN)


def identifier(text: str) -> str:
    """A text as a name: with an underscore for each sign that no name has."""
    return "".join(x if x.isalnum() else "_" for x in text)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# --- leaves ---------------------------------------------------------------------------------------------------------


def leaf(kind: str, name: str, axes: Iterable[str] = ()) -> Node:
    """A named quantity. `axes` are in the order in which the quantity is stored."""
    order = tuple(axes)
    if len(set(order)) != len(order):
        raise ValueError(f"{name} has an axis twice: {order}")
    return make("leaf", (), (kind, name, order), order)


@lru_cache(maxsize=2**12)
def const(value: int | Fraction) -> Node:
    return make("const", (), (Fraction(value),))


def number(text: str) -> Node:
    """An irrational constant, given as SymPy text."""
    return make("number", (), (text,))


def size(dim: str) -> Node:
    """The size of a dim, as a number."""
    return make("size", (), (dim,))


def eye(a: str, b: str) -> Node:
    return make("eye", (), tuple(sorted((a, b))), (a, b))


ZERO, ONE = const(0), const(1)


def as_node(x: Any) -> Node:
    return x if isinstance(x, Node) else const(x)


class Kept(str):
    """A square state's kept axis, beside the contracted one of the same `dim`: sizes and indices of it are its own."""

    dim: str

    def __new__(cls, dim: str) -> Kept:
        found = super().__new__(cls, f"{dim}~")
        found.dim = dim
        return found


def is_of_steps(axis: str) -> bool:
    """Do the steps of a chunk lie along it?"""
    return axis[0] == ROW[0]


def dim_of(axis: str) -> str:
    return axis if isinstance(axis, Kept) else axis.rstrip("'")


# --- arithmetic -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2**14)
def add(*terms: Any) -> Node:
    """The sum, with constants folded and equal terms collected."""
    total: Fraction | int = 0
    coefficients: dict[Node, Fraction] = {}
    stack = [as_node(x) for x in reversed(terms)]
    while stack:
        x = stack.pop()
        if x.op == "add":
            stack.extend(reversed(x.args))
        elif x.op == "const":
            total += x.attrs[0]
        else:
            c, core = split_constant(x)
            coefficients[core] = coefficients[core] + c if core in coefficients else c
    parts = sorted([_multiple(c, core) for core, c in coefficients.items() if c], key=BY_KEY)
    for core, c in coefficients.items():
        if c and core.op == "max" and (turned := _turned(core, c, total, coefficients)) is not None:
            return turned
    if total:
        parts.insert(0, const(total))
    if not parts:
        return ZERO
    if len(parts) == 1:
        return parts[0]
    return make("add", tuple(parts), (), {a for p in parts for a in p.axes})


def _turned(largest: Node, c: Fraction, whole: Fraction | int, coefficients: dict[Node, Fraction]) -> Node | None:
    """A sum with a - max(a, b) as -max(0, b - a), if it gets shorter so: of a maximum that is subtracted nothing is left then
    where it is what it is subtracted from, whatever rounding does."""
    others = {core: n for core, n in coefficients.items() if n and core is not largest}
    for a in largest.args:
        number, own = whole, {core: n for n, core in map(split_constant, terms_of(a))}
        if not any(others.get(core) == -c * n for core, n in own.items()):
            continue
        other = mul(c, maximum(*(add(b, mul(-1, a)) for b in largest.args)))
        left = {core: n + c * own.get(core, 0) for core, n in others.items()}
        left |= {core: c * n for core, n in own.items() if core not in left}
        number += left.pop(ONE, 0)
        left = {core: n for core, n in left.items() if n}
        if len(left) + len(terms_of(other)) + bool(number) < len(others) + 1 + bool(whole):
            return add(number, *(_multiple(n, core) for core, n in left.items()), other)
    return None


def split_constant(x: Node) -> tuple[Fraction, Node]:
    """x as (number, rest)."""
    if x.op == "const":
        return x.attrs[0], ONE
    if x.op == "mul" and x.args[0].op == "const":
        rest = x.args[1:]
        return x.args[0].attrs[0], rest[0] if len(rest) == 1 else make("mul", rest, (), x.axes)
    return UNIT, x


def _multiple(c: Fraction, core: Node) -> Node:
    """A number times a term of a sum, which has none before it."""
    if core.op in ("add", "const", "mul", "pow", "eye"):  # which may be put together for print, and be simplified here
        return mul(c, core)
    return core if c == 1 else make("mul", (const(c), core), (), core.axes)


@lru_cache(maxsize=2**16)  # most products that passes ask for were made before
def mul(*factors: Any) -> Node:
    """The product, entry by entry over the union of the axes."""
    coefficient: Fraction | int = 1
    powers: dict[Node, Fraction | int] = {}
    roots: dict[Node, list[Fraction]] = {}
    others: set[Node] = set()
    stack = [as_node(x) for x in reversed(factors)]
    while stack:
        x = stack.pop()
        if x.op == "mul":
            stack.extend(reversed(x.args))
        elif x.op == "const":
            coefficient *= x.attrs[0]
        elif x.op == "pow" and x.attrs[0].denominator != 1:
            roots.setdefault(x.args[0], []).append(x.attrs[0])
        elif x.op == "pow":
            powers[x.args[0]] = powers.get(x.args[0], 0) + x.attrs[0]
        elif x.op == "eye":
            others.add(x)  # of entries 0 and 1, so its square is itself
        else:
            powers[x] = powers.get(x, 0) + 1
    if not coefficient:
        return ZERO
    for base, exponents in roots.items():  # several roots of one base are one root, and a power: no factor comes twice
        n = sum(exponents, Fraction(0))
        whole = int(n) if len(exponents) > 1 else 0
        if len(exponents) > 1:
            powers[base] = powers.get(base, 0) + whole
        if n != whole:
            others.add(power(base, n - whole))
    parts = [*(base if n == 1 else power(base, n) for base, n in powers.items() if n), *others]
    parts.sort(key=BY_KEY)
    if not parts:
        return const(coefficient)
    if coefficient != 1:
        if len(parts) == 1 and parts[0].op == "add":
            return add(*(mul(coefficient, x) for x in parts[0].args))
        parts.insert(0, const(coefficient))
    if len(parts) == 1:
        return parts[0]
    lost = {a for base, n in powers.items() if not n for a in base.axes} - {a for p in parts for a in p.axes}
    node = make("mul", tuple(parts), (), {a for p in parts for a in p.axes})
    return expand(node, lost) if lost else node


def power(x: Node, n: Any) -> Node:
    n = Fraction(n)
    if n == 1:
        return x
    if n == 0:
        return ONE
    if x.op == "const" and n.denominator == 1:
        return const(x.attrs[0] ** n.numerator)
    if x.op == "pow" and n.denominator == 1:
        return power(x.args[0], x.attrs[0] * n)
    return make("pow", (x,), (n,), x.axes)


def fn(name: str, x: Node) -> Node:
    """A scalar function from the table in `functions.py`, applied to each entry."""
    return make("fn", (x,), (name,), x.axes)


def maximum(*terms: object) -> Node:
    """The largest of terms, entry by entry over the union of their axes."""
    least: Fraction | None = None
    found: dict[Node, None] = {}
    stack = [as_node(x) for x in reversed(terms)]
    while stack:
        x = stack.pop()
        if x.op == "max":
            stack.extend(reversed(x.args))
        elif x.op == "const":
            least = x.attrs[0] if least is None else max(least, x.attrs[0])
        else:
            found[x] = None
    parts = sorted(found, key=BY_KEY)
    if least is not None:
        parts.insert(0, const(least))
    return parts[0] if len(parts) == 1 else make("max", tuple(parts), (), {a for p in parts for a in p.axes})


def minimum(*terms: object) -> Node:
    """The smallest of terms, as -max of what is opposite to them."""
    return mul(-1, maximum(*(mul(-1, x) for x in terms)))


def expand(x: Node, axes: Iterable[str]) -> Node:
    """x, repeated along axes that it lacks."""
    missing = tuple(sorted(set(axes) - set(x.axes)))
    return make("expand", (x,), missing, {*x.axes, *missing}) if missing else x


def total(x: Node, *axes: str) -> Node:
    """The sum over axes."""
    for axis in sorted(axes):
        x = _total(x, axis)
    return x


def _total(x: Node, axis: str) -> Node:
    if axis not in x.axes:
        return mul(size(dim_of(axis)), x)
    if x.op == "add":
        return add(*(_total(a, axis) for a in x.args))
    if x.op == "expand" and axis in x.attrs:
        return mul(size(dim_of(axis)), expand(x.args[0], set(x.attrs) - {axis}))
    factors = x.args if x.op == "mul" else (x,)
    inner = [f for f in factors if axis in f.axes]
    outer = [f for f in factors if axis not in f.axes]
    for f in inner:
        if f.op == "eye":
            other = next(a for a in f.attrs if a != axis)
            rest = mul(*(g for g in inner if g is not f))
            if axis not in rest.axes:
                return mul(*outer, rest)
            if other in rest.axes:
                break
            return mul(*outer, rename(rest, {axis: other}))
    if len(inner) == 1 and inner[0].op == "add" and any(a.axes and axis not in a.axes for a in inner[0].args):
        return mul(*outer, add(*(_total(a, axis) for a in inner[0].args)))
    body = mul(*inner)
    bound = canonical_axis(axis, set(body.axes) - {axis})
    body = rename(body, {axis: bound})
    return mul(*outer, make("sum", (body,), (bound,), set(body.axes) - {bound}))


def peak(x: Node, axis: str) -> Node:
    """The largest entry along an axis, of which nothing depends but how far from overflow numbers are (see `stabilize.py`)."""
    bound = canonical_axis(axis, set(x.axes) - {axis})
    x = rename(x, {axis: bound})
    return make("peak", (x,), (bound,), set(x.axes) - {bound}) if bound in x.axes else x


def canonical_axis(axis: str, taken: set[str]) -> str:
    """The first of d, d', d'', ... that isn't taken."""
    name = dim_of(axis)
    while name in taken:
        name += "'"
    return name


# --- rewriting ------------------------------------------------------------------------------------------------------


def rename(x: Node, mapping: dict[str, str]) -> Node:
    """x with free axes renamed, all at once."""
    items = tuple(sorted((a, b) for a, b in mapping.items() if a != b and a in x.axes))
    return _renamed(x, items) if items else x


@lru_cache(maxsize=2**16)
def _renamed(x: Node, items: tuple[tuple[str, str], ...]) -> Node:
    mapping = dict(items)
    new = [mapping.get(a, a) for a in x.axes]
    if len(set(new)) != len(new):
        raise ValueError(f"renaming {mapping} would merge axes of {x.axes}")
    match x.op:
        case "leaf":
            kind, name, order = x.attrs
            return leaf(kind, name, tuple(mapping.get(a, a) for a in order))
        case "eye":
            return eye(*(mapping.get(a, a) for a in x.attrs))
        case "add":
            return add(*(rename(a, mapping) for a in x.args))
        case "mul":
            return mul(*(rename(a, mapping) for a in x.args))
        case "max":
            return maximum(*(rename(a, mapping) for a in x.args))
        case "sum":
            (bound,) = x.attrs
            body = x.args[0]
            fresh = canonical_axis(bound, {*body.axes, *new})
            body = rename(rename(body, {bound: fresh}), mapping)
            return _total(body, fresh)
        case "peak":
            (bound,) = x.attrs
            body = x.args[0]
            fresh = canonical_axis(bound, {*body.axes, *new})
            return peak(rename(rename(body, {bound: fresh}), mapping), fresh)
        case "expand":
            return expand(rename(x.args[0], mapping), (mapping.get(a, a) for a in x.attrs))
        case "pow":
            return power(rename(x.args[0], mapping), x.attrs[0])
        case "fn":
            return fn(x.attrs[0], rename(x.args[0], mapping))
    renamed = tuple(tuple(mapping.get(b, b) for b in a) if isinstance(a, tuple) else a for a in x.attrs)
    return make(x.op, tuple(rename(a, mapping) for a in x.args), renamed, new)


def rebuild(x: Node, args: Iterable[Node]) -> Node:
    """x with other arguments, through the simplifying constructors."""
    args = tuple(args)
    if args == x.args:
        return x
    match x.op:
        case "add":
            return add(*args)
        case "mul":
            return mul(*args)
        case "max":
            return maximum(*args)
        case "pow":
            return power(args[0], x.attrs[0])
        case "fn":
            return fn(x.attrs[0], args[0])
        case "sum":
            (bound,) = x.attrs
            if bound not in args[0].axes and bound in x.args[0].axes:
                return mul(size(dim_of(bound)), args[0])
            return _total(args[0], bound)
        case "peak":
            return peak(args[0], x.attrs[0])
        case "expand":
            return expand(args[0], x.attrs)
    return make(x.op, args, x.attrs, x.axes)


def replace(x: Node, mapping: dict[Node, Node]) -> Node:
    """x with sub-expressions replaced (outermost first). Replacements have the same axes as what they replace."""
    done: dict[Node, Node] = {}

    def visit(y: Node) -> Node:
        found = done[y] = rebuild(y, [mapping.get(a) or done.get(a) or visit(a) for a in y.args]) if y.args else y
        return found

    return mapping.get(x) or visit(x)


def walk(*roots: Node) -> Iterator[Node]:
    """Every node below the roots once, arguments before users."""
    seen: set[Node] = set()
    stack: list[Node | None] = []
    for root in roots:
        stack.append(root)
        while stack:
            x = stack.pop()
            if x is None:  # all that the next one is made of has been
                user = stack.pop()
                assert user is not None
                yield user
            elif x not in seen:
                seen.add(x)
                if x.args:
                    stack += x, None
                    stack += x.args[::-1]
                else:
                    yield x


def depends(x: Node, test: Callable[[Node], bool]) -> bool:
    return any(test(y) for y in walk(x))


def leaves(*roots: Node) -> list[Node]:
    return [x for x in walk(*roots) if x.op == "leaf"]


def leaf_names(x: Node) -> frozenset[tuple[str, str]]:
    """(kind, name) of each leaf that x is made of; found once for each node."""
    if x.made_of is None:
        for y in walk(x):
            if y.made_of is None:
                own = [y.attrs[:2]] if y.op == "leaf" else []
                y.made_of = frozenset(own).union(*(a.made_of for a in y.args if a.made_of is not None))
        assert x.made_of is not None
    return x.made_of


def factors_of(x: Node) -> tuple[Node, ...]:
    return x.args if x.op == "mul" else (x,)


def terms_of(x: Node) -> tuple[Node, ...]:
    return x.args if x.op == "add" else () if x is ZERO else (x,)
