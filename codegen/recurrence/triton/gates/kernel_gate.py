"""What must hold of kernels whose statements are data: run over exact numbers, they leave in memory what they are for.

Each is run as it is printed, after all passes: for sequences of two chunks and a tail, for several sequences and heads, with
tiles that are wider than their axes, and with what may be missing given and missing. `codegen/exact/run_kernel.py` says what is
refused on the way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import inf
from typing import Any

import numpy as np

from chunkform.errors import GateError
from chunkform.runtime.torch_form.scans import LAWS, Extreme

from ....exact.jit_source import NoMeaning
from ....exact.memory import drawn
from ....exact.rationals import UNDEFINED, Rationals, array, in_field, needs_order, over_fractions, same
from ....exact.run_kernel import Argument, Tensor, run
from ....exact.runtime_source import module_of
from ....ir.evaluate import BEYOND, Env, evaluate
from ....ir.expr import COL, ROW, Node, dim_of, expand, leaf, make, walk
from ....ir.kernel_ir import KernelFunction
from ....ir.ranges import Range
from ....ir.step_program import DECAYS
from ..kernels.coupling_weights import TransitionKernel
from ..kernels.elementwise_scan import ScanKernel, states_of
from ..kernels.per_step import PER_STEP, Result, RowKernel, sometimes
from ..print.axis_names import block_name, dim_of_kept, size_name
from ..print.reserved import IMPORTS

NUMBERS = Rationals()
Arguments = dict[str, Argument]
B, H = 2, 2
NEGATIVE = Range(high=Fraction(0))
EXTREMES: dict[str, Extreme] = {"maximum": max, "minimum": min}


@cache
def runtime_function(name: str) -> Callable[..., object] | None:
    """The function of the runtime that kernels call so."""
    for module, names in IMPORTS.items():
        if name in names.split():
            found: Callable[..., object] = getattr(module_of(module), name)
            return found
    return None


@in_field
def gate_kernel(k: RowKernel | TransitionKernel, f: KernelFunction) -> None:
    """Raises GateError where `f`, which passes have made of a kernel, isn't what the kernel is for."""
    try:
        if isinstance(k, TransitionKernel):
            _gate_transitions(k, f)
        elif isinstance(k, ScanKernel):
            _gate_scan(k, f)
        else:
            _gate_rows(k, f)
    except NoMeaning as why:
        raise GateError(f"{f.name}: there is no exact meaning for {why}") from why


# --- memory ---------------------------------------------------------------------------------------------------------


@dataclass
class _Inputs:
    """What a kernel of steps is given: arguments, and the values of leaves, [B, T, H, ..]. `wanted`: the gradients that it is
    launched for, None where all are, and all is given."""

    k: RowKernel
    steps: int
    wanted: frozenset[str] | None
    random: random.Random

    def __post_init__(self) -> None:
        dims = sorted({dim_of(a) for a in self.k.axes} | _sizes_read(self.k))
        whole = sorted({dim_of_kept(d) for d in dims})
        self.sizes = {d: 2 + whole.index(dim_of_kept(d)) % 2 for d in dims}
        self.arguments: Arguments = {size_name(d): n for d, n in self.sizes.items()}
        self.arguments |= {block_name(a): 4 for a in self.k.axes}
        self.env: Env = {}
        known: dict[str, np.ndarray] = {}
        optional, uses = self.k.function.optional, sometimes(self.k.results)
        for base, tensor, x in self.k.leaves:
            kind, name, order = x.attrs
            shape = tuple(self.sizes[dim_of(a)] for a in order)
            lead: tuple[int, ...] = (B, self.steps, H) if kind in PER_STEP or kind == "sums" else (1, 1, H)
            if kind == "constant":
                lead = ()
            elif kind in ("input", "decay") and not known:  # one head, which all share
                lead = (B, self.steps, 1)
            missing = bool(optional & {f"{base}_p", f"{base}_sums"}) and not self.wants(uses.get((kind, name)))
            values = known.setdefault(tensor, within(self.draw((*lead, *shape)), self.range_of(x)))
            if missing:
                values = self.filled((*lead, *shape), Fraction(0))
            self.arguments |= self.passed(base, kind, values, missing)
            self.env[kind, name] = NUMBERS.fn("exp", values) if kind in DECAYS else NUMBERS.taken(values)

    @property
    def all_given(self) -> bool:
        return self.wanted is None

    def wants(self, gradients: Iterable[str] | None) -> bool:
        """Is one of these wanted? What is for any is handed over as others are: it may be missing where none is."""
        return self.wanted is None or bool(self.wanted.intersection(gradients or ()))

    def makes(self, r: Result) -> bool:
        return self.wanted is None or r.wanted is None or r.wanted in self.wanted

    def range_of(self, x: Node) -> Range | None:
        """Which values a scan counts on."""
        if not isinstance(self.k, ScanKernel) or self.k.kind == "affine":
            return None
        return NEGATIVE if x.attrs[0] in DECAYS else self.k.ranges.get(x.attrs[:2])

    def draw(self, shape: tuple[int, ...]) -> np.ndarray:
        """Numbers of many bits: among few, some is 1 where a plan divides by 1 - z."""
        return drawn(self.random, shape)

    def filled(self, shape: tuple[int, ...], value: Fraction) -> np.ndarray:
        return np.full(shape, value, dtype=object)

    def passed(self, base: str, kind: str, values: np.ndarray, missing: bool) -> Arguments:
        """The arguments for a leaf."""
        if kind == "constant":
            return {base: values.item()}
        if kind == "sums":  # of two tiles, which are added up
            first = self.draw(values.shape)
            both = np.stack([first, values - first], 1)  # [B, 2, T, H]
            laid = both.transpose(0, 3, 1, 2).ravel()
            return {f"{base}_sums": None if missing else Tensor(base, laid), f"{base}_n": 0 if missing else 2}
        if kind not in PER_STEP:
            return {f"{base}_p": None if missing else Tensor(base, values.ravel())}
        return strided(base, values, missing)


def within(values: np.ndarray, bounds: Range | None) -> np.ndarray:
    """Numbers as they are drawn, moved between bounds."""
    if bounds is None or (bounds.low == -inf and bounds.high == inf):
        return values
    size = abs(values)
    if bounds.bounded:
        return array(bounds.low + (bounds.high - bounds.low) * size / 32)
    return array(bounds.low + size if bounds.low > -inf else bounds.high - size)


def strided(base: str, values: np.ndarray, missing: bool = False, gap: int = 1) -> Arguments:
    """The arguments for values of each step, [B, T, H or fewer, ..], in memory with gaps of so many entries."""
    entries = int(np.prod(values.shape[3:]))
    width = entries + gap
    cells = np.full((*values.shape[:3], width), UNDEFINED, dtype=object)
    cells[..., :entries] = values.reshape(*values.shape[:3], -1)
    _, steps, heads = values.shape[:3]
    strides = {"b": steps * heads * width, "t": heads * width, "h": width, "g": H // heads}
    return {
        f"{base}_p": None if missing else Tensor(base, cells.ravel()[:-gap]),
        **{f"{base}_{n}": s for n, s in strides.items()},
    }


def _sizes_read(k: RowKernel) -> set[str]:
    made = k.entry.printed if isinstance(k, ScanKernel) and k.entry is not None else ()
    return {x.attrs[0] for root in (*made, *(r.node for r in k.results)) for x in walk(root) if x.op == "size"}


def _expected(r: Result, env: Env, sizes: dict[str, int], steps: int) -> np.ndarray:
    """A result at each step, [B, T, H, *order]."""
    made = np.asarray(evaluate(expand(r.node, r.order), env, NUMBERS, sizes), dtype=object)
    return np.broadcast_to(made, (B, steps, H, *(sizes[dim_of(a)] for a in r.order)))


def compare(kernel: str, what: str, cells: np.ndarray, expected: np.ndarray) -> None:
    found: Any = cells.reshape(expected.shape)
    for place in np.ndindex(*expected.shape):
        if found[place] is UNDEFINED or not same(found[place], expected[place]):
            why = "it is undefined" if found[place] is UNDEFINED else "it isn't what the plan says"
            raise GateError(f"{kernel}: {what} at {list(place)}: {why}")


# --- per-step kernels -----------------------------------------------------------------------------------------------


def _gate_rows(k: RowKernel, f: KernelFunction) -> None:
    steps, rows = 5, 4
    for wanted in _launches(k):
        given = _Inputs(k, steps, wanted, random.Random(f.name))
        blocks = -(-B * steps // rows)
        outs = _row_results(k, given, steps, blocks)
        arguments = given.arguments | {f"{n}_out": x for n, x in outs.items()}
        arguments |= {"T": steps, "H": H, "count": B * steps, "ROWS": rows}
        run(f, blocks * H, arguments, runtime_function)
        for r in k.results:
            out = outs[r.name]
            if out is None:
                continue
            expected = _expected(r, given.env, given.sizes, steps)
            if r.summed:
                shape = (blocks, H, *(given.sizes[dim_of(a)] for a in r.order))
                compare(f.name, r.name, array(out.cells.reshape(shape).sum(0)), array(expected.sum((0, 1))))
                continue
            cells = out.cells
            if r.within is not None:
                _, n, count = r.within
                cells = cells.reshape(B, steps, count, -1)[:, :, n]
            compare(f.name, r.name, cells, expected)


def _row_results(k: RowKernel, given: _Inputs, steps: int, blocks: int) -> dict[str, Tensor | None]:
    found: dict[str, Tensor | None] = {}
    for r in k.results:
        width = int(np.prod([given.sizes[dim_of(a)] for a in r.order]))
        lead = blocks if r.summed else B * steps * (r.within[2] if r.within is not None else 1)
        found[r.name] = Tensor.room(r.name, lead * H * width) if given.makes(r) else None
    return found


def _launches(k: RowKernel) -> list[frozenset[str] | None]:
    """For which gradients a kernel is launched: for all, for none, and for each alone, where a result that another's guard holds
    would be missing, or one that its own doesn't would have no room."""
    each = list(dict.fromkeys(r.wanted for r in k.results if r.wanted is not None))
    return [None, frozenset(), *(frozenset({n}) for n in (each if len(each) > 1 else []))]


# --- scans ----------------------------------------------------------------------------------------------------------


def _gate_scan(k: ScanKernel, f: KernelFunction) -> None:
    if k.kind != "affine":
        needs_order()  # of numbers, or of their sizes
    with nullcontext() if k.kind == "affine" else over_fractions():
        for wanted in _launches(k):
            _gate_whole_scan(k, f, wanted)
        _gate_segments(k, f)


def _gate_whole_scan(k: ScanKernel, f: KernelFunction, wanted: frozenset[str] | None) -> None:
    """A scan of whole sequences: what it makes of each step, and the last state."""
    steps = 5
    given = _Inputs(k, steps, wanted, random.Random(f.name))
    shape = tuple(given.sizes[dim_of(a)] for a in k.axes)
    first = given.draw((B, H, *shape)) if given.all_given else given.filled((B, H, *shape), Fraction(0))
    last = Tensor.room("last", first.size) if given.all_given else None
    outs: dict[str, Tensor | None] = dict.fromkeys((r.name for r in k.results), None)
    made = [r for r in k.results if given.makes(r)]
    outs |= {r.name: Tensor.room(r.name, B * steps * H * _width(r, given)) for r in made}
    arguments = _scan_arguments(k, given, Tensor("first", first.ravel()) if given.all_given else None, last)
    arguments |= {f"{n}_out": x for n, x in outs.items()} | {"segments": 1, "length": steps, "RESULTS": True}
    run(f, B * H * _tiles(shape), arguments, runtime_function)
    after_all = _walk(k, given, first, range(steps))
    for r in k.results:
        if (out := outs[r.name]) is not None:
            compare(f.name, r.name, out.cells, _expected(r, given.env, given.sizes, steps))
    if last is not None:
        compare(f.name, "the last state", last.cells, after_all)


def _gate_segments(k: ScanKernel, f: KernelFunction) -> None:
    """The map of each segment of a sequence: what it makes of some states."""
    steps, segments, length = 6, 2, 4
    given = _Inputs(k, steps, None, random.Random(f.name))
    shape = tuple(given.sizes[dim_of(a)] for a in k.axes)
    numbers = [Tensor.room(f"number {n}", B * segments * H * int(np.prod(shape))) for n in LAWS[k.kind].identity]
    arguments = _scan_arguments(k, given, None, None, numbers)
    arguments |= {f"{r.name}_out": None for r in k.results} | {"segments": segments, "length": length, "RESULTS": False}
    run(f, B * segments * H * _tiles(shape), arguments, runtime_function)
    for segment in range(segments):
        own = range(segment * length, min((segment + 1) * length, steps))
        maps = [x.cells.reshape(B, segments, H, *shape)[:, segment] for x in numbers]
        if any(x is UNDEFINED for m in maps for x in m.flat):
            raise GateError(f"{f.name}: a segment's map is undefined")
        for size in (-(10**6), 0, 1, 10**6):
            state = given.filled((B, H, *shape), Fraction(size))
            compare(f.name, "a segment's map", _applied(k, maps, state), array(_walk(k, given, state, own)))


def _scan_arguments(
    k: ScanKernel, given: _Inputs, first: Tensor | None, last: Tensor | None, numbers: Sequence[Tensor] | None = None
) -> Arguments:
    """The arguments of a scan; `numbers` are those of a segment's map, of which an affine one has the last where the state is."""
    names = states_of(k.state, k.kind)
    states: Arguments = dict.fromkeys(names, None) | {names[0]: first, names[1]: last}
    if numbers is not None:
        states |= zip((*names[2:], names[1]), numbers, strict=False)
    places = {"T": given.steps, "H": H, "chunks": 0, "starts": None, "C": 2, "STAGES": 1}
    blocks = {block_name(a): 2 for a in k.axes}
    return given.arguments | states | places | blocks


def _width(r: Result, given: _Inputs) -> int:
    return int(np.prod([given.sizes[dim_of(a)] for a in r.order]))


def _tiles(shape: tuple[int, ...]) -> int:
    return -(-shape[0] // 2) if shape else 1


def _walk(k: ScanKernel, given: _Inputs, first: np.ndarray, steps: Sequence[int]) -> np.ndarray:
    """The state after these steps, one after the other, as the entry's maps say; notes what it is before and after each."""
    assert k.entry is not None
    shape = (B, given.steps, H, *first.shape[2:])
    maps = [
        np.broadcast_to(np.asarray(evaluate(expand(x, k.axes), given.env, NUMBERS, given.sizes), dtype=object), shape)
        for x in k.entry.maps
    ]
    before, after = (np.full(shape, UNDEFINED, dtype=object) for _ in range(2))
    state = first
    for t in steps if k.forward else reversed(steps):
        before[:, t] = state
        state = _applied(k, [m[:, t] for m in maps], state)
        after[:, t] = state
    given.env["stored", f"{k.entry.state}.before"] = before
    given.env["stored", f"{k.entry.state}.after"] = after
    return state


def _applied(k: ScanKernel, maps: Sequence[np.ndarray], state: np.ndarray) -> np.ndarray:
    """What maps make of a state."""
    law, extreme = LAWS[k.kind], EXTREMES.get(k.kind, max)
    applied = np.frompyfunc(lambda x, *m: law.applied(m, x, extreme), 1 + len(maps), 1)
    return array(applied(state, *maps))


# --- transitions ----------------------------------------------------------------------------------------------------


def _gate_transitions(k: TransitionKernel, f: KernelFunction) -> None:
    """Products of the matrices of the steps of each chunk, as `coupled_states.py` says."""
    steps, chunk = 5, 2
    w, chunks, draw = k.transitions, 3, random.Random(f.name)
    entries = {p: Fraction(x.attrs[0]) if x.op == "const" else None for p, x in w.entries.items()}
    values: dict[tuple[int, int], np.ndarray] = {}
    arguments: Arguments = {}
    for p in w.entries:
        known, shape = entries[p], (B, steps, H)
        values[p] = drawn(draw, shape) if known is None else np.full(shape, known, dtype=object)
        if known is None:
            arguments |= strided(f"a_{p[0]}_{p[1]}", values[p])
    outs = dict(zip(w.made, (name for line in f.parameters[len(k.given) :] for name in line), strict=True))
    size = B * H * chunks * chunk * chunk
    rooms = {x: Tensor.room(p.name, size if len(x.axes) > 1 else B * H * steps) for x, p in outs.items()}
    arguments |= {p.name: rooms[x] for x, p in outs.items()}
    programs = B * H * chunks
    arguments |= {"T": steps, "H": H, "chunks": chunks, "begins": None, "stops": None, "programs": programs, "C": chunk}
    run(f, programs, arguments, runtime_function)
    for c in range(chunks):  # of all sequences and heads: [B, H, ..]
        own = slice(c * chunk, min((c + 1) * chunk, steps))
        here = {p: NUMBERS.taken(v[:, own].swapaxes(1, 2)) for p, v in values.items()}
        for x, expected in _weights(k, here, chunk, own.stop - own.start):
            cells, pairs = rooms[x].cells, len(x.axes) > 1
            cells = (
                cells.reshape(B, H, chunks, chunk, chunk)[:, :, c] if pairs else cells.reshape(B, H, steps)[:, :, own]
            )
            compare(f.name, outs[x].name, cells, expected)


def _weights(
    k: TransitionKernel, values: Mapping[tuple[int, int], np.ndarray], chunk: int, own: int
) -> Iterator[tuple[Node, np.ndarray]]:
    """What each leaf of weights stands for, in a chunk that has `own` steps of the sequence, or over these. All are parts of the
    same products, which are formed once."""
    w, positions = k.transitions, tuple(k.transitions.entries)
    env: Env = {}
    done: dict[Node, np.ndarray] = {}
    leaves = []
    for n, p in enumerate(positions):
        beyond = np.full((B, H, chunk - own), Fraction(0), dtype=object)
        env["input", f"a{n}"] = np.concatenate([values[p], beyond], axis=2)
        leaves.append(leaf("input", f"a{n}", (ROW,)))
    sizes = {ROW: chunk, COL: chunk, BEYOND: chunk - own}
    for x, (op, summed, after) in w.made.items():
        axes = {ROW, COL} if op == "transition_mask" else {ROW}
        late = (after,) if op != "transition_out" else ()
        total: Any = array(Fraction(0))
        for c, (to, of) in summed:
            node = make(op, tuple(leaves), (positions, w.count, to, of, *late, w.direction), axes)
            total = total + c * evaluate(node, env, NUMBERS, sizes, done)
        total = np.array(total, dtype=object)
        if op == "transition_mask":  # beyond the sequence there are zeros
            total[:, :, own:] = total[..., own:] = Fraction(0)
        yield x, total if op == "transition_mask" else total[..., :own]
