"""Why a step program has no read-write form, said in the spec's own terms: the offending term, and the line that holds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ...ir.expr import Node, add, leaf, mul, rename, replace, split_constant, total, walk
from .abstract_interpreter import Interpreter
from .abstract_values import MatrixValue
from .form import NotAffine, Read


class Spelling:
    """Terms over named reads, written again as products of the states with vectors."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.reads: dict[Node, Read] = {}
        self.snapshots: dict[str, MatrixValue] = {}

    def spelled(self, x: Node) -> Node:
        table = {}
        for y in walk(x):
            meaning = self.meaning(y) if y.op == "leaf" else None
            if meaning is not None:
                own, node = meaning
                table[y] = self.spelled(rename(node, dict(zip(own, y.attrs[2], strict=True))))
        return replace(x, table)

    def meaning(self, y: Node) -> tuple[tuple[str, ...], Node] | None:
        """The axes of a read as it was made, and what it is."""
        for raw, (m, _, vector) in self.interpreter.raw_reads.items():
            if raw.attrs[:2] == y.attrs[:2]:
                return raw.attrs[2], self.product(m, raw, vector)
        for raw, pair in self.interpreter.raw_state_adjoints.items():
            if raw.attrs[:2] == y.attrs[:2]:
                first, second = (self.matrix(m) for m in pair)
                product = mul(first, second)
                return raw.attrs[2], total(product, *(set(product.axes) - set(raw.attrs[2])))
        for made, read in self.reads.items():
            if made.attrs[:2] == y.attrs[:2]:
                return made.attrs[2], self.product(self.snapshot(read), made, read.vector)
        return None

    def product(self, m: MatrixValue, made: Node, vector: Node) -> Node:
        """The vector times the state, over the axis that `made`, the read's leaf, lacks."""
        return total(
            mul(vector, self.matrix(m)), *(a for a in (m.row, m.col) if a is not None and a not in made.attrs[2])
        )

    def matrix(self, m: MatrixValue) -> Node:
        state = leaf(self.interpreter.kinds[m.state], m.state, tuple(a for a in (m.row, m.col) if a is not None))
        before = add(state, *(mul(w.scalar, w.left, w.right) for w in m.before))
        decayed = before if m.decay is None else mul(m.decay, before)
        return add(decayed, *(mul(w.scalar, w.left, w.right) for w in m.after))

    def snapshot(self, read: Read) -> MatrixValue:
        final = self.snapshots.get(read.state)
        axes = self.interpreter.states[read.state].axes
        row, col = (*axes, None, None)[:2]
        if final is None or read.snapshot == "prev":
            return MatrixValue(read.state, row, col)
        if read.snapshot == "mid":
            return MatrixValue(read.state, row, col, None, final.before)
        return final


@contextmanager
def spelled_out(interpreter: Interpreter) -> Iterator[Spelling]:
    """Within it, `NotAffine` leaves with its term over the spec's own quantities."""
    spelling = Spelling(interpreter)
    try:
        yield spelling
    except NotAffine as why:
        raise NotAffine(why.reason, spelling.spelled(why.term), why.equation) from None


@contextmanager
def part_of(equation: Node) -> Iterator[None]:
    """Within it, `NotAffine` leaves with the update or the output that its term is part of."""
    try:
        yield
    except NotAffine as why:
        why.equation = equation
        raise


def line_of(term: Node, equation: Node | None, origins: Iterable[tuple[Node, object]]) -> Any:
    """Where the spec says `term`, or else the smallest term around it, or the equation that it is part of. `origins` gives terms
    and their places."""
    core = split_constant(term)[1]
    pieces = {x for x in core.args if x.op != "const"} if core.op in ("mul", "add") else {core}
    around = [(set(walk(node)), where) for node, where in origins if where is not None]
    # part of a longer product or sum has no node of its own: its pieces have; and what stands alone is in many terms
    wishes = [{term}, {core}, pieces] if core.args else []
    wishes += [{core}] if equation is None else [{equation}, {core}]
    for wanted in wishes:
        holding = [(len(parts), n) for n, (parts, _) in enumerate(around) if wanted <= parts]
        if holding:
            return around[min(holding)[1]][1]
    named = _named(walk(term))  # whatever their axes are called
    holding = [(len(parts), n) for n, (parts, _) in enumerate(around) if named and named <= _named(parts)]
    return around[min(holding)[1]][1] if holding else None


def _named(nodes: Iterable[Node]) -> set[tuple[str, str]]:
    return {x.attrs[:2] for x in nodes if x.op == "leaf"}
