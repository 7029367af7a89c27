"""Print step-level nodes as statements of torch or Triton, for whoever prints a kernel.

    printer = NodePrinter(Torch(size_text, like="S"))
    statements, results = printer.values({"o": node}, leaf_text)

Shared values are computed once (also those that differ only in the names of their axes), and sums of products become
matrix products in torch. `leaf_text` gives the text of a leaf: a name of a value whose last axes are the leaf's, in
storage order (`attrs[2]`); a leaf of kind `constant` is a plain number. A result is the text of a value whose axes are,
after any batch axes, `node.axes` (sorted), or those asked for with `orders`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import mpmath
import sympy

from ..exact.rationals import Rationals
from ..ir.code import Call, Code, Literal, Name, Negative
from ..ir.code_parts import is_short, starts_with_minus
from ..ir.evaluate import evaluate
from ..ir.expr import Node, identifier, plain_name
from ..ir.functions import KEEP_ZERO, TABLE
from ..ir.python_code import leaf_code
from .dialects import Dialect, Operand, Torch, Triton
from .terms import Axes, Positions, Term, Terms, below, storage_order
from .walk import Walk, summed

__all__ = ["NodePrinter", "Torch", "Triton"]

LeafText = Callable[[Node], str | Code]
ZERO, FINITE, UNKNOWN = range(3)  # what padding holds along one position
SPREAD = ("add", "mul", "expand")  # operations whose arguments may broadcast over axes that their result hasn't
LONGEST = 88  # a longer expression is split into statements


class NodePrinter:
    """Prints nodes in one dialect. Names that it invents start with `prefix`; they are not in `taken`, a set of names in
    plain letters, and join it."""

    def __init__(self, dialect: Dialect, prefix: str = "t", taken: Iterable[str] = ()) -> None:
        self.dialect, self.prefix = dialect, prefix
        self.taken = taken if isinstance(taken, set) else set(taken)
        self.numbered: set[str] = set()  # names that say nothing of what they are

    def values(
        self,
        nodes: Mapping[str, Node],
        leaf_text: LeafText,
        *,
        names: Mapping[Node, str] | None = None,
        orders: Mapping[str, Axes] | None = None,
        padding: Callable[[Node], int] | None = None,
        whole: Container[str] = (),
    ) -> tuple[list[tuple[str, Code]], dict[str, Code]]:
        """((name, value) of each statement, each result). `names` suggests names for inner nodes; `padding` says what a leaf
        holds beyond its size: ZERO unless given, or FINITE; results in `whole` are full tiles with zeros there (Triton only)."""
        job = TermWalk(self, leaf_text, padding or (lambda _: ZERO), storage_order(*nodes.values()))
        uses = {name: job.terms.of(node) for name, node in nodes.items()}
        suggested = {job.terms.of(node)[0]: name for node, name in (names or {}).items() if _printable(node)}
        job.prepare([term for term, _ in uses.values()], suggested)
        results = {}
        for name, (term, axes) in uses.items():
            target = (orders or {}).get(name, nodes[name].axes)
            places = tuple(target.index(a) for a in axes)
            value = job.placed(term, places, tuple(range(len(target))), split=False)
            results[name] = job.whole(value, term, places) if name in whole else value
        return list(job.made.values()), results

    def fresh(self, wanted: str | None = None) -> str:
        """A name that wasn't used before."""
        if wanted:
            base = identifier(wanted)
            name, n = base, 2
            while plain_name(name) in self.taken:
                name, n = f"{base}_{n}", n + 1
        else:
            n = 1
            while (name := f"{self.prefix}{n}") in self.taken:
                n += 1
            self.numbered.add(name)
        self.taken.add(plain_name(name))
        return name


def _printable(node: Node) -> bool:
    return node.op in ("add", "mul", "pow", "fn", "max", "sum", "peak", "expand")


@dataclass(frozen=True)
class _Number:
    """A number as it is printed, and what it stands for; the former may be rounded."""

    value: float
    exact: Fraction | None

    @property
    def literal(self) -> Literal:
        return Literal(float(self.value), self.exact)

    def times(self, other: _Number) -> _Number:
        exact = None if self.exact is None or other.exact is None else self.exact * other.exact
        return _Number(self.value * other.value, exact)


def _exactly(term: Term) -> Fraction | None:
    found = term.attrs[0] if term.op == "const" else evaluate(term.node, {}, Rationals(), {}).item()
    return found if isinstance(found, Fraction) else None


class TermWalk(Walk[Term, Code]):
    """The walk over the terms of one call of `values`."""

    def __init__(
        self, printer: NodePrinter, leaf_text: LeafText, padding: Callable[[Node], int], order: tuple[str, ...]
    ) -> None:
        self.printer, self.dialect = printer, printer.dialect
        self.leaf_text, self.leaf_padding = leaf_text, padding
        self.terms = Terms(order)
        self.made: dict[Term, tuple[str, Code]] = {}  # statements, in order
        self.done: dict[Term, Code] = {}
        self.named: set[Term] = set()
        self.suggested: dict[Term, str] = {}
        self.uniform: dict[Term, bool] = {}
        self.padding: dict[Term, tuple[int, ...]] = {}
        self.numbers: dict[Term, _Number] = {}

    def prepare(self, roots: list[Term], suggested: dict[Term, str]) -> None:
        """Decide which values get a name of their own, and what is known of each."""
        self.suggested = suggested
        self.terms.mark_divisors(roots)
        for term, count in below(roots).items():
            args = [a for a, _ in term.args]
            self.uniform[term] = term.op != "eye" and (
                all(self.uniform[a] for a in args) if args else term.op != "leaf" or term.attrs[0] == "constant"
            )
            self.padding[term] = self._padding(term)
            if (number := self._number(term)) is not None:
                self.numbers[term] = _Number(number, _exactly(term))
            elif args and (count > 1 or term in suggested or term.bound is not None):
                self.named.add(term)

    def value(self, term: Term) -> Code:
        """The text of a term, over its own positions."""
        if term not in self.done:
            text = self.operation(term)
            self.done[term] = self._name(term, text) if term in self.named else text
        return self.done[term]

    def _name(self, term: Term, text: Code) -> Code:
        name = self.printer.fresh(self.suggested.get(term) or self._by_factors(term))
        assert term not in self.made
        self.made[term] = name, text
        return Name(name)

    def _by_factors(self, term: Term) -> str | None:
        """A name for the sum of the products of two named values: both of theirs."""
        if term.op != "sum" or term.args[0][0].op != "mul":
            return None
        factors = [self.done.get(x) for x, _ in term.args[0][0].args]
        names = [x.id for x in factors if isinstance(x, Name) and "_" not in x.id and x.id not in self.printer.numbered]
        return "_".join(names) if len(names) == len(factors) == 2 else None

    def _atom(self, term: Term) -> Code:
        """A name, a number or something as short, for a text that is used more than once."""
        text = self.value(term)
        if not is_short(text):
            self.done[term] = text = self._name(term, text)
        return text

    def placed(self, term: Term, places: Positions, target: Positions, split: bool = True) -> Code:
        """The text of a term whose own positions lie at `places`, so that it broadcasts over `target`."""
        if term.op in SPREAD and term not in self.done and term not in self.named | self.numbers.keys():
            args = tuple((arg, tuple(places[p] for p in own)) for arg, own in term.args)
            local = tuple(p for p in target if p in places)
            text = self.operation(term.placed(args, local))
            if split and text.width > LONGEST and local == places:
                self.done[term] = text = self._name(term, text)
            return text if self.uniform[term] else self.dialect.align(text, local, target)
        text = self.value(term)
        if split and text.width > LONGEST and term.args:
            self.done[term] = text = self._name(term, text)
        return text if self.uniform[term] else self.dialect.align(text, places, target)

    def whole(self, text: Code, term: Term, places: Positions) -> Code:
        """The text of a term placed at `places`, with all axes, and zeros in the padding."""
        dims = tuple(term.dims[places.index(i)] for i in range(term.rank))
        if term.op == "expand" or self.uniform[term]:
            text = self.dialect.spread(text, dims)
        for position, held in zip(places, self.padding[term]):
            if held != ZERO:
                text = self.dialect.mask(text, dims, position)
        return text

    # --- one operation

    def operation(self, x: Term) -> Code:
        return self.numbers[x].literal if x in self.numbers else super().operation(x)

    def leaf(self, x: Term) -> Code:
        return leaf_code(self.leaf_text(x.node))

    def number(self, x: Term) -> Code:
        return self.numbers[x].literal

    def size(self, x: Term) -> Code:
        return self.dialect.size(x.attrs[0])

    def eye(self, x: Term) -> Code:
        return self.dialect.eye(x.dims[0])

    def power(self, x: Term) -> Code:
        arg, n = x.args[0][0], x.attrs[0]
        if n == -1:
            return Literal(1.0) / self.value(arg)
        base = self._atom(arg) if self.dialect.masked else self.value(arg)
        return self.dialect.power(base, n, self.uniform[arg])

    def function(self, x: Term) -> Code:
        arg, name = x.args[0][0], x.attrs[0]
        value = self._atom(arg) if self.dialect.repeats(name) else self.value(arg)
        return self.dialect.function(name, value, self.uniform[arg])

    def expansion(self, x: Term) -> Code:
        ((arg, places),) = x.args
        return self.placed(arg, places, x.positions)

    def sum(self, x: Term) -> Code:
        parts = [self.placed(arg, places, x.positions) for arg, places in x.args]
        return summed(sorted(parts, key=starts_with_minus))

    def largest(self, x: Term) -> Code:
        """The largest over the positions of x; of numbers the texts come last, and none of a tile's."""
        (first, places), *rest = sorted(x.args, key=lambda a: self.uniform[a[0]])
        found, uniform = self.placed(first, places, x.positions), self.uniform[first]
        for arg, own in rest:
            found = self.dialect.maximum(found, self.placed(arg, own, x.positions), uniform, self.uniform[arg])
        return found

    def product(self, x: Term) -> Code:
        return self._product(x.args, x.positions)

    def other(self, x: Term) -> Code:
        raise NotImplementedError(f"no printed form of the operation {x.op!r}")

    def _product(self, args: Iterable[tuple[Term, Positions]], target: Positions) -> Code:
        """The product over `target`: factors over the same positions first, then ever wider ones."""
        groups: dict[frozenset[int], tuple[list[tuple[Term, Positions]], list[tuple[Term, Positions]]]] = {}
        negative, scale = False, _Number(1.0, Fraction(1))
        for arg, own in args:
            if arg in self.numbers:
                scale = scale.times(self.numbers[arg])
                continue
            inverse = arg.op == "pow" and arg.attrs[0] == -1 and arg not in self.named
            factor = (arg.args[0][0], own) if inverse else (arg, own)
            groups.setdefault(frozenset(own), ([], []))[inverse].append(factor)
        if scale.value < 0:
            negative, scale = True, scale.times(_Number(-1.0, Fraction(-1)))
        acc: Code | None = None if scale.value == 1.0 else scale.literal
        over: Positions = ()
        plain = True  # so far a number, which needs no alignment
        for key in sorted(groups, key=lambda k: (len(k), sorted(k))):
            wider = tuple(p for p in target if p in key or p in over)
            if acc is not None and not plain:
                acc = self.dialect.align(acc, over, wider)
            times, divide = groups[key]
            for arg, own in times:
                text = self.placed(arg, own, wider)
                acc = text if acc is None else acc * text
                plain = plain and self.uniform[arg]
            for arg, own in divide:
                text = self.placed(arg, own, wider)
                acc = (Literal(1.0) if acc is None else acc) / text
                plain = plain and self.uniform[arg]
            over = wider
        if acc is None:
            acc = Literal(1.0)
        elif over != target and not plain:
            acc = self.dialect.align(acc, over, target)
        return Negative(acc) if negative else acc

    def contraction(self, term: Term) -> Code:
        ((body, places),) = term.args
        bound = term.bound
        assert bound is not None
        if term in self.terms.divisors:
            return self._wide_sum(body, places, bound)
        if body.op == "mul" and body not in self.named and (len(places) > 2 or not self.dialect.masked):
            groups = self._groups(list(body.args))
            texts: list[Operand] = []
            for members, own in groups:
                text = self._product(members, own)
                zero = any(self.padding[m][o.index(bound)] == ZERO for m, o in members) and len(members) == 1
                if self.dialect.masked and not zero:
                    text = self.dialect.mask(text, tuple(body.dims[p] for p in own), own.index(bound))
                texts.append((text, own))
            if len(groups) > 1 and (product := self.dialect.contract(texts, bound, len(places))) is not None:
                return product
        value = self.value(body)
        if self.dialect.masked and self.padding[body][bound] != ZERO:
            value = self.dialect.mask(value, body.dims, bound)
        return self.dialect.sum(value, bound, len(places))

    def _wide_sum(self, body: Term, places: Positions, bound: int) -> Code:
        """A sum whose products are not rounded either."""
        factors = list(body.args) if body.op == "mul" else [(body, places)]
        (first, own), *others = sorted(factors, key=lambda f: self.uniform[f[0]])
        value = self.dialect.wide(self.placed(first, own, places))
        for arg, own in others:
            value = value * self.placed(arg, own, places)
        if self.dialect.masked and self.padding[body][bound] != ZERO:
            value = self.dialect.mask(value, body.dims, bound)
        return self.dialect.wide_sum(value, bound, len(places))

    def peak(self, term: Term) -> Code:
        ((body, places),) = term.args
        assert term.bound is not None
        value = self.value(body)
        if self.dialect.masked:
            value = self.dialect.mask(value, body.dims, term.bound, Call("float", (Literal("-inf"),)))
        return self.dialect.peak(value, term.bound, len(places))

    def _groups(self, factors: list[tuple[Term, Positions]]) -> list[tuple[list[tuple[Term, Positions]], Positions]]:
        """Factors of a contraction as operands, by their positions; vectors go into matrices while more than two remain."""
        by_key: dict[frozenset[int], list[tuple[Term, Positions]]] = {}
        for arg, own in factors:
            by_key.setdefault(frozenset(own), []).append((arg, own))
        keys = sorted(by_key, key=lambda k: (len(k), sorted(k)))
        while len(keys) > 2:
            hosts = [k for k in keys if k > keys[0]]
            if not hosts:
                break
            by_key[hosts[0]] = by_key.pop(keys[0]) + by_key[hosts[0]]
            keys = keys[1:]
        out = []
        for k in keys:
            members = by_key[k]
            stored = next(own for _, own in members if len(own) == len(k))
            out.append((members, stored))
        return out

    # --- what is known of a value

    def _number(self, term: Term) -> float | None:
        args = [self.numbers[a].value if a in self.numbers else None for a, _ in term.args]
        if any(a is None for a in args):
            return None
        values = [a for a in args if a is not None]
        match term.op:
            case "const":
                return float(term.attrs[0])
            case "number":
                return float(sympy.sympify(term.attrs[0]))
            case "add":
                return sum(values)
            case "mul":
                return float(sympy.prod(values))
            case "max":
                return max(values)
            case "pow":
                return float(values[0] ** float(term.attrs[0]))
            case "fn":
                return float(TABLE[term.attrs[0]].mpmath(mpmath.mpf(values[0])))
        return None

    def _padding(self, term: Term) -> tuple[int, ...]:
        """What a value holds in the padding of each of its positions: zeros, finite numbers, or anything."""
        if not term.rank:
            return ()
        match term.op:
            case "leaf":
                return (self.leaf_padding(term.node),) * term.rank
            case "eye":
                return (FINITE,) * term.rank
        own = [[self.padding[a][places.index(p)] for a, places in term.args if p in places] for p in range(term.rank)]
        match term.op:
            case "add":  # less a peak, what is padding may have any size
                lacking = UNKNOWN if any(_is_peak(a) for a, _ in term.args) else FINITE
                return tuple(max(x) if len(x) == len(term.args) else max(lacking, *x) for x in own)
            case "max":
                return tuple(max(x) if len(x) == len(term.args) else max(FINITE, *x) for x in own)
            case "mul":
                return tuple(UNKNOWN if UNKNOWN in x else min(x) for x in own)
            case "expand":
                return tuple(x[0] if x else FINITE for x in own)
            case "pow":
                n: Fraction = term.attrs[0]
                if n > 0:
                    return tuple(
                        ZERO if x[0] == ZERO else FINITE if x[0] == FINITE and n.denominator == 1 else UNKNOWN
                        for x in own
                    )
                return (UNKNOWN,) * term.rank
            case "fn":
                name = term.attrs[0]
                if name == "log":
                    return (UNKNOWN,) * term.rank
                return tuple(UNKNOWN if x[0] == UNKNOWN else x[0] if name in KEEP_ZERO else FINITE for x in own)
            case "sum" | "peak":
                outer = self.padding[term.args[0][0]]
                return tuple(x for i, x in enumerate(outer) if i != term.bound)
        return (UNKNOWN,) * term.rank


def _is_peak(term: Term) -> bool:
    return term.op == "peak" or (term.op == "mul" and any(_is_peak(a) for a, _ in term.args))
