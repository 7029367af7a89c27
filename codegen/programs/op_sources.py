"""The functions of a program's operations, side by side in one file: each with the operation's name in its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chunkform.spec.language.methods import cg

from ..ir.words import Definition, Definitions
from ..printing.code_passes import part_of
from ..printing.side_by_side import function_name, of_op
from ..recurrence.backends import torch_section, triton_section
from ..recurrence.over_chunks import why_stepwise
from ..recurrence.triton import Fine
from .attending import MODULES as ATTENTION
from .attending import AttentionOperation, attention_parts, pass_functions
from .graph import Graph, Operation, OpNode, SolveNode
from .matrix_product import matrix_definitions

if TYPE_CHECKING:
    from .cg_kernel import SolveForm


@dataclass
class Texts:
    """Functions of all operations for one backend, and the modules whose names they use. `reasons`: why an operation goes another
    way than chunk by chunk in kernels; `summed`: parameters whose gradients have a kernel of their own; `fine`: what solves
    find that goes on in float32 as well, and `given`, by operation, which inputs it is."""

    backend: str
    parts: list[Definition] = field(default_factory=list)
    modules: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    summed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    fine: frozenset[str] = frozenset()
    given: dict[str, frozenset[str]] = field(default_factory=dict)

    def add(self, parts: Definitions, modules: dict[str, str]) -> None:
        self.parts += parts
        for module, names in modules.items():
            known = set(self.modules.get(module, "").split())
            self.modules[module] = " ".join(sorted(known | set(names.split())))


def torch_texts(g: Graph) -> Texts:
    """What every program has: torch functions, which run on any device."""
    out = Texts("torch")
    solved = {id(n.op) for n in g.solves}
    repeated = {x.name: x for x in g.repeated.values()}
    for op in _each(g):
        if isinstance(op, AttentionOperation):
            out.add((*attention_parts(op), *pass_functions(op, "torch")), ATTENTION)
            continue
        section = torch_section(op.compiled)
        bare = (id(op) in solved or op.name in repeated) and not keeps(op, "torch")
        roots = ["torch_backward"] if bare else ["torch_forward", "torch_backward"]
        out.add(of_op(section.parts, op.name, "torch", roots), section.modules)
        if op.name in repeated:
            matrix = matrix_definitions(repeated[op.name])
            out.add(of_op(matrix, op.name, "torch", ["torch_matrix"]), section.modules)
        if id(op) in solved:
            matrix = matrix_definitions(op)
            out.add(of_op((*matrix, *section.parts), op.name, "torch", ["torch_matrix"]), section.modules)
    return out


def triton_texts(g: Graph) -> Texts:
    """Kernels of the operations that have them. Maps stay in torch."""
    from .cg_kernel import MODULES, summed_parameters

    ways = kernel_ways(g)
    out = Texts("triton", reasons=ways.reasons, fine=ways.fine)
    solved = {id(n.op): n for n in g.solves}
    for op in _each(g):
        if isinstance(op, AttentionOperation):
            out.add(pass_functions(op, "triton"), ATTENTION)
            continue
        if op.is_map:
            continue
        fine = fine_of(g, op, out.fine)
        section = triton_section(op.compiled, exchanges=False, fine=fine, unwanted=op.vector)
        if fine is not None and section.stepwise is None and op.compiled.forward is not None:
            out.given[op.name] = fine.given
        bare = id(op) in solved and not keeps(op, "triton")
        roots = ["triton_backward"] if bare else ["triton_forward", "triton_backward"]
        beside = torch_section(op.compiled).parts if op.compiled.forward is None else ()
        out.add(of_op(section.parts, op.name, "triton", roots, beside), section.modules)
        if id(op) in ways.solves:
            out.summed[op.name] = summed_parameters(op)
            roots = ["triton_matrix", "triton_solve", *(["triton_parameters"] if out.summed[op.name] else [])]
            out.add(of_op(ways.solves[id(op)].definitions, op.name, "triton", roots), MODULES)
    return out


@dataclass(frozen=True)
class KernelWays:
    """How operations run on a GPU: the kernels of solves, by operation, `fine` of `Texts`, and why some operations go another
    way than chunk by chunk in kernels."""

    solves: dict[int, SolveForm]
    fine: frozenset[str]
    reasons: dict[str, str]


def kernel_ways(g: Graph) -> KernelWays:
    """As the data of kernels says; nothing is printed to learn it."""
    from .cg_kernel import CannotSolve, solve_form

    solved = {id(n.op) for n in g.solves}
    solves: dict[int, SolveForm] = {}
    reasons: dict[str, str] = {}
    for op in _each(g):
        try:
            if id(op) in solved and isinstance(op, Operation):
                solves[id(op)] = solve_form(op, fine_of(g, op, g.fine) is not None)
        except CannotSolve as why:
            reasons[op.name] = f"its products are made in torch, because {why}"
    fine = _fine(g, solves)
    for op in _each(g):
        if isinstance(op, Operation) and not op.is_map:
            why_not = why_stepwise(op.compiled, False, fine_of(g, op, fine), op.vector)
            reasons |= {op.name: why_not} if why_not else {}
    return KernelWays(solves, fine, reasons)


def _each(g: Graph) -> Iterator[Operation | AttentionOperation]:
    """The operations, each as a part of what is told meanwhile."""
    for op in g.operations:
        with part_of(op.name):
            yield op


def _fine(g: Graph, kernels: Iterable[int]) -> frozenset[str]:
    """What goes on in float32 from solves in these operations' kernels. Solves that share a kernel are alike."""
    alike: dict[int, list[SolveNode]] = {}
    for n in g.solves:
        alike.setdefault(id(n.op), []).append(n)
    found = [
        group
        for key, group in alike.items()
        if key in kernels
        and any(n.name in g.fine for n in group)
        and all(isinstance(n.method, cg) for n in group)
        and why_stepwise(group[0].op.compiled, False) is None
    ]
    return frozenset(n.name for group in found for n in group)


def fine_of(g: Graph, op: Operation, fine: frozenset[str]) -> Fine | None:
    """How an op stands between others, where it makes or reads one of these quantities of solves."""
    nodes = [n for n in g.nodes if n.op is op]
    given = frozenset(own for n in nodes if isinstance(n, OpNode) for own, q in n.inputs.items() if q in fine)
    if all(v.name in given for v in op.compiled.step.variables if v.kind == "input"):
        given = frozenset()  # the others tell the dtype of products
    if not given and not any(n.name in fine for n in nodes if isinstance(n, SolveNode)):
        return None
    several = {q for q in g.arguments if sum(q in n.given.values() for n in g.nodes) > 1}
    gradients = frozenset(own for n in nodes for own, q in n.inputs.items() if q in several | fine)
    return Fine(given, gradients, states=bool(given))


def keeps(op: Operation | AttentionOperation, backend: str) -> bool:
    """May the backward pass use what the forward pass keeps? Kernels keep what enters the segments of a sequence that is cut."""
    return backend == "triton" or op.compiled.forward is None or bool(op.compiled.forward.form.write_leaves())


def function(op: Operation | AttentionOperation, backend: str, kind: str) -> str:
    """The name of an operation's function in the generated file."""
    return function_name(op.name, backend, kind)
