"""The two functions of a program for one backend: calls of its ops in order, and of their backwards in reverse order."""

from __future__ import annotations

import dataclasses
import keyword
from collections.abc import Iterable

from chunkform.spec.language.methods import cg, neumann

from ..ir.code import Attribute, Literal, Name
from ..ir.expr import plain_name
from ..ir.launch_ir import (
    Call,
    Code,
    Do,
    Free,
    Function,
    If,
    Local,
    Note,
    Return,
    Set,
    Statement,
    entry,
    item,
    ref,
    takes,
)
from ..ir.python_code import (
    EMPTY,
    TRUE,
    Lambda,
    Named,
    Part,
    Spread,
    a_list,
    beside,
    choice,
    dictionary,
    made_by,
    method,
    of,
    said,
)
from ..ir.words import Definitions, apart
from ..printing.code_passes import finished_function
from ..printing.launch_text import launch_definition
from .adjoint_graph import AdjointNode
from .compiled import CompiledProgram
from .graph import Node, OpNode, SolveNode
from .op_sources import Texts, function, keeps

RESERVED = frozenset(
    "given states constants saved cotangents final_cotangents needs packed sums inner initial torch triton tl part kept wanted "
    "inverted through_inverse conjugate_gradients neumann Sums Again ARGUMENTS add".split()
)
SUMS, STATES, NEEDS = ref("sums"), ref("states"), ref("needs")
BACKWARD = ("saved", "cotangents", "final_cotangents", "needs")  # what a backward pass is given beside


def residual_name(n: SolveNode) -> str:
    return f"{n.name}_residual"


def pass_definitions(c: CompiledProgram, backend: str, texts: Texts, words: dict[str, str]) -> Definitions:
    """`<backend>_forward` and `<backend>_backward` of the program. `words` says of each node what it computes."""
    functions = (kind(c, backend, texts, words).made() for kind in (_Forward, _Backward))
    return apart(launch_definition(finished_function(f)) for f in functions)


class _Calls:
    """What both functions are made of: names of quantities, what ops are given, and products with matrices of solves."""

    def __init__(self, c: CompiledProgram, backend: str, texts: Texts, words: dict[str, str]) -> None:
        self.c, self.g, self.backend, self.texts, self.words = c, c.graph, backend, texts, words
        self.body: list[Statement] = []
        self.matrices: dict[tuple[object, ...], str] = {}

    # --- names ------------------------------------------------------------------------------------------------------

    def local(self, q: str) -> str:
        """The Python name of a quantity that an op makes."""
        own = plain_name(q)
        return f"{q}_" if own in RESERVED or keyword.iskeyword(own) else q

    def fine(self, q: str) -> str:
        """The name of what a solve found, before it was rounded."""
        return f"{self.local(q)}_fine"

    def value(self, q: str) -> Code:
        return entry("given", q) if q in self.g.arguments else ref(self.local(q))

    def on(self, n: Node) -> str:
        """The backend whose functions an op has."""
        return "torch" if self.backend == "triton" and n.op.is_map else self.backend

    def given(self, n: Node, extra: dict[str, Code] | None = None) -> Code:
        constants = {v.name for v in n.op.compiled.step.variables if v.kind == "constant"}
        fine = self.texts.given.get(n.op.name, ()) if isinstance(n, OpNode) else ()
        values = {own: ref(self.fine(q)) if own in fine else self.value(q) for own, q in n.inputs.items()}
        if n.name in self.g.wide:
            values = {own: made_by("wide", x) for own, x in values.items()}
        return dictionary([*((own, x) for own, x in values.items() if own not in constants), *(extra or {}).items()])

    def constants(self, n: Node) -> Code:
        names = {v.name: n.inputs[v.name] for v in n.op.compiled.step.variables if v.kind == "constant"}
        if all(a == b for a, b in names.items()):
            return ref("constants")
        return dictionary((a, entry("constants", b)) for a, b in names.items())

    def start(self, n: Node) -> Code:
        inverted = n.inverted if isinstance(n, OpNode) else frozenset()
        starts = {own: method(STATES, "get", said(s)) for own, s in n.states.items()}
        return dictionary((own, made_by("inverted", x) if own in inverted else x) for own, x in starts.items())

    def has_kernel(self, n: SolveNode) -> bool:
        return self.backend == "triton" and n.op.name not in self.texts.reasons and isinstance(n.method, cg)

    def like(self, n: Node) -> str:
        """An argument whose dtype an op's outputs have."""
        inputs = [v.name for v in n.op.compiled.step.variables if v.kind == "input" and v.name in n.inputs]
        return n.inputs[inputs[0]] if inputs else next(iter(n.inputs.values()))

    def needed_again(self) -> list[tuple[str, str]]:
        """What the backward pass reads again, as it is saved, and its name."""
        again = {q for n in self.g.nodes for q in n.given.values()} | {n.name for n in self.g.solves}
        found: list[tuple[str, str]] = []
        for q in (q for n in self.g.nodes for q in n.made if q in again):
            found.append((q, self.local(q)))
            if q in self.texts.fine:
                found.append((f"{q} in float32", self.fine(q)))
        return found

    # --- statements -------------------------------------------------------------------------------------------------

    def call(self, names: Iterable[str], called: str, *arguments: Part) -> None:
        """names = called(arguments)"""
        self.body.append(Call(tuple(names), called, tuple(map(of, arguments))))

    def add(self, q: str, gradient: Code) -> None:
        self.body.append(Do(method(SUMS, "add", said(q), gradient)))

    def matrix(self, n: SolveNode) -> Name:
        """The name of what is known of a solve's matrix; made here, unless a solve with the same matrix came before."""
        key = _key(n)
        if key not in self.matrices:
            name = self.matrices[key] = self.local(n.name)
            right = (self.value(n.right),) if self.has_kernel(n) else ()
            made = function(n.op, "triton" if self.has_kernel(n) else "torch", "matrix")
            self.call((f"{name}_matrix", f"{name}_last"), made, *self.matrix_given(n), *right)
        return ref(f"{self.matrices[key]}_matrix")

    def matrix_given(self, n: Node) -> tuple[Code, ...]:
        return self.given(n), self.start(n), self.constants(n)

    def by_cg(self, n: SolveNode, right: Code, names: Iterable[str], options: Iterable[int] = ()) -> None:
        """One solve by conjugate gradients: by a kernel where there is one."""
        matrix = self.matrix(n)
        assert isinstance(n.method, cg)
        ends = n.method.steps, n.method.tolerance
        if self.has_kernel(n):
            made = function(n.op, "triton", "solve")
            self.call(names, made, self.given(n), self.constants(n), matrix, right, *ends, *options)
        else:
            self.call(names, "conjugate_gradients", matrix, right, *ends, self.value(n.right))

    def unrounded(self, n: SolveNode, name: str) -> tuple[str, ...]:
        """Where what a kernel's solve finds goes in float32."""
        return (f"{name}_fine",) if n.name in self.texts.fine else ("_",) if self.has_kernel(n) else ()

    def step(self, n: SolveNode) -> Code:
        return self.value(n.step) if isinstance(n.step, str) else Literal(1.0 if n.step is None else n.step)

    # --- the function -----------------------------------------------------------------------------------------------

    def of_pass(self, kind: str, more: tuple[str, ...], doc: str) -> Function:
        """What is packed is handed to the same function, a batch for each length."""
        name, given = f"{self.backend}_{kind}", ("given", "states", "constants", *more)
        body = self.body
        if self.backend == "torch":
            steps = [v.name for v in self.c.spec.step.variables if v.kind in ("input", "decay")]
            handed: tuple[Part, ...] = (name, a_list(*map(said, steps)), *map(ref, (*given, "packed")))
            by_length = Return(made_by(f"{kind}_by_length", *handed))
            body = [If(ref("packed").given, (by_length,)), *body]
        return Function(name, takes(*given, packed=None), doc, tuple(body), frees=False)


class _Forward(_Calls):
    def made(self) -> Function:
        for n in self.g.nodes:
            self.body.append(Note(self.words[n.name]))
            if isinstance(n, SolveNode):
                self._solve(n)
            elif self.backend == "torch" and n.name in self.g.repeated:
                self._repeated(n)
            else:
                self._op(n)
        outputs = [(name, self._handed_out(q)) for name, q in self.g.outputs.items()]
        outputs += [(residual_name(n), ref(self.local(residual_name(n)))) for n in self.g.solves]
        finals = []
        for s, node in self.g.finals.items():
            n = self.g.node(node)
            own = next(a for a, b in n.states.items() if b == s)
            last = item(f"{self.local(n.name)}_last", own)
            finals.append((s, made_by("inverted", last) if isinstance(n, OpNode) and own in n.inverted else last))
        self.body += [
            Set(("outputs",), dictionary(outputs)),
            Set(("finals",), dictionary(finals)),
            Return(beside(ref("outputs"), ref("finals"), dictionary(self._saved()))),
        ]
        told = f"Outputs, last states and what the backward pass uses of {self.g.program.name}: op after op."
        return self.of_pass("forward", (), told)

    def _handed_out(self, q: str) -> Code:
        """A quantity as an output, which has the dtype of inputs."""
        n = next((n for n in self.g.nodes if q in n.made and n.name in self.g.wide), None)
        return self.value(q) if n is None else method(self.value(q), "to", Attribute(self.value(self.like(n)), "dtype"))

    def _saved(self) -> list[tuple[str, Code] | Spread]:
        """What the backward pass uses: quantities that are read again, what ops keep, and the iterates of a solve."""
        out: list[tuple[str, Code] | Spread] = [(key, ref(name)) for key, name in self.needed_again()]
        for n in self.g.nodes:
            name = self.local(n.name)
            if isinstance(n, SolveNode) and n.unrolled:
                out.append((f"{n.name} iterates", ref(f"{name}_iterates")))
            elif isinstance(n, OpNode) and not (self.backend == "torch" and n.name in self.g.repeated):
                out.append(Spread(made_by("kept", said(n.name), ref(f"{name}_saved"))))
                if n.inverted:
                    out.append(Spread(made_by("kept", said(f"{n.name} last"), ref(f"{name}_last"))))
        return out

    def _op(self, n: OpNode) -> None:
        name = self.local(n.name)
        names = (f"{name}_{x}" for x in ("made", "last", "saved"))
        self.call(names, function(n.op, self.on(n), "forward"), *self.matrix_given(n))
        self.body += [Set((self.local(q),), item(f"{name}_made", own)) for own, q in n.outputs.items()]

    def _repeated(self, n: OpNode) -> None:
        """An op of several that differ in one vector: their states are swept for the first of them."""
        name, vector = self.local(n.name), self.g.repeated[n.name].vector
        assert vector is not None
        rest = {own: q for own, q in n.inputs.items() if own != vector}
        key = (id(n.op), tuple(rest.items()), tuple(n.states.items()))
        if key not in self.matrices:
            self.matrices[key] = name
            made = function(n.op, "torch", "matrix")
            self.call((f"{name}_matrix", f"{name}_last"), made, *self.matrix_given(dataclasses.replace(n, inputs=rest)))
        (q,) = n.outputs.values()
        matrix, like = ref(f"{self.matrices[key]}_matrix"), self.value(self.like(n))
        self.call((self.local(q),), "through", matrix, self.value(n.inputs[vector]), like)

    def _solve(self, n: SolveNode) -> None:
        name, right = self.local(n.name), self.value(n.right)
        residual = self.local(residual_name(n))
        if isinstance(n.method, cg):
            self.by_cg(n, right, (name, residual, *self.unrounded(n, name)))
            return
        assert isinstance(n.method, neumann)
        start = Literal(n.method.start == "right side")
        given = (self.matrix(n), right, n.method.steps, self.step(n), start, right, Named("keep", Literal(n.unrolled)))
        self.call((name, residual, f"{name}_iterates"), "neumann", *given)


class _Backward(_Calls):
    has_inner = False  # has a backward pass been called, whose gradients are called so?

    def made(self) -> Function:
        self.body += [Set((name,), entry("saved", key)) for key, name in self.needed_again()]
        self.call(("sums",), "Sums")
        for name, q in self.g.outputs.items():
            self.add(q, method(ref("cotangents"), "get", said(name)))
        for a in self.c.adjoint.nodes:
            self.body.append(Note(f"the adjoint of {self.words[a.of.name]}"))
            if isinstance(a.of, OpNode):
                self._op_adjoint(a, a.of)
            else:
                self._solve_adjoint(a, a.of)
        self.body.append(Return(beside(method(SUMS, "gradients", ref("given")), Attribute(SUMS, "initial"))))
        doc = f"Gradients of {self.g.program.name}: the backward pass of each op, the last one first."
        return self.of_pass("backward", BACKWARD, doc)

    def _finals(self, n: Node, when: Code | None = None) -> Code:
        """The incoming gradients of a node's last states, where it is the one that yields them."""
        items = []
        for own, s in n.states.items():
            if self.g.finals[s] != n.name:
                continue
            x: Code = method(ref("final_cotangents"), "get", said(s))
            if isinstance(n, OpNode) and own in n.inverted:
                last = made_by("part", said(f"{n.name} last"), ref("saved"))[own]
                x = made_by("through_inverse", made_by("inverted", last), x)
            items.append((own, x if when is None else choice(x, when, None)))
        return dictionary(items)

    def _wanted(self, names: dict[str, str]) -> Code:
        return made_by("wanted", NEEDS, _names(names), "ARGUMENTS")

    def _op_adjoint(self, a: AdjointNode, n: OpNode) -> None:
        like = self.value(self.like(n))
        takes = dictionary((own, method(SUMS, "get", said(q), like)) for own, q in a.takes.items())
        self.has_inner = True
        saved, wants = made_by("part", said(n.name), ref("saved")), self._wanted({**a.gives, **n.states})
        given = (*self.matrix_given(n), saved, takes, self._finals(n), wants)
        self.call(("inner", "initial"), function(n.op, self.on(n), "backward"), *given)
        self.body.append(_all_added(a.gives))
        for own, s in n.states.items():
            if own in n.inverted:
                first = made_by("inverted", STATES[s])
                through = made_by("through_inverse", first, _initial(own))
                self.body.append(If(method(STATES, "get", said(s)).given, (_started(s, through),)))
            else:
                self.body.append(_started(s, _initial(own)))

    def _solve_adjoint(self, a: AdjointNode, n: SolveNode) -> None:
        name, right = self.local(n.name), self.value(n.right)
        gives = {own: q for own, q in a.gives.items() if own not in ("right side", "step")}
        like = () if n.name in self.texts.fine else (right,)
        taken = method(SUMS, "take", said(n.name), *like)
        self.call((f"d{name}",), "zeros_where_none", taken, ref(name))
        if isinstance(n.method, cg):
            self._cg_adjoint(n, a, gives)
            return
        assert isinstance(n.method, neumann)
        matrix, d, w = self.matrix(n), ref(f"d{name}"), ref(f"w_{name}")
        steps, start, step = Literal(n.method.steps), Literal(n.method.start == "right side"), self.step(n)
        if n.method.backward == "implicit":
            self.call((f"w_{name}", "_", "_"), "neumann", matrix, d, steps, step, start, right)
            self.add(a.gives["right side"], w)
            self._product_adjoint(n, a, gives)
            self.call((), f"d_{name}_matrix", _signed(a.sign, w), ref(name), TRUE)
            return
        self._product_adjoint(n, a, gives)
        products = matrix, ref(f"d_{name}_matrix"), right, d
        if n.method.backward == "simplified":
            rest = ref(name), steps, step, start, right, Literal(a.sign)
            self.call((f"w_{name}",), "simplified_backward", *products, *rest)
        else:
            iterates = entry("saved", f"{n.name} iterates")
            names = f"w_{name}", f"{name}_dstep"
            self.call(names, "unrolled_backward", *products, iterates, step, start, Literal(a.sign))
        self.add(a.gives["right side"], w)
        if "step" in a.gives:
            self.add(a.gives["step"], ref(f"{name}_dstep"))

    def _cg_adjoint(self, n: SolveNode, a: AdjointNode, gives: dict[str, str]) -> None:
        name, kernel, matrix = self.local(n.name), self.has_kernel(n), self.matrix(n)
        d, w = ref(f"d{name}"), ref(f"w_{name}")
        names = (f"w_{name}", "_", *self.unrounded(n, f"w_{name}"))
        self.by_cg(n, d, names, (a.sign,) if kernel else ())
        later = self.c.adjoint.nodes[self.c.adjoint.nodes.index(a) + 1 :]
        if not any(isinstance(x.of, SolveNode) and _key(x.of) == _key(n) for x in later):  # large, and of no more use
            self.body.append(Free((*(["inner"] if self.has_inner else []), f"d{name}", matrix.id)))
        for_right: Code = w
        cotangent = _signed(a.sign, w)
        if kernel:  # it finds w with the sign that the matrix gets
            for_right, cotangent = cotangent, for_right
        self.add(a.gives["right side"], for_right)
        self._product_adjoint(n, a, gives)
        fine = map(ref, (f"w_{name}_fine", f"{name}_fine") if n.name in self.texts.fine else ())
        self.call((), f"d_{name}_matrix", cotangent, ref(name), TRUE, *fine)

    def _product_adjoint(self, n: SolveNode, a: AdjointNode, gives: dict[str, str]) -> None:
        """The derived adjoint of the product of the matrix with a vector, as a function of both."""
        vector = n.op.vector
        assert vector is not None
        arguments = self.given(n, {vector: ref("vector")}), self.start(n), self.constants(n)
        apart = {own: q for own, q in gives.items() if own in self.texts.summed.get(n.op.name, ())}
        gives = {own: q for own, q in gives.items() if own not in apart}
        fine = n.name in self.texts.fine
        again: Code = EMPTY
        if keeps(n.op, self.backend):
            again = made_by("Again", Lambda((), made_by(function(n.op, self.backend, "forward"), *arguments)))
        cotangent = dictionary([(n.op.product, ref("cotangent"))])
        given = (*arguments, again, cotangent, self._finals(n, ref("last")), self._wanted({**gives, **n.states}))
        body: list[Statement] = [
            Call(("inner", "initial"), function(n.op, self.backend, "backward"), given),
            _all_added(gives),
        ]
        if apart:
            kind = "fine_" if fine else ""
            fed = self.given(n, {vector: ref(f"{kind}vector")}), self.constants(n), ref(f"{kind}cotangent")
            sums = made_by(function(n.op, "triton", "parameters"), *fed)
            body.append(If(self._wanted(apart), (_all_added(apart, sums),)))
        body += [_started(s, _initial(own)) for own, s in n.states.items()]
        taken = takes("cotangent", "vector", "last", *(["fine_cotangent", "fine_vector"] if fine else []))
        told = f"Adds the gradients of the product of the matrix of {n.name} with a vector."
        name = f"d_{self.local(n.name)}_matrix"
        self.body.append(Local(Function(name, taken, told, tuple(body), frees=False)))


def _key(n: SolveNode) -> tuple[object, ...]:
    """What solves with the same matrix have in common."""
    return id(n.op), tuple(n.inputs.items()), tuple(n.states.items())


def _names(names: dict[str, str]) -> Code:
    return dictionary((own, said(q)) for own, q in names.items())


def _all_added(gives: dict[str, str], gradients: Code = ref("inner")) -> Do:  # noqa: B008
    return Do(method(SUMS, "add_all", gradients, _names(gives)))


def _started(state: str, gradient: Code) -> Do:
    return Do(method(SUMS, "start", said(state), gradient))


def _initial(own: str) -> Code:
    return method(ref("initial"), "get", said(own))


def _signed(sign: int, x: Code) -> Code:
    return -x if sign < 0 else x
