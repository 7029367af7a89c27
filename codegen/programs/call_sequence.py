"""The two functions of a program for one backend: calls of its ops in order, and of their backwards in reverse order."""

from __future__ import annotations

import dataclasses
import keyword

from chunkform.spec.language.methods import cg, neumann

from ..ir.expr import plain_name
from .adjoint_graph import AdjointNode
from .compiled import CompiledProgram
from .graph import Node, OpNode, SolveNode
from .op_sources import Texts, function, keeps

RESERVED = frozenset(
    "given states constants saved cotangents final_cotangents needs packed sums inner initial torch triton tl part kept wanted "
    "inverted through_inverse conjugate_gradients neumann Sums Again ARGUMENTS add".split()
)
INDENT = "    "
FINE = " in float32"  # ends the name of what a solve found before it was rounded


def residual_name(n: SolveNode) -> str:
    return f"{n.name}_residual"


def forward_text(c: CompiledProgram, backend: str, texts: Texts, words: dict[str, str]) -> str:
    """`<backend>_forward` of the program. `words` says of each node what it computes."""
    return _Calls(c, backend, texts, words).forward()


def backward_text(c: CompiledProgram, backend: str, texts: Texts, words: dict[str, str]) -> str:
    """`<backend>_backward` of the program."""
    return _Calls(c, backend, texts, words).backward()


class _Calls:
    def __init__(self, c: CompiledProgram, backend: str, texts: Texts, words: dict[str, str]) -> None:
        self.c, self.g, self.backend, self.texts, self.words = c, c.graph, backend, texts, words
        self.arguments = set(self.g.arguments)
        self.lines: list[str] = []
        self.matrices: dict[tuple, str] = {}
        self.has_inner = False  # has a backward pass been called, whose gradients are called so?
        self.made = [q for n in self.g.nodes for q in n.made]
        self.per_step = [v.name for v in c.spec.step.variables if v.kind in ("input", "decay")]

    # --- names ------------------------------------------------------------------------------------------------------

    def local(self, q: str) -> str:
        """The Python name of a quantity that an op makes."""
        if q.endswith(FINE):
            return f"{self.local(q.removesuffix(FINE))}_fine"
        own = plain_name(q)
        return f"{q}_" if own in RESERVED or keyword.iskeyword(own) else q

    def value(self, q: str) -> str:
        return f'given["{q}"]' if q in self.arguments else self.local(q)

    def on(self, n: Node) -> str:
        """The backend whose functions an op has."""
        return "torch" if self.backend == "triton" and n.op.is_map else self.backend

    def given(self, n: Node, extra: dict[str, str] | None = None) -> str:
        constants = {v.name for v in n.op.compiled.step.variables if v.kind == "constant"}
        fine = self.texts.given.get(n.op.name, ()) if isinstance(n, OpNode) else ()
        values = {own: self.local(q + FINE) if own in fine else self.value(q) for own, q in n.inputs.items()}
        if n.name in self.g.wide:
            values = {own: f"wide({text})" for own, text in values.items()}
        items = [f'"{own}": {text}' for own, text in values.items() if own not in constants]
        items += [f'"{own}": {text}' for own, text in (extra or {}).items()]
        return "{" + ", ".join(items) + "}"

    def constants(self, n: Node) -> str:
        names = {v.name: n.inputs[v.name] for v in n.op.compiled.step.variables if v.kind == "constant"}
        if all(a == b for a, b in names.items()):
            return "constants"
        return "{" + ", ".join(f'"{a}": constants["{b}"]' for a, b in names.items()) + "}"

    def start(self, n: Node) -> str:
        inverted = n.inverted if isinstance(n, OpNode) else frozenset()
        items = []
        for own, s in n.states.items():
            text = f'states.get("{s}")'
            items.append(f'"{own}": inverted({text})' if own in inverted else f'"{own}": {text}')
        return "{" + ", ".join(items) + "}"

    def has_kernel(self, n: SolveNode) -> bool:
        return self.backend == "triton" and n.op.name not in self.texts.reasons and isinstance(n.method, cg)

    # --- forward ----------------------------------------------------------------------------------------------------

    def forward(self) -> str:
        lines = self.lines
        for n in self.g.nodes:
            lines.append(f"# {self.words[n.name]}")
            if isinstance(n, OpNode):
                self._op(n)
            else:
                self._solve(n)
        outputs = [f'"{name}": {self._handed_out(q)}' for name, q in self.g.outputs.items()]
        outputs += [f'"{residual_name(n)}": {self.local(residual_name(n))}' for n in self.g.solves]
        finals = []
        for s, node in self.g.finals.items():
            n = self.g.node(node)
            own = next(a for a, b in n.states.items() if b == s)
            text = f'{self.local(n.name)}_last["{own}"]'
            finals.append(
                f'"{s}": inverted({text})' if isinstance(n, OpNode) and own in n.inverted else f'"{s}": {text}'
            )
        lines += [
            f"outputs = {{{', '.join(outputs)}}}",
            f"finals = {{{', '.join(finals)}}}",
            f"return outputs, finals, {{{', '.join(self._saved())}}}",
        ]
        doc = f'"""Outputs, last states and what the backward pass uses of {self.g.program.name}: op after op."""'
        return self._function("forward", "given, states, constants", doc, "")

    def _handed_out(self, q: str) -> str:
        """A quantity as an output, which has the dtype of inputs."""
        n = next((n for n in self.g.nodes if q in n.made and n.name in self.g.wide), None)
        return self.value(q) if n is None else f"{self.value(q)}.to({self.value(self._like(n))}.dtype)"

    def _saved(self) -> list[str]:
        """What the backward pass uses: quantities that are read again, what ops keep, and the iterates of a solve."""
        out = [f'"{q}": {self.local(q)}' for q in self.needed_again()]
        for n in self.g.nodes:
            if isinstance(n, SolveNode) and n.unrolled:
                out.append(f'"{n.name} iterates": {self.local(n.name)}_iterates')
            elif isinstance(n, OpNode) and not (self.backend == "torch" and n.name in self.g.repeated):
                out.append(f'**kept("{n.name}", {self.local(n.name)}_saved)')
                if n.inverted:
                    out.append(f'**kept("{n.name} last", {self.local(n.name)}_last)')
        return out

    def needed_again(self) -> list[str]:
        again = {q for n in self.g.nodes for q in n.given.values()} | {n.name for n in self.g.solves}
        return [x for q in self.made if q in again for x in (q, *([f"{q}{FINE}"] if q in self.texts.fine else []))]

    def _op(self, n: OpNode) -> None:
        name = self.local(n.name)
        if self.backend == "torch" and n.name in self.g.repeated:
            self._repeated(n)
            return
        call = f"{function(n.op, self.on(n), 'forward')}({self.given(n)}, {self.start(n)}, {self.constants(n)})"
        self.lines.append(f"{name}_made, {name}_last, {name}_saved = {call}")
        self.lines += [f'{self.local(q)} = {name}_made["{own}"]' for own, q in n.outputs.items()]

    def _repeated(self, n: OpNode) -> None:
        """An op of several that differ in one vector: their states are swept for the first of them."""
        name, vector = self.local(n.name), self.g.repeated[n.name].vector
        assert vector is not None
        rest = {own: q for own, q in n.inputs.items() if own != vector}
        key = (id(n.op), tuple(rest.items()), tuple(n.states.items()))
        if key not in self.matrices:
            self.matrices[key] = name
            call = f"{self.given(dataclasses.replace(n, inputs=rest))}, {self.start(n)}, {self.constants(n)}"
            self.lines.append(f"{name}_matrix, {name}_last = {function(n.op, 'torch', 'matrix')}({call})")
        (q,) = n.outputs.values()
        like = self.value(self._like(n))
        self.lines.append(
            f"{self.local(q)} = through({self.matrices[key]}_matrix, {self.value(n.inputs[vector])}, {like})"
        )

    def _matrix(self, n: SolveNode) -> str:
        """The name of what is known of a solve's matrix; made here, unless a solve with the same matrix came before."""
        key = _key(n)
        if key not in self.matrices:
            name = self.matrices[key] = self.local(n.name)
            call = f"{self.given(n)}, {self.start(n)}, {self.constants(n)}"
            if self.has_kernel(n):
                call += f", {self.value(n.right)}"
            backend = "triton" if self.has_kernel(n) else "torch"
            self.lines.append(f"{name}_matrix, {name}_last = {function(n.op, backend, 'matrix')}({call})")
        return f"{self.matrices[key]}_matrix"

    def _cg(self, n: SolveNode, right: str, result: str, options: str = "") -> None:
        """One solve by conjugate gradients: by a kernel where there is one."""
        method, matrix = n.method, self._matrix(n)
        assert isinstance(method, cg)
        if self.has_kernel(n):
            given = f"{self.given(n)}, {self.constants(n)}, {matrix}, {right}"
            call = f"{function(n.op, 'triton', 'solve')}({given}, {method.steps}, {method.tolerance}{options})"
        else:
            call = f"conjugate_gradients({matrix}, {right}, {method.steps}, {method.tolerance}, {self.value(n.right)})"
        self.lines.append(f"{result} = {call}")

    def _unrounded(self, n: SolveNode, name: str) -> str:
        """Where what a kernel's solve finds goes in float32."""
        return f", {name}_fine" if n.name in self.texts.fine else ", _" if self.has_kernel(n) else ""

    def _step(self, n: SolveNode) -> str:
        return self.value(n.step) if isinstance(n.step, str) else repr(1.0 if n.step is None else n.step)

    def _solve(self, n: SolveNode) -> None:
        name, right = self.local(n.name), self.value(n.right)
        residual = self.local(residual_name(n))
        if isinstance(n.method, cg):
            self._cg(n, right, f"{name}, {residual}" + self._unrounded(n, name))
            return
        assert isinstance(n.method, neumann)
        self.lines.append(
            f"{name}, {residual}, {name}_iterates = neumann({self._matrix(n)}, {right}, {n.method.steps}, {self._step(n)}, "
            f"{n.method.start == 'right side'}, {right}, keep={n.unrolled})"
        )

    # --- backward ---------------------------------------------------------------------------------------------------

    def backward(self) -> str:
        lines = self.lines
        lines += [f'{self.local(q)} = saved["{q}"]' for q in self.needed_again()]
        lines.append("sums = Sums()")
        for name, q in self.g.outputs.items():
            lines.append(f'sums.add("{q}", cotangents.get("{name}"))')
        for a in self.c.adjoint.nodes:
            lines.append(f"# the adjoint of {self.words[a.of.name]}")
            if isinstance(a.of, OpNode):
                self._op_adjoint(a, a.of)
            else:
                self._solve_adjoint(a, a.of)
        lines.append("return sums.gradients(given), sums.initial")
        doc = f'"""Gradients of {self.g.program.name}: the backward pass of each op, the last one first."""'
        return self._function(
            "backward", "given, states, constants, saved, cotangents, final_cotangents, needs", doc,
            ", saved, cotangents, final_cotangents, needs",
        )  # fmt: skip

    def _finals(self, n: Node, when: str = "") -> str:
        """The incoming gradients of a node's last states, where it is the one that yields them."""
        items = []
        for own, s in n.states.items():
            if self.g.finals[s] != n.name:
                continue
            text = f'final_cotangents.get("{s}")'
            if isinstance(n, OpNode) and own in n.inverted:
                text = f'through_inverse(inverted(part("{n.name} last", saved)["{own}"]), {text})'
            items.append(f'"{own}": {text}{when}')
        return "{" + ", ".join(items) + "}"

    def _wanted(self, names: dict[str, str]) -> str:
        shown = ", ".join(f'"{own}": "{q}"' for own, q in names.items())
        return f"wanted(needs, {{{shown}}}, ARGUMENTS)"

    def _op_adjoint(self, a: AdjointNode, n: OpNode) -> None:
        lines = self.lines
        takes = ", ".join(f'"{own}": sums.get("{q}", {self.value(self._like(n))})' for own, q in a.takes.items())
        self.has_inner = True
        lines += [
            f"inner, initial = {function(n.op, self.on(n), 'backward')}(",
            f"    {self.given(n)}, {self.start(n)}, {self.constants(n)},",
            f'    part("{n.name}", saved), {{{takes}}},',
            f"    {self._finals(n)}, {self._wanted({**a.gives, **n.states})},",
            ")",
            f"sums.add_all(inner, {_names(a.gives)})",
        ]
        for own, s in n.states.items():
            text = f'initial.get("{own}")'
            if own in n.inverted:
                lines.append(f'if states.get("{s}") is not None:')
                lines.append(f'    sums.start("{s}", through_inverse(inverted(states["{s}"]), {text}))')
            else:
                lines.append(f'sums.start("{s}", {text})')

    def _like(self, n: Node) -> str:
        """An argument whose dtype an op's outputs have."""
        inputs = [v.name for v in n.op.compiled.step.variables if v.kind == "input" and v.name in n.inputs]
        return n.inputs[inputs[0]] if inputs else next(iter(n.inputs.values()))

    def _solve_adjoint(self, a: AdjointNode, n: SolveNode) -> None:
        lines, name = self.lines, self.local(n.name)
        right = self.value(n.right)
        gives = {own: q for own, q in a.gives.items() if own not in ("right side", "step")}
        like = "" if n.name in self.texts.fine else f", {right}"
        lines.append(f'd{name} = zeros_where_none(sums.take("{n.name}"{like}), {name})')
        if isinstance(n.method, cg):
            kernel = self.has_kernel(n)
            matrix = self._matrix(n)
            self._cg(n, f"d{name}", f"w_{name}, _" + self._unrounded(n, f"w_{name}"), f", {a.sign}" if kernel else "")
            later = self.c.adjoint.nodes[self.c.adjoint.nodes.index(a) + 1 :]
            if not any(isinstance(x.of, SolveNode) and _key(x.of) == _key(n) for x in later):
                held = [*(["inner"] if self.has_inner else []), f"d{name}", matrix]
                lines.append(f"{' = '.join(held)} = None")  # large, and of no more use
            for_right, cotangent = f"w_{name}", _signed(a.sign, f"w_{name}")
            if kernel:  # it finds w with the sign that the matrix gets
                for_right, cotangent = cotangent, for_right
            lines += [f'sums.add("{a.gives["right side"]}", {for_right})', *self._product_adjoint(n, a, gives)]
            fine = f", w_{name}_fine, {name}_fine" if n.name in self.texts.fine else ""
            lines.append(f"d_{name}_matrix({cotangent}, {name}, True{fine})")
            return
        assert isinstance(n.method, neumann)
        matrix = self._matrix(n)
        start, step = n.method.start == "right side", self._step(n)
        if n.method.backward == "implicit":
            lines.append(f"w_{name}, _, _ = neumann({matrix}, d{name}, {n.method.steps}, {step}, {start}, {right})")
            lines += [f'sums.add("{a.gives["right side"]}", w_{name})', *self._product_adjoint(n, a, gives)]
            lines.append(f"d_{name}_matrix({_signed(a.sign, f'w_{name}')}, {name}, True)")
            return
        lines += self._product_adjoint(n, a, gives)
        if n.method.backward == "simplified":
            lines.append(
                f"w_{name} = simplified_backward({matrix}, d_{name}_matrix, {right}, d{name}, {name}, {n.method.steps}, "
                f"{step}, {start}, {right}, {a.sign})"
            )
        else:
            lines.append(
                f"w_{name}, {name}_dstep = unrolled_backward({matrix}, d_{name}_matrix, {right}, d{name}, "
                f'saved["{n.name} iterates"], {step}, {start}, {a.sign})'
            )
        lines.append(f'sums.add("{a.gives["right side"]}", w_{name})')
        if "step" in a.gives:
            lines.append(f'sums.add("{a.gives["step"]}", {name}_dstep)')

    def _product_adjoint(self, n: SolveNode, a: AdjointNode, gives: dict[str, str]) -> list[str]:
        """The derived adjoint of the product of the matrix with a vector, as a function of both."""
        name = self.local(n.name)
        vector = n.op.vector
        assert vector is not None
        arguments = f"{self.given(n, {vector: 'vector'})}, {self.start(n)}, {self.constants(n)}"
        apart = {own: q for own, q in gives.items() if own in self.texts.summed.get(n.op.name, ())}
        gives = {own: q for own, q in gives.items() if own not in apart}
        fine = n.name in self.texts.fine
        again = "{}"
        if keeps(n.op, self.backend):
            again = f"Again(lambda: {function(n.op, self.backend, 'forward')}({arguments}))"
        lines = [
            "",
            f"def d_{name}_matrix(cotangent, vector, last{', fine_cotangent, fine_vector' if fine else ''}):",
            f'    """Adds the gradients of the product of the matrix of {n.name} with a vector."""',
            f"    inner, initial = {function(n.op, self.backend, 'backward')}(",
            f"        {arguments},",
            f'        {again}, {{"{n.op.product}": cotangent}},',
            f"        {self._finals(n, ' if last else None')}, {self._wanted({**gives, **n.states})},",
            "    )",
            f"    sums.add_all(inner, {_names(gives)})",
        ]
        if apart:
            name_of = function(n.op, "triton", "parameters")
            kind = "fine_" if fine else ""
            call = f"{name_of}({self.given(n, {vector: f'{kind}vector'})}, {self.constants(n)}, {kind}cotangent)"
            lines += [f"    if {self._wanted(apart)}:", f"        sums.add_all({call}, {_names(apart)})"]
        lines += [f'    sums.start("{s}", initial.get("{own}"))' for own, s in n.states.items()]
        return [*lines, ""]

    # --- the function -----------------------------------------------------------------------------------------------

    def _function(self, kind: str, parameters: str, doc: str, rest: str) -> str:
        name = f"{self.backend}_{kind}"
        head = [f"def {name}({parameters}, packed=None):", INDENT + doc]
        if self.backend == "torch":
            steps = ", ".join(f'"{n}"' for n in self.per_step)
            head += [
                f"{INDENT}if packed is not None:",
                f"{INDENT}    return {kind}_by_length({name}, [{steps}], given, states, constants{rest}, packed)",
            ]
        return "\n".join([*head, *(INDENT + x if x else "" for x in self.lines)])


def _key(n: SolveNode) -> tuple[object, ...]:
    """What solves with the same matrix have in common."""
    return id(n.op), tuple(n.inputs.items()), tuple(n.states.items())


def _names(names: dict[str, str]) -> str:
    return "{" + ", ".join(f'"{own}": "{q}"' for own, q in names.items()) + "}"


def _signed(sign: int, text: str) -> str:
    return f"-{text}" if sign < 0 else text
