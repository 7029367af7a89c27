"""`triton_forward` and `triton_backward` of a step that is several corrections (see `chunkwise/substeps.py`).

Around the functions of one substep, which sweep over several for each step, stand per-step kernels, which make the streams of
substeps, and the gradients of a step of theirs.
"""

from __future__ import annotations

from ....ir.expr import ZERO, Node, dim_of, leaf, walk
from ....ir.expr import replace as replaced
from ....ir.step_program import Var
from ...chunkwise.compiled import Compiled
from ...normal_form.log_decay import log_of
from ...normal_form.substeps import bare, stream_name
from ...step.adjoint import gradient_name
from ..kernels.per_step import Result, launched, printable, row_kernel
from ..kernels.sweep_kernels import Kernel
from ..print.axis_names import size_name
from ..print.names import Names
from .launch_plan import HASH, inputs

SUBSTEP = "substep"  # how the names of one substep's functions begin


class SubstepsHost:
    """Prints the functions and their kernels."""

    def __init__(self, c: Compiled, exchanges: bool) -> None:
        assert c.substeps is not None
        self.c, self.parts, self.exchanges = c, c.substeps, exchanges
        self.names = Names(c)
        self.kernels: list[Kernel] = []
        for v in c.step.variables:
            self.names(v.leaf)
        first = c.step.leading
        self.opening = inputs(c.step, self.names, first if first.kind == "input" else None)
        sizes = ", ".join(size_name(d) for d in c.step.dims) + ("," if len(c.step.dims) == 1 else "")
        self.opening.append(f'config = choose(some.dtype, ({sizes}), "{HASH}")')

    def texts(self) -> list[str]:
        """The functions, one after the other."""
        return [self._streams(), self._forward(), self._backward()]

    def _streams(self) -> str:
        p, results, made, lines = self.parts, [], [], list(self.opening)
        for v in p.step.variables:
            tensor = self._tensor("stream", v.name, v)
            shape = ", ".join(["B", f"{p.count} * T", "H", *map(size_name, v.axes)])
            wide = v.is_decay or not v.axes
            lines.append(f"{tensor} = some.new_empty(({shape}), dtype={'torch.float32' if wide else 'some.dtype'})")
            made.append(f'"{v.name}": {tensor}')
            for n in range(p.count):
                name = stream_name(v.name, n)
                node = bare(p.streams.outputs[name])
                node = log_of(node) if v.is_decay else node
                own = self._tensor("stored", name, v)
                results.append(Result(own, node, v.axes, "", within=(tensor, n, p.count)))
        lines += [*self._launch("substep_streams", results), f"return {{{', '.join(made)}}}"]
        return _function("substep_streams(given)", "What the substeps of each step are given.", lines)

    def _forward(self) -> str:
        exchange, handed = self._exchange()
        count, results, taken = self.parts.count, [], []
        for name, inner in self.parts.outputs.items():
            axes = self.c.step.output_axes[name]
            last = leaf("stored", f"{inner}.last", axes)
            taken.append(f'{self.names(last)} = of_substep(outputs["{inner}"], {count - 1}, {count})')
            results.append(Result(self.names(leaf("stored", f"{name}.made", axes)), last, axes, "some.dtype"))
        made = ", ".join(f'"{n}": {r.name}' for n, r in zip(self.parts.outputs, results, strict=True))
        lines = [
            *self.opening,
            f"outputs, finals, saved = {SUBSTEP}_forward(",
            f"    substep_streams(given), states, constants, packed_in(packed, {self.parts.count}){handed},",
            "    needs_backward=needs_backward, finals=finals,",
            ")",
            *taken,
            *self._launch("substep_outputs", results),
            f"return {{{made}}}, finals, saved",
        ]
        head = f"triton_forward(given, states, constants, packed=None{exchange}, needs_backward=True, finals=True)"
        return _function(head, "Outputs, last states and what the backward pass uses.", lines)

    def _backward(self) -> str:
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
        table = ", ".join(f'"{x}": {{{", ".join(map(_quoted, n))}}}' for x, n in users.items())
        lines = [
            *self.opening,
            f"wanted = frozenset(x for x, users in {{{table}}}.items() if needs & users)",
            *self._incoming(),
            f"found, initial = {SUBSTEP}_backward(",
            "    substep_streams(given), states, constants, saved,",
            "    incoming,",
            f"    final_cotangents, wanted, packed_in(packed, {p.count}){handed},",
            ")",
        ]
        leaves: dict[Node, Node] = {}
        for x, (v, k) in made.items():
            if any(x in streams for streams in used.values()):
                leaves[x] = kept = leaf("stored", x.attrs[1], v.axes)
                lines.append(f'{self.names(kept)} = of_substep(found.get("{v.name}"), {k}, {p.count})')
        results = []
        for n, v in variables.items():
            dtype = "torch.float32" if v.is_decay or not v.axes else "some.dtype"
            node, own = replaced(bare(nodes[n]), leaves), self.names(leaf("stored", f"gradient of {n}", v.axes))
            results.append(Result(own, node, v.axes, dtype, not v.per_step, f'"{n}" in needs'))
        lines += self._launch("substep_gradients", results)
        lines.append("gradients = {}")
        for (n, v), r in zip(variables.items(), results, strict=True):
            total = "" if v.per_step else ".sum(0)"
            lines.append(f'if "{n}" in needs:')
            lines.append(f'    gradients["{n}"] = {r.name}{total}.to(given["{n}"].dtype)')
        lines.append("return gradients, initial")
        rest = f"saved, cotangents, final_cotangents, needs, packed=None{exchange}"
        return _function(f"triton_backward(given, states, constants, {rest})", "Gradients.", lines)

    def _incoming(self) -> list[str]:
        """The statements that make the incoming gradients of substeps: those of a step for its last, and zeros."""
        lines, count = ["incoming = {}"], self.parts.count
        for name, inner in self.parts.outputs.items():
            axes = self.c.step.output_axes[name]
            given = leaf("cotangent", f"d{name}", axes)
            spaced = self.names(leaf("stored", f"d{inner}.spaced", axes))
            results = [
                Result(f"{spaced}_{n}", given if n == count - 1 else ZERO, axes, "", within=(spaced, n, count))
                for n in range(count)
            ]
            shape = ", ".join(["B", f"{count} * T", "H", *(size_name(dim_of(a)) for a in axes)])
            own = [
                f'{self.names(given)} = steps(cotangents["{name}"])',
                f'incoming["{inner}"] = {spaced} = some.new_empty(({shape}), dtype=some.dtype)',
                *self._launch(f"substep_{inner}", results),
            ]
            lines += [f'if cotangents.get("{name}") is not None:', *(f"    {x}" for x in own)]
        return lines

    def _launch(self, name: str, results: list[Result]) -> list[str]:
        """The launch of a kernel that makes these."""
        for r in results:
            alike = not r.summed and all(x.attrs[0] == "constant" for x in walk(r.node) if x.op == "leaf")
            assert alike or printable(r.node, r.order, r.summed)  # as `substeps` sees to
        kernel = row_kernel(f"{name}_rows", results, self.names, self.names)
        self.kernels.append(kernel)
        return launched(kernel, results)

    def _tensor(self, kind: str, name: str, v: Var) -> str:
        return self.names(leaf(kind, name, v.axes))

    def _exchange(self) -> tuple[str, str]:
        """How functions take what other segments of a sequence hand on, and how they pass it on."""
        return (", exchange=None", ", exchange=exchange") if self.exchanges else ("", "")


def _function(head: str, doc: str, lines: list[str]) -> str:
    body = "\n".join(f"    {x}" for x in lines)
    return f'def {head}:\n    """{doc}"""\n{body}\n'


def _quoted(name: str) -> str:
    return f'"{name}"'
