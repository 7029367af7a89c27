"""An attention as an op of a program: a step's query sees the keys up to its own step."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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
from ..attention.emit import IMPORTS, signature_text
from ..attention.emit import emit as attention_file
from ..attention.gates import run_definition
from ..attention.lower import KEY, QUERY, Lowered
from ..ir.evaluate import Arithmetic, ArrayNumbers, Dual, Pair, V
from ..ir.expr import fn
from ..ir.step_program import StepProgram, Var, axes_of

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


def attention_text(op: AttentionOperation) -> str:
    """Everything that the attention's own file has but for its public function, with the op's name in all names."""
    c = op.attention
    whole = attention_file(c, tidy=False)
    kept = [
        x for x in ast.parse(whole).body if isinstance(x, ast.FunctionDef | ast.Assign) and not _is_public(x, c.name)
    ]
    text = "\n\n\n".join(_with_decorators(whole, kept))
    text += f"\n\n\nATTENTION = {_constructed(c, {x.name for x in kept if isinstance(x, ast.FunctionDef)})}\n"
    return prefixed(text, f"{op.name}_").strip()


def pass_texts(op: AttentionOperation, backend: str) -> str:
    """The two functions of a backend that a program calls."""
    numbers = "{" + ", ".join(f'"{n}": {x!r}' for n, x in op.numbers) + "}"
    name = f"{backend}_{op.name}"
    return "\n\n\n".join(
        (
            f"def {name}_forward(given, states, constants):\n"
            f'    """Averages of this step and those before."""\n'
            f'    return attended({op.name}_ATTENTION, "{backend}", {{**given, **constants, **{numbers}}})',
            f"def {name}_backward(given, states, constants, saved, cotangents, final_cotangents, needs):\n"
            f'    """Gradients of what is attended, and of what attends."""\n'
            f"    given = {{**given, **constants, **{numbers}}}\n"
            f'    return attended_backward({op.name}_ATTENTION, "{backend}", given, saved, cotangents, needs)',
        )
    )


def _is_public(x: ast.stmt, name: str) -> bool:
    if isinstance(x, ast.Assign):
        return any(isinstance(t, ast.Name) and t.id in ("OP", "SIGNATURE") for t in x.targets)
    return isinstance(x, ast.FunctionDef) and any("OP.named" in ast.unparse(d) for d in x.decorator_list)


def _with_decorators(text: str, kept: list[ast.FunctionDef | ast.Assign]) -> Iterator[str]:
    lines = text.splitlines()
    for x in kept:
        start = min([x.lineno, *(d.lineno for d in (x.decorator_list if isinstance(x, ast.FunctionDef) else ()))])
        yield "\n".join(lines[start - 1 : x.end_lineno])


def _constructed(c: CompiledAttention, known: set[str]) -> str:
    """The call that makes the attention of its functions."""
    maps = [
        n for n in ("features", "feature_gradients", "outputs", "output_gradients", "kernel_features") if n in known
    ]
    moved = "None"
    if c.moved is not None:
        from ..attention.emit import moved_sizes

        own, to = moved_sizes(c)
        more = ", moved_kernel_features" if "moved_kernel_features" in known else ""
        moved = f'Moved(moved_features, moved_feature_gradients, "{own}", "{to}"{more})'
    both = "triton_forward_and_output" if "triton_forward_and_output" in known else "None"
    return (
        f"attention_of({signature_text(c)}, Maps({', '.join(maps)}), torch_energy, torch_energy_gradients, triton_forward, "
        f"triton_backward, {both}, {moved})"
    )


def prefixed(text: str, prefix: str) -> str:
    """A module's text with a prefix before the names of all that it defines."""
    tree = ast.parse(text)
    own = {x.name for x in tree.body if isinstance(x, ast.FunctionDef)}
    own |= {t.id for x in tree.body if isinstance(x, ast.Assign) for t in x.targets if isinstance(t, ast.Name)}
    edits: set[tuple[int, int]] = set()
    for top in tree.body:
        local = _locals(top) if isinstance(top, ast.FunctionDef) else set()
        for x in ast.walk(top):
            if isinstance(x, ast.Name) and x.id in own - local:
                edits.add((x.lineno, x.col_offset))
    lines = [line.encode() for line in text.splitlines()]
    for row, column in sorted(edits, reverse=True):
        line = lines[row - 1]
        lines[row - 1] = line[:column] + prefix.encode() + line[column:]
    found = b"\n".join(lines).decode()
    for name in own:
        found = found.replace(f"\ndef {name}(", f"\ndef {prefix}{name}(")
        if found.startswith(f"def {name}("):
            found = f"def {prefix}{found.removeprefix('def ')}"
    return found


def _locals(f: ast.FunctionDef) -> set[str]:
    a = f.args
    found = {x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs)}
    return found | {x.id for x in ast.walk(f) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}


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


def _number(x: sympy.Expr, m: Arithmetic[V], sizes: dict[str, int]) -> V:
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
