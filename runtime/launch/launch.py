"""Launching generated Triton kernels: grids, configurations and workspace."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import _disable_current_modes
from triton.runtime.errors import OutOfResources

from .narrowing import level
from .recorder import KernelArgument, KernelOption, watching
from .tuned_configs import lookup
from .varlen import INTERVAL

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


# Bytes that a program may fill with what it prefetches, on GPUs with 228 KiB of shared memory for two: with two numbers of a
# step.
BUFFERS = 104 * 1024 + 512
REGISTERS = 65536  # of a multiprocessor
QUEUES, QUEUE = 4, 48 * 1024  # programs of a multiprocessor that take chunks one after the other, and bytes of each
Loaded = tuple[int, int, int]  # bytes, as `Config.sweep` has them
DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def processors() -> int:
    """Multiprocessors of the current GPU; 1 where no GPU is in use."""
    if not torch.cuda.is_initialized():
        return 1
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


@dataclass(frozen=True)
class SweepConfig:
    """How a sweep is launched: the width of the state tile, warps, chunks under way at once, whether elements of tiles are
    `products` with the identity, programs that a multiprocessor is to hold, and the most registers that a thread may have, None
    for as many as the assembler gives it."""

    tile: int
    warps: int
    stages: int
    products: bool
    programs: int
    registers: int | None


@dataclass(frozen=True)
class Config:
    """How a kernel is launched: steps per chunk, width of the state tile, and of the slices in which sweeps take the tile's
    other axis, width of a block of a long loop over an axis, warps and stages of sweeps, and warps of the kernels of their
    prologues, `prologue_warps`; the most registers that a thread of these has where it can do with few, if there is a limit;
    and the chunks under way at once of sweeps whose warps have `roles`, where these take the place of others."""

    chunk: int
    tile: int
    slice: int
    block: int
    warps: int
    stages: int
    itemsize: int = 2
    prologue_warps: int = 4
    registers: int | None = None
    roles: int | None = None

    def padded(self, size: int) -> int:
        """The block that holds an axis whole. Products of 16-bit tiles of 64 x 32 gave wrong results on an H200."""
        return padded(size) if self.exact else max(64, padded(size))

    @property
    def exact(self) -> bool:
        """Do sums of log decays keep what they leave apart, as float32 wants it?"""
        return self.itemsize == 4

    def stages_for(self, whole: int, others: int, programs: int = 2) -> int:
        """How many chunks of a sweep are under way at once: as many as so many programs on a multiprocessor have buffers for.

        Both are bytes that it loads for each step: of tiles along axes that it has whole, which products take from their buffers,
        so that these take one more, and of other tiles.
        """
        return next(
            (n for n in range(self.stages, 2, -1) if self._fit(n, whole, others, programs)), min(2, self.stages)
        )

    def _fit(self, chunks: int, whole: int, others: int, programs: int = 2) -> bool:
        """Do so many programs on a multiprocessor have buffers for so many chunks?"""
        return self.chunk * (chunks * whole + (chunks - 1) * others) <= 2 * BUFFERS // programs

    @functools.lru_cache(4096)  # noqa: B019 - there are few configurations, which stay
    def sweep(
        self,
        size: int | None,
        whole: int,
        matrices: int,
        channel: int,
        elements: bool = False,
        wide: bool = False,
        programs: int = 2,
    ) -> SweepConfig:
        """The launch of a sweep over tiles of a dim of this size (None without), where a multiprocessor is to hold so many of its
        programs, if it has buffers for two chunks of each. For each step it loads `whole` bytes of tiles along axes that it has
        whole, `matrices` of matrices over the steps of a chunk and of numbers, and of tiles `channel` for each of their channels,
        of which it needs `elements`, or not. `wide`: it stores tiles in float32, which take twice the room on their way.

        Where two programs have buffers for no more than half of the chunks that are to be under way, one has a multiprocessor,
        with a tile and warps for two: if the number of tiles is even, so that there are as many sums by tiles and warps.
        """
        tile, warps = self.tile, self.warps
        if size is not None:
            tile = min(tile, self.padded(size))
            full = not self._fit(self.stages // 2 + 1, whole, matrices + tile * channel)
            if full and programs == 2 and not self.exact and cdiv(size, tile) % 2 == 0:
                tile, warps, programs = 2 * tile, 2 * warps, 1
        tiles = tile * channel
        if not self._fit(2, whole, matrices + tiles, programs):
            programs = min(2, programs)
        stages = self.stages_for(whole, matrices + tiles, programs)
        room = matrices + 2 * tile * wide
        products = elements and not self.exact and self._fit(min(3, stages), whole + tiles, room, programs)
        if products:
            stages = self.stages_for(whole + tiles, room, programs)
        registers = self.most if programs <= 2 else REGISTERS // (32 * warps * programs)
        return SweepConfig(tile, warps, stages, products, programs, registers)

    @functools.lru_cache(4096)  # noqa: B019 - there are few configurations, which stay
    def by_read(
        self,
        size: int | None,
        loaded: Loaded,
        *each: Loaded,
        elements: bool = False,
        wide: bool = False,
        wanted: tuple[bool, ...] = (),
    ) -> list[tuple[int, bool, SweepConfig]]:
        """READ of each launch of a sweep that makes several reads, whether it keeps what no read is needed for, and how it is
        launched, of bytes as `sweep` has them. One for all, if three chunks of two programs fit: on an H200 sweeps for one read
        each take 1.17 to 1.28 times as long where they do, and one for two 1.2 to 1.5 times as long where they don't. Or one for
        each, of those `wanted`."""
        whole, matrices, channel = loaded
        tiles = channel * (self.tile if size is None else min(self.tile, self.padded(size)))
        launches = [(n, x) for n, x in enumerate(each, 1) if not any(wanted) or wanted[n - 1]]
        if len(launches) == len(each) and self._fit(3, whole, matrices + tiles):
            launches = [(0, loaded)]
        found = [(read, self.sweep(size, *x, elements=elements, wide=wide)) for read, x in launches]
        return [(read, n == 0, sweep) for n, (read, sweep) in enumerate(found)]

    def crowd(self, whole: int, slim: bool = True) -> int:
        """How many programs a multiprocessor is to hold of a sweep that makes what segments leave and the matrices of their
        maps, of states with an axis of such a width whole: four have the registers that two of other sweeps have, if it is
        `slim`."""
        return 4 if slim and whole <= 128 and not self.exact else 2

    @property
    def most(self) -> int | None:
        """The most registers that a thread of a kernel may have which wants them all. Told nothing, the assembler gives a long
        kernel of float32 products 32, and spills the rest."""
        return 255 if self.exact else None

    @property
    def summing(self) -> Config:
        """This, for prologue kernels that sum a decay's logarithms over the steps of a chunk: a program of one warp waits for no
        other where rows are added up, and has registers for tiles of 32 steps by 32 channels."""
        return _of_one_warp(self)

    @property
    def span(self) -> int:
        """Steps of the blocks over which products of states and their gradients at each step are made: as many as a chunk in
        float32, where more don't fit into shared memory."""
        return self.chunk if self.exact else INTERVAL

    def queued(self, loaded: int, chunk: int) -> int:
        """How many chunks are under way at once in a program that takes one after the other, of so many bytes for each step."""
        if self.exact:
            return 1
        return 3 if 2 * chunk * loaded <= QUEUE else 2

    def queues(self, programs: int) -> int:
        """How many programs take so many chunks one after the other."""
        return programs if self.exact else min(programs, QUEUES * processors())

    def rows(self, *widths: int) -> int:
        """How many steps of a head a program takes that makes what is made of each step for itself, in tiles of such widths."""
        return max(1, min(128, 2048 // max(widths, default=1)))

    @property
    def read_tile(self) -> int:
        """The tile of kernels that read checkpointed states: tiles of 32 by blocks of 64 steps, in 16 bits, gave
        wrong results on an H200, or read outside memory."""
        return self.tile if self.exact else max(64, self.tile)

    def read_warps(self, *whole: int, many: bool = False) -> int:
        """Warps of kernels that read states there, which have axes of such a width whole, and perhaps many reads."""
        return 8 if (many or max(whole) > 128) and not self.exact else 4

    @property
    def levels(self) -> int:
        """log2 of the chunk."""
        return self.chunk.bit_length() - 1


@functools.cache
def _of_one_warp(config: Config) -> Config:
    small = not config.exact and config.chunk * config.block <= 1024
    return replace(config, prologue_warps=1, registers=255) if small else config


def by_launch(
    ends: torch.Tensor, linear: torch.Tensor, crowd: int, tails: object = None
) -> tuple[tuple[int, torch.Tensor | None, torch.Tensor | None], ...]:
    """What one launch after the other makes of what segments leave and the matrices of their maps: both at once, where a
    multiprocessor holds more programs than of other sweeps. Of which steps: of whole segments (0), or, where tails
    are swept first, of these (1) and then of the steps before them (2)."""
    made = ((ends, linear),) if crowd > 2 else ((ends, None), (None, linear))
    return tuple((which, *x) for which in ((0,) if tails is None else (1, 2)) for x in made)


def choose(dtype: torch.dtype, sizes: tuple[int, ...], kernels: str = "") -> Config:
    """The configuration for a shape class, of the kernels with this hash. Never keyed on T.

    `sizes` are the dims. What was measured for these kernels on this GPU (`tuned_configs.py`), or else the default.
    """
    if _using is not None:
        _asked.add(kernels)
        return _using
    largest = max((padded(x) for x in sizes), default=16)
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    return narrower(_chosen(dtype, largest, kernels, device), level())


_using: Config | None = None
_asked: set[str] = set()


@contextmanager
def using(config: Config) -> Iterator[set[str]]:
    """Every op of this process has this configuration meanwhile; yields the hashes of the kernels that have asked for one."""
    global _using, _asked
    before, _using, _asked = (_using, _asked), config, set()
    try:
        yield _asked
    finally:
        _using, _asked = before


def is_pinned() -> bool:
    """Is one configuration to be used, whatever it needs?"""
    return _using is not None


_assumed = 0


@contextmanager
def assuming_roles(stages: int) -> Iterator[None]:
    """Calls have kernels with roles meanwhile, of so many stages, wherever a table may name them, on any machine: for whoever
    compiles what they launch, and launches nothing."""
    global _assumed
    before, _assumed = _assumed, stages
    try:
        yield
    finally:
        _assumed = before


def roles_assumed() -> int:
    """Their stages; 0 where calls are launched."""
    return _assumed


def narrower(config: Config, level: int) -> Config:
    """A configuration for kernels that didn't fit shared memory at the level before. In two bytes, tiles of 32 are the narrowest
    that were tried on a GPU, and no chunk of fewer than 32 steps was."""
    if level == 0:
        return config
    if not config.exact:
        return replace(config, tile=min(config.tile, 32), stages=1)
    if level == 1:
        return replace(config, tile=min(config.tile, 16), stages=1)
    return replace(config, chunk=min(config.chunk, 16), tile=16, slice=min(config.slice, 64), block=16, stages=1)


def use_tables_anew() -> None:
    """Forget what was chosen, after a table has changed."""
    _chosen.cache_clear()


@functools.cache
def _chosen(dtype: torch.dtype, largest: int, kernels: str, device: int | None) -> Config:
    """What a table says, if it is one of the candidates still, or the first of them with roles; or the first of them."""
    known = configurations(dtype, largest)
    fields = lookup(kernels, dtype, largest, device) if kernels and device is not None else None
    return next((x for x in known if fields_of(x) == fields), known[0])


def configurations(dtype: torch.dtype, largest: int) -> tuple[Config, ...]:
    """What tables may name: the candidates, and the first of them with roles."""
    known = candidates(4 if dtype == torch.float32 else 2, largest)
    return known if dtype == torch.float32 else (*known, *(replace(known[0], roles=n) for n in (2, 3)))


def fields_of(config: Config) -> dict[str, int | None]:
    """A configuration as tables have it."""
    fields = {n: x for n, x in dataclasses.asdict(config).items() if n != "itemsize"}
    return fields if config.roles is not None else {n: x for n, x in fields.items() if n != "roles"}


def candidates(itemsize: int, largest: int) -> tuple[Config, ...]:
    """The configurations that may be chosen from for a shape class: the default first, which is the fastest of those that gave
    the right results on an H200 for most ops, and compiles on any CUDA GPU. `largest` is the largest dim, padded to a power of
    two."""
    if itemsize == 4:
        usual = Config(chunk=32, tile=32, slice=128, block=32, warps=4, stages=2, itemsize=4, registers=255)
        if largest > 128:
            usual = Config(chunk=16, tile=32, slice=256, block=32, warps=8, stages=1, itemsize=4, registers=255)
        others: tuple[dict[str, Any], ...] = ({"stages": 1}, {"warps": 4}, {"warps": 8}, {"chunk": 16}, {"tile": 16})
    elif largest > 128:
        usual = Config(chunk=32, tile=64, slice=64, block=32, warps=4, stages=3)
        old: dict[str, Any] = {"tile": 32, "slice": 256, "stages": 2}
        others = ({"stages": 2}, {"tile": 32}, old, {"prologue_warps": 2}, {"block": 64, "prologue_warps": 2})
    else:
        usual = Config(chunk=32, tile=64, slice=64, block=32, warps=4, stages=4, prologue_warps=2, registers=168)
        wide: dict[str, Any] = {"block": 64, "registers": None}
        others = ({"slice": 128}, {"registers": 128}, wide, {"stages": 2}, {"stages": 3})
    return tuple(dict.fromkeys([usual, *(replace(usual, **x) for x in others)]))


def padded(size: int) -> int:
    """The block that holds an axis whole: a power of two, at least 16, as products on tensor cores want it."""
    return max(16, 1 << (size - 1).bit_length())


def strides(x: torch.Tensor, heads: int) -> tuple[int, int, int, int]:
    """Strides of the batch, time and head axes of [B, T, H or fewer, ...], and how many of `heads` share one of its heads."""
    return x.stride(0), x.stride(1), x.stride(2), heads // max(1, x.shape[2])


def each_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, T, H or fewer, ...] with H heads."""
    return x if x.shape[2] == heads else x.repeat_interleave(heads // x.shape[2], 2)


def with_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """A parameter [H or fewer, ...] with H heads, contiguous."""
    return (x if x.shape[0] == heads else x.repeat_interleave(heads // x.shape[0], 0)).contiguous()


def steps(x: torch.Tensor) -> torch.Tensor:
    """[B, T, H, X] with X contiguous; the other strides are free."""
    return x if x.ndim == 3 or x.shape[-1] == 1 or x.stride(-1) == 1 else x.contiguous()


def whole(x: torch.Tensor | None) -> torch.Tensor | None:
    """A state as kernels take it: float32 and contiguous."""
    return None if x is None else x.to(torch.float32).contiguous()


def spread(x: torch.Tensor | float, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """A tensor or number, over all of `shape`."""
    if not isinstance(x, torch.Tensor):
        x = torch.full((), x, dtype=torch.float32, device=like.device)
    return x.to(torch.float32).expand(shape)


def row_dtype(like: torch.Tensor) -> torch.dtype:
    """Of rows that are made in the prologue of products, whose operands are rounded anyway: where the inputs' has the range of
    float32."""
    return like.dtype if like.dtype == torch.bfloat16 else torch.float32


def cotangent(x: torch.Tensor | None, like: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The incoming gradient of an output; zeros where there is none."""
    return like.new_zeros(shape) if x is None else steps(x)


def launch(kernel: JITFunction, grid: tuple[int, ...], *args: KernelArgument, **options: KernelOption) -> None:
    """Run a kernel over a grid, on the device of its first tensor; an empty grid is nothing to do."""
    if 0 in grid:
        return
    if watching.instead is not None:
        watching.instead(kernel, grid, args, options)
        return
    device = next(x.device for x in args if isinstance(x, torch.Tensor))
    compiled: Any = None
    scratch: list[torch.Tensor] = []
    if device.type != "cuda":
        with _disable_current_modes():  # the interpreter's own work isn't the pass's
            kernel[grid](*args, **options)
    elif device.index == torch.cuda.current_device():
        compiled, scratch = launch_compiled(kernel, grid, args, options, device.index)
    else:
        with torch.cuda.device(device):
            compiled, scratch = launch_compiled(kernel, grid, args, options, device.index)
    if watching.note is not None:
        watching.note(kernel, compiled, grid, args, options, scratch)


PREPARING: list[Callable[[int], None]] = []  # what is told of a GPU before a kernel is compiled for it


@functools.cache
def prepare(device: int) -> None:
    """Tell all that want to know of a GPU."""
    for told in PREPARING:
        told(device)


_COMPILED: dict[tuple[Any, ...], tuple[Any, list[str], bool]] = {}


@contextmanager
def scratch_memory(device: int) -> Iterator[list[torch.Tensor]]:
    """Meanwhile Triton gets the memory from torch in which a kernel's programs describe tiles to the copy engine: these tensors.
    What a user has set for kernels of their own comes back afterwards."""
    allocator = triton.runtime._allocation._allocator
    taken: list[torch.Tensor] = []

    def allocate(size: int, alignment: int, stream: object) -> torch.Tensor:
        taken.append(torch.empty(size, dtype=torch.int8, device=torch.device("cuda", device)))
        return taken[-1]

    before = allocator.get()
    allocator.set(allocate)
    try:
        yield taken
    finally:
        allocator.set(before)


def launch_compiled(
    kernel: JITFunction,
    grid: tuple[int, ...],
    args: tuple[KernelArgument, ...],
    options: dict[str, KernelOption],
    device: int,
) -> tuple[Any, list[torch.Tensor]]:
    """The compiled kernel that was launched, and the memory that it took for itself.

    Triton finds it for the arguments anew at each launch, which costs more than the launch; this remembers it, by what Triton
    specialises: dtypes, pointers and integers that 16 divides, integers that are 1 or wide, and None."""
    key = _key(kernel, args, options, device)
    found = _COMPILED.get(key)
    if found is None:
        prepare(device)
        with scratch_memory(device) as taken:
            compiled = _fitting(kernel, grid, args, options)
        _COMPILED[key] = compiled, [n for n in kernel.arg_names[len(args) :]], bool(taken)
        return compiled, taken
    compiled, names, takes = found
    rest = [options[n] for n in names]
    if not takes:
        compiled[(*grid, 1, 1)[:3]](*args, *rest)
        return compiled, []
    with scratch_memory(device) as taken:
        compiled[(*grid, 1, 1)[:3]](*args, *rest)
    return compiled, taken


def _fitting(
    kernel: JITFunction, grid: tuple[int, ...], args: tuple[KernelArgument, ...], options: dict[str, KernelOption]
) -> Any:
    """Launch a kernel, with fewer STAGES where shared memory doesn't hold what these have under way; at last without anything
    that Triton loads ahead by itself."""
    try:
        return kernel[grid](*args, **options)
    except OutOfResources:
        stages = options.get("STAGES")
        if isinstance(stages, int) and stages > 1:
            return _fitting(kernel, grid, args, options | {"STAGES": stages - 1})
        if options.get("num_stages") == 1:
            raise
        return _fitting(kernel, grid, args, options | {"num_stages": 1})


def _key(kernel: object, args: tuple[object, ...], options: Mapping[str, object], device: int) -> tuple[object, ...]:
    return (id(kernel), device, *map(_special, args), *options.values())


def compiled_for(
    kernel: object, args: tuple[object, ...], options: Mapping[str, object], device: int
) -> tuple[Any, bool]:
    """What a kernel is compiled for, with these arguments, and whether it was."""
    key = _key(kernel, args, options, device)
    return key, key in _COMPILED


def _special(x: KernelArgument) -> object:
    """What Triton compiles a kernel for, of an argument; more than that where it is told not to specialise an integer."""
    if type(x) is int:
        return (x == 1) + 2 * (not x & 15) + 4 * (x > 2147483647)
    if isinstance(x, torch.Tensor):
        return x.dtype, not x.data_ptr() & 15
    return x if type(x) is bool else type(x)
