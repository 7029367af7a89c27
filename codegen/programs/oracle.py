"""The oracle of programs: step by step in float64, with dense matrices, dense solves and PyTorch's own gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from chunkform.spec.language.methods import neumann

from ..ir.expr import dim_of
from ..recurrence.oracle import initial_state, run_steps_of
from ..recurrence.samples import Case, Sample
from ..recurrence.samples import sample as sample_recurrence
from .attending import AttentionOperation, attention_oracle
from .compiled import CompiledProgram
from .graph import Graph, Node, OpNode, SolveNode
from .states import solved_states


def sample(c: CompiledProgram, case: Case) -> Sample:
    """Random arguments; those with a sign have it, and matrices that are solved for start positive definite."""
    s = sample_recurrence(c, case)  # type: ignore[arg-type]
    for name in c.spec.signs:
        if name in s.given:
            s.given[name] = s.given[name].abs() + 0.5
    if c.graph.attends:
        s = replace(s, states=dict.fromkeys(s.states), final_cotangents={})
    for name in fading(c.graph):
        if case.decay == "usual":  # else what made the matrix definite is forgotten, and rounding decides
            s.given[name] = s.given[name].clamp(min=-8.0) * (0.5 / max(1, case.steps))
    for name in solved_states(c.graph):
        x = s.states.get(name)
        if x is not None:
            s.states[name] = x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    return s


def fading(g: Graph) -> set[str]:
    """Decays of states that are solved for and whose initial value alone makes them positive definite."""
    out = set()
    for n in g.nodes:
        r = g.program.step
        if isinstance(n, SolveNode) or n.inverted:
            given = {s.name for s in r.states if s.name in n.states.values() and s.initial is not None}
            if given & solved_states(g):
                out |= {v.name for v in r.variables if v.kind == "decay" and v.name in n.inputs.values()}
    return out


def oracle(
    c: CompiledProgram,
    given: dict[str, Tensor],
    states: dict[str, Tensor | None],
    constants: dict[str, float] | None = None,
    cotangents: dict[str, Tensor | None] | None = None,
    final_cotangents: dict[str, Tensor | None] | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """(outputs, last states, gradients, gradients of the initial states), as for a recurrence."""
    g = c.graph
    leaves = {n: x.detach().to(dtype).requires_grad_() for n, x in given.items()}
    starts = {n: None if x is None else x.detach().to(dtype).requires_grad_() for n, x in states.items()}
    values: dict[str, Tensor] = dict(leaves)
    finals: dict[str, Tensor] = {}
    for n in g.nodes:
        made, last = _node(g, n, values, starts, constants or {})
        values |= made
        finals |= {s: x for s, x in last.items() if g.finals[s] == n.name}
    outputs = {name: values[q] for name, q in g.outputs.items()}
    loss = torch.zeros((), dtype=dtype, device=next(iter(leaves.values())).device)
    for found, incoming in ((outputs, cotangents), (finals, final_cotangents)):
        for name, value in found.items():
            x = (incoming or {}).get(name)
            if x is not None and value.numel():
                loss = loss + (value * x.to(dtype)).sum()
    wanted = {**leaves, **{n: x for n, x in starts.items() if x is not None}}
    grads: list[Any] = [None] * len(wanted)
    if loss.requires_grad:
        grads = list(torch.autograd.grad(loss, list(wanted.values()), allow_unused=True))
    filled = {n: torch.zeros_like(x) if d is None else d for (n, x), d in zip(wanted.items(), grads, strict=True)}
    return (
        {n: x.detach() for n, x in outputs.items()},
        {n: x.detach() for n, x in finals.items()},
        {n: filled[n] for n in leaves},
        {n: filled[n] for n in starts if n in filled},
    )


def _node(
    g: Graph, n: Node, values: dict[str, Tensor], starts: dict[str, Tensor | None], constants: dict[str, float]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    if isinstance(n.op, AttentionOperation):
        variables = n.op.compiled.step.variables
        given = {v.name: values[n.inputs[v.name]] for v in variables if v.kind != "constant"}
        numbers = {v.name: constants[n.inputs[v.name]] for v in variables if v.kind == "constant"}
        sizes = {a: given[v.name].shape[k - len(v.axes)] for v in variables for k, a in enumerate(v.axes)}
        found = attention_oracle(n.op, given, numbers, sizes)
        assert isinstance(n, OpNode)
        return {q: found[own] for own, q in n.outputs.items()}, {}
    if isinstance(n, OpNode):
        outputs, last = _stepwise(n, values, starts, constants, {})
        return {q: outputs[own] for own, q in n.outputs.items()}, last
    matrix, last = matrices_of(n, values, starts, constants)
    b = values[n.right]
    if isinstance(n.method, neumann) and n.method.backward != "implicit":
        step: Any = values[n.step].unsqueeze(-1) if isinstance(n.step, str) else (1.0 if n.step is None else n.step)
        if n.method.backward == "simplified":
            return {n.name: _Simplified.apply(matrix, b, step, n.method)}, last
        return {n.name: iterate(matrix, b, step, n.method)}, last
    return {n.name: torch.linalg.solve(matrix, b.unsqueeze(-1)).squeeze(-1)}, last


def iterate(matrix: Tensor, b: Tensor, step: object, method: neumann) -> Tensor:
    """The Neumann iteration with a dense matrix."""
    x = b if method.start == "right side" else torch.zeros_like(b)
    for _ in range(method.steps):
        x = x + step * (b - (matrix @ x.unsqueeze(-1)).squeeze(-1))
    return x


class _Simplified(torch.autograd.Function):
    """The document's simplified gradient: the last iterate in the place of every earlier one."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, b: Tensor, step: Any, method: neumann) -> Tensor:
        x = iterate(matrix, b, step, method)
        ctx.save_for_backward(matrix, x)
        ctx.step, ctx.method = step, method
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        matrix, x = ctx.saved_tensors
        d = gradients[0]
        total = torch.zeros_like(d)
        for _ in range(ctx.method.steps):
            total = total + ctx.step * d
            d = d - (matrix.mT @ (ctx.step * d).unsqueeze(-1)).squeeze(-1)
        db = total + d if ctx.method.start == "right side" else total
        return -total.unsqueeze(-1) * x.unsqueeze(-2), db, None, None


def _stepwise(
    n: Node, values: dict[str, Tensor], starts: dict[str, Tensor | None], constants: dict[str, float], extra: dict[str, Tensor],
    copies: int = 1,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:  # fmt: skip
    """An op step by step; `copies` of the batch, one after the other."""
    p = n.op.compiled.step
    own = {}
    for v in p.variables:
        if v.kind == "constant" or v.name in extra:
            continue
        x = values[n.inputs[v.name]]
        own[v.name] = torch.cat([x] * copies) if v.per_step and copies > 1 else x
    own |= extra
    numbers = {v.name: constants[n.inputs[v.name]] for v in p.variables if v.kind == "constant"}
    stepwise = next(own[v.name] for v in p.variables if v.per_step)
    batch, steps, heads = stepwise.shape[:3]
    sizes = {
        dim_of(a): own[v.name].shape[i - len(v.axes)]
        for v in p.variables
        if v.kind != "constant"
        for i, a in enumerate(v.axes)
    }
    inverted = n.inverted if isinstance(n, OpNode) else frozenset()
    start = {}
    for s in p.states:
        x = starts.get(n.states[s.name])
        if x is not None:
            x = torch.linalg.inv(x) if s.name in inverted else x
            start[s.name] = torch.cat([x] * copies)
        else:
            start[s.name] = initial_state(p, s.name, own, numbers, sizes, batch, heads, stepwise.device).to(
                stepwise.dtype
            )
    outputs, last = run_steps_of(p, own, start, numbers, sizes, steps, batch, heads, stepwise.device)
    found = {}
    for name, s_name in n.states.items():
        x = last[name][: batch // copies]
        found[s_name] = torch.linalg.inv(x) if name in inverted else x
    return outputs, found


def matrices_of(
    n: SolveNode, values: dict[str, Tensor], starts: dict[str, Tensor | None], constants: dict[str, float]
) -> tuple[Tensor, dict[str, Tensor]]:
    """The matrix of each step, [B, T, H, d, d]: its products with all unit vectors, as copies of the batch."""
    b = values[n.right]
    d = b.shape[-1]
    vector = n.op.vector
    assert vector is not None
    units = torch.eye(d, dtype=b.dtype, device=b.device)
    p = torch.cat([units[j].expand(b.shape) for j in range(d)])
    outputs, last = _stepwise(n, values, starts, constants, {vector: p}, d)
    columns = outputs[n.op.product].unflatten(0, (d, b.shape[0]))  # [d, B, T, H, d]: column j of each matrix
    return columns.permute(1, 2, 3, 4, 0), last
