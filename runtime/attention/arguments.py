"""What an attention is given: its signature, the checks of a call's arguments, and the setting that follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError

from ..op.arguments import check_tensors, constants_of, dtypes_of
from ..op.backend_choice import is_traced
from ..op.results import result_type
from ..op.signature import Argument, Arguments
from .products import as_dtype

WIDEST = 256  # channels of a feature, or of an average, that the kernels hold


@dataclass(frozen=True)
class After:
    """An output that is the averages by a matrix of each head. across: are the averages' channels the matrix's columns?"""

    output: str
    matrix: str
    across: bool


@dataclass(frozen=True)
class AttentionArgument(Argument):
    """One argument. kind: query | key | stream | fixed | parameter | temperature | constant; `default` may depend on sizes."""

    @property
    def per_step(self) -> bool:
        """Has each position one?"""
        return self.kind in ("query", "key", "stream")

    is_input = per_step

    @property
    def layout(self) -> tuple[str, ...]:
        lead = {"query": ("B", "T", "H"), "stream": ("B", "T", "H"), "key": ("B", "S", "H"), "constant": ()}
        return (*lead.get(self.kind, ("H",)), *self.dims)

    @property
    def values(self) -> str:
        """A number of a key may be -inf, which masks it."""
        if self.kind == "temperature":
            return "above 0"
        return "finite" if self.dims or not self.per_step else "finite or -inf"


@dataclass(frozen=True)
class AttentionSignature(Arguments):
    """What an attention is given and yields: of an output, whether it belongs to positions, and its dims.

    `values` are the averaged features, as (name, dims): the averages come in one tensor, one after the other.
    """

    arguments: tuple[AttentionArgument, ...]
    outputs: tuple[tuple[str, bool, tuple[str, ...]], ...]
    values: tuple[tuple[str, tuple[str, ...]], ...]
    normaliser: str
    nodes: str | None = None  # the dim that counts fixed queries
    gradient_of: dict[str, str] = field(default_factory=dict)  # variable of a map -> argument
    scalars: dict[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # numbers a head of the kernel -> what they are made of
    mass: bool = False  # do the outputs read the sum of a row's weights?
    even: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.result(lse=False)
        self.result(lse=True)
        self.settle()

    def result(self, lse: bool) -> Any:
        """The named tuple of several outputs, and of the log-sum-exp where it is asked for."""
        names = tuple(n for n, *_ in self.outputs)
        return result_type(self.name, (*names, "lse") if lse else names)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Everything that may have a gradient, in order."""
        return tuple(a.name for a in self.tensors)

    @cached_property
    def head_axes(self) -> tuple[int, ...]:
        """Where the heads are in each of `names`."""
        return tuple(a.head_axis for a in self.tensors)

    @cached_property
    def layouts(self) -> tuple[tuple[str, ...], ...]:
        """Of `tensors`, as they are given: keys that are queries, too, are as many."""
        return tuple(tuple("T" if d == "S" and self.aligned else d for d in a.layout) for a in self.tensors)

    @cached_property
    def temperatures(self) -> tuple[int, ...]:
        """Where these are among `tensors`."""
        return tuple(n for n, a in enumerate(self.tensors) if a.kind == "temperature")

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """What positions share."""
        return tuple(a.name for a in self.tensors if not a.per_step)

    @cached_property
    def finite_results(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """What outputs are, and their axes. (The log-sum-exp of a row that sees nothing isn't finite.)"""
        return tuple((f"the output {n}", layout) for n, layout in self.results[: len(self.outputs)])

    @cached_property
    def results(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The layout of each result, by name: of outputs, and of the log-sum-exp, which a softmax has."""
        outputs = [(n, (*(("B", "T", "H") if whole else ("B", "H")), *dims)) for n, whole, dims in self.outputs]
        rows = ("B", "H", self.nodes) if self.nodes else ("B", "T", "H")
        return (*outputs, *([("lse", rows)] if self.normaliser == "softmax" else []))

    @cached_property
    def result_head_axes(self) -> tuple[int, ...]:
        """Where the heads are in each result."""
        return tuple(layout.index("H") for _, layout in self.results)

    @property
    def aligned(self) -> bool:
        """Is there a stream, so that queries and keys are the same positions?"""
        return any(a.kind == "stream" for a in self.arguments)


@dataclass(frozen=True)
class Setting:
    """Sizes and dtypes of a call: `dtype` is float32 or wider, `low` the dtype of what products on tensor cores take."""

    batch: int
    queries: int
    keys: int
    heads: int
    sizes: dict[str, int]
    dtype: torch.dtype
    low: torch.dtype
    device: torch.device
    causal: bool

    def rows(self, x: Tensor, spread: bool = False, finite: bool = False) -> Tensor:
        """[B, T, Hx, ..] as [B, Hx, T, ..]; with `spread` each head that the op has. `finite` puts 0 for infinities."""
        x = self.spread(x.transpose(1, 2)) if spread else x.transpose(1, 2)
        return torch.where(x.isinf(), 0, x) if finite else x

    def spread(self, x: Tensor) -> Tensor:
        """[B, Hx, ..] with each head that the op has."""
        return x if x.shape[1] == self.heads else x.repeat_interleave(self.heads // x.shape[1], 1)

    def position(self, name: str) -> Tensor:
        """The positions of queries (i) or keys (j). The last query stands where the last key does."""
        count = self.queries if name == "i" else self.keys
        first = self.keys - self.queries if name == "i" else 0
        return torch.arange(first, first + count, device=self.device, dtype=self.dtype)

    def frequencies(self, size: int, base: float) -> Tensor:
        half = torch.arange(size // 2, device=self.device, dtype=self.dtype)
        return torch.cat((half, half)).mul_(-2 * math.log(base) / size).exp_()

    def number(self, x: Tensor | float) -> Tensor:
        return (
            as_dtype(x, self.dtype)
            if isinstance(x, Tensor)
            else torch.full((), x, dtype=self.dtype, device=self.device)
        )

    def per_head(self, x: object) -> Tensor:
        """A number a head, [H]."""
        return self.number(x).expand(self.heads).contiguous()

    def per_position(self, x: Tensor | float, count: int) -> Tensor:
        """A number a position, [B, H, T]; its heads may be fewer."""
        x = self.number(x)
        heads = x.shape[-2] if x.ndim >= 2 else self.heads
        return x.expand(self.batch, heads, count)

    def wide(self, x: Tensor) -> Tensor:
        """A feature [B, H, T, width], where it may lack B."""
        return x if x.ndim == 4 else x.expand(self.batch, *(x.shape if x.ndim == 3 else (self.heads, *x.shape)))


def checked(
    s: AttentionSignature, given: Mapping[str, object], causal: bool
) -> tuple[dict[str, Tensor], dict[str, float], Setting]:
    """Tensors of fitting shapes, dtypes and devices, as an op of any kind has them; the constants; and the setting."""
    constants = constants_of(s, given)
    tensors: dict[str, Any] = {a.name: given[a.name] for a in s.tensors}
    numbers = [a for a in s.tensors if a.kind == "temperature" and not isinstance(tensors[a.name], Tensor)]
    taken = [(a, layout) for a, layout in zip(s.tensors, s.layouts, strict=True) if a not in numbers]
    sizes = check_tensors(s, ((a, layout, tensors[a.name]) for a, layout in taken))
    for a, _ in taken:
        if a.kind == "temperature":
            check_positive(s, a.name, tensors[a.name])
    pairs = [(a, tensors[a.name]) for a, _ in taken]
    made = {a.name: as_dtype(x, kind) for (a, x), kind in zip(pairs, dtypes_of(pairs), strict=True)}
    at = setting_of(s, made, causal)
    for a in numbers:
        value = temperature(s, a, tensors[a.name], sizes)
        made[a.name] = torch.full((at.heads,), value, dtype=at.dtype, device=at.device)
    return {n: made[n] for n in s.names}, constants, at


def setting_of(s: AttentionSignature, tensors: dict[str, Tensor], causal: bool) -> Setting:
    """The setting of tensors that were checked before."""
    sizes: dict[str, int] = {}
    for a in s.arguments:
        if a.name in tensors:
            for dim, n in zip(a.layout, tensors[a.name].shape, strict=True):
                sizes[dim] = max(n, sizes.get(dim, n)) if dim == "H" else n
    inputs = [a for a in s.arguments if a.per_step]
    some = tensors[next((a for a in inputs if a.dims), inputs[0]).name]
    dtype = torch.promote_types(some.dtype, torch.float32)
    queries = sizes[s.nodes or "T"]
    keys = sizes["T"] if s.aligned else sizes["S"]
    return Setting(sizes["B"], queries, keys, sizes["H"], sizes, dtype, some.dtype, some.device, causal)


def check_positive(s: AttentionSignature, name: str, value: Tensor) -> None:
    """beta > 0. On a CPU a tensor is looked at in each call, as what shares its memory may have changed it. On a GPU, which has
    to be waited for, once for each version of it; an inference tensor, whose versions aren't counted, once."""
    if is_traced([value]):  # there may be no numbers yet: torch's library looks at them
        return
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    if not value.numel():
        return
    seen = None
    if value.device.type != "cpu":
        seen = value.data_ptr(), 0 if value.is_inference() else value._version
        if getattr(value, "_chunkform_positive", None) == seen:
            return
    if value.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    if not bool((value.detach() > 0).all()):
        raise ArgumentError(
            f"{s.name}: {name} must be above 0 in every head, got {value.detach().flatten().tolist()[:8]}"
        )
    if seen is not None:
        value._chunkform_positive = seen


def temperature(s: AttentionSignature, a: Argument, value: object, sizes: dict[str, int]) -> float:
    if value is None and a.default is not None:
        return float(a.default(sizes) if callable(a.default) else a.default)
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ArgumentError(f"{s.name}: {a.name} must be a tensor [H] or a number, got {value!r}")
    if value <= 0:
        raise ArgumentError(f"{s.name}: {a.name} must be above 0, got {value!r}")
    return float(value)
