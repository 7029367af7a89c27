"""Pass 2: split the energy of a pair into what one tile of pairs computes from features of its rows and of its columns.

The energy is written as a sum of products, each factor of which belongs to one side. Products of both sides, contracted over
an axis, are *scores*: a feature of the query times a feature of the key. What belongs to one side only is a *row* or a *column*
term; a softmax doesn't see row terms, only its log-sum-exp does. Those from which the same of the key is taken are in the tile
all the same. Positions, and functions of scalars of both sides, are computed in the tile. So the energy of a pair is

    tile(score_ij, .., column_j, .., row_i, .., scalars, i, j) + row_i

A function inside of a sum over an axis, such as the sum of |x_i - x_j| over channels, has no such form, and is refused with
the term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction

from chunkform.errors import SpecError

from ..ir.expr import (
    ONE,
    ZERO,
    Node,
    add,
    canonical_axis,
    const,
    depends,
    dim_of,
    factors_of,
    fn,
    leaf,
    maximum,
    mul,
    power,
    rename,
    size,
    split_constant,
    terms_of,
    total,
    walk,
)
from ..ir.expr import replace as replaced
from ..ir.notation import plain
from ..recurrence.normal_form.diagnostics import line_of
from .lower import KEY, QUERY, Lowered
from .nonnegative_squares import with_squares
from .operations import clamped


@dataclass(frozen=True)
class Monomial:
    """A product of factors, summed over the `bound` axes."""

    factors: tuple[Node, ...]
    bound: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """One block of a score's features: sum over `axes` of query times key."""

    query: Node
    key: Node
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Score:
    """A score, by its number."""

    n: str

    @property
    def name(self) -> str:
        return f"score{self.n}"

    @property
    def query(self) -> str:
        return f"query{self.n}"

    @property
    def key(self) -> str:
        return f"key{self.n}"


@dataclass
class Split:
    """What the tile computes, from which features. `tile` is over leaves of the kinds score, row, column, scalar, position.

    scores: blocks of features, concatenated. values: what is averaged, a feature of the key each. outputs: over leaves
    `averaged` (the average of a value), `mass` (the sum of a row's weights) and what belongs to position i.
    """

    lowered: Lowered
    tile: Node = ZERO
    row: Node = ZERO
    scores: dict[str, tuple[Part, ...]] = field(default_factory=dict)
    rows: dict[str, Node] = field(default_factory=dict)
    columns: dict[str, Node] = field(default_factory=dict)
    scalars: dict[str, Node] = field(default_factory=dict)
    values: dict[str, tuple[Node, tuple[str, ...]]] = field(default_factory=dict)
    averages: dict[str, Node] = field(default_factory=dict)

    @property
    def pair(self) -> tuple[str, str]:
        return self.lowered.query, KEY

    @property
    def numbered(self) -> dict[str, Score]:
        return {name: Score(str(n)) for n, name in enumerate(self.scores, 1)}


def split(p: Lowered) -> Split:
    """Split an attention's energy and what it averages."""
    found = Split(p)
    s = _Splitter(found)
    if p.side(p.energy) in ("query", "neither"):
        where = p.spec.energy.where if p.spec.energy is not None else p.spec.where
        raise SpecError(f"the energy of {p.name} is the same for all keys: write one of queries and keys", where)
    found.tile, row = s.separate(with_squares(p, p.energy))
    if p.spec.normaliser == "softmax":
        apart = [t for t in terms_of(row) if _is_difference(t, found)]
        found.row = add(*(t for t in terms_of(row) if t not in apart))
        row = add(*apart)
    if row is not ZERO:  # only a softmax is blind to it
        found.tile = add(found.tile, s.named("rows", "row", row, (p.query,)))
    for name, node in p.averages.items():
        found.averages[name] = s.average(node, p.average_axes[name])
    if not found.values:
        raise SpecError(
            f"{p.name} averages nothing of its keys: write a.output(.., a.average(v)), v of a.keys", p.spec.where
        )
    return found


def _is_difference(row: Node, found: Split) -> bool:
    """Is it taken less the same of the key, as `c_i` in c_i - c_j? A softmax doesn't see it, but numbers do: without it a sum of
    log decays over many steps stands in energies, of which nothing more than the last differences counts."""
    mirrored = replaced(row, {x: _other_side(x) for x in walk(row) if x.op == "leaf" and x.attrs[0] == "query"})
    return any(mul(-1, mirrored) in terms_of(column) for column in found.columns.values())


def _other_side(x: Node) -> Node:
    _, name, axes = x.attrs
    return leaf("key", f"{name.removesuffix('_i')}_j", (KEY, *axes[1:]))


class _Splitter:
    def __init__(self, found: Split) -> None:
        self.found, self.p = found, found.lowered
        self.side = self.p.side

    # --- the energy -------------------------------------------------------------------------------------------------

    def separate(self, x: Node) -> tuple[Node, Node]:
        """(function of the tile, row term) of a scalar of a pair."""
        if self.side(x) == "neither":
            return ZERO, x  # the same for all keys: a row term
        tile: list[Node] = []
        rows: list[Node] = []
        columns: list[Node] = []
        bilinear: list[tuple[Node, Monomial]] = []
        positions: list[tuple[Node, Node]] = []
        for m in self.monomials(x):
            sides = {self.side(f) for f in m.factors} - {"neither"}
            if self.is_positional(m):
                scalars, rest = self.apart(m.factors)
                positions.append((scalars, mul(*rest)))
            elif "both" in sides:
                tile.append(self.mixed(m))
            elif sides == {"query", "key"}:
                bilinear.append(self.bilinear(m))
            else:
                (columns if "key" in sides else rows).append(total(mul(*m.factors), *m.bound))
        tile += self.scores(bilinear)
        for scalars, part in _grouped(positions):
            tile.append(mul(self.scalar(scalars), self.in_tile(part)))
        column = self.factored(columns)
        if column is not ZERO:
            tile.append(self.named("columns", "column", column, (KEY,)))
        return add(*tile), self.factored(rows)

    def nested(self, x: Node) -> Node:
        """The tile's function of a scalar inside of another function: its row terms stay."""
        if self.side(x) == "neither":
            return self.scalar(x)
        tile, row = self.separate(x)
        if row is ZERO:
            return tile
        if self.side(row) == "neither":
            return add(tile, self.scalar(row))
        return add(tile, self.named("rows", "row", row, (self.p.query,)))

    def mixed(self, m: Monomial) -> Node:
        """A product with functions of scalars of both sides in it."""
        inner = [f for f in m.factors if self.side(f) == "both"]
        rest = [f for f in m.factors if self.side(f) != "both"]
        if any(set(f.axes) - {*self.found.pair} for f in inner):
            self.refuse(next(f for f in inner if set(f.axes) - {*self.found.pair}))
        product = [self.function(f) for f in inner]
        if rest:
            other, row = self.separate(total(mul(*rest), *m.bound))
            if row is not ZERO:
                scalar = self.side(row) == "neither"
                other = add(other, self.scalar(row) if scalar else self.named("rows", "row", row, (self.p.query,)))
            product.append(other)
        return mul(*product)

    def function(self, x: Node) -> Node:
        """A scalar of both sides that isn't a sum of products, as a function in the tile."""
        if x.op == "fn":
            return fn(x.attrs[0], self.nested(x.args[0]))
        if x.op == "max":
            return maximum(*(self.nested(a) for a in x.args))
        if x.op == "pow":
            return power(self.nested(x.args[0]), x.attrs[0])
        if x.op == "expand":
            return self.function(x.args[0])
        if x.op == "clamped":
            return clamped(self.nested(self.by_sides(x.args[0])))
        return self.nested(x)

    def by_sides(self, x: Node) -> Node:
        """A sum of squares with each (u_i + u_j)^2 as u_i^2 + 2 u_i u_j + u_j^2, whose u belong to one side.

        So its terms are made of the same features, however these are rounded, and cancel where u_i = -u_j.
        """
        found = {}
        for y in walk(x):
            if y.op == "pow" and y.attrs[0] == 2 and self.side(y) == "both" and not self.is_scalar(y):
                groups: dict[str, list[Node]] = {}
                for m in self.monomials(y.args[0]):
                    part = total(mul(*m.factors), *m.bound)
                    groups.setdefault(self.side(part), []).append(part)
                parts = [add(*group) for group in groups.values()]
                found[y] = add(*(mul(a, b) for a in parts for b in parts))
        return replaced(x, found)

    def is_positional(self, m: Monomial) -> bool:
        """Is a pair's product made of the two positions, and of numbers a head?"""
        of_pair = [f for f in m.factors if self.side(f) != "neither"]
        return (
            not m.bound
            and bool(of_pair)
            and all(
                not any(y.op == "leaf" and y.attrs[0] in ("query", "key", "fixed") for y in walk(f)) and f.op != "fn"
                for f in of_pair
                if self.side(f) != "both"
            )
            and all(self.side(f) != "both" for f in of_pair)
            and any(depends(f, lambda y: y.op == "leaf" and y.attrs[0] == "position") for f in of_pair)
        )

    def in_tile(self, x: Node) -> Node:
        """A term in positions, whose numbers a head become scalars of the tile."""
        if x.op in ("add", "mul"):
            parts = [self.in_tile(a) for a in x.args]
            return add(*parts) if x.op == "add" else mul(*parts)
        if x.op == "pow":
            return power(self.in_tile(x.args[0]), x.attrs[0])
        if self.side(x) == "neither":
            return self.scalar(x)
        return x

    # --- scores -----------------------------------------------------------------------------------------------------

    def bilinear(self, m: Monomial) -> tuple[Node, Monomial]:
        scalars, rest = self.apart(m.factors)
        return scalars, Monomial(rest, m.bound)

    def apart(self, factors: Iterable[Node]) -> tuple[Node, tuple[Node, ...]]:
        """(product of the numbers a head, other factors)."""
        scalars: list[Node] = []
        rest: list[Node] = []
        for f in factors:
            (scalars if self.side(f) == "neither" and not f.axes else rest).append(f)
        return mul(*scalars), tuple(rest)

    def scores(self, terms: list[tuple[Node, Monomial]]) -> list[Node]:
        """Terms of the tile for products of both sides: one score, whose features are concatenated, and products of scalars."""
        tile = []
        parts: dict[tuple[Node, tuple[str, ...]], list[tuple[Node, Node]]] = {}
        for scalars, m in terms:
            part = self.cut(m)
            if not part.axes:
                row = self.named("rows", "row", part.query, (self.p.query,))
                column = self.named("columns", "column", part.key, (KEY,))
                tile.append(mul(self.scalar(scalars), row, column))
            else:
                parts.setdefault((part.key, part.axes), []).append((scalars, part.query))
        if not parts:
            return tile
        everything = [s for group in parts.values() for s, _ in group]
        common = _common(everything)
        blocks = tuple(
            Part(add(*(mul(_over(s, common), q) for s, q in group)), key, axes) for (key, axes), group in parts.items()
        )
        blocks = _merged(blocks)
        ratios = {n: _ratio(blocks, known) for n, known in self.found.scores.items()}
        name, ratio = next(
            ((n, r) for n, r in ratios.items() if r is not None), (f"score{len(ratios) + 1}", Fraction(1))
        )
        self.found.scores.setdefault(name, blocks)
        tile.append(mul(ratio, self.scalar(common), leaf("score", name, self.found.pair)))
        return tile

    def cut(self, m: Monomial) -> Part:
        """Divide a chain of factors between query and key, so that they meet on an axis of parameters where there is one."""
        factors, bound = self.flattened(m)
        sides: dict[str, list[Node]] = {"query": [], "key": []}
        loose = []
        for f in factors:
            sides[self.side(f)].append(f) if self.side(f) in sides else loose.append(f)
        while loose:
            reach = {n: {a for f in group for a in f.axes} & bound for n, group in sides.items()}
            touching = [(f, [n for n in sides if reach[n] & set(f.axes)]) for f in loose]
            ends = [(f, n[0]) for f, n in touching if len(n) == 1]  # all at once: the ends of a chain grow alike
            for f, n in ends or [(touching[0][0], "query")]:
                sides[n].append(f)
                loose.remove(f)
        axes = {n: {a for f in group for a in f.axes} & bound for n, group in sides.items()}
        shared = tuple(sorted(axes["query"] & axes["key"]))
        made = {n: total(mul(*group), *(axes[n] - set(shared))) for n, group in sides.items()}
        return Part(made["query"], made["key"], shared)

    def flattened(self, m: Monomial) -> tuple[list[Node], set[str]]:
        """The factors of a monomial, with sums of products opened."""
        factors, bound = list(m.factors), set(m.bound)
        n = 0
        while n < len(factors):
            x = factors[n]
            if x.op == "sum" or (x.op == "mul" and any(f.op == "sum" for f in x.args)):
                body: Node = x
                own: tuple[str, ...] = ()
                if x.op == "sum":
                    body, own = x.args[0], x.attrs
                    taken = {a for f in factors for a in f.axes} | bound
                    fresh = canonical_axis(own[0], taken | set(body.axes)) if own[0] in taken else own[0]
                    body, own = rename(body, {own[0]: fresh}), (fresh,)
                factors[n : n + 1] = factors_of(body)
                bound |= set(own)
            else:
                n += 1
        return factors, bound

    # --- averages ---------------------------------------------------------------------------------------------------

    def average(self, x: Node, axes: tuple[str, ...]) -> Node:
        """sum_j A_ij x, as a term over averages of features of the key."""
        i = self.p.query
        mass = leaf("mass", "mass", (i,))
        out = []
        for m in self.monomials(x):
            if any(self.side(f) == "both" for f in m.factors):
                self.refuse(next(f for f in m.factors if self.side(f) == "both"), "the averaged term")
            own = [f for f in m.factors if self.side(f) == "key"]
            rest = [f for f in m.factors if self.side(f) != "key"]
            if not own:
                out.append(total(mul(mass, *rest), *m.bound))
                continue
            inside = set(m.bound) - {a for f in rest for a in f.axes}
            value = total(mul(*own), *inside)
            prefix: Node = mul(*rest)
            shared = set(m.bound) - inside
            opened = self.opened(value)
            if opened is not None:
                outer, value, more = opened
                prefix, shared = mul(prefix, outer), shared | more
            kept = tuple(a for a in value.axes if a != KEY)
            out.append(_contracted(self.value(value, kept), list(factors_of(prefix)), shared))
        from ..ir.expr import expand

        return expand(add(*out), axes if self.p.query != QUERY else (i, *axes))

    def opened(self, value: Node) -> tuple[Node, Node, set[str]] | None:
        """(matrix, feature, axis) where a value is a matrix a head times a feature that a score has anyway."""
        c, core = split_constant(value)
        if core.op != "sum":
            return None
        keys = {part.key for blocks in self.found.scores.values() for part in blocks}
        outer = [f for f in factors_of(core.args[0]) if self.side(f) == "neither"]
        inner = [f for f in factors_of(core.args[0]) if self.side(f) == "key"]
        feature = mul(*inner)
        for known in keys:
            names = [a for a in known.axes if a != KEY]
            fits = len(names) == 1 and len(feature.axes) == 2 and dim_of(names[0]) == dim_of(core.attrs[0])
            if fits and rename(feature, {core.attrs[0]: "%spare"}) is rename(known, {names[0]: "%spare"}):
                return mul(const(c), *outer), feature, {core.attrs[0]}
        return None

    def value(self, node: Node, axes: tuple[str, ...]) -> Node:
        """The average of a feature, named; equal features are averaged once."""
        own = tuple(canonical_axis(a, set()) for a in axes)
        plainly = len(set(own)) == len(own)
        renamed = rename(node, dict(zip(axes, own))) if plainly else node
        own = own if plainly else axes
        name = next((n for n, (v, _) in self.found.values.items() if v is renamed), None)
        if name is None:
            name = f"value{len(self.found.values) + 1}"
            self.found.values[name] = (renamed, own)
        return leaf("averaged", name, (self.p.query, *axes))

    # --- sums of products -------------------------------------------------------------------------------------------

    def monomials(self, x: Node) -> list[Monomial]:
        """x as a sum of products whose factors belong to one side each, or are functions of scalars of both."""
        if self.side(x) != "both":
            return [Monomial(factors_of(x))] if self.side(x) == "neither" else [Monomial((x,))]
        match x.op:
            case "add":
                return [m for a in x.args for m in self.monomials(a)]
            case "mul":
                mixed = [f for f in x.args if self.side(f) == "both"]
                out = [Monomial(tuple(f for f in x.args if f not in mixed))]
                for f in mixed:
                    whole = len(mixed) > 1 and self.is_scalar(f)
                    out = [_times(a, b) for a in out for b in ([Monomial((f,))] if whole else self.monomials(f))]
                return out
            case "sum":
                (bound,) = x.attrs
                return [self.summed(m, bound) for m in self.monomials(x.args[0])]
            case "expand":
                return self.monomials(x.args[0])
            case "pow" if not self.is_scalar(x) and x.attrs[0].denominator == 1 and 1 < x.attrs[0] <= 4:
                out = [Monomial(())]
                for _ in range(x.attrs[0].numerator):
                    out = [_times(a, b) for a in out for b in self.monomials(x.args[0])]
                return out
            case "half_turn":
                from .operations import half_turn

                ((axis,),) = x.attrs
                turned = []
                for m in self.monomials(x.args[0]):
                    owners = [f for f in m.factors if axis in f.axes]
                    if len(owners) != 1:
                        self.refuse(x)
                    turned.append(
                        replace(m, factors=tuple(half_turn(f, axis) if f is owners[0] else f for f in m.factors))
                    )
                return turned
        if self.is_scalar(x):
            return [Monomial((x,))]
        self.refuse(x)
        raise AssertionError

    def is_scalar(self, x: Node) -> bool:
        return set(x.axes) <= {*self.found.pair}

    def summed(self, m: Monomial, axis: str) -> Monomial:
        if not any(axis in f.axes for f in m.factors):
            return Monomial((size(dim_of(axis)), *m.factors), m.bound)
        if any(axis in f.axes and self.side(f) == "both" for f in m.factors):
            self.refuse(next(f for f in m.factors if axis in f.axes and self.side(f) == "both"))
        return Monomial(m.factors, (*m.bound, axis))

    # --- naming -----------------------------------------------------------------------------------------------------

    def factored(self, terms: list[Node]) -> Node:
        """A sum of terms of one side, with the numbers a head that all have taken out."""
        apart = [self.apart(factors_of(t)) for t in terms]
        return add(*(mul(scalars, mul(*rest)) for scalars, rest in _grouped_terms(apart)))

    def scalar(self, x: Node) -> Node:
        """A number a head. Rational numbers stay as they are."""
        c, core = split_constant(x)
        if core.op in ("const", "number"):
            return x
        return mul(c, self.named("scalars", "scalar", core, ()))

    def named(self, table: str, kind: str, x: Node, axes: tuple[str, ...]) -> Node:
        from ..ir.expr import expand

        known = getattr(self.found, table)
        x = expand(x, axes)
        name = next((n for n, y in known.items() if y is x), None)
        if name is None:
            name = f"{kind}{len(known) + 1}"
            known[name] = x
        return leaf(kind, name, axes)

    def refuse(self, term: Node, what: str = "the energy") -> None:
        where = line_of(term, None, self.p.origins.items()) or self.p.spec.energy.where  # type: ignore[union-attr]
        raise SpecError(
            f"{what} doesn't split into features of the query and of the key: the term {plain(term, step=False)} mixes both "
            "inside of a sum over a dim; a function of both may stand around a sum, not inside of one",
            where,
        )


def _times(a: Monomial, b: Monomial) -> Monomial:
    """The product; bound axes of b that a has, too, get other names."""
    taken = {x for f in (*a.factors, *b.factors) for x in f.axes} | set(a.bound)
    clash = {x for x in b.bound if any(x in f.axes for f in a.factors) or x in a.bound}
    names = {}
    for x in sorted(clash):
        names[x] = canonical_axis(x, taken)
        taken.add(names[x])
    factors = tuple(rename(f, names) for f in b.factors)
    return Monomial((*a.factors, *factors), (*a.bound, *(names.get(x, x) for x in b.bound)))


def _contracted(x: Node, factors: list[Node], bound: set[str]) -> Node:
    """The sum over the bound axes of x times the factors, one axis after the other, so that matrices are applied in turn."""
    while bound:
        axis = next((a for a in x.axes if a in bound), None) or min(bound)
        here = [f for f in factors if axis in f.axes]
        factors = [f for f in factors if f not in here]
        x, bound = total(mul(x, *here), axis), bound - {axis}
    return mul(x, *factors)


def _ratio(blocks: tuple[Part, ...], known: tuple[Part, ...]) -> Fraction | None:
    """The number by which one score is another, or None."""
    ratios = set()
    for a, b in zip(blocks, known, strict=False):
        (m, one), (n, other) = split_constant(a.query), split_constant(b.query)
        ratios.add(m / n if (one, a.key, a.axes) == (other, b.key, b.axes) else None)
    return ratios.pop() if len(blocks) == len(known) and len(ratios) == 1 else None


def _common(products: list[Node]) -> Node:
    """The factors, without numbers, that all products have."""
    first, *rest = products
    common = [f for f in factors_of(first) if f.op != "const"]
    for p in rest:
        common = [f for f in common if f in factors_of(p)]
    return mul(*common) if common else ONE


def _over(product: Node, common: Node) -> Node:
    """The product without the common factors."""
    rest = list(factors_of(product))
    for f in factors_of(common):
        if f in rest:
            rest.remove(f)
    return mul(*rest)


def _grouped(terms: list[tuple[Node, Node]]) -> list[tuple[Node, Node]]:
    """Sums of the second entries by the first, numbers aside."""
    groups: dict[Node, list[Node]] = {}
    for scalars, part in terms:
        c, core = split_constant(scalars)
        groups.setdefault(core, []).append(mul(c, part))
    return [(core, add(*parts)) for core, parts in groups.items()]


def _grouped_terms(terms: list[tuple[Node, tuple[Node, ...]]]) -> list[tuple[Node, tuple[Node, ...]]]:
    return [(core, (part,)) for core, part in _grouped([(s, mul(*rest)) for s, rest in terms])]


def _merged(blocks: tuple[Part, ...]) -> tuple[Part, ...]:
    """Blocks with the same query feature as one, whose key feature is the sum."""
    groups: dict[tuple[Node, tuple[str, ...]], list[Node]] = {}
    for b in blocks:
        c, core = split_constant(b.query)
        groups.setdefault((core, b.axes), []).append(mul(Fraction(c), b.key))
    out = []
    for (query, axes), keys in groups.items():
        c, key = split_constant(add(*keys))
        out.append(Part(mul(c, query), key, axes))
    return tuple(out)


def moved(s: Split) -> Split | None:
    """The split whose only score has a value as its key's feature, and the matrix that multiplied it on the query's side:
    <Q x_i, K x_j> as <(K^T Q) x_i, x_j>. None where the key isn't a matrix times a value, or is there for more than the score.
    """
    parts = [part for blocks in s.scores.values() for part in blocks]
    if len(parts) != 1 or s.columns or s.rows or s.row is not ZERO:
        return None
    side = s.lowered.side
    (part,) = parts
    (key_scale, key), (query_scale, query) = split_constant(part.key), split_constant(part.query)
    if key.op != "sum" or query.op != "sum":
        return None
    (own,), (inner,) = key.attrs, query.attrs
    matrix, feature = _by_side(key, side, "key")
    other, asked = _by_side(query, side, "query")
    value = next((x for x, axes in s.values.values() if len(axes) == 1 and rename(feature, {own: axes[0]}) is x), None)
    if value is None or set(matrix.axes) != {*part.axes, own} or set(other.axes) != {*part.axes, inner}:
        return None
    (kept,) = (a for a in value.axes if a != KEY)
    spare = canonical_axis(inner, {kept, *part.axes}) if inner == kept else inner
    both = total(mul(rename(matrix, {own: kept}), rename(other, {inner: spare})), *part.axes)
    new = total(mul(both, rename(asked, {inner: spare})), spare)
    ((name, _),) = s.scores.items()
    return replace(s, scores={name: (Part(mul(key_scale, query_scale, new), value, (kept,)),)})


def _by_side(x: Node, side: Callable[[Node], str], own: str) -> tuple[Node, Node]:
    """(factors that belong to neither side, those of its own) of a sum of products."""
    factors = factors_of(x.args[0])
    return mul(*(f for f in factors if side(f) != own)), mul(*(f for f in factors if side(f) == own))
