"""What must hold of the recurrent form's kernels: run over exact numbers, they leave in memory what steps make one by one.

Each is run as it is printed: on sequences of two segments and a tail, and on packed ones, one of which is empty; with tiles that
are wider than their axes, and with several where states are cut; where steps are taken several at once, also on segments of one
more. `codegen/exact/run_kernel.py` says what is refused on the way.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import lcm

import numpy as np

from chunkform.errors import GateError

from ...exact.jit_source import NoMeaning
from ...exact.memory import Laid, compare, drawn, few, room
from ...exact.rationals import UNDEFINED, Rationals, array, in_field
from ...exact.run_kernel import Argument, Tensor, run
from ...ir.evaluate import Env, evaluate_all
from ...ir.expr import dim_of, walk
from ...ir.kernel_ir import KernelFunction
from ...ir.step_program import StepProgram, Var
from ..chunkwise.compiled import Compiled
from ..gates.run_steps import stored
from ..step.adjoint import gradient_name
from .kernel import SEVERAL, Axes, Kernel, Pointer
from .names import tensors

NUMBERS = Rationals()
PLAIN = frozenset("leaf const add mul expand".split())  # of which small whole numbers make others
Values = dict[str, np.ndarray]
Arguments = dict[str, Argument]


@dataclass(frozen=True)
class Case:
    """Sequences, by their numbers of steps, each a row of a batch or `packed` one after the other."""

    lengths: tuple[int, ...]
    heads: int
    packed: bool
    segment: int = 2

    @property
    def batch(self) -> int:
        return 1 if self.packed else len(self.lengths)

    @property
    def steps(self) -> int:
        return sum(self.lengths) if self.packed else self.lengths[0]

    def tokens(self, n: int) -> list[tuple[int, int]]:
        """The places of a sequence's steps, [batch entry, step]."""
        begin = sum(self.lengths[:n]) if self.packed else 0
        return [(0 if self.packed else n, begin + t) for t in range(self.lengths[n])]

    @property
    def segments(self) -> list[int]:
        """How many segments each sequence has."""
        return [-(-x // self.segment) for x in self.lengths]

    @property
    def table(self) -> np.ndarray:
        """The table that packed sequences have: the first step, steps of a segment, the first checkpoint, the first room."""
        rows = [
            [sum(self.lengths[:n]), self.segment, sum(self.segments[:n]), n * self.segment]
            for n in range(len(self.lengths) + 1)
        ]
        return np.array(rows).ravel().astype(object)


CASES = Case((5, 5), 1, packed=False), Case((3, 0, 2), 2, packed=True)


@in_field
def gate_kernel(c: Compiled, k: Kernel, f: KernelFunction, slots: int = 0) -> None:
    """Raises GateError where `f`, which passes have made of a forward or a backward kernel, isn't c's steps or its adjoint's;
    `slots`: how many vectors it keeps in memory."""
    n = k.together
    blocks = (
        (Case((2 * n + 1,), 1, packed=False, segment=n + 1),) if n > 1 else ()
    )  # one and a round, then one at the end
    for case in (*CASES, *blocks):
        expected = steps_of(c, case, sizes_of(k), backwards=any(x.role == "ends" for x in k.pointers))
        for keeps in (True, False) if any(x.role == "kept" for x in k.pointers) and not case.packed else (True,):
            _gate(k, f, expected, slots, keeps)


def sizes_of(k: Kernel) -> dict[str, int]:
    """A size of each dim; that which is cut, in tiles or blocks of two, is three."""
    return {d: 3 if d == k.tiling.dim else 3 - n % 2 for n, d in enumerate(k.dims)}


# --- what is expected -----------------------------------------------------------------------------------------------


@dataclass
class Steps:
    """What steps take and make, one after the other. Of each step (`after`: its states) [B, T, H, ..], of each sequence
    [N, H, ..], of each checkpoint [slots, H, ..]; `given` may have fewer heads, and of a decay is the logarithm."""

    case: Case
    sizes: dict[str, int]
    given: Values = field(default_factory=dict)
    start: Values = field(default_factory=dict)
    outputs: Values = field(default_factory=dict)
    after: Values = field(default_factory=dict)
    finals: Values = field(default_factory=dict)
    saved: Values = field(default_factory=dict)
    incoming_steps: Values = field(default_factory=dict)
    ends: Values = field(default_factory=dict)
    gradients: Values = field(default_factory=dict)
    initial_gradients: Values = field(default_factory=dict)

    def shape(self, lead: tuple[int, ...], axes: Axes, heads: int | None = None) -> tuple[int, ...]:
        return (*lead, self.case.heads if heads is None else heads, *(self.sizes[dim_of(a)] for a in axes))

    @property
    def each_step(self) -> tuple[int, ...]:
        return self.case.batch, self.case.steps

    @property
    def each_sequence(self) -> tuple[int, ...]:
        return (len(self.case.lengths),)


def steps_of(c: Compiled, case: Case, sizes: dict[str, int], backwards: bool) -> Steps:
    """The steps of random numbers, and the adjoint's if we go `backwards`."""
    p, rng, x, compared = c.step, random.Random(c.name), Steps(case, sizes), _compared(c, backwards)
    for v in (v for v in p.variables if v.kind != "constant"):
        heads = case.heads if x.given else 1  # one head of the first is shared by all
        multiple, shape = compared.get((v.kind, v.name)), x.shape(x.each_step if v.per_step else (), v.axes, heads)
        x.given[v.name] = drawn(rng, shape) if multiple is None else array(few(rng, shape) * multiple)
        x.gradients[v.name] = nothing(x.shape(x.each_step if v.per_step else x.each_sequence, v.axes))
    for v in p.variables:
        if v.kind == "constant":
            x.given[v.name] = drawn(rng, ())
    for s in p.states:
        x.start[s.name], x.ends[s.name] = (drawn(rng, x.shape(x.each_sequence, s.axes)) for _ in range(2))
        x.finals[s.name], x.initial_gradients[s.name] = (nothing(x.start[s.name].shape) for _ in range(2))
        x.saved[s.name] = nothing(x.shape((sum(case.segments),), s.axes))
        x.after[s.name] = nothing(x.shape(x.each_step, s.axes))
    for n, axes in p.output_axes.items():
        x.incoming_steps[n] = drawn(rng, x.shape(x.each_step, axes))
        x.outputs[n] = nothing(x.incoming_steps[n].shape)
    for sequence in range(len(case.lengths)):
        before = _forward(c.step, x, sequence)
        if backwards:
            _backward(c, x, sequence, before)
    return x


def _compared(c: Compiled, backwards: bool) -> dict[tuple[str, str], int]:
    """The variables that are compared with each other as they are, as those of a softmax, and what number they are multiples of:
    their residues have an order where what is compared is a small whole number, so that nothing is computed with fractions, whose
    digits double with each product of states."""
    found: dict[tuple[str, str], int] = {}
    programs = (c.step, c.adjoint.program) if backwards else (c.step,)
    for x in walk(*(x for p in programs for x in (*p.updates.values(), *p.outputs.values()))):
        parts = list(walk(*x.args)) if x.op in ("peak", "max") else []
        if all(y.op in PLAIN for y in parts):
            whole = lcm(*(y.attrs[0].denominator for y in parts if y.op == "const"))
            for y in (y for y in parts if y.op == "leaf"):
                found[y.attrs[:2]] = lcm(whole, found.get(y.attrs[:2], 1))
    return found


def _forward(p: StepProgram, x: Steps, n: int) -> list[Values]:
    """A sequence's steps; the states before each."""
    states = {s.name: NUMBERS.taken(x.start[s.name][n]) for s in p.states}
    before: list[Values] = []
    first = sum(x.case.segments[:n])
    for t, (b, at) in enumerate(x.case.tokens(n)):
        before.append(states)
        if t % x.case.segment == 0:
            for name, value in states.items():
                x.saved[name][first + t // x.case.segment] = value
        env = _given(p.variables, x, b, at) | {("state", name): value for name, value in states.items()}
        made = evaluate_all([*p.updates.values(), *p.outputs.values()], env, NUMBERS, x.sizes)
        for (name, node), value in zip(p.outputs.items(), made[len(p.updates) :], strict=True):
            x.outputs[name][b, at] = stored(value, node.axes, p.output_axes[name])
        states = _updated(p, made, states)
        for name, value in states.items():
            x.after[name][b, at] = value
    for name, value in states.items():
        x.finals[name][n] = value
    return before


def _backward(c: Compiled, x: Steps, n: int, before: list[Values]) -> None:
    """The adjoint's steps of a sequence."""
    p, a = c.step, c.adjoint.program
    states = {f"d{s.name}": NUMBERS.taken(x.ends[s.name][n]) for s in p.states}
    for v in (v for v in tensors(p) if not v.per_step):
        x.gradients[v.name][n] = np.zeros(x.gradients[v.name][n].shape, dtype=np.int64)
    for (b, at), trajectory in reversed(list(zip(x.case.tokens(n), before, strict=True))):
        env = _given(p.variables, x, b, at) | {("state", name): value for name, value in states.items()}
        env |= {("trajectory", name): value for name, value in trajectory.items()}
        env |= {("cotangent", f"d{name}"): NUMBERS.taken(value[b, at]) for name, value in x.incoming_steps.items()}
        made = evaluate_all([*a.updates.values(), *a.outputs.values()], env, NUMBERS, x.sizes)
        gradients = dict(zip(a.outputs, made[len(a.updates) :], strict=True))
        for v in tensors(p):
            name = gradient_name(v)
            value = stored(gradients[name], a.outputs[name].axes, v.axes)
            place = (b, at) if v.per_step else (n,)
            x.gradients[v.name][place] = value + (0 if v.per_step else x.gradients[v.name][place])
        states = _updated(a, made, states)
    for s in p.states:
        x.initial_gradients[s.name][n] = states[f"d{s.name}"]


def _given(variables: tuple[Var, ...], x: Steps, b: int, t: int) -> Env:
    """The values of variables at a step, [H, ..]."""
    env: Env = {}
    for v in variables:
        value = x.given[v.name]
        if v.kind != "constant":
            value = value[b, t] if v.per_step else value
            value = np.broadcast_to(value, (x.case.heads, *value.shape[1:]))
        env[v.kind, v.name] = NUMBERS.fn("exp", value) if v.is_decay else NUMBERS.taken(value)
    return env


def _updated(p: StepProgram, made: list[np.ndarray], states: Values) -> Values:
    return {
        s.name: np.broadcast_to(stored(value, p.updates[s.name].axes, s.axes), states[s.name].shape)
        for s, value in zip(map(p.state, p.updates), made, strict=False)
    }


# --- running --------------------------------------------------------------------------------------------------------


def _gate(k: Kernel, f: KernelFunction, x: Steps, slots: int, keeps: bool) -> None:
    """A launch, and what it leaves."""
    case, tiles = x.case, tiles_of(k)
    memory = {p.name: _memory(k, p, x, tiles, slots) for p in k.pointers}
    tensors_of = {p.name: memory[p.name].tensor if keeps or p.role != "kept" else None for p in k.pointers}
    arguments: Arguments = {**tensors_of}
    arguments |= numbers(k, x, memory) | {"slots": slots, "block_row": 2, "tiles": tiles, SEVERAL: case.segment > 2}
    arguments |= {"table_at": Tensor("table", case.table) if case.packed else None}
    arguments |= {"segment": case.segment, "steps": case.steps, "lines": case.batch * case.steps}
    launch(f, len(case.lengths) * case.heads * tiles, arguments)
    for p in k.pointers:
        if p.role in LEFT and arguments[p.name] is not None:
            left = getattr(x, LEFT[p.role])[p.key] if p.role != "partial_sums" else _whole(k, x, p)
            found = memory[p.name].values
            compare(f.name, f"{p.key} of {p.role}", found.sum(0) if p.role == "partial_sums" else found, left)


def tiles_of(k: Kernel) -> int:
    return 2 if k.tiling.dim else 1


def numbers(k: Kernel, x: Steps, memory: Mapping[str, Laid]) -> Arguments:
    """Strides, constants, and the sizes of dims and tiles."""
    found: Arguments = {"heads": x.case.heads}
    for p in k.pointers:
        found |= dict(zip(p.strides, memory[p.name].strides, strict=False))
    found |= {k.names.of("constant", v.name): x.given[v.name].item() for v in k.constants}
    for group, name in k.groups:
        v = k.c.step.variable(name)
        found[group] = x.case.heads // x.given[name].shape[2 if v.per_step else 0]
    found |= {f"size_{d}": n for d, n in x.sizes.items()}
    return found | {f"block_{d}": 2 if d == k.tiling.dim else 4 for d in k.dims}


def launch(f: KernelFunction, programs: int, arguments: Arguments, rows: int = 1) -> None:
    try:
        run(f, programs, arguments, rows=rows)
    except NoMeaning as why:
        raise GateError(f"{f.name}: there is no exact meaning for {why}") from why


LEFT = {
    "kept": "saved", "finals": "finals", "outputs": "outputs", "gradients": "gradients", "partial_sums": "partial_sums",
    "initial_gradients": "initial_gradients",
}  # fmt: skip
READ = {"start": "start", "saved": "saved", "ends": "ends"}


def _whole(k: Kernel, x: Steps, p: Pointer) -> np.ndarray:
    """What parts add up to."""
    return x.outputs[p.key] if p.key in k.c.step.outputs and p.key in x.outputs else x.gradients[p.key]


def _memory(k: Kernel, p: Pointer, x: Steps, tiles: int, slots: int) -> Laid:
    """The memory behind a pointer, with what it holds before the launch."""
    case = x.case
    if p.strides:
        values = (x.given if p.role == "given" else x.incoming_steps)[p.key]
        return room(p.name, values.shape, gap=1, turned=len(p.axes)).filled(values)
    if p.role == "scratch":
        return scratch(k, x, slots)
    if p.role == "workspace":
        own = any(dim_of(a) == k.tiling.dim for a in p.axes)
        return room(p.name, x.shape((len(case.lengths) * case.segment * (1 if own else tiles),), p.axes))
    if p.role == "moment":
        return room(p.name, x.shape(x.each_sequence, p.axes))
    if p.role in READ:
        values = getattr(x, READ[p.role])[p.key]
        return room(p.name, values.shape).filled(values)
    whole = _whole(k, x, p) if p.role == "partial_sums" else getattr(x, LEFT[p.role])[p.key]
    return room(p.name, (tiles, *whole.shape) if p.role == "partial_sums" else whole.shape)


def nothing(shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, UNDEFINED, dtype=object)


def scratch(k: Kernel, x: Steps, slots: int) -> Laid:
    """Memory for vectors of each program."""
    row, column = (x.sizes[dim_of(a)] for a in max((s.axes for s in k.c.step.states), key=len))
    return room("scratch", (len(x.case.lengths) * x.case.heads * slots * (row + column),))
