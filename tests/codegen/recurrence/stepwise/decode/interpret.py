"""The printed step kernels in Triton's interpreter, against the oracle: a program of its own, as it is chosen at import.

PYTHONPATH=tests python tests/codegen/recurrence/stepwise/decode/interpret.py NAME ..
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import functools
import json
import sys

import torch
from shared.step_calls import SIZES, arguments, at, grouped, imported, recurrences, step_of

from chunkform.codegen.checking.accuracy import relative_error
from chunkform.codegen.ir.expr import dim_of
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.emit import signature_text
from chunkform.codegen.recurrence.oracle import oracle
from chunkform.codegen.recurrence.stepwise.decode import MODULES, decoding, public_step
from chunkform.runtime.op import decode
from chunkform.runtime.op.drafts import commit, draft
from chunkform.runtime.op.several import Places, Writes, several_steps
from chunkform.runtime.op.small_states import LARGEST, SmallPool, small
from chunkform.runtime.op.small_step import step_in_kernel

POOLED = 22  # so many are tried in a pool, to save time
SQUARE = {"sherman_morrison"}  # which lives near a positive matrix
HEADER = """
import torch
import triton
import triton.language as tl
from chunkform.runtime.op.signature import Argument, Signature
"""


@functools.cache
def op_of(name: str):
    """`step` of an op, without compiling the rest of it."""
    c = Compiled(recurrences()[name], step_of(name), None, "")  # type: ignore[arg-type]
    d = decoding(c, has_start=False)
    lines = [HEADER, *(f"from {m} import {', '.join(names.split())}" for m, names in MODULES.items()), d.text]
    lines += [
        f"SIGNATURE = {signature_text(c)}",
        f"class OP:\n    step = {d.step.text}\n    named = staticmethod(lambda f: f)",
        f"def {name}(): ...",
        public_step(c),
    ]
    return getattr(imported(f"interpreted_{name}", "\n".join(lines)), name), c


def error(found: torch.Tensor, value: torch.Tensor) -> float:
    return relative_error(found, value, 1)


def values(c: Compiled, tensors: dict, constants: dict, heads: int, states: dict) -> tuple[dict, dict]:
    """What the oracle makes of all steps."""
    given = {}
    for v in c.step.variables:
        if v.kind != "constant":
            x = tensors[("log_" if v.is_decay else "") + v.name]
            axis = 2 if v.per_step else 0
            given[v.name] = x.repeat_interleave(heads // x.shape[axis], axis)
    outputs, finals, *_ = oracle(c, given, states, constants)
    return outputs, finals


def started(c: Compiled, heads: int) -> dict[str, torch.Tensor]:
    """Random states, near the spec's own."""
    shapes = {s.name: (2, heads, *(SIZES.get(dim_of(a), 4) for a in s.axes)) for s in c.step.states}
    return {
        n: 0.1 * torch.randn(shape) + (torch.eye(shape[-1]) if c.name in SQUARE else 0.0) for n, shape in shapes.items()
    }


def run(name: str, inplace: bool, narrow: bool, groups: bool) -> float:
    """The largest error over two steps. `narrow` also makes each state too wide to be held, where it can be taken by rows."""
    step, c = op_of(name)
    decode.too_wide, decode.rows_of_tile = (lambda entries: narrow), (lambda width, rows: 2)
    heads = 4 if groups else 2
    tensors, constants = arguments(name, 2, 2, heads, SIZES, seed=1)
    if groups:
        tensors = grouped(name, tensors, heads)
    states = started(c, heads) if groups else {}
    outputs, finals = values(c, tensors, constants, heads, states)
    decode.NARROWEST, decode.TILE, decode.HIGHEST = (2, 1, 1) if narrow else (16, 8192, 65535)
    state, worst = tuple(states.values()) if states else None, 0.0
    for t in range(2):
        before = state
        kept = None if state is None else [x.clone() for x in _listed(state)]
        *found, state = step.step(state, **at(name, tensors, t), **constants, inplace=inplace, backend="triton")
        worst = max(worst, *(error(o, outputs[n][:, t]) for o, n in zip(found, outputs, strict=True)))
        if before is not None and not inplace:
            assert all(torch.equal(x, y) for x, y in zip(_listed(before), kept, strict=True)), "a state was changed"
    return max(worst, *(error(x, finals[n]) for x, n in zip(_listed(state), finals, strict=True)))


def in_pool(name: str, narrow: bool) -> tuple[float, float]:
    """The largest difference from steps one after the other: of a step whose states are rows of a pool, and of rows that nothing
    is written to; and the largest error of drafts from them, kept in both ways, of which some are taken over. One of three
    sequences is padding."""
    step, c = op_of(name)
    inner = step.step.__globals__["OP"].step
    decode.NARROWEST, decode.TILE, decode.HIGHEST = (2, 1, 1) if narrow else (16, 8192, 65535)
    decode.too_wide = lambda entries: False
    tensors, constants = arguments(name, 3, 2, 2, SIZES, seed=2)
    rows = torch.tensor([4, -1, 1], dtype=torch.int32)
    shapes = {s.name: (6, 2, *(SIZES.get(dim_of(a), 4) for a in s.axes)) for s in c.step.states}
    pools = [0.1 * torch.randn(x) + (torch.eye(x[-1]) if c.name in SQUARE else 0.0) for x in shapes.values()]
    wanted, states = [], [[x.clone() for x in pools]]
    for t in range(2):
        own = [x[rows.clamp(min=0).long()] for x in states[-1]]
        *found, after = step.step(own, **at(name, tensors, t), **constants, backend="triton")
        states.append([x.clone() for x in states[-1]])
        for x, y in zip(states[-1], _listed(after), strict=True):
            x[4], x[1] = y[0], y[2]
        wanted.append([x * torch.tensor([1, 0, 1]).view(-1, *[1] * (x.dim() - 1)) for x in found])
    now = {("log_" if v.is_decay else "") + v.name: None for v in c.step.variables}
    now |= {**at(name, tensors, 0), **constants}
    given = {v.name: now[("log_" if v.is_decay else "") + v.name] for v in c.step.variables}
    pool = [x.clone() for x in pools]
    *found, _ = inner(tuple(pool), given, backend="triton", rows=rows)
    apart, worst = _apart(found, wanted[0]) + _apart(pool, states[1]), 0.0
    for keep, accepted in (("replay", [1, 2, 0]), ("copies", [2, 0, 1])):
        pool = [x.clone() for x in pools]
        options = {**tensors, **constants, "state_indices": rows, "keep": keep, "backend": "triton"}
        *found, drafts = draft(inner, (tuple(pool),), options)
        apart += sum(float(x[1].abs().max()) for x in found) + _apart(pool, pools)
        worst = max(worst, *(error(x[:, t], y) for t in range(2) for x, y in zip(found, wanted[t], strict=True)))
        commit(inner, drafts, torch.tensor(accepted))
        for row, taken in zip((4, 1), accepted[::2], strict=True):
            worst = max(
                worst, *(error(x[row : row + 1], y[row : row + 1]) for x, y in zip(pool, states[taken], strict=True))
            )
        others = [0, 2, 3, 5]
        apart += _apart([x[others] for x in pool], [x[others] for x in pools])
    return apart, worst


def packed(name: str) -> float:
    """The largest difference between the kernel and torch: packed tokens, states in rows of their own after each, whose last
    two axes lie in memory in the other order."""
    step, c = op_of(name)
    inner = step.step.__globals__["OP"].step
    tensors, constants = arguments(name, 3, 2, 2, SIZES, seed=4)
    given = {v.name: constants.get(v.name) for v in c.step.variables}
    for v in c.step.variables:
        if v.kind != "constant":
            x = tensors[("log_" if v.is_decay else "") + v.name]
            given[v.name] = torch.cat([x[0], x[2, :1]])[None] if v.per_step else x
    shapes = {s.name: (8, 2, *(SIZES.get(dim_of(a), 4) for a in s.axes)) for s in c.step.states}
    start = [0.1 * torch.randn(x) + (torch.eye(x[-1]) if c.name in SQUARE else 0.0) for x in shapes.values()]
    places = Places(
        rows=torch.tensor([4, 6, 1]), each=torch.tensor([[3, 4], [0, 0], [-1, 7]]), starts=torch.tensor([0, 2, 2, 3])
    )
    dims = {dim_of(a): SIZES.get(dim_of(a), 4) for v in c.step.variables for a in v.axes}
    found = []
    for backend in ("triton", "torch"):
        pools = [x.mT.contiguous().mT if x.dim() == 4 else x.clone() for x in start]
        outs = [torch.zeros(1, 3, 2, *(dims[dim_of(a)] for a in axes)) for axes in c.step.output_axes.values()]
        writes = Writes(outputs=True, each=True, last=True)
        several_steps(inner, given, pools, pools, outs, dims | {"B": 3, "T": 2, "H": 2}, places, writes, backend)
        found.append([*pools, *outs])
    return max(error(x, y) for x, y in zip(*found, strict=True))


def small_states(name: str) -> float:
    """The largest relative error of a step between rows of small states, rounded to the nearest, beside the same step of the
    states that the rows stand for; and how many numbers, as a share, aren't those that they are rounded to."""
    step, c = op_of(name)
    inner, worst = step.step.__globals__["OP"].step, 0.0
    tensors, constants = arguments(name, 3, 2, 2, SIZES, seed=3)
    now = {**at(name, tensors, 0), **constants}
    given = {v.name: now[("log_" if v.is_decay else "") + v.name] for v in c.step.variables}
    rows = torch.tensor([4, -1, 1], dtype=torch.int32)
    sizes = {d: SIZES.get(d, 4) for _, own in inner.signature.states for d in own}
    for dtype in LARGEST:
        pool = SmallPool.zeros(inner.signature, 6, 2, sizes, dtype, stochastic=False)
        pool.write(torch.arange(6), started_rows(c))
        before, own = pool.read(torch.arange(6)), pool.read(rows)
        *wanted, after = step.step(own, **now, backend="triton")
        found = step_in_kernel(inner, pool, given, rows, [], "triton", False)
        assert found is not None, f"{name}: the kernel doesn't take {dtype}"
        worst = max([worst, *(error(x[[0, 2]], y[[0, 2]]) for x, y in zip(found, wanted, strict=True))])
        assert not any(x[1].any() for x in found), "padding"
        for x, y, z, s in zip(pool.read(torch.arange(6)), _listed(after), before, pool.states, strict=True):
            assert torch.equal(x[[0, 2, 3, 5]], z[[0, 2, 3, 5]]), "other rows were touched"
            numbers, scales = small(y, s.numbers.dtype, False)
            if scales is None:
                worst = max(worst, error(x[[4, 1]], y[[0, 2]]))
                continue
            worst = max(worst, error(s.scales[[4, 1]], scales[[0, 2]]))
            other = s.numbers[[4, 1]].float() != numbers[[0, 2]].float()
            worst = max(
                worst, other.float().mean().item() / 1000
            )  # where a number lies between two, rounding may differ
    return worst


def started_rows(c: Compiled) -> list[torch.Tensor]:
    """States of six rows, near the spec's own."""
    shapes = [(6, 2, *(SIZES.get(dim_of(a), 4) for a in s.axes)) for s in c.step.states]
    return [0.1 * torch.randn(x) + (torch.eye(x[-1]) if c.name in SQUARE else 0.0) for x in shapes]


def at_random() -> dict[str, float]:
    """How far the mean of what many rows are rounded to is from what it should be, in steps of a row's grid, in each dtype."""
    name, count = "lightning_attention", 64
    step, c = op_of(name)
    inner, found = step.step.__globals__["OP"].step, {}
    tensors, _ = arguments(name, 1, 1, 2, SIZES, seed=3)
    now = {n: x.expand(count, *x.shape[1:]) for n, x in at(name, tensors, 0).items()}
    given = {v.name: now[("log_" if v.is_decay else "") + v.name] for v in c.step.variables}
    rows = torch.arange(count, dtype=torch.int32)
    for dtype in LARGEST:
        pool = SmallPool.zeros(inner.signature, count + 1, 2, SIZES, dtype)
        same = 0.1 * torch.randn(1, 2, SIZES["d"], SIZES["e"])
        pool.write(torch.arange(count + 1), [same.expand(count + 1, -1, -1, -1)])
        for s in pool.states:
            s.numbers.view(torch.uint8)[:] = s.numbers[:1].view(torch.uint8).clone()
        drawn = pool.drawn.clone()
        *_, exact = step.step(pool.read(rows)[0], **now)
        assert step_in_kernel(inner, pool, given, rows, [], "triton", False) is not None
        assert torch.equal(pool.drawn[:count], drawn[:count] + 1) and torch.equal(pool.drawn[count], drawn[count])
        far = (pool.read(rows)[0].mean(0) - exact[0]).abs()
        unit = pool.states[0].scales[0] if dtype == torch.int8 else exact[0].abs() / 8
        found[f"{dtype} at random"] = float((far / unit).max())
        again = pool.states[0].numbers[:count].float()
        found[f"{dtype} alike"] = float((again == again[:1]).all(0).float().mean())
    return found


def _apart(found, wanted) -> float:
    return sum(float((x - y).abs().max()) for x, y in zip(found, wanted, strict=True))


def _listed(x):
    return x if isinstance(x, tuple) else (x,)


def main(names: list[str]) -> dict[str, float]:
    report = {}
    pooled = max(1, len(names) // POOLED)
    for i, name in enumerate(names):
        options = ((i % 2 == 0, False, True), (i % 2 == 1, True, False))  # half of the combinations each, to save time
        if decoding(op_of(name)[1], False).step.text.count("RowKernel"):
            options = (*options, (i % 2 == 0, True, True))
        report[name] = max(run(name, *x) for x in options)
        if i % pooled == 0:
            report[f"{name} in a pool"], report[f"{name} in drafts"] = in_pool(name, narrow=i % 2 == 0)
            report[f"{name} packed"] = packed(name)
            if any(s.axes for s in step_of(name).states):
                report[f"{name} in small numbers"] = small_states(name)
    return report | (at_random() if "lightning_attention" in names else {})


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
