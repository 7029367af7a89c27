"""Shapes of formulas before anything is known of their symbols: dims that must be equal are found to be, and symbols are scalars,
columns, rows or matrices in the least surprising way in which the document's equations fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from chunkform.spec.language.formula import Formula, rebuild

Shape = tuple[str, str]
SCALAR: Shape = ("1", "1")
TRIALS = 40_000  # assignments that are tried at most


ONES = "1"  # the name of the vector of ones


def is_row(shape: Shape | None) -> bool:
    return shape is not None and shape[0] == "1" and shape[1] != "1"


class Misfit(Exception):
    """Two shapes don't fit."""


@dataclass
class Dims:
    """Dims that are found to be equal. A name that starts with ? is open, and with ?o it may be 1 as well."""

    same: dict[str, str] = field(default_factory=dict)
    lenient: bool = False
    count: int = 0

    def fresh(self, sure: bool = True) -> str:
        """A new dim; one of which it isn't sure that it isn't 1."""
        self.count += 1
        return f"?{'' if sure else 'o'}{self.count}"

    def find(self, x: str) -> str:
        while x in self.same:
            x = self.same[x]
        return x

    def join(self, a: str, b: str) -> None:
        a, b = sorted(
            (self.find(a), self.find(b)),
            key=lambda x: ("?o", "?", "").index(x[:2] if x[:2] == "?o" else x[:1] if x[:1] == "?" else ""),
        )
        if a == b:
            return
        if a.startswith("?") and (b != "1" or a.startswith("?o") or self.lenient):
            self.same[a] = b
        elif not self.lenient:
            raise Misfit(f"{a} and {b}")

    def is_scalar(self, s: Shape) -> bool:
        return (self.find(s[0]), self.find(s[1])) == SCALAR

    def equal(self, a: Shape, b: Shape) -> Shape:
        self.join(a[0], b[0])
        self.join(a[1], b[1])
        return a

    def broadcast(self, a: Shape, b: Shape, entries: bool) -> Shape:
        """A sum of a vector and a scalar, or products of entries, where what is lacking is repeated."""
        if self.is_scalar(a):
            return b
        if self.is_scalar(b):
            return a
        if not entries:
            return self.equal(a, b)
        out = []
        for x, y in zip(a, b):
            if self.find(x) == "1":
                out.append(y)
            elif self.find(y) == "1":
                out.append(x)
            else:
                self.join(x, y)
                out.append(x)
        return out[0], out[1]


def shape_of(x: Formula, symbols: Mapping[str, Shape], dims: Dims) -> Shape:
    """The shape of a formula; what is open is joined on the way.

    Raises:
        Misfit: its parts don't fit, where `dims` isn't lenient.
    """

    def inner(y: Formula) -> Shape:
        return shape_of(y, symbols, dims)

    if x.op in SCALARS:
        return SCALAR
    if x.op in SHAPED_AS:
        return inner(x.args[SHAPED_AS[x.op]])
    if x.op in JOINED:
        return JOINED[x.op](x, inner, dims)
    match x.op:
        case "at" if (found := symbols.get(x.attrs[0])) is not None:
            return found
        case "eye":
            return x.attrs[0], x.attrs[0]
        case "ones":
            size = dims.fresh() if x.attrs[0] == "?" else x.attrs[0]
            return ("1", size) if is_row(symbols.get(ONES)) else (size, "1")
        case "rowsum":
            return inner(x.args[0])[0], "1"
        case "stack":
            return x.attrs[1], inner(x.args[0])[1]
        case "matrix":
            return x.attrs[2], x.attrs[3]
        case "row":
            return "1", inner(x.args[0])[1]
    return dims.fresh(False), dims.fresh(False)


Inner = Callable[[Formula], Shape]
SCALARS = frozenset(("number", "index", "size", "infinity", "norm"))
SHAPED_AS = {  # which of its arguments a formula has the shape of
    **dict.fromkeys(
        ("negative", "function", "exp", "log", "sqrt", "named", "revcumsum", "softmax", "slice", "cumsum"), 0
    ),
    "softmax over": 0,
    "partial": 1,
    **dict.fromkeys(("sum", "product over", "product down", "hadamard over"), 2),
}


def _of_sum(x: Formula, inner: Inner, dims: Dims) -> Shape:
    shapes = [inner(a) for a in x.args]
    whole = [s for s in shapes if not dims.is_scalar(s)]
    if not whole:
        return SCALAR
    for s in whole[1:]:
        dims.equal(whole[0], s)
    numbers = all(not list(symbols_in(a)) for a, s in zip(x.args, shapes) if dims.is_scalar(s))
    vector = "1" in (dims.find(whole[0][0]), dims.find(whole[0][1]))
    if len(whole) < len(shapes) and not (dims.lenient or (vector and numbers)):
        raise Misfit("a scalar is added to what isn't one")  # 1 - a is taken entry by entry
    return whole[0]


def _of_product(x: Formula, inner: Inner, dims: Dims) -> Shape:
    found = inner(x.args[0])
    for a in x.args[1:]:
        other = inner(a)
        if dims.is_scalar(found):
            found = other
        elif not dims.is_scalar(other):
            dims.join(found[1], other[0])
            found = found[0], other[1]
    return found


def _entrywise(x: Formula, inner: Inner, dims: Dims) -> Shape:
    found = inner(x.args[0])
    for a in x.args[1:]:
        found = dims.broadcast(found, inner(a), True)
    return found


def _of_cases(x: Formula, inner: Inner, dims: Dims) -> Shape:
    found = inner(x.args[1])
    for a in x.args[3::2]:
        found = dims.broadcast(found, inner(a), False)
    return found


def _transposed(x: Formula, inner: Inner, dims: Dims) -> Shape:
    rows, cols = inner(x.args[0])
    return cols, rows


def _square(x: Formula, inner: Inner, dims: Dims) -> Shape:
    rows, cols = inner(x.args[0])
    dims.join(rows, cols)
    return rows, cols


def _diagonal(x: Formula, inner: Inner, dims: Dims) -> Shape:
    rows, cols = inner(x.args[0])
    if not dims.lenient and (dims.is_scalar((rows, cols)) or "1" not in (dims.find(rows), dims.find(cols))):
        raise Misfit("diag is of a vector")
    size = cols if dims.find(rows) == "1" else rows
    return size, size


def _of_inner(x: Formula, inner: Inner, dims: Dims) -> Shape:
    dims.equal(inner(x.args[0]), inner(x.args[1]))
    return SCALAR


def _of_differences(x: Formula, inner: Inner, dims: Dims) -> Shape:
    return inner(x.args[0])[0], inner(x.args[1])[0]


def _of_gradient(x: Formula, inner: Inner, dims: Dims) -> Shape:
    inner(x.args[0])
    return inner(x.args[1])


def _of_jacobian(x: Formula, inner: Inner, dims: Dims) -> Shape:
    dims.equal(inner(x.args[0]), inner(x.args[2]))
    return inner(x.args[1])


JOINED: dict[str, Callable[[Formula, Inner, Dims], Shape]] = {
    "add": _of_sum,
    "product": _of_product,
    "hadamard": _entrywise,
    "divide": _entrywise,
    "cases": _of_cases,
    "transpose": _transposed,
    "inverse": _square,
    "tril": _square,
    "power": _square,
    "diag": _diagonal,
    "inner": _of_inner,
    "differences": _of_differences,
    "gradient": _of_gradient,
    "jacobian": _of_jacobian,
}


# --- the least surprising shapes of symbols -------------------------------------------------------------------------


def assigned(
    equations: Sequence[tuple[Formula, Formula]],
    costs: Mapping[str, Sequence[tuple[str, int]]],
    fixed: Mapping[str, Shape],
) -> tuple[dict[str, Shape], Dims] | None:
    """Shapes of symbols under which all equations fit, of the least total cost. `costs` gives each symbol's possible kinds
    (scalar, column, row, matrix) with what is said against each. An author writes vectors as columns, or as rows,
    and rarely both."""
    ways = (("row", "column"), ("column", "row"), ("", ""))
    best: tuple[int, dict[str, Shape], Dims] | None = None
    for against, (never, instead) in enumerate(ways):
        allowed = {n: one_way(kinds, never, instead) for n, kinds in costs.items()}
        most = 29 if best is None else best[0] - 1 - 2 * against
        found = least(equations, allowed, fixed, most)
        best = found or best
    return best[1:] if best is not None else None


def one_way(kinds: Sequence[tuple[str, int]], never: str, instead: str) -> list[tuple[str, int]]:
    """The kinds without one, whose place another takes."""
    if not never:
        return list(kinds)
    cheapest = min((c for k, c in kinds if k in ("row", "column")), default=0)
    return sorted([(k, cheapest if k == instead else c) for k, c in kinds if k != never], key=lambda x: x[1])


def least(
    equations: Sequence[tuple[Formula, Formula]],
    costs: Mapping[str, Sequence[tuple[str, int]]],
    fixed: Mapping[str, Shape],
    most: int,
) -> tuple[int, dict[str, Shape], Dims] | None:
    """Shapes of the least cost, at most `most`, with that cost."""
    names = list(costs)
    last = {n: i for i, n in enumerate(names)}
    due: list[list[tuple[Formula, Formula]]] = [[] for _ in range(len(names) + 1)]
    for eq in equations:
        used = [last[n] for side in eq for n in symbols_in(side) if n in last]
        due[max(used) + 1 if used else 0].append(eq)
    budget = [TRIALS]

    def search(k: int, left: int, shapes: dict[str, Shape], dims: Dims) -> tuple[dict[str, Shape], Dims] | None:
        budget[0] -= 1
        if budget[0] < 0:
            return None
        dims = Dims(dict(dims.same), count=dims.count)
        try:
            for a, b in due[k]:
                one, two = shape_of(a, shapes, dims), shape_of(b, shapes, dims)
                if dims.is_scalar(one) != dims.is_scalar(two) and b.op != "number":
                    raise Misfit("a scalar and a matrix")
                if b.op != "number":
                    dims.equal(one, two)
        except Misfit:
            return None
        if k == len(names):
            return (shapes, dims) if left == 0 else None
        for kind, cost in costs[names[k]]:
            if cost <= left:
                made, inner = shape_for(kind, dims)
                found = search(k + 1, left - cost, {**shapes, names[k]: made}, inner)
                if found is not None:
                    return found
        return None

    for total in range(most + 1):
        found = search(0, total, dict(fixed), Dims())
        if found is not None:
            return total, *found
        if budget[0] < 0:
            return None
    return None


def shape_for(kind: str, dims: Dims) -> tuple[Shape, Dims]:
    dims = Dims(dict(dims.same), count=dims.count)
    if kind == "scalar":
        return SCALAR, dims
    if kind == "column":
        return (dims.fresh(), "1"), dims
    if kind == "row":
        return ("1", dims.fresh()), dims
    return (dims.fresh(), dims.fresh()), dims


def symbols_in(x: Formula) -> Iterable[str]:
    if x.op == "at":
        yield x.attrs[0]
    if x.op == "ones":
        yield ONES
    for a in x.args:
        yield from symbols_in(a)


# --- what surroundings tell of an identity --------------------------------------------------------------------------


def settled(sides: Sequence[Formula], symbols: Mapping[str, Shape], default: str) -> tuple[Formula, ...]:
    """The sides with the dims of identities and ones, as their surroundings say them; a side that is 0 in the shape of the
    others."""
    counter = [0]

    def numbered(x: Formula) -> Formula:
        if x.op in ("eye", "ones") and x.attrs[0] == "?":
            counter[0] += 1
            return Formula(x.op, (), (f"?o{counter[0]}",))
        return rebuild(x, tuple(numbered(a) for a in x.args))

    marked = [numbered(s) for s in sides]
    dims = Dims(lenient=True)
    shapes = [shape_of(s, symbols, dims) for s in marked]
    whole = [s for s in shapes if not dims.is_scalar(s)]
    for s in whole[1:]:
        dims.equal(whole[0], s)
    for side in marked:  # once more: what came late tells of what came early
        shape_of(side, symbols, dims)

    def named(x: Formula) -> Formula:
        if x.op in ("eye", "ones") and x.attrs[0].startswith("?"):
            found = dims.find(x.attrs[0])
            made = Formula(x.op, (), (default if found.startswith("?") else found,))
            return made.T if x.op == "ones" and is_row(symbols.get(ONES)) else made
        return rebuild(x, tuple(named(a) for a in x.args))

    out = [named(s) for s in marked]
    if whole:
        first = next((s for s, shape in zip(out, shapes) if not dims.is_scalar(shape)), None)  # none is left to be one
        zero = [s.op == "number" and s.attrs[0] == 0 for s in out]
        out = [Formula("product", (s, first)) if first is not None and z else s for s, z in zip(out, zero)]
    return tuple(out)
