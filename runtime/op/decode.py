"""Decoding: an op's one step at a time, for generation. One launch a step; the state in place, or returned new.

    o, state = lightning_attention.step(state, q=q, k=k, v=v, log_lam=log_lam)

What follows from shapes, strides and dtypes is worked out in the first call with them and kept: later calls only launch.
"""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from chunkform.errors import ArgumentError, BackendError, FallbackWarning

from ..torch_form.recurrent import block_of, rows_of_tile, too_wide, warps_for
from . import debugging
from .arguments import FLOATS, Sizes, check_deterministic, checked
from .entrywise import is_entrywise
from .forward_mode import is_on
from .look_ahead import heads_ahead
from .passes import repeated
from .results import result_type
from .rows import kept_rows, read_rows, write_rows
from .signature import Argument, Signature, States
from .step_checks import check_inner, check_out, check_step_states, refuse_transforms

PROGRAMS = 264  # two for each multiprocessor of an H200: with fewer, tiles are made narrower
TILE = 8192  # entries of the states that one program holds
TILE_OF_SEVERAL = 4096  # of a program that takes several steps: one warp, whose sums wait for no other
PER_WARP = 4096  # entries that a warp holds: 128 in each thread, so that few warps have to meet in a sum
HEADS = 1024  # with so many, of states of which each entry follows from its own, a program has a head whole,
HEAD_BYTES = 32 * 1024  # where that is so much memory at most
SMALL_ENTRIES = 8 * PER_WARP  # of a program that has a head's small numbers whole
SMALL_PER_WARP = 2048  # entries of its warps: with 4096 registers spill, with 1024 more warps meet in each sum
NARROWEST = 16  # entries of a row that a tile takes at least: 32 bytes in bfloat16, what memory moves at once
HIGHEST = 65535  # programs along a grid's second axis
PLANS = 1024  # kept at once; shapes change with the batch

Given = dict[str, "Tensor | float | None"]  # arguments by declared names


@dataclass(frozen=True)
class RowKernel:
    """A step kernel that works on blocks of the states' rows, where a program can't hold them whole. slots: vectors that it
    keeps in memory."""

    kernel: Any
    row: str
    column: str
    slots: int


@dataclass(frozen=True)
class Cut:
    """How a kernel is launched: its last arguments, the grid, the warps, and the scratch memory's shape. optional: how many
    pointers it takes that say which rows and steps are meant, and what else may be missing."""

    kernel: Any
    constexprs: tuple[int, ...]
    grid: tuple[int, int, int]
    warps: int
    scratch: tuple[int, ...] | None = None
    optional: int = 0

    def ahead(self, states: Sequence[Tensor]) -> int:
        """How many heads ahead programs bring states into the cache; 0 where they don't."""
        *_, programs, turns, flat = self.constexprs
        return heads_ahead(states, programs) if states and turns == 1 and not flat else 0


@dataclass(frozen=True)
class StepKernel:
    """A generated step kernel, the one of several steps, and what their launches need to know.

    reads: the arguments that it takes, in order. held: the dims of what fills its registers. tiled: the dim that is cut into
    tiles. shared: some state lacks that dim, so that the tiles of a head can't run side by side while it is updated in place.
    scaled: the states that may be small numbers, with a scale for each row.
    """

    kernel: Any
    several: Any
    reads: tuple[str, ...]
    constants: tuple[str, ...]
    dims: tuple[str, ...]
    tiled: str | None
    shared: bool
    held: tuple[tuple[str, ...], ...]
    smallest: int = 1
    scaled: tuple[str, ...] = ()
    rows: RowKernel | None = None

    def cut(
        self,
        sizes: dict[str, int],
        inplace: bool,
        deterministic: bool = False,
        states: Sequence[Tensor] = (),
        entrywise: Callable[[], bool] = lambda: False,
    ) -> Cut:
        """The launch: size and block of each dim, programs of a head, turns, is the grid flat, in place; then how many heads
        ahead `states` are brought into the cache, or slots and block of rows.

        entrywise: does each entry of the next states follow from its own?"""
        blocks, tiles = self.tiles(sizes, deterministic)
        whole = {d: block_of(sizes[d], self.smallest) for d in self.dims}
        if tiles > 1 and not deterministic and self._fit_whole(sizes, whole, states) and entrywise():
            cut = self._cut(self.kernel, sizes, whole, 1, False)
            return replace(cut, constexprs=(*cut.constexprs, inplace, 0), optional=self.optional)
        cut = self._cut(self.kernel, sizes, blocks, tiles, self.shared and inplace)
        constexprs = (*cut.constexprs, inplace)
        if self.rows is not None and too_wide(self.entries(blocks)):
            width = blocks[self.rows.column]
            block = rows_of_tile(width, blocks[self.rows.row])
            scratch = (sizes["B"] * sizes["H"], self.rows.slots, sizes[self.rows.row] + sizes[self.rows.column])
            more = (self.rows.slots, block)
            return Cut(self.rows.kernel, (*constexprs, *more), cut.grid, warps_for(block * width), scratch)
        return replace(cut, constexprs=(*constexprs, cut.ahead(states)), optional=self.optional)

    def _fit_whole(self, sizes: dict[str, int], blocks: dict[str, int], states: Sequence[Tensor]) -> bool:
        """Are there many heads, of little memory? A whole one comes in one piece, and nobody has to ask for it before.

        On an H200 a step of lightning attention, 256 sequences in random order (16 heads of 128 channels, bfloat16), moves its
        bytes at 88% of a copy's rate so, at 84 to 85% by halves of heads. Where a sum of states stands before the update, 75% for
        87: there warps wait for each other."""
        size = max((x.element_size() for x in states), default=0)
        return sizes["B"] * sizes["H"] >= HEADS and 0 < self.entries(blocks) * size <= HEAD_BYTES

    def cut_small(self, sizes: dict[str, int], states: Sequence[Tensor] = ()) -> Cut | None:
        """The launch of one step in place, of states that are small numbers: a program has those of a head whole. None where
        these are too many, or where no state has rows."""
        blocks = {d: block_of(sizes[d], self.smallest) for d in self.dims}
        if not self.scaled or self.entries(blocks) > SMALL_ENTRIES:
            return None
        cut = self._cut(self.kernel, sizes, blocks, 1, False, SMALL_PER_WARP)
        constexprs = (*cut.constexprs, True, cut.ahead(states))
        return replace(cut, constexprs=constexprs, optional=self.optional)

    @property
    def optional(self) -> int:
        """Pointers of one step's kernel that may be missing: of rows, of scales, and of counts of steps."""
        return 1 + (len(self.scaled) + 1 if self.scaled else 0)

    def cut_several(self, sizes: dict[str, int], yields: bool, keeps: bool, ends: bool) -> Cut | None:
        """The launch of several steps, of B sequences; None where the states are too wide to be held."""
        blocks, tiles = self.tiles(sizes, False, TILE_OF_SEVERAL)
        if self.rows is not None and too_wide(self.entries(blocks)):
            return None
        cut = self._cut(self.several, sizes, blocks, tiles, self.shared and (keeps or ends))
        return replace(cut, constexprs=(*cut.constexprs, yields, keeps, ends))

    def _cut(
        self,
        kernel: object,
        sizes: dict[str, int],
        blocks: dict[str, int],
        tiles: int,
        in_turns: bool,
        per_warp: int = 0,
    ) -> Cut:
        batch, heads = sizes["B"], sizes["H"]
        turns = tiles if in_turns else 1
        programs = tiles // turns
        warps = min(16, 1 << max(0, (self.entries(blocks) // (per_warp or PER_WARP)).bit_length() - 1))
        flat = batch > HIGHEST
        grid = (batch * heads * programs, 1, 1) if flat else (heads * programs, batch, 1)
        return Cut(kernel, (*(n for d in self.dims for n in (sizes[d], blocks[d])), programs, turns, flat), grid, warps)

    def tiles(self, sizes: dict[str, int], deterministic: bool, most: int | None = None) -> tuple[dict[str, int], int]:
        """The block of each dim, and how many tiles there are, of at most so many entries where a dim can be cut.

        `deterministic`: tiles are as narrow as few heads want them, however many there are."""
        batch, heads, most = sizes["B"], sizes["H"], most or TILE
        blocks = {d: block_of(sizes[d], self.smallest) for d in self.dims}
        if self.tiled is None:
            return blocks, 1
        d = self.tiled
        while blocks[d] > max(self.smallest, NARROWEST) and (
            self.entries(blocks) > most or deterministic or batch * heads * -(-sizes[d] // blocks[d]) < PROGRAMS
        ):
            blocks[d] //= 2
        return blocks, -(-sizes[d] // blocks[d])

    def entries(self, blocks: dict[str, int]) -> int:
        """Entries that a program holds."""
        return sum(math.prod(blocks[d] for d in dims) for dims in self.held)


class Step:
    """The decoding step of an op: in torch and, where triton is installed, as one kernel.

    torch_step(given, states, constants, outputs, following) computes into the last two. torch_start(given, states, constants,
    batch, heads) gives the first states, where a spec has any but zeros.
    """

    def __init__(
        self,
        signature: Signature,
        torch_step: Callable[..., None],
        kernel: StepKernel | None = None,
        torch_start: Callable[..., dict[str, Tensor]] | None = None,
    ) -> None:
        once = tuple(_Once(**{f.name: getattr(a, f.name) for f in fields(a)}) for a in signature.arguments)
        self.whole = signature
        self.signature = replace(signature, name=f"{signature.name}.step", arguments=once, hidden=(), wide=())
        self.torch_step, self.torch_start, self.kernel = torch_step, torch_start, kernel
        self.result = result_type(f"{signature.name}.step", (*(n for n, _ in signature.outputs), "state"))
        self._tensors = [a.name for a in once if a.kind != "constant"]
        self._constants = {a.name: a.default for a in once if a.kind == "constant"}
        self.plans: dict[Any, Plan] = {}
        self._entrywise: bool | None = None
        self.launches: dict[Any, Launch | None] = {}  # of several steps; None where a GPU doesn't hold them

    def __call__(
        self,
        state: States,
        given: dict[str, Tensor | float | None],
        inplace: bool = False,
        out: Tensor | Sequence[Tensor] | None = None,
        state_dtype: torch.dtype | None = None,
        backend: str | None = None,
        deterministic: bool = False,
        rows: Tensor | None = None,
    ) -> Any:
        """(outputs.., next state). The generated `step` has the public signature, and says what the arguments are.

        rows: the state is a pool, and this says which row of it is each batch entry's; `pools.py` has checked them."""
        exporting = torch.compiler.is_exporting()
        if exporting:  # a graph of torch's own operations, which needs no chunkform where it runs
            backend = "torch"
        elif torch.compiler.is_compiling():  # launches by address, which a graph can't hold
            return torch.compiler.disable(self.__call__)(
                state, given, inplace, out, state_dtype, backend, deterministic, rows
            )
        check_deterministic(self.signature.name, deterministic)
        states = listed(state) or [None] * len(self.signature.states)
        if is_on() or torch._C._are_functorch_transforms_active():
            refuse_transforms(self.signature.name, [*given.values(), *states, *listed(out)])
        if debugging.switched_on and debugging.can_look():
            _look(self.signature, given, states, rows)
        if any(x is None for x in states):
            states = self.first_states(states, given, state_dtype)
        tensors = [given[n] for n in self._tensors]
        outs = listed(out)
        inplace = inplace or rows is not None
        every = [*tensors, *states, *outs, *([] if rows is None else [rows])]
        try:
            places = [x.data_ptr() for x in every]
            looks = [(x.shape, x.stride(), x.dtype, x.device) for x in every]
            key: Any = (inplace, backend, deterministic, len(states), len(outs), *looks, *[p % 16 == 0 for p in places])
            plan = self.plans.get(key)
        except (AttributeError, RuntimeError):  # something isn't a tensor, or has no memory: the checks say what
            key = plan = None
        if plan is None:
            make = lambda: self._plan(states, given, inplace, outs, backend, deterministic, rows)  # noqa: E731
            plan = make() if exporting else self.plan_of(key, make)  # an export's sizes may be symbols
        if torch.is_grad_enabled() and any(x.requires_grad for x in every):
            raise ArgumentError(
                f"{self.signature.name} has no gradient, but an argument requires one: decode under torch.no_grad(), or use "
                "the op itself"
            )
        following = states if inplace else [torch.empty(x.shape, dtype=x.dtype, device=plan.device) for x in states]
        if not outs:
            make = torch.empty if rows is None else torch.zeros  # of padding, a kernel writes nothing
            outs = [make(shape, dtype=plan.dtype, device=plan.device) for shape in plan.shapes]
        constants: dict[str, Any] = {n: x if given[n] is None else given[n] for n, x in self._constants.items()}
        plan.run(tensors, constants, states, following, outs, rows)
        return self.result(*outs, following[0] if len(following) == 1 else tuple(following))

    def entrywise(self) -> bool:
        """Does each entry of the next states follow from its own? Found once."""
        if self._entrywise is None:
            self._entrywise = is_entrywise(self.whole, self.torch_step)
        return self._entrywise

    def plan_of(self, key: object, make: Callable[[], Plan]) -> Plan:
        """The plan for calls of one kind, made at the first of them."""
        plan = self.plans.get(key)
        if plan is None:
            plan = make()
            if len(self.plans) >= PLANS:
                self.plans.clear()
            self.plans[key] = plan
        return plan

    def keep(self, key: tuple[object, ...], launch: Launch | None) -> Launch | None:
        """The launch, which calls of this kind find in `launches`."""
        if len(self.launches) >= PLANS:
            self.launches.clear()
        self.launches[key] = launch
        return launch

    def first_states(
        self, states: list[Tensor], given: dict[str, Tensor | float | None], dtype: torch.dtype | None
    ) -> list[Tensor]:
        """The states, with the spec's own where there is None."""
        if dtype is not None and dtype not in FLOATS:
            raise ArgumentError(
                f"{self.signature.name}: state_dtype must be a floating-point dtype or None, got {dtype!r}"
            )
        tensors, constants, sizes = self._checked(given, states)
        check_step_states(self.signature, states, tensors, sizes)
        some = next(iter(tensors.values()))
        dtype = dtype or (torch.float64 if some.dtype == torch.float64 else torch.float32)
        batch, heads = sizes["B"], sizes["H"]
        if self.torch_start is not None:
            own = self.torch_start(self.repeated(tensors, heads), {}, constants, batch, heads)
        else:
            shapes = {n: (batch, heads, *(sizes[d] for d in dims)) for n, dims in self.signature.states}
            own = {n: some.new_zeros(shape, dtype=dtype) for n, shape in shapes.items()}
        names = [n for n, _ in self.signature.states]
        return [own[n].to(dtype).contiguous() if x is None else x for n, x in zip(names, states, strict=True)]

    def _plan(
        self,
        states: list[Tensor],
        given: dict[str, Tensor | float | None],
        inplace: bool,
        outs: list[Tensor | None],
        asked: str | None,
        deterministic: bool,
        rows: Tensor | None,
    ) -> Plan:
        """What to do with arguments like these, all of which are checked."""
        tensors, _, sizes = self._checked(given, states)
        if rows is not None and rows.shape[0] != sizes["B"]:
            raise ArgumentError(
                f"{self.signature.name}: state_indices must be [B] = [{sizes['B']}], got {list(rows.shape)}"
            )
        check_step_states(self.signature, states, tensors, sizes, rows is not None)
        like = tensors[self.signature.leading.name]
        shapes = [(sizes["B"], sizes["H"], *(sizes[d] for d in dims)) for _, dims in self.signature.outputs]
        check_out(self.signature, outs, shapes, like)
        for key, written in (("state", states if inplace else []), ("out", outs)):
            for x in written:
                if any(n > 1 and stride == 0 for n, stride in zip(x.shape, x.stride(), strict=True)):
                    raise ArgumentError(
                        f"{self.signature.name}: {key} is written to, and must have memory for each entry; got "
                        f"an expanded one of shape {list(x.shape)} and strides {list(x.stride())}: pass its .contiguous()"
                    )
        originals = [given[n] for n in self._tensors]
        backend = backend_of(self, asked, [*originals, *states, *outs])
        plan = Plan(self, sizes["H"], shapes, like.dtype, like.device, deterministic)
        if backend == "triton":
            check_inner(self.signature, {"state": states, "out": outs})
            assert self.kernel is not None
            cut = self.kernel.cut(sizes, inplace, deterministic, states, self.entrywise)
            plan.launch = launch_step(self, sizes, originals, states, outs, inplace, cut)
        return plan

    def _checked(
        self, given: dict[str, Tensor | float | None], states: list[Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, float], Sizes]:
        """Arguments that fit, constants and sizes. Where the state isn't one either, it may have been given at its place in
        other libraries: the error says that it comes first."""
        try:
            return checked(self.signature, given)
        except ArgumentError as error:
            name, wanted = self.signature.name, [2 + len(dims) for _, dims in self.signature.states]
            got = [x.dim() if isinstance(x, Tensor) else n for x, n in zip(states, wanted, strict=False)]
            if got == wanted:
                raise
            order = ", ".join(["state", *(a.key for a in self.signature.tensors)])
            raise ArgumentError(f"{error}; the state comes first: {name}({order})") from None

    def repeated(self, tensors: dict[str, Tensor], heads: int) -> dict[str, Tensor]:
        """Arguments with `heads` heads each."""
        axis = {a.name: 1 if a.per_step else 0 for a in self.signature.arguments}
        return {n: repeated(x, axis[n], heads) for n, x in tensors.items()}


@dataclass(frozen=True)
class _Once(Argument):
    """An argument of one step: as the op's, without the axis of steps."""

    @property
    def layout(self) -> tuple[str, ...]:
        return (("B", "H") if self.per_step else ("H",)) + self.dims


# --- plans ----------------------------------------------------------------------------------------------------------


@dataclass
class Plan:
    """One kind of call: the shapes of outputs, their dtype and device, and the launch, where there is one."""

    step: Step
    heads: int
    shapes: list[tuple[int, ...]]
    dtype: torch.dtype
    device: torch.device
    deterministic: bool = False
    launch: Launch | None = None

    def run(
        self,
        tensors: list[Tensor],
        constants: dict[str, float],
        states: list[Tensor],
        following: list[Tensor],
        outputs: list[Tensor],
        rows: Tensor | None,
    ) -> None:
        if self.launch is not None:
            pairs = [x for pair in zip(states, following, strict=True) for x in pair]
            try:
                self.launch([*tensors, *pairs, *outputs], constants, (rows,))
                return
            except OutOfResources as error:  # before anything was written
                self.launch = None
                sizes = {n: list(x.shape) for n, x in zip(self.step._tensors, tensors, strict=True)}
                told = too_large(self.step.signature.name, sizes, error, "the step runs in torch instead")
                warnings.warn(f"{told}, in several launches", FallbackWarning, stacklevel=2)
        step = self.step
        if rows is not None:
            own = [read_rows(x, rows) for x in states]
            found = [torch.empty_like(x) for x in outputs]
            self.run(tensors, constants, own, own, found, None)
            write_rows(states, own, rows)
            for x, out in zip(found, outputs, strict=True):
                kept_rows(x, rows >= 0, out)
            return
        names = [n for n, _ in step.signature.states]
        given = step.repeated(dict(zip(step._tensors, tensors, strict=True)), self.heads)
        before, after = dict(zip(names, states, strict=True)), dict(zip(names, following, strict=True))
        shown = dict(zip((n for n, _ in step.signature.outputs), outputs, strict=True))
        with torch.no_grad():
            if not self.deterministic:
                step.torch_step(given, before, constants, shown, after)
                return
            every_step = {a.name for a in step.signature.tensors if a.per_step}
            for b, h in itertools.product(range(states[0].shape[0]), range(self.heads)):  # as `OneByOne` has it
                here = slice(b, b + 1), slice(h, h + 1)
                own = {n: x[here if n in every_step else here[1]].clone() for n, x in given.items()}
                first = {n: x[here].clone() for n, x in before.items()}
                into, then = ({n: x[here] for n, x in part.items()} for part in (shown, after))
                step.torch_step(own, first, constants, into, then)


@dataclass
class Launch:
    """A launch of which all but addresses and constants is known. After the first one it goes past Triton's own look-up.

    order: the kernel's pointers among the arguments, each state and the next one, and the outputs. fixed: its arguments after
    the constants.
    """

    cut: Cut
    constants: tuple[str, ...]
    order: list[int]
    strides: tuple[int, ...]
    fixed: tuple[int, ...]
    device: torch.device
    ready: Callable[..., None] | None = None

    def __call__(self, tensors: list[Tensor], constants: dict[str, float], places: tuple[Tensor | None, ...]) -> None:
        """places: the tensors of integers that say which rows and steps are meant, None where all are; then what else the kernel
        may be given."""
        if 0 in self.cut.grid:
            return
        if self.device.type == "cuda" and self.device.index != torch.cuda.current_device():
            with torch.cuda.device(self.device):
                self.launch(tensors, constants, places)
        else:
            self.launch(tensors, constants, places)

    def launch(self, tensors: list[Tensor], constants: dict[str, float], places: tuple[Tensor | None, ...]) -> None:
        numbers = [float(constants[n]) for n in self.constants]
        pointers: list[Tensor | None] = [tensors[i] for i in self.order]
        if self.cut.scratch is not None:
            pointers.append(torch.empty(self.cut.scratch, dtype=torch.float32, device=self.device))
        pointers += [*places, *[None] * (self.cut.optional - len(places))]
        if self.ready is not None:
            self.ready(*[None if x is None else x.data_ptr() for x in pointers], *self.strides, *numbers, *self.fixed)
            return
        kernel = self.cut.kernel[self.cut.grid]
        compiled = kernel(*pointers, *self.strides, *numbers, *self.fixed, num_warps=self.cut.warps)
        if compiled is not None:  # None under Triton's interpreter
            self.ready = compiled[self.cut.grid]


def launch_step(
    step: Step,
    sizes: dict[str, int],
    tensors: list[Tensor],
    states: list[Tensor],
    outs: list[Tensor],
    inplace: bool,
    cut: Cut,
) -> Launch:
    """One step's kernel."""
    kernel = step.kernel
    assert kernel is not None
    read = [step._tensors.index(n) for n in kernel.reads]
    axis = {a.name: 1 if a.per_step else 0 for a in step.signature.arguments}
    heads = sizes["H"]
    groups = [heads // max(1, tensors[i].shape[axis[n]]) for i, n in zip(read, kernel.reads, strict=True)]
    strides = [s for i in read for s in tensors[i].stride()]
    for x in states:
        own = math.prod(x.shape[2:])
        strides += *x.stride()[:2], *(x.stride()[:2] if inplace else (heads * own, own))
    for n, (_, axes) in enumerate(step.signature.outputs):
        own = math.prod(sizes[d] for d in axes)
        strides += outs[n].stride()[:2] if outs else (heads * own, own)
    return launch_of(step, cut, read, strides, (heads, *groups), tensors[0].device)


def too_large(name: str, sizes: object, error: OutOfResources, instead: str) -> str:
    """What a GPU doesn't hold, and what runs instead."""
    need = f"{name}: {sizes} need {error.required} bytes of {error.name}"
    return f"{need}, of which this GPU has {error.limit} for a program; {instead}"


def launch_of(
    step: Step, cut: Cut, read: list[int], strides: Sequence[int], numbers: tuple[int, ...], device: torch.device
) -> Launch:
    """A launch of one of a step's kernels. It is called with the arguments, of which those in `read` are the kernel's; then, for
    each state, with what it reads and what it writes; then with the outputs."""
    assert step.kernel is not None
    first, states = len(step._tensors), len(step.signature.states)
    pairs = range(first, first + 2 * states)
    outputs = range(pairs.stop, pairs.stop + len(step.signature.outputs))
    fixed = (*numbers, *cut.constexprs)
    return Launch(cut, step.kernel.constants, [*read, *pairs, *outputs], tuple(strides), fixed, device)


def _look(
    signature: Signature, given: dict[str, Tensor | float | None], states: Sequence[object], rows: Tensor | None
) -> None:
    """In debug mode: at what is given, but for what is padding."""
    found = {a: given[a.name] for a in signature.tensors}
    if rows is None:
        debugging.look(signature, [*found.values(), *states], states=signature.state_layouts)
        return
    real = rows >= 0
    own = [
        x[real] if a.per_step and isinstance(x, Tensor) and x.shape[:1] == rows.shape else x for a, x in found.items()
    ]
    pooled = [x.index_select(0, rows[real]) for x in states]  # type: ignore[attr-defined]
    debugging.look(signature, [*own, *pooled], states=signature.state_layouts)


def listed(x: object) -> list[Tensor]:
    return [] if x is None else list(x) if isinstance(x, tuple | list) else [x]


def backend_of(step: Step, asked: str | None, tensors: list[Tensor]) -> str:
    name, device = step.signature.name, tensors[0].device
    wide = any(x.dtype == torch.float64 for x in tensors)
    if asked is None:
        return "triton" if device.type == "cuda" and step.kernel is not None and not wide else "torch"
    if asked not in ("torch", "triton"):
        raise ArgumentError(f"{name}: backend must be 'torch', 'triton' or None, got {asked!r}")
    if asked == "triton":
        if step.kernel is None:
            raise BackendError(f"{name}: the triton backend isn't available here: is triton installed?")
        if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise BackendError(
                f"{name}: the triton backend needs CUDA tensors, got {device} (or TRITON_INTERPRET=1, to interpret it)"
            )
        if wide:
            raise BackendError(f"{name}: the triton backend computes in float32; float64 needs backend='torch'")
    return asked
