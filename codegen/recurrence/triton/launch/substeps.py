"""`triton_forward` and `triton_backward` of a step that is several corrections (see `chunkwise/substeps.py`).

Around the functions of one substep, which sweep over several for each step, stand per-step kernels, which make the streams of
substeps, and the gradients of a step of theirs.
"""

from __future__ import annotations

from ....ir.code import Attribute, Code, code
from ....ir.expr import ZERO, Node, leaf, walk
from ....ir.expr import replace as replaced
from ....ir.launch_ir import Alloc, Call, Define, Function, Given, If, Return, Set, Statement, put, ref, takes
from ....ir.python_code import (
    EMPTY,
    TRUE,
    Each,
    Fixed,
    Named,
    Part,
    SetOf,
    beside,
    dictionary,
    made_by,
    method,
    said,
    several,
)
from ....ir.step_program import Var
from ...chunkwise.compiled import Compiled
from ...normal_form.log_decay import log_of
from ...normal_form.substeps import bare, stream_name
from ...step.adjoint import gradient_name
from ..kernels.per_step import Result, RowKernel, launched, printable, row_kernel
from ..print.axis_names import size_name
from ..print.names import Names
from ..print.sizes import sizes
from .inputs import entries, if_wanted, inputs
from .launch_plan import HASH

SUBSTEP = "substep"  # how the names of one substep's functions begin


class SubstepsHost:
    """Makes the functions, and prints their kernels."""

    def __init__(self, c: Compiled, exchanges: bool) -> None:
        assert c.substeps is not None
        self.c, self.parts, self.exchanges = c, c.substeps, exchanges
        self.names = Names(c)
        self.kernels: list[RowKernel] = []
        for v in c.step.variables:
            self.names(v.leaf)
        first = c.step.leading
        self.opening = inputs(c.step, self.names, first if first.kind == "input" else None)
        sizes = several(*map(size_name, c.step.dims))
        self.opening.append(Define(("config",), made_by("choose", "some.dtype", sizes, said(HASH))))

    def functions(self) -> list[Function]:
        """The functions, one after the other."""
        return [self._streams(), self._forward(), self._backward()]

    def _streams(self) -> Function:
        p, results, made = self.parts, [], {}
        body: list[Statement] = list(self.opening)
        for v in p.step.variables:
            tensor = self._tensor("stream", v.name, v)
            shape = beside("B", p.count * Fixed("T"), "H", *map(size_name, v.axes))
            body.append(Alloc(tensor, shape, "torch.float32" if v.is_decay or not v.axes else "some.dtype"))
            made[v.name] = ref(tensor)
            for n in range(p.count):
                name = stream_name(v.name, n)
                node = bare(p.streams.outputs[name])
                node = log_of(node) if v.is_decay else node
                own = self._tensor("stored", name, v)
                results.append(Result(own, node, v.axes, "", within=(tensor, n, p.count)))
        body += [*self._launch("substep_streams", results), Return(entries(made))]
        return _function("substep_streams", takes("given"), "What the substeps of each step are given.", body)

    def _forward(self) -> Function:
        exchange, handed = self._exchange()
        count, results = self.parts.count, []
        taken: list[Statement] = []
        for name, inner in self.parts.outputs.items():
            axes = self.c.step.output_axes[name]
            last = leaf("stored", f"{inner}.last", axes)
            arguments = (ref("outputs")[inner], code(count - 1), code(count))
            taken.append(Call((self.names(last),), "of_substep", arguments))
            results.append(Result(self.names(leaf("stored", f"{name}.made", axes)), last, axes, "some.dtype"))
        made = {n: ref(r.name) for n, r in zip(self.parts.outputs, results, strict=True)}
        given = (
            beside(made_by("substep_streams", "given"), "states", "constants", self._packed(), *handed),
            beside(Named("needs_backward", Fixed("needs_backward")), Named("finals", Fixed("finals"))),
        )
        body = [
            *self.opening,
            Call(("outputs", "finals", "saved"), f"{SUBSTEP}_forward", given, lines=True),
            *taken,
            *self._launch("substep_outputs", results),
            Return(beside(entries(made), ref("finals"), ref("saved"))),
        ]
        head = takes("given", "states", "constants", packed=None, **exchange, needs_backward=TRUE, finals=TRUE)
        return _function("triton_forward", head, "Outputs, last states and what the backward pass uses.", body)

    def _backward(self) -> Function:
        p, (exchange, handed) = self.parts, self._exchange()
        variables = {v.name: v for v in self.c.step.variables if v.kind != "constant"}
        nodes = {n: p.gradients[gradient_name(v)] for n, v in variables.items()}
        made = {
            leaf("cotangent", f"d{stream_name(v.name, k)}", v.axes): (v, k)
            for v in p.step.variables
            for k in range(p.count)
        }
        used = {n: {x for x in walk(g) if x in made} for n, g in nodes.items()}
        users = {s.name: [s.name] for s in self.c.step.states}  # of each gradient that substeps yield
        for n, streams in used.items():
            for v in dict.fromkeys(made[x][0] for x in made if x in streams):
                users.setdefault(v.name, []).append(n)
        table = dictionary((x, SetOf(tuple(map(said, n)))) for x, n in users.items())
        given = (
            beside(made_by("substep_streams", "given"), "states", "constants", "saved"),
            ref("incoming"),
            beside("final_cotangents", ref("wanted"), self._packed(), *handed),
        )
        body: list[Statement] = [
            *self.opening,
            Set(
                ("wanted",),
                made_by(
                    "frozenset",
                    Each(
                        Fixed("x"),
                        ("x", "users"),
                        method(table, "items"),
                        when=Fixed("needs") & Fixed("users"),
                        bare=True,
                    ),
                ),
            ),
            *self._incoming(),
            Call(("found", "initial"), f"{SUBSTEP}_backward", given, lines=True),
        ]
        leaves: dict[Node, Node] = {}
        for x, (v, k) in made.items():
            if any(x in streams for streams in used.values()):
                leaves[x] = kept = leaf("stored", x.attrs[1], v.axes)
                arguments = (method(ref("found"), "get", said(v.name)), code(k), code(p.count))
                body.append(Call((self.names(kept),), "of_substep", arguments))
        results = []
        for n, v in variables.items():
            dtype = "torch.float32" if v.is_decay or not v.axes else "some.dtype"
            node, own = replaced(bare(nodes[n]), leaves), self.names(leaf("stored", f"gradient of {n}", v.axes))
            results.append(Result(own, node, v.axes, dtype, not v.per_step, n))
        body += [*self._launch("substep_gradients", results), Set(("gradients",), EMPTY)]
        for (n, v), r in zip(variables.items(), results, strict=True):
            whole = ref(r.name) if v.per_step else method(ref(r.name), "sum", 0)
            gradient = method(whole, "to", Attribute(Fixed("given")[n], "dtype"))
            body.append(if_wanted(n, [put(ref("gradients")[n], gradient)]))
        body.append(Return(beside(ref("gradients"), ref("initial"))))
        head = takes(
            "given", "states", "constants", "saved", "cotangents", "final_cotangents", "needs", packed=None, **exchange
        )
        return _function("triton_backward", head, "Gradients.", body)

    def _incoming(self) -> list[Statement]:
        """The statements that make the incoming gradients of substeps: those of a step for its last, and zeros."""
        count = self.parts.count
        found: list[Statement] = [Set(("incoming",), EMPTY)]
        for name, inner in self.parts.outputs.items():
            axes = self.c.step.output_axes[name]
            given = leaf("cotangent", f"d{name}", axes)
            spaced = self.names(leaf("stored", f"d{inner}.spaced", axes))
            results = [
                Result(f"{spaced}_{n}", given if n == count - 1 else ZERO, axes, "", within=(spaced, n, count))
                for n in range(count)
            ]
            shape = beside("B", count * Fixed("T"), "H", *sizes(axes))
            own: list[Statement] = [
                Set((self.names(given),), made_by("steps", Fixed("cotangents")[name])),
                Alloc(spaced, shape, "some.dtype", entry=ref("incoming")[inner]),
                *self._launch(f"substep_{inner}", results),
            ]
            found.append(If(made_by("cotangents.get", said(name)).given, tuple(own)))
        return found

    def _launch(self, name: str, results: list[Result]) -> list[Statement]:
        """The launch of a kernel that makes these."""
        for r in results:
            alike = not r.summed and all(x.attrs[0] == "constant" for x in walk(r.node) if x.op == "leaf")
            assert alike or printable(r.node, r.order, r.summed)  # as `substeps` sees to
        kernel = row_kernel(f"{name}_per_step", results, self.names, self.names)
        self.kernels.append(kernel)
        return launched(kernel)

    def _tensor(self, kind: str, name: str, v: Var) -> str:
        return self.names(leaf(kind, name, v.axes))

    def _packed(self) -> Code:
        """Where the sequences of substeps end."""
        return made_by("packed_in", "packed", self.parts.count)

    def _exchange(self) -> tuple[dict[str, Part], list[Code]]:
        """How functions take what other segments of a sequence hand on, and how they pass it on."""
        return ({"exchange": None}, [Named("exchange", Fixed("exchange"))]) if self.exchanges else ({}, [])


def _function(name: str, head: tuple[Given, ...], doc: str, body: list[Statement]) -> Function:
    return Function(name, head, doc, tuple(body), frees=False)
