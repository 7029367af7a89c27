"""Terms: nodes up to the names of their axes, which is how printers see them.

A term's axes are positions, not names: `S u` over d and `S u` over d' are one term, and so are a state and its
transpose, which differ in their use only. So a value is computed once, in the layout of what it is made of, and nothing
is transposed that need not be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..ir.divisors import cancelling_divisors
from ..ir.expr import Node, dim_of, walk

Axes = tuple[str, ...]
Positions = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Term:
    """One value. An argument is a term with, for each of its axes, the position that it has here.

    For a sum or a peak, `bound` is the position that the argument has and the result hasn't; the argument keeps its positions.
    """

    number: int
    op: str
    attrs: tuple
    args: tuple[tuple[Term, Positions], ...]
    dims: tuple[str, ...]
    node: Node
    bound: int | None = None

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def stored(self) -> bool:
        """Does a leaf with several axes fix the order of the positions? An outer product's is free."""
        if self.op in ("leaf", "sum", "peak"):
            return True
        return any(arg.stored and arg.rank > 1 for arg, _ in self.args)

    @property
    def positions(self) -> Positions:
        return tuple(range(self.rank))

    def placed(self, args: tuple[tuple[Term, Positions], ...], positions: Positions) -> PlacedTerm:
        """The same entrywise operation, where its arguments and its own axes lie elsewhere."""
        return PlacedTerm(self.number, self.op, self.attrs, args, self.dims, self.node, self.bound, positions)


@dataclass(frozen=True, eq=False)
class PlacedTerm(Term):
    over: Positions = ()

    @property
    def positions(self) -> Positions:
        return self.over


@dataclass
class Terms:
    """Interns terms. `of` gives a node's term, and the node's axis at each of the term's positions."""

    order: tuple[str, ...] = ()  # dims in the order in which matrices are stored
    table: dict[object, Term] = field(default_factory=dict)
    known: dict[Node, tuple[Term, Axes]] = field(default_factory=dict)
    divisors: set[Term] = field(default_factory=set)  # sums that are made in float64

    def of(self, node: Node) -> tuple[Term, Axes]:
        for x in walk(node):
            if x not in self.known:
                self.known[x] = self._convert(x)
        return self.known[node]

    def mark_divisors(self, roots: Iterable[Term]) -> None:
        """Sums below the roots that may cancel, and that something is divided by, are divisors."""
        self.divisors |= {self.of(x)[0] for x in cancelling_divisors(root.node for root in roots)}

    def _convert(self, x: Node) -> tuple[Term, Axes]:
        args = [self.known[a] for a in x.args]
        match x.op:
            case "leaf":
                kind, name, order = x.attrs
                return self._intern("leaf", (kind, name), [], order, x), order
            case "const" | "number" | "size" | "eye":
                attrs = () if x.op == "eye" else x.attrs
                return self._intern(x.op, attrs, [], x.axes, x), x.axes
            case "pow" | "fn":
                return self._intern(x.op, x.attrs, args, args[0][1], x), args[0][1]
            case "expand":
                axes = (*args[0][1], *x.attrs)
                return self._intern("expand", (), args, axes, x), axes
            case "sum" | "peak":
                _, own = args[0]
                bound = own.index(x.attrs[0])
                axes = tuple(a for a in own if a != x.attrs[0])
                return self._intern(x.op, (), args, axes, x, bound), axes
            case "add" | "mul" | "max":
                args.sort(key=lambda a: (a[0].number, a[1]))
                settled = sorted((a for a in args if a[0].rank > 1 and a[0].stored), key=lambda a: -a[0].rank)
                axes = tuple(dict.fromkeys(axis for _, own in settled for axis in own))
                free = dict.fromkeys(axis for _, own in args for axis in own if axis not in axes)
                axes += tuple(sorted(free, key=self._place))
                return self._intern(x.op, (), args, axes, x), axes
        raise NotImplementedError(f"no printed form of the operation {x.op!r} in {x!r}")

    def _place(self, axis: str) -> int:
        dim = dim_of(axis)
        return self.order.index(dim) if dim in self.order else len(self.order)

    def _intern(
        self, op: str, attrs: tuple, args: list[tuple[Term, Axes]], axes: Axes, node: Node, bound: int | None = None
    ) -> Term:
        if bound is not None:
            placed = tuple((term, term.positions) for term, _ in args)
        else:
            placed = tuple((term, tuple(axes.index(a) for a in own)) for term, own in args)
        dims = tuple(dim_of(a) for a in axes)
        key = (op, attrs, tuple((term.number, where) for term, where in placed), dims, bound)
        if key not in self.table:
            self.table[key] = Term(len(self.table), op, attrs, placed, dims, node, bound)
        return self.table[key]


def below(roots: Iterable[Term]) -> dict[Term, int]:
    """Every term below the roots, arguments first, and how many times it is used (being a root counts)."""
    uses: dict[Term, int] = {}

    def visit(term: Term) -> None:
        if term in uses:
            uses[term] += 1
            return
        for arg, _ in term.args:
            visit(arg)
        uses[term] = 1

    for root in roots:
        visit(root)
    return uses


def storage_order(*roots: Node) -> tuple[str, ...]:
    """The dims of the leaves below the roots, in the order in which the widest ones are stored."""
    orders = sorted((x.attrs[2] for x in walk(*roots) if x.op == "leaf"), key=lambda order: -len(order))
    return tuple(dict.fromkeys(dim_of(axis) for order in orders for axis in order))
