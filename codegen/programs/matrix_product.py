"""The matrix of a solve in torch: a function of a vector, printed from the chunk program of their product.

The states at chunk boundaries are swept once; what doesn't depend on the vector is computed once, and each product is then a
few matrix products over all chunks at once.
"""

from __future__ import annotations

from ..ir.code import Attribute, Code, Items, Name, Starred, call
from ..ir.expr import Node, dim_of, walk
from ..ir.launch_ir import Function, Local, Return, Set, Statement, assign, ref
from ..ir.python_code import Each, Fixed, Spread, beside, dictionary, made_by, method, several
from ..ir.words import Definitions
from ..printing.torch_expressions import TorchText, stored
from ..recurrence.chunkwise.chunk_program import chunk_program
from ..recurrence.chunkwise.planner import Map, Sweep
from ..recurrence.torch_form.passes import PassText, arguments
from ..recurrence.torch_form.sweep import (
    Streams,
    SweepText,
    at_boundary,
    from_chunks,
    function,
    operation_of_chunks,
    printed,
)
from .graph import Operation


def matrix_definitions(op: Operation) -> Definitions:
    """`torch_matrix(given, states, constants)`, which yields the product with a vector, and the last states."""
    if op.compiled.forward is None or op.compiled.forward.form.write_leaves():
        return printed([stepwise_matrix(op)])
    return printed(_Matrix(op).functions())


def stepwise_matrix(op: Operation) -> Function:
    """The same where the product isn't chunk-parallel: every product takes the recurrent form."""
    vector, output = op.vector, op.product
    assert vector is not None
    some = next(v.name for v in op.compiled.step.variables if v.per_step and vector_axes(op) and v.name != vector)

    def whole(value: Code) -> Code:
        """What all steps make with this vector."""
        given = dictionary([Spread(Fixed("given")), (str(vector), value)])
        return made_by("torch_forward", given, "states", "constants")

    found = method(whole(method(vector, "transpose", 1, 2))[0][output], "transpose", 1, 2)
    product = function("product", [vector], "", (Return(found),))
    shape = several(Starred(Attribute(Fixed("given")[some], "shape")[:3]), width(op))
    body = (
        Set(("dtype",), made_by("dtype_of", "given")),
        Set(("given",), Each(made_by("x.to", "dtype"), ("n", "x"), made_by("given.items"), key="n")),
        Local(product),
        Set(("nothing",), method(Fixed("given")[some], "new_zeros", shape)),
        Return(beside("product", whole(Fixed("nothing"))[1])),
    )
    told = "The product with a vector [B, H, T, d], in recurrent form; last states."
    return function("torch_matrix", ["given", "states", "constants"], told, body)


def vector_axes(op: Operation) -> tuple[str, ...]:
    assert op.vector is not None
    return op.compiled.step.variable(op.vector).axes


def width(op: Operation) -> Code:
    """The length of the vector, from another argument that has its dim, or from the states."""
    (axis,) = vector_axes(op)
    for v in op.compiled.step.variables:
        if v.name != op.vector and dim_of(axis) in map(dim_of, v.axes):
            at = [dim_of(a) for a in v.axes].index(dim_of(axis)) - len(v.axes)
            return Attribute(Fixed("given")[v.name], "shape")[at]
    raise AssertionError(axis)


class _Vectors(Streams):
    """Streams that depend on the vector: chunks of it, or of it times something."""

    def text(self, x: Node, logged: bool = False, fill: float = 0.0) -> str:
        assert not logged and fill == 0.0
        node = self.node_of[x.attrs[1]]
        return self.nodes.setdefault(node, f"vector_{len(self.nodes) + 1}")


class _Fixed(TorchText):
    """What doesn't depend on the vector."""

    def __init__(self, parent: _Matrix, sweep: Sweep, body: list[Statement], number: int) -> None:
        super().__init__(self._leaf, body, {}, f"fixed_{number + 1}_")
        self.parent, self.sweep = parent, sweep
        given = {x: n for x, n in sweep.chunk.streams.items() if not parent.depends(n)}
        self.streams = Streams(
            given, lambda x: f"{parent.called(x)}_chunks{number + 1 if number else ''}_", parent.size_now
        )
        self.mixes: dict = {}

    def _leaf(self, x: Node) -> str | Code:
        if x.op != "leaf":
            return operation_of_chunks(x, self, self.streams, self.mixes, self.body)
        if x.attrs[0] == "stream":
            return self.streams.text(x)
        return at_boundary(x.attrs[1], 1)

    def decay_code(self, mask: Node) -> Code:
        return Name(self.streams.text(mask.args[0], logged=True))


class _Product(TorchText):
    """What depends on the vector, inside the function that is returned."""

    def __init__(self, fixed: _Fixed, vectors: _Vectors, body: list[Statement], prefix: str) -> None:
        super().__init__(self._leaf, body, {}, prefix)
        self.fixed, self.vectors = fixed, vectors
        self.decay_code = fixed.decay_code  # type: ignore[method-assign]

    def value(self, x: Node) -> Code:
        if x.op in ("const", "number", "size") or self.moves(x):
            return super().value(x)
        made = self.fixed.value(x)
        if not self.fixed.is_name(x):
            name = self.fixed.fresh(x)
            self.fixed.define(name, made)
            self.fixed.names[x], made = name, Name(name)
        return made

    def moves(self, x: Node) -> bool:
        """Does x depend on the vector?"""
        known = {k for k in self.vectors.node_of}
        return any(y.op == "leaf" and y.attrs[0] == "stream" and y.attrs[1] in known for y in walk(x))

    def _leaf(self, x: Node) -> str:
        assert x.op == "leaf", x
        return self.vectors.text(x)


class _Matrix(PassText):
    def __init__(self, op: Operation) -> None:
        c = op.compiled
        assert c.forward is not None and op.vector is not None
        super().__init__(c, c.forward, backward=False)
        self.op, self.vector = op, op.vector

    def depends(self, node: Node) -> bool:
        return any(y.op == "leaf" and y.attrs[:2] == ("input", self.vector) for y in walk(node))

    def functions(self) -> list[Function]:
        self._open()
        product: list[Statement] = []
        for n, stage in enumerate(self.p.stages):
            if isinstance(stage, Sweep):
                self._checkpoints(stage)
                product += self._reads(stage, n)
        product += self._result()
        states = [s.name for s in self.c.step.states]
        lasts = dictionary((n, ref(f"{n}_last")) for n in states)
        told = f"The product with a vector [B, H, T, d], from {', '.join(states)} at chunk boundaries; last states."
        inner = function("product", [self.vector], "", tuple(product))
        body = (*self.body, Local(inner), Return(beside(ref("product"), lasts)))
        return [*self.sweeps, function("torch_matrix", arguments(backward=False), told, body)]

    def _checkpoints(self, s: Sweep) -> None:
        """The sweep that keeps the states before each chunk."""
        names = tuple(x.name for x in s.group)
        bare = Sweep(s.group, False, s.side, (), names, chunk_program(s.group, (), False, self.p.form.reads))
        sweep = SweepText(self, bare, names, f"_{'_'.join(names)}_boundaries")
        self.sweeps.append(sweep.made())
        streams = []
        for node in sweep.streams.nodes:
            self.text_of.count([node])
            streams.append(self.text_of.value(node))
        self.size_now = self._size(s)
        firsts = [self.state_name(n) for n in names]
        results = (*(at_boundary(n, 1) for n in names), *(f"{n}_last" for n in names))
        self.swept(sweep, Items(tuple(streams)), firsts, 1, self.size_now, results)

    def _reads(self, s: Sweep, number: int) -> list[Statement]:
        """The reads of a sweep: its fixed part is made before the loop, the rest is returned."""
        assert not s.chunk.definitions
        fixed_body: list[Statement] = []
        body: list[Statement] = []
        fixed = _Fixed(self, s, fixed_body, number)
        vectors = _Vectors({x: n for x, n in s.chunk.streams.items() if self.depends(n)})
        printer = _Product(fixed, vectors, body, f"made_{number + 1}_")
        for t in (fixed, printer):
            t.count(s.chunk.outputs.values())
        results = []
        for x, node in s.chunk.outputs.items():
            name = self.leaves.get("read", x.attrs[1], "y")
            results.append(assign(name, from_chunks(printer.value(node), node, x, self.size_now)))
        for node in fixed.streams.nodes:
            self.text_of.count([node])
        streams = [self.text_of.value(node) for node in fixed.streams.nodes]
        self.body += [*fixed.streams.statements(streams), *fixed_body]
        before: list[Statement] = []
        inner = TorchText(self.leaf, before, {}, "step_")
        inner.count(vectors.nodes)
        ahead: list[Statement] = []
        for n, node in enumerate(vectors.nodes, 1):
            made = call("to_chunks", inner.value(node), "lead", self.size_now, len(node.axes))
            ahead.append(assign(f"vector_{n}", made))
        return [*before, *ahead, *body, *results]

    def _result(self) -> list[Statement]:
        """The product, from the reads and what is added to them."""
        stage = next(x for x in self.p.stages if isinstance(x, Map))
        body: list[Statement] = []
        printer = TorchText(self.leaf, body, {}, "sum_")
        (name,) = stage.values
        node, axes = stage.values[name], self.c.step.output_axes[name]
        printer.count([node])
        body.append(Return(stored(printer.value(node), axes)))
        return body

    def leaf(self, x: Node) -> str:
        if x.op == "leaf" and x.attrs[:2] == ("input", self.vector):
            return self.vector
        return super().leaf(x)
