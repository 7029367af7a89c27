"""Matrix values: what a term that holds a state as a whole is worth, `decay * (S + writes) + writes`."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as dc_replace

from ...ir.expr import ONE, ZERO, Node, factors_of, mul, plain_name, rename, total
from .form import NotAffine


@dataclass(frozen=True)
class RawWrite:
    """scalar * left right^T; left over the row axis, right over the column axis."""

    scalar: Node
    left: Node
    right: Node


@dataclass(frozen=True)
class MatrixValue:
    """decay * (S + before) + after, seen over the axes (row, col) that the term uses; None for an axis that S lacks.

    `others` holds further states that are added as a whole, each times a scalar; then all writes are in `after`.
    """

    state: str
    row: str | None
    col: str | None
    decay: Node | None = None
    before: tuple[RawWrite, ...] = ()
    after: tuple[RawWrite, ...] = ()
    others: tuple[tuple[str, Node], ...] = ()


def make_key(m: MatrixValue, side: str, vector: Node) -> str:
    parts = [m.state, side, vector.key, m.decay.key if m.decay is not None else ""]
    parts += [n + c.key for n, c in m.others]
    for group in (m.before, m.after):
        parts.append("|")
        parts += sorted(mul(w.scalar, w.left).key + w.right.key for w in group)
    import hashlib

    return hashlib.blake2b(plain_name("".join(parts)).encode(), digest_size=8).hexdigest()


def renamed(x: Node, mapping: dict[str, str]) -> Node:
    """Rename, also where names trade places."""
    return rename(x, {a: b for a, b in mapping.items() if a in x.axes})


def renamed_value(m: MatrixValue, here: dict[str, str], row: str | None, col: str | None) -> MatrixValue:
    def write(w: RawWrite) -> RawWrite:
        return RawWrite(w.scalar, renamed(w.left, here), renamed(w.right, here))

    return MatrixValue(
        m.state,
        row,
        col,
        None if m.decay is None else renamed(m.decay, here),
        tuple(write(w) for w in m.before),
        tuple(write(w) for w in m.after),
        m.others,
    )


def scaled(m: MatrixValue, factor: Node) -> MatrixValue:
    """factor * m. Writes that came after an earlier decay are scaled, and stay after it."""
    if factor is ONE:
        return m
    if m.decay is None:
        return dc_replace(m, decay=factor)
    if m.others and factor.axes:
        raise NotAffine("states that are added to each other are scaled channel by channel", factor)
    return dc_replace(
        m,
        decay=mul(m.decay, factor),
        after=tuple(scaled_write(w, factor, m.row, m.col) for w in m.after),
        others=tuple((n, mul(c, factor)) for n, c in m.others),
    )


def late_only(m: MatrixValue) -> MatrixValue:
    """The same value with every write after the decay."""
    decay = ONE if m.decay is None else m.decay
    moved = tuple(scaled_write(w, decay, m.row, m.col) for w in m.before)
    return dc_replace(m, decay=decay, before=(), after=(*moved, *m.after))


def contracted(w: RawWrite, side: str, vector: Node, axis: str | None) -> Node:
    """What a read with `vector` takes of a write."""
    along, across = (w.left, w.right) if side == "row" else (w.right, w.left)
    product = mul(along, vector)
    return mul(w.scalar, total(product, axis) if axis is not None else product, across)


def scaled_write(w: RawWrite, factor: Node, row: str | None, col: str | None) -> RawWrite:
    scalars: list[Node] = []
    rows: list[Node] = []
    cols: list[Node] = []
    for f in factors_of(factor):
        (scalars if not f.axes else rows if f.axes == (row,) else cols).append(f)
    return RawWrite(mul(w.scalar, *scalars), mul(w.left, *rows), mul(w.right, *cols))


def split_scalars(x: Node) -> tuple[Node, Node]:
    """x as (scalar factors, the rest)."""
    factors = factors_of(x)
    return mul(*(f for f in factors if not f.axes)), mul(*(f for f in factors if f.axes))


def rank_one(x: Node, row: str | None, col: str | None) -> list[RawWrite]:
    """A term over (row, col) as a sum of products left right^T."""
    if x is ZERO:
        return []
    if x.op == "expand" and len(x.args[0].axes) < 2:
        x = x.args[0]
    if x.op == "add" and len(x.axes) == 2:
        return [w for a in x.args for w in rank_one(a, row, col)]
    scalars: list[Node] = []
    rows: list[Node] = []
    cols: list[Node] = []
    both: list[Node] = []
    for f in factors_of(x):
        over = set(f.axes)
        if not over <= {row, col}:
            raise NotAffine("a write uses an axis that the state lacks", x)
        group = scalars if not over else rows if over == {row} else cols if over == {col} else both
        group.append(f)
    if not both:
        return [RawWrite(mul(*scalars), mul(*rows), mul(*cols))]
    if len(both) > 1 or both[0].op != "add":
        raise NotAffine("what is written isn't an outer product of two vectors", x)
    return [
        RawWrite(mul(w.scalar, *scalars), mul(w.left, *rows), mul(w.right, *cols)) for w in rank_one(both[0], row, col)
    ]
