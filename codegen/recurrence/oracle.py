"""The oracle: the recurrence in float64, step by step, with PyTorch's own gradients. Every kernel is compared with it."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy
import torch
from torch import Tensor

from ..ir.evaluate import Env, applied, evaluate
from ..ir.expr import Node, dim_of, leaf_names, walk
from ..ir.functions import HELD, MAGNITUDE, SAME, UNIT_OF
from ..ir.step_program import StepProgram, Var
from .chunkwise.compiled import Compiled
from .gates.run_steps import stored

_FUNCTIONS = {
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "asinh": torch.asinh,
    "abs": torch.abs,
    "relu": torch.relu,
    "softplus": lambda x: -torch.nn.functional.logsigmoid(-x),  # torch's own is x from 20 on
    "logsigmoid": torch.nn.functional.logsigmoid,
    "sign": torch.sign,
    "step": lambda x: (x > 0).to(x.dtype),
    **dict.fromkeys(SAME, lambda x: x),
    MAGNITUDE: torch.abs,
    UNIT_OF: lambda x: torch.where(x < 0, -1.0, torch.ones_like(x)),
    HELD: Tensor.detach,
}


class TorchNumbers:
    """The evaluator's arithmetic on torch tensors, with any leading batch axes."""

    def __init__(self, device: object = "cpu", dtype: torch.dtype = torch.float64) -> None:
        self.device, self.dtype = device, dtype

    def const(self, value: Fraction) -> Tensor:
        return torch.tensor(float(value), dtype=self.dtype, device=self.device)

    def number(self, text: str) -> Tensor:
        return torch.tensor(float(sympy.sympify(text)), dtype=self.dtype, device=self.device)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def pow(self, a: Tensor, n: Fraction) -> Tensor:
        return a ** (n.numerator if n.denominator == 1 else float(n))

    def fn(self, name: str, a: Tensor) -> Tensor:
        return _FUNCTIONS[name](a)

    def maximum(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.maximum(a, b)

    def sum(self, a: Tensor, axis: int) -> Tensor:
        return a.sum(axis)

    def peak(self, a: Tensor, axis: int) -> Tensor:
        return a.detach().amax(axis)


class Rounded(TorchNumbers):
    """Each product with a matrix or a vector is rounded to `low`, gradients alike, as kernels hold what they read and write."""

    def __init__(self, device: object, dtype: torch.dtype, low: torch.dtype) -> None:
        super().__init__(device, dtype)
        self.low = low

    def sum(self, a: Tensor, axis: int) -> Tensor:
        return a.sum(axis).to(self.low).to(self.dtype)


INTERVAL = 64  # steps after which kernels round a state


def oracle(
    c: Compiled,
    given: dict[str, Tensor],
    states: dict[str, Tensor | None],
    constants: dict[str, float] | None = None,
    cotangents: dict[str, Tensor | None] | None = None,
    final_cotangents: dict[str, Tensor | None] | None = None,
    dtype: torch.dtype = torch.float64,
    low: torch.dtype | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """(outputs, final states, gradients, gradients of the initial states), computed in `dtype`; with `low`, what is read and
    written is rounded to that, and states after each block of steps.

    Arguments as in the contract of generated ops: [B, T, H, *dims], decays as natural logarithms, states [B, H, *dims].
    Gradients are given where `cotangents` or `final_cotangents` are.
    """
    program = c.step
    device = next(iter(given.values())).device
    differentiate = cotangents is not None or final_cotangents is not None
    leaves = {n: x.detach().to(dtype).requires_grad_(differentiate) for n, x in given.items()}
    batch, steps, heads, sizes = _sizes(program, leaves)
    start: dict[str, Tensor] = {}
    for s in program.states:
        given_state = states.get(s.name)
        if given_state is None:
            value = initial_state(program, s.name, leaves, constants or {}, sizes, batch, heads, device)
        else:
            value = given_state.detach().to(dtype)
        if not value.requires_grad:  # an initial value made of parameters hands its gradient on to them
            value = value.requires_grad_(differentiate)
        start[s.name] = value
    start = {n: x.to(dtype) for n, x in start.items()}
    outputs, finals = run_steps_of(program, leaves, start, constants or {}, sizes, steps, batch, heads, device, low)
    if not differentiate:
        return outputs, finals, {}, {}
    loss = torch.zeros((), dtype=dtype, device=device)
    for values, incoming in ((outputs, cotangents), (finals, final_cotangents)):
        for name, value in values.items():
            g = (incoming or {}).get(name)
            if g is not None and value.numel():
                loss = loss + (value * g.to(dtype)).sum()
    wanted = [*leaves.values(), *start.values()]
    grads: list[Any] = [None] * len(wanted)
    if loss.requires_grad:
        grads = list(torch.autograd.grad(loss, wanted, allow_unused=True))
    filled = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, grads, strict=True)]
    names = list(leaves)
    return (
        {n: x.detach() for n, x in outputs.items()},
        {n: x.detach() for n, x in finals.items()},
        dict(zip(names, filled, strict=False)),
        dict(zip(start, filled[len(names) :], strict=True)),
    )


def initial_state(
    program: StepProgram,
    name: str,
    given: dict[str, Tensor],
    constants: dict[str, float],
    sizes: dict[str, int],
    batch: int,
    heads: int,
    device: object,
) -> Tensor:
    """The spec's own initial value of a state, [B, H, *dims]."""
    s = program.state(name)
    shape = (batch, heads, *(sizes[dim_of(a)] for a in s.axes))
    if s.initial is None:
        return torch.zeros(shape, dtype=torch.float64, device=device)
    numbers = TorchNumbers(device)
    env: Env = {}
    for v in program.variables:
        if v.kind == "constant":
            env[v.kind, v.name] = torch.tensor(constants.get(v.name, v.default), dtype=torch.float64, device=device)
        elif not v.per_step:
            env[v.kind, v.name] = given[v.name].exp() if v.is_decay else given[v.name]
    value = evaluate(s.initial, env, numbers, sizes)
    return stored(value, s.initial.axes, s.axes).expand(shape)


def _sizes(program: StepProgram, given: dict[str, Tensor]) -> tuple[int, int, int, dict[str, int]]:
    sizes: dict[str, int] = {}
    batch = steps = heads = 1
    for v in program.variables:
        if v.kind == "constant":
            continue
        x = given[v.name]
        for axis, n in zip(v.axes, x.shape[x.ndim - len(v.axes) :], strict=True):
            sizes[dim_of(axis)] = n
        if v.per_step:
            batch, steps, heads = x.shape[:3]
        else:
            heads = x.shape[0]
    return batch, steps, heads, sizes


def run_steps_of(
    program: StepProgram,
    given: dict[str, Tensor],
    start: dict[str, Tensor],
    constants: dict[str, float],
    sizes: dict[str, int],
    steps: int,
    batch: int,
    heads: int,
    device: object,
    low: torch.dtype | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    dtype = next(iter(given.values())).dtype
    numbers = TorchNumbers(device, dtype) if low is None else Rounded(device, dtype, low)
    values = {
        v.name: given[v.name].exp() if v.is_decay else given[v.name] for v in program.variables if v.kind != "constant"
    }
    states = dict(start)
    collected: dict[str, list[Tensor]] = {n: [] for n in program.outputs}
    env: Env = {(v.kind, v.name): _constant(v, constants, numbers) for v in program.variables if v.kind == "constant"}
    env |= {(v.kind, v.name): values[v.name] for v in program.variables if v.kind != "constant"}
    sequences = {(v.kind, v.name): values[v.name].unbind(1) for v in program.variables if v.per_step}
    nodes = (*program.updates.values(), *program.outputs.values())
    ahead, late = _parted(nodes, frozenset(sequences))
    known: dict[Node, Tensor] = {}
    for x in ahead:
        known[x] = applied(x, known, env, numbers, sizes)
    wanted = {x for y in late for x in y.args}.union(nodes) & known.keys()
    fixed = {x: known[x] for x in wanted if not leaf_names(x) & sequences.keys()}
    moving = {x: known[x].unbind(1) for x in wanted if x not in fixed}
    for t in range(steps):
        if low is not None and t and t % INTERVAL == 0:
            states = {n: x.to(low).to(dtype) for n, x in states.items()}
        env |= {key: x[t] for key, x in sequences.items()}
        env |= {("state", n): x for n, x in states.items()}
        done = fixed | {x: values[t] for x, values in moving.items()}
        for x in late:
            done[x] = applied(x, done, env, numbers, sizes)
        for name, node in program.updates.items():
            own = program.state(name).axes
            states[name] = stored(done[node], node.axes, own).expand(batch, heads, *(sizes[dim_of(a)] for a in own))
        for name, node in program.outputs.items():
            own = program.output_axes[name]
            value = stored(done[node], node.axes, own)
            collected[name].append(value.expand(batch, heads, *(sizes[dim_of(a)] for a in own)))
    outputs = {}
    for name, parts in collected.items():
        shape = (batch, 0, heads, *(sizes[dim_of(a)] for a in program.output_axes[name]))
        outputs[name] = torch.stack(parts, 1) if parts else torch.zeros(shape, dtype=torch.float64, device=device)
    return outputs, states


@lru_cache(maxsize=2**8)
def _parted(
    nodes: tuple[Node, ...], sequences: frozenset[tuple[str, str]]
) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """What nodes are made of, arguments first: what is the same whatever the states are, which all steps have at once, and what
    each step makes. Matrices of each step are made there too, as all together take as much memory as all states."""
    ahead: dict[Node, None] = {}
    late: list[Node] = []
    for x in walk(*nodes):
        small = len(x.axes) <= 1 or not leaf_names(x) & sequences
        is_free = all(kind != "state" for kind, _ in leaf_names(x))
        if small and is_free and all(y in ahead for y in x.args):
            ahead[x] = None
        else:
            late.append(x)
    return tuple(ahead), tuple(late)


def _constant(v: Var, constants: dict[str, float], numbers: TorchNumbers) -> Tensor:
    return numbers.const(Fraction(constants.get(v.name, v.default)))  # type: ignore[arg-type]
