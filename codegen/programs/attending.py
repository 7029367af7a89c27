"""An attention as an op of a program: a step's query sees the keys up to its own step."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import sympy
import torch

from chunkform.spec.language.attention import SIDES

from ..attention.check import definition
from ..attention.compiled import CompiledAttention
from ..attention.emit import IMPORTS, definitions, signature
from ..attention.gates import run_definition
from ..attention.lower import KEY, QUERY, Lowered
from ..ir.code import Literal
from ..ir.evaluate import Arithmetic, ArrayNumbers, Dual, Pair, V
from ..ir.expr import fn
from ..ir.launch_ir import NONE, Code, Function, Return, Set, takes
from ..ir.python_code import Fixed, Part, Spread, dictionary, made_by, said
from ..ir.step_program import StepProgram, Var, axes_of
from ..ir.words import Definitions, defined
from ..printing.launch_text import launch_definition, statement

Values = dict[str, Any]  # by name; a leading time axis where they are of a step

MODULES = {m: names for m, names in IMPORTS.items() if not m.endswith((".op", ".passes"))} | {
    "chunkform.runtime.attention.in_programs": "attended attended_backward attention_of",
    "chunkform.runtime.attention.passes": "Maps Moved",
}
PER_POSITION = ("query", "key", "stream")


@dataclass(frozen=True)
class Attended:
    """What a program asks of a compiled attention, as of a compiled recurrence: what a step takes and makes."""

    attention: CompiledAttention
    step: StepProgram
    form: None = None
    forward: None = None
    family: str = "pairwise"
    reason: None = None

    @property
    def name(self) -> str:
        return self.attention.name


@dataclass(frozen=True)
class AttentionOperation:
    """A compiled attention. `given` are the arguments that it is given as quantities, `numbers` those given as numbers."""

    name: str
    attention: CompiledAttention
    given: tuple[str, ...]
    numbers: tuple[tuple[str, float], ...] = ()
    vector: None = None
    is_map: bool = False

    @cached_property
    def compiled(self) -> Attended:
        p, a = self.attention.lowered, self.attention.spec
        variables = []
        for v in a.variables:
            if v.name in self.given:
                kind = "input" if v.kind in PER_POSITION else "constant" if v.kind == "constant" else "parameter"
                variables.append(Var(v.name, kind, axes_of(v.dims)))
        axes = {n: x[1:] for n, x in p.output_axes.items()}
        outputs: dict[str, Any] = {**p.outputs, "energy": p.energy, **p.averages}
        if a.normaliser == "softmax":
            outputs["weight"] = fn("exp", p.energy)
        return Attended(
            self.attention, StepProgram(self.name, p.dims, tuple(variables), (), {}, outputs, output_axes=axes)
        )

    @property
    def scalars(self) -> frozenset[str]:
        """Arguments of one number a step: terms of energies, which no product of 16 bits takes."""
        return frozenset(v.name for v in self.attention.spec.variables if v.kind in PER_POSITION and not v.dims)


# --- text -------------------------------------------------------------------------------------------------------------


def attention_parts(op: AttentionOperation) -> Definitions:
    """What the attention's own file defines but for its op, and the attention, with the op's name in all names."""
    c = op.attention
    parts = definitions(c)
    attention = statement(Set(("ATTENTION",), _constructed(c, defined(parts))))
    prefix = {n: f"{op.name}_{n}" for n in (*defined(parts), "ATTENTION")}
    return tuple(x.renamed(prefix) for x in (*parts, attention))


def pass_functions(op: AttentionOperation, backend: str) -> Definitions:
    """The two functions of a backend that a program calls."""
    numbers = dictionary((n, Literal(x)) for n, x in op.numbers)
    everything = dictionary([Spread(Fixed("given")), Spread(Fixed("constants")), Spread(numbers)])
    name, attention = f"{backend}_{op.name}", f"{op.name}_ATTENTION"
    found = made_by(
        "attended",
        attention,
        said(backend),
        everything,
    )
    given = Set(("given",), everything)
    back = made_by("attended_backward", attention, said(backend), "given", "saved", "cotangents", "needs")
    told = "Averages of this step and those before.", "Gradients of what is attended, and of what attends."
    given_back = takes("given", "states", "constants", "saved", "cotangents", "final_cotangents", "needs")
    forward = Function(f"{name}_forward", takes("given", "states", "constants"), told[0], (Return(found),), frees=False)
    backward = Function(f"{name}_backward", given_back, told[1], (given, Return(back)), frees=False)
    return launch_definition(forward), launch_definition(backward)


def _constructed(c: CompiledAttention, known: Container[str]) -> Code:
    """The call that makes the attention of its functions."""
    maps = [
        n for n in ("features", "feature_gradients", "outputs", "output_gradients", "kernel_features") if n in known
    ]
    moved: Code = NONE
    if c.moved is not None:
        from ..attention.emit import moved_sizes

        own, to = moved_sizes(c)
        more = ["moved_kernel_features"] if "moved_kernel_features" in known else []
        given: list[Part] = ["moved_features", "moved_feature_gradients", said(own), said(to), *more]
        moved = made_by("Moved", *given)
    both = "triton_forward_and_output" if "triton_forward_and_output" in known else NONE
    functions = "torch_energy", "torch_energy_gradients", "triton_forward", "triton_backward"
    return made_by("attention_of", signature(c), made_by("Maps", *maps), *functions, both, moved)


# --- what it computes, exactly and in torch --------------------------------------------------------------------------------


def run_attention(op: AttentionOperation, given: Values, m: Arithmetic[V], sizes: dict[str, int], steps: int) -> Values:
    """Outputs of all steps, from values by the attention's own names; `sizes` are of its own dims."""
    return defined_attention(op.attention.lowered, given, dict(op.numbers), m, sizes, steps)


def defined_attention(
    p: Lowered, given: Values, numbers: dict[str, float], m: Arithmetic[V], sizes: dict[str, int], steps: int
) -> Values:
    """The same of an attention's terms."""
    values: Values = {}
    for v in p.spec.variables:
        if v.name in given:
            value = given[v.name]
        else:
            number = numbers.get(v.name, v.default)
            value = _number(sympy.sympify(number), m, sizes)
        names = {"stream": (f"{v.name}_i", f"{v.name}_j")}.get(v.kind, (v.name + SIDES.get(v.kind, ""),))
        values |= dict.fromkeys(names, value)
    found = run_definition(p, values, m, {**sizes, QUERY: steps, KEY: steps}, causal=True)
    return {n: found[n] for n in p.outputs}


def _number(x: sympy.Code, m: Arithmetic[V], sizes: dict[str, int]) -> V:
    x = x.subs({s: sizes[str(s)] for s in x.free_symbols})
    if x.is_Rational or x.is_Float:
        return m.const(Fraction(str(x)))
    return m.number(str(x))


def attention_adjoint(
    op: AttentionOperation, given: Values, cotangents: Values, m: ArrayNumbers, sizes: dict[str, int], steps: int
) -> Values:
    """The gradient of each argument, entry by entry, from dual numbers over the definition."""
    zero, one = (np.asarray(m.const(Fraction(n)), dtype=object).item() for n in (0, 1))
    out: Values = {}
    constants = {v.name for v in op.compiled.step.variables if v.kind == "constant"}
    for name in op.given:
        if name in constants:
            continue
        shape = np.shape(given[name])
        gradient = np.full(shape, zero, dtype=object)
        for index in np.ndindex(*shape):
            tangent = np.full(shape, zero, dtype=object)
            tangent[index] = one
            still = {n: Pair(x, m.mul(x, m.const(Fraction(0)))) for n, x in given.items()}
            made = run_attention(op, {**still, name: Pair(given[name], tangent)}, Dual(m), sizes, steps)
            total = m.const(Fraction(0))
            for n, y in cotangents.items():
                if y is not None:
                    whole = np.asarray(m.mul(np.broadcast_to(made[n].tangent, np.shape(y)), y), dtype=object).reshape(
                        -1
                    )
                    total = m.add(total, m.sum(whole, 0))
            gradient[index] = np.asarray(total, dtype=object).item()
        out[name] = gradient
    return out


def attention_oracle(
    op: AttentionOperation, given: dict[str, torch.Tensor], constants: dict[str, float], sizes: dict[str, int]
) -> dict[str, torch.Tensor]:
    """Outputs from all pairs at once, with PyTorch's own gradients."""
    a = op.attention.spec
    some = next(given[v.name] for v in a.variables if v.kind in PER_POSITION)
    heads = max(given[v.name].shape[2] for v in a.variables if v.kind in PER_POSITION)
    numbers: dict[str, float] = {}
    tensors = dict(given)
    for v in a.variables:
        if v.name in given:
            continue
        value = constants.get(v.name, dict(op.numbers).get(v.name, v.default))
        number = float(sympy.sympify(value).subs({str(d): sizes.get(str(d), 1) for d in a.dim_list}))
        if v.kind == "constant":
            numbers[v.name] = number
        else:
            tensors[v.name] = torch.full((heads,), number, dtype=some.dtype, device=some.device)
    return definition(op.attention.lowered, tensors, numbers, True, some.dtype)
