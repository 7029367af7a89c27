"""Runs Triton kernels in Triton's interpreter, which must be chosen before Triton is imported, so in a process of its own.

    TRITON_INTERPRET=1 python interpret.py '{"names": [...], "cases": [...]}'   # prints the rows as JSON

What the interpreter makes of bfloat16 is mended (`bfloat16_interpreted.py`).
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import torch
import triton
import triton.language as tl

sys.path.insert(0, str(Path(__file__).parents[3]))

from shared.triton_errors import compiled, errors, module, packed_difference, run

import chunkform.codegen.recurrence.triton.kernels.fused_backward as fused_module
import chunkform.codegen.recurrence.triton.plan_passes.checkpoint_schedule as schedule_module
from chunkform.codegen.checking.accuracy import relative_error
from chunkform.codegen.recurrence.check import error_of
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.samples import Case, Sample, sample
from chunkform.runtime.chunk_kernels import segment_tails as tails_module
from chunkform.runtime.chunk_kernels.chunk_layout import chunk_layout
from chunkform.runtime.chunk_kernels.decays import cumulate, lasting, over_block, reach
from chunkform.runtime.chunk_kernels.fused_backward import block_state_adjoint, step_state_adjoint
from chunkform.runtime.chunk_kernels.indexing import chunk_of, place_of
from chunkform.runtime.chunk_kernels.segment_tails import Tails, join_tails
from chunkform.runtime.launch import launch as launch_module
from chunkform.runtime.launch.launch import Config, launch
from chunkform.runtime.launch.varlen import INTERVAL, Packed
from chunkform.runtime.op.signature import OVERWRITE


def main(job: dict) -> list[dict]:
    rows = []
    if job.get("sweeps_make_all"):
        schedule_module.pays = lambda *_: False  # sweeps make all, whatever is faster
    if "buffers" in job:
        launch_module.BUFFERS = job["buffers"]
    if "crowd" in job:
        Config.crowd = lambda *_, **__: job["crowd"]
    if "tail_steps" in job:
        tails_module.TAIL_STEPS = tl.constexpr(job["tail_steps"])
    for name in job["names"]:
        if "slice" in job:
            sliced(name, job["slice"])
        for case in job["cases"]:
            dtype = getattr(torch, case.pop("dtype", "float32"))
            rows += errors_of(name, Case(**case), dtype)
            case["dtype"] = str(dtype).removeprefix("torch.")
    alone = {"blocks": blocks, "lasting": lasting_chunks, "joined": joined_pieces, "state_adjoints": state_adjoints}
    rows += [row for key, run in alone.items() if job.get(key) for row in run()]
    if job.get("parts"):
        rows += [row for name in job["names"] for row in parts(name, *job["parts"])]
    rows += of_names(job, {"unseen": unseen, "decays": decays, "widened": widened, "groups": groups})
    if job.get("forced"):
        fused_module.pays = lambda *_: True  # one sweep makes all, whatever is faster
        compiled.cache_clear()
    if "whole" in job:
        rows += [row for name in job["names"] for row in whole(name, job["whole"])]
    return rows + of_names(job, {"again": again, "variants": variants})


def of_names(job: dict, runs: dict) -> list[dict]:
    """The rows of those runs that the job asks for, for each of its names."""
    return [row for key, run in runs.items() if job.get(key) for name in job["names"] for row in run(name)]


@triton.jit
def blocks_kernel(
    a, n, extent, a_out, n_out, reach_out, T, H, chunks, begins, stops,
    X: tl.constexpr, C: tl.constexpr, CHUNK: tl.constexpr, BX: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Sums over blocks of those over chunks, as kernels that take blocks have them."""
    b, c, h = chunk_of(tl.program_id(0), H, chunks)
    t0, last = place_of(c, T, begins, stops, C)
    if last < 0:
        return
    i, x = tl.arange(0, C)[:, None], tl.arange(0, BX)[None, :]
    base, at, ok = ((b * T + t0) * H + h) * X, i * H * X + x, (i <= last) & (x < X)
    sums = tl.load(a + base + at, mask=ok, other=0.0)
    tl.store(a_out + base + at, over_block(sums, a + base, i, x, x < X, last, H * X, C, CHUNK), mask=ok)
    if EXACT:
        rests = tl.load(n + base + at, mask=ok, other=0)
        tl.store(n_out + base + at, over_block(rests, n + base, i, x, x < X, last, H * X, C, CHUNK), mask=ok)
    first = (b * H + h) * T + t0
    tl.store(reach_out + first, reach(extent + first, last, C, CHUNK))


def blocks() -> list[dict]:
    """Cumulative decays over blocks, made of those inside chunks, beside those of `cumulate`; also if packed."""
    torch.manual_seed(0)
    rows = []
    lengths = (70, 0, 1, 64, 37, 128)
    packed = Packed(torch.tensor((0, *lengths)).cumsum(0), len(lengths), sum(lengths))
    for p, (batch, steps), chunk, exact in product((None, packed), ((2, 150),), (16, 32, 64), (False, True)):
        shape = (1, sum(lengths)) if p is not None else (batch, steps)
        log = torch.randn(*shape, 3, 20) - 1
        log[torch.rand_like(log) < 0.01] = -50.0
        want = cumulate(log, over := chunk_layout(p, (*shape, 3), INTERVAL), exact)
        sums = cumulate(log, chunk_layout(p, (*shape, 3), chunk), exact)
        got = [torch.zeros_like(x) if x is not None else None for x in want]
        launch(
            blocks_kernel, (over.programs,), *sums, *got, *over.at_once,
            X=20, C=INTERVAL, CHUNK=chunk, BX=32, EXACT=exact, num_warps=4,
        )  # fmt: skip
        known = over.begins[over.stops > over.begins] if p is not None else torch.arange(0, steps, INTERVAL)
        extents = [x[2][..., known] for x in (got, want)]
        pairs = [(got[0], want[0]), *([(got[1], want[1])] if exact else [])]
        pairs.append((extents[0], torch.maximum(*extents)))  # at most so far: no less than what it is
        if chunk == INTERVAL:
            pairs.append(extents)
        for x, y in pairs:
            same = torch.allclose(x.double(), y.double(), rtol=1e-5, atol=1e-4)
            what = {
                "recurrence": "-",
                "quantity": f"{chunk} {exact} {p is not None}",
                "dtype": "float32",
                "rounding": 0,
            }
            rows.append(what | {"error": 0.0 if same else 1.0})
    return rows


@triton.jit
def lasting_kernel(
    sums, rests, out, stride, begin, stop, X: tl.constexpr, BX: tl.constexpr, C: tl.constexpr, FORWARD: tl.constexpr
):
    x = tl.arange(0, BX)
    reached = lasting(sums, rests, stride, x, x < X, begin, stop, tl.cdiv(stop - begin, C), C, FORWARD)
    tl.store(out, reached)


def lasting_chunks() -> list[dict]:
    """How many chunks leave something behind, beside what the products of decays say, one chunk after the other."""
    torch.manual_seed(0)
    rows = []
    steps, C = 1200, 16
    for X, exact, forward, (begin, stop) in product((1, 5), (False, True), (False, True), ((0, 1200), (32, 1187))):
        log = -1.2 * torch.rand(1, steps, 1, X) / (1 + torch.arange(X))
        if X > 1:
            log[:, 600, :, 0] = -1e3
        log = log if X > 1 else log[..., 0]
        sums, rests, _ = cumulate(log, chunk_layout(None, (1, steps, 1), C), exact)
        out = torch.zeros((), dtype=torch.int32)
        launch(
            lasting_kernel, (1,), sums, rests, out, X, begin, stop, X=X, BX=triton.next_power_of_2(X), C=C,
            FORWARD=forward, num_warps=4,
        )  # fmt: skip
        spans = [log[0, t : min(t + C, stop), 0].reshape(-1, X).double().sum(0) for t in range(begin, stop, C)]
        kept, expected = torch.ones(X, dtype=torch.float64), 0
        for n, total in enumerate(reversed(spans) if forward else spans):
            expected = n + 1 if bool((kept > 2.0**-160).any()) else expected
            kept = kept * total.exp()
        what = {"recurrence": "-", "quantity": f"{X} {exact} {forward} {begin}", "dtype": "float32", "rounding": 0}
        assert 0 < expected < len(spans), expected
        rows.append(what | {"error": float(abs(int(out) - expected))})
    return rows


def joined_pieces() -> list[dict]:
    """What two pieces of parts make together, beside products by torch, and of heads whose late matrix is zero what was there."""
    torch.manual_seed(0)
    rows = []
    for (row, column), along, tiles in product(((20, 40), (160, 24)), (0, 1), (1, 3)):
        size = (row, column) if along == 0 else (column, row)
        ends, late_ends = torch.randn(2, 3, 2, *size)
        linear, late_linear = torch.randn(2, 3, 2, row, row) / row**0.5
        live = torch.zeros(3, 2, tiles, dtype=torch.int32)
        live[:, 1, -1] = 1
        whole = late_linear @ (ends if along == 0 else ends.mT)
        expected = [ends.clone(), linear.clone()]
        expected[0][:, 1] = ((whole if along == 0 else whole.mT) + late_ends)[:, 1]
        expected[1][:, 1] = (late_linear @ linear)[:, 1]
        join_tails(Tails(late_ends, late_linear, live), ends, linear, along)
        what = {"recurrence": "-", "quantity": f"{row} {along} {tiles}", "dtype": "float32", "rounding": 0}
        rows += [what | {"error": _far(x, y)} for x, y in zip((ends, linear), expected, strict=True)]
    return rows


def state_adjoints() -> list[dict]:
    """A decay's state-adjoint product of one number for each step, or two, beside that of partial sums; and does it lie where
    the first of these lay?"""
    torch.manual_seed(0)
    rows = []
    for steps, at_once in product((2 * INTERVAL, 2 * INTERVAL + 3), (False, True)):
        layout = chunk_layout(None, (2, steps, 3), INTERVAL)
        in_late, in_early, out_late, out_early = sums = torch.randn(4, 2, 3, steps)
        row, column = torch.arange(steps)[:, None], torch.arange(steps)
        pairs = torch.randn(2, 3, steps, steps) * ((row // INTERVAL == column // INTERVAL) & (row > column))
        late, early = pairs.sum(-1), -pairs.sum(-2)
        spans = torch.randn(2, 3, layout.chunks, 1)
        parted = [x[:, :, None].contiguous() for x in (*sums, late, early)]
        expected = block_state_adjoint(spans, layout, *parted, at_once=at_once)
        into = torch.zeros(2, 3, layout.chunks * INTERVAL)
        into[..., :steps] = in_late + in_early
        spans += into.unflatten(-1, (-1, INTERVAL)).sum(-1, keepdim=True)
        late, early = late + in_late + out_late, early + in_early + out_early
        late, early = (late + early, None) if at_once else (late, early)
        found = step_state_adjoint(spans, layout, late, early)
        assert found.data_ptr() == late.data_ptr()
        what = {"recurrence": "-", "quantity": f"{steps} {at_once}", "dtype": "float32", "rounding": 0}
        rows.append(what | {"error": _far(found, expected)})
    early = torch.randn(2, 3, INTERVAL)
    layout = chunk_layout(None, (2, INTERVAL, 3), INTERVAL)
    own = early[:, :, None].clone()
    expected = block_state_adjoint(spans[:, :, :1].contiguous(), layout, out_early=own)
    found = step_state_adjoint(spans[:, :, :1].contiguous(), layout, None, early)
    rows.append(what | {"quantity": "early alone", "error": _far(found, expected)})
    return rows


def unseen(name: str) -> list[dict]:
    """Whether a NaN in the first steps is in no output of a later part, with strong decays, and in all of them with none."""
    c, m = compiled(name), module(name)
    whole, m.segments_for = m.segments_for, lambda places, programs: 3
    rows = []
    for decay, seen in (("strong", False), ("none", True)):
        s = sample(c, Case(batch=1, steps=400, heads=1, width=16, decay=decay))
        s.given["v"][:, :16] = float("nan")
        out = m.triton_forward(s.given, s.states, s.constants)[0]["o"]
        first = chunk_layout(None, (1, 400, 1), 1).length(3)
        assert out[:, :16].isnan().all()
        right = bool(out[:, first:].isnan().all()) if seen else not bool(out[:, first:].isnan().any())
        what = {"recurrence": name, "quantity": f"unseen {decay}", "dtype": "float32", "rounding": 0}
        rows.append(what | {"error": float(not right)})
    m.segments_for = whole
    return rows


def sliced(name: str, width: int) -> None:
    """Sweeps take the axes that they have whole in slices of this width from now on."""
    m = module(name)
    usual = m.choose
    m.choose = lambda *a: replace(usual(*a), slice=width)


def errors_of(name: str, case: Case, dtype: torch.dtype) -> list[dict]:
    """Float32 is far more exact than what is asked of it, so that two samples of one number say as much as many do."""
    return [
        asdict(e) for e in (errors(name, case, dtype, few=2) if dtype == torch.float32 else errors(name, case, dtype))
    ]


def parts(name: str, steps: int, lengths: list[int], width: int = 17, decay: str = "usual") -> list[dict]:
    """Two sequences that programs share, and packed ones, of such lengths, that differ from those alone."""
    m = module(name)
    whole, m.segments_for = m.segments_for, lambda places, programs: 3
    rows = errors_of(name, Case(batch=2, steps=steps, heads=1, width=width, decay=decay), torch.float32)
    m.segments_for = whole
    difference = packed_difference(name, tuple(lengths))
    return [*rows, {"recurrence": name, "quantity": "packed", "error": difference, "dtype": "float32", "rounding": 0}]


def groups(name: str) -> list[dict]:
    """Calls in which one argument alone has all heads, beside the same with the others repeated. Gradients are of every head."""
    c, m = compiled(name), module(name)
    s = sample(c, Case(batch=1, steps=19, heads=2, width=17))
    axis = {v.name: 2 if v.per_step else 0 for v in c.step.variables}
    rows = []
    for whole in s.given:
        few = {n: x if n == whole else x.narrow(axis[n], 0, 1).clone() for n, x in s.given.items()}
        full = {n: x.repeat_interleave(2 // x.shape[axis[n]], axis[n]) for n, x in few.items()}
        got, want = run(m, replace(s, given=few)), run(m, replace(s, given=full))
        for n, x in want.items():
            what = {"recurrence": name, "quantity": f"all heads in {whole}: {n}", "dtype": "float32", "rounding": 0}
            rows.append(what | {"error": error_of(c.step, n, got[n], x)})
    return rows


def decays(name: str) -> list[dict]:
    """Gradients of decays, which are sums over all later steps, in float16 over sequences that programs share."""
    c, m = compiled(name), module(name)
    whole, m.segments_for = m.segments_for, lambda places, programs: 3
    rows = errors(name, Case(batch=1, steps=300, heads=4, width=16), torch.float16)
    m.segments_for = whole
    return [asdict(e) for e in rows if e.quantity in {f"d{v.name}" for v in c.step.variables if v.is_decay}]


def widened(name: str) -> list[dict]:
    """float16 beside float32, on the same numbers: what kernels lose on the way, without the rounding of arguments."""
    m = module(name)
    s = sample(compiled(name), Case(batch=1, steps=150, heads=2, width=24, dtype=torch.float16))
    wide = replace(s, **{n: {k: x.float() for k, x in getattr(s, n).items()} for n in ("given", "cotangents")})
    got, want = run(m, s), run(m, wide)
    return [
        {
            "recurrence": name,
            "quantity": n,
            "dtype": "float16",
            "error": error_of(compiled(name).step, n, got[n], x),
            "rounding": 0,
        }
        for n, x in want.items()
    ]


def whole(name: str, some: list[str]) -> list[dict]:
    """A backward pass in one sweep, in float16, beside the sweeps of float32 on the same numbers: of whole sequences, in the
    place of what was saved and not, of several parts, and of packed sequences; `some` of these, or all."""
    c, m = compiled(name), module(name)
    every, lengths = m.segments_for, (37, 0, 64, 1)
    packed = Packed(torch.tensor((0, *lengths)).cumsum(0), len(lengths), sum(lengths))
    cases = {
        "whole": (Case(batch=2, steps=128, heads=2, width=24), 1, None, False),
        "in place": (Case(batch=2, steps=128, heads=2, width=24), 1, None, True),
        "extreme": (Case(batch=1, steps=70, heads=2, width=72, decay="extreme"), 1, None, True),
        **{f"narrower {d}": (Case(batch=1, steps=128, heads=1, width=72), 1, None, True) for d in c.step.dims},
        "parts": (Case(batch=1, steps=200, heads=1, width=16), 3, None, True),
        "packed": (Case(batch=1, steps=sum(lengths), heads=2, width=16), 1, packed, True),
    }
    rows = []
    for what, (case, count, sequences, overwrites) in ((n, x) for n, x in cases.items() if n in (some or cases)):
        m.segments_for = lambda places, programs, count=count: count
        s = sample(c, replace(case, dtype=torch.float16))
        if what.startswith("narrower"):
            s = narrowed(c, s, what.split()[1], 40)
        if sequences is not None:
            states = (s.states, s.final_cotangents)
            first, last = ({n: x.expand(len(lengths), *x.shape[1:]) for n, x in y.items()} for y in states)
            s = replace(s, states=first, final_cotangents=last)
        wide = replace(s, **{n: {k: x.float() for k, x in getattr(s, n).items()} for n in ("given", "cotangents")})
        found = []
        for x in (s, wide):
            saved = m.triton_forward(x.given, x.states, x.constants, sequences)[2]
            fused = any(n.endswith(" checkpoints") for n in saved)
            saved |= {OVERWRITE: None} if overwrites else {}
            needs = frozenset([*x.given, *x.states])
            gradients, initial = m.triton_backward(
                x.given, x.states, x.constants, saved, x.cotangents, x.final_cotangents, needs, sequences
            )
            assert fused == (x is s), what
            found.append({f"d{n}": y for n, y in gradients.items()} | {f"d initial {n}": y for n, y in initial.items()})
        rows += [
            {
                "recurrence": name,
                "quantity": f"{what}: {n}",
                "dtype": "float16",
                "error": _far(found[0][n], x),
                "rounding": 0,
            }
            for n, x in found[1].items()
        ]
    m.segments_for = every
    return rows


def narrowed(c: Compiled, s: Sample, dim: str, width: int) -> Sample:
    """The sample with one of its dims so wide."""
    axes = {v.name: v.axes for v in c.step.variables} | {x.name: x.axes for x in c.step.states} | c.step.output_axes

    def narrow(tensors: dict) -> dict:
        return {
            n: x[(..., *(slice(width if a == dim else None) for a in axes[n]))].contiguous() for n, x in tensors.items()
        }

    return replace(s, **{n: narrow(getattr(s, n)) for n in ("given", "states", "cotangents", "final_cotangents")})


def again(name: str) -> list[dict]:
    """A second backward pass over the same graph, where the first has put gradients in the place of what was saved."""
    import chunkform.generated

    c, op = compiled(name), getattr(chunkform.generated, name)
    s = sample(c, Case(batch=2, steps=64, heads=1, width=16, dtype=torch.float16))
    given = [x.requires_grad_() for x in s.given.values()]
    o, _ = op(*given, backend="triton", recompute="never")
    incoming = torch.randn_like(o)
    first = torch.autograd.grad(o, given, incoming, retain_graph=True)
    kept = [x.clone() for x in first]
    second = torch.autograd.grad(o, given, incoming)
    return [
        {"recurrence": name, "quantity": f"again: d{n}", "dtype": "float16", "error": _far(x, y), "rounding": 0}
        for n, x, y in zip(s.given, second, kept, strict=True)
    ]


def _far(x: torch.Tensor, y: torch.Tensor) -> float:
    """Of each head for itself where there are several."""
    return relative_error(x, y, 2 if y.ndim > 2 else None)


def variants(name: str) -> list[dict]:
    """Calls that must give the same numbers: strided inputs, fewer gradients, gradients of zero."""
    c, m = compiled(name), module(name)
    s = sample(c, Case(batch=1, steps=19, heads=2, width=17))
    everything = run(m, s)
    rows = []

    def same(what: str, got: dict, names: list[str] | None = None) -> None:
        for n in names or got:
            error = float((got[n] - everything[n]).abs().max()) if got[n].numel() else 0.0
            rows.append(
                {"recurrence": name, "quantity": f"{what}: {n}", "error": error, "dtype": "float32", "rounding": 0}
            )

    def strided(x: torch.Tensor) -> torch.Tensor:
        wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"))
        wide[..., ::2] = x
        return wide[..., ::2].transpose(0, 1).contiguous().transpose(0, 1) if x.ndim > 2 else wide[..., ::2]

    same("strided", run(m, replace(s, given={n: strided(x) for n, x in s.given.items()})))
    for n in s.given:
        got = run(m, s, frozenset([n]))
        same(f"only d{n}", got, [f"d{n}"])
    none = replace(s, cotangents=dict.fromkeys(s.cotangents))
    zeros = replace(s, cotangents={n: torch.zeros_like(x) for n, x in s.cotangents.items()})
    everything = run(m, zeros)
    same("no incoming gradient", run(m, none))
    return rows


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
