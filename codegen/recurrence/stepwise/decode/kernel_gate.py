"""What must hold of the step kernels: run over exact numbers, they leave in memory what steps make one by one.

One step is run for rows of a batch, apart and in place, and for rows of a pool, one of which is padding. Several are run for rows
of a batch, and for packed sequences in rows of a pool, some steps of which aren't taken, and of which some states are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ....exact.memory import Laid, compare, room
from ....exact.rationals import in_field
from ....exact.run_kernel import Tensor
from ....ir.kernel_ir import KernelFunction
from ...chunkwise.compiled import Compiled
from ..kernel import Kernel, Pointer
from ..kernel_gate import Arguments, Case, Steps, launch, nothing, numbers, scratch, sizes_of, steps_of, tiles_of
from ..tiling import WHOLE


@dataclass(frozen=True)
class Call:
    """A launch: the state's row of each sequence, None where it is that of the batch; how many steps of it are taken at most; are
    the rows `chosen` that take the states after steps; and what the kernel does with states and outputs."""

    rows: tuple[int, ...] | None = None
    counts: tuple[int, ...] | None = None
    chosen: bool = False
    inplace: bool = False
    yields: bool = True
    keeps: bool = True
    ends: bool = True
    flat: bool = False

    def row(self, n: int) -> int:
        return n if self.rows is None else self.rows[n]

    def taken(self, case: Case, n: int) -> list[tuple[int, int]]:
        """The places of the steps of a sequence that are taken."""
        count = None if self.counts is None else self.counts[n]
        return case.tokens(n)[:count] if self.row(n) >= 0 else []

    def kept(self, case: Case) -> list[int]:
        """The row that takes the state after each step that a sequence may have; below 0 for none."""
        count = len(case.lengths) * case.steps
        return [-1 if self.chosen and n % 3 == 1 else (n + 2 * self.chosen) % count for n in range(count)]


ONE = Case((1, 1, 1), 2, packed=False)
PADDED, PACKED = Case((3, 3), 1, packed=False), Case((2, 0, 1, 1), 2, packed=True)
IN_ROWS = (2, 0, 3, -1)
SEVERAL = (
    (PADDED, Call()),
    (PACKED, Call(IN_ROWS, (1, 4, 1, 1), chosen=True, ends=False, flat=True)),
    (PACKED, Call(IN_ROWS, yields=False, keeps=False)),
    (PADDED, Call(keeps=False, ends=False)),
)


@in_field
def gate_step(c: Compiled, k: Kernel, f: KernelFunction, slots: int = 0) -> None:
    """Raises GateError where `f`, which passes have made of the kernel of a step, doesn't make one."""
    x = steps_of(c, ONE, sizes_of(k), backwards=False)
    for call in (Call(), Call(inplace=True, flat=True), Call((2, -1, 0), inplace=True)):
        memory = {p.name: _of_step(k, p, x, call, slots) for p in k.pointers}
        _launch(k, f, x, call, memory, {"inplace": call.inplace, "slots": slots, "block_row": 2}, call.inplace)
        for p in k.pointers:
            if p.role in ("outputs", "following", "states"):
                compare(f.name, f"{p.key} of {p.role}", memory[p.name].values, _left_by_step(p, x, call))


@in_field
def gate_steps(c: Compiled, k: Kernel, f: KernelFunction) -> None:
    """The same of the kernel of several steps."""
    for case, call in SEVERAL:
        x = steps_of(c, case, sizes_of(k), backwards=False)
        memory = {p.name: _of_steps(p, x, call) for p in k.pointers}
        given: Arguments = {"yields": call.yields, "keeps": call.keeps, "ends": call.ends, "steps": case.steps}
        starts = np.cumsum([0, *case.lengths]) if case.packed else None
        given |= {"starts_at": _tensor(starts), "counts_at": _tensor(call.counts)}
        given |= {"each_at": _tensor(call.kept(case) if call.chosen else None)}
        _launch(k, f, x, call, memory, given, call.keeps or call.ends)
        for p in k.pointers:
            if p.role in ("outputs", "kept", "states"):
                compare(f.name, f"{p.key} of {p.role}", memory[p.name].values, _left_by_steps(p, x, call))


# --- memory -------------------------------------------------------------------------------------------------------------


def _tensor(values: object) -> Tensor | None:
    return None if values is None else Tensor("places", np.array(values).astype(object))


def _of_step(k: Kernel, p: Pointer, x: Steps, call: Call, slots: int) -> Laid:
    """The memory behind a pointer of a step's kernel."""
    if p.role == "scratch":
        return scratch(k, x, slots)
    if p.role == "given":
        values = x.given[p.key][:, 0] if k.c.step.variable(p.key).per_step else x.given[p.key]
        return room(p.name, values.shape, gap=1, turned=len(p.axes)).filled(values)
    if p.role == "states":
        values = _pool(p, x, call)
        return room(p.name, values.shape).filled(values)
    return room(p.name, x.shape((ONE.batch,), p.axes))


def _of_steps(p: Pointer, x: Steps, call: Call) -> Laid:
    """The memory behind a pointer of the kernel of several steps."""
    if p.role == "given":
        return room(p.name, x.given[p.key].shape, gap=1, turned=len(p.axes)).filled(x.given[p.key])
    if p.role == "states":
        values = _pool(p, x, call)
        return room(p.name, values.shape, turned=len(p.axes)).filled(values)
    shape = x.shape((len(x.case.lengths) * x.case.steps,) if p.role == "kept" else x.each_step, p.axes)
    return room(p.name, shape, turned=len(p.axes) if p.role == "kept" else 0)


def _pool(p: Pointer, x: Steps, call: Call) -> np.ndarray:
    """The rows of a pool, with the state of each sequence in its own."""
    values = x.start[p.key]
    pool = np.zeros(values.shape, dtype=np.int64).astype(object)
    for n in range(len(values)):
        if call.row(n) >= 0:
            pool[call.row(n)] = values[n]
    return pool


# --- launches and what they leave -----------------------------------------------------------------------------------------


def _launch(
    k: Kernel,
    f: KernelFunction,
    x: Steps,
    call: Call,
    memory: Mapping[str, Laid],
    given: Arguments,
    writes: bool,
) -> None:
    """A launch. Where it `writes` states that tiles share, these take turns in one program."""
    whole = any(k.kind(s.axes) == WHOLE for s in k.c.step.states)
    turns = tiles_of(k) if writes and whole else 1
    programs = tiles_of(k) // turns
    arguments: Arguments = dict.fromkeys(f.optional) | {n: laid.tensor for n, laid in memory.items()}
    arguments |= numbers(k, x, memory) | {
        "programs": programs,
        "turns": turns,
        "flat": call.flat,
        "prefetch_distance": 0,
    }
    arguments |= {"rows_at": _tensor(call.rows), **given}
    batch, heads = len(x.case.lengths), x.case.heads * programs
    launch(f, batch * heads if call.flat else heads, arguments, rows=1 if call.flat else batch)


def _left_by_step(p: Pointer, x: Steps, call: Call) -> np.ndarray:
    """What a step leaves; of padding, nothing."""
    if p.role == "states":
        left = _pool(p, x, call)
        for n in range(ONE.batch):
            if call.inplace and call.row(n) >= 0:
                left[call.row(n)] = x.after[p.key][n, 0]
        return left
    made = x.outputs if p.role == "outputs" else {} if call.inplace else x.after
    left = nothing(x.shape((ONE.batch,), p.axes))
    for n in range(ONE.batch):
        if call.row(n) >= 0 and p.key in made:
            left[n] = made[p.key][n, 0]
    return left


def _left_by_steps(p: Pointer, x: Steps, call: Call) -> np.ndarray:
    """What several steps leave."""
    case = x.case
    if p.role == "states":
        left = _pool(p, x, call)
    else:
        left = nothing(x.shape((len(case.lengths) * case.steps,) if p.role == "kept" else x.each_step, p.axes))
    kept = call.kept(case)
    for n in range(len(case.lengths)):
        taken = call.taken(case, n)
        if p.role == "states" and taken and call.ends:
            left[call.row(n)] = x.after[p.key][taken[-1]]
        for t, place in enumerate(taken):
            if p.role == "outputs" and call.yields:
                left[place] = x.outputs[p.key][place]
            if p.role == "kept" and call.keeps and kept[n * case.steps + t] >= 0:
                left[kept[n * case.steps + t]] = x.after[p.key][place]
    return left
