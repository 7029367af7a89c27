"""What an attention is given: its signature, the checks of a call's arguments, and the setting that follows from them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError

from ..op.arguments import autocast_dtype, check_dense
from ..op.backend_choice import is_traced
from ..op.results import result_type
from .products import as_dtype

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
WIDEST = 256  # channels of a feature, or of an average, that the kernels hold


@dataclass(frozen=True)
class After:
    """An output that is the averages by a matrix of each head. across: are the averages' channels the matrix's columns?"""

    output: str
    matrix: str
    across: bool


@dataclass(frozen=True)
class AttentionArgument:
    """One argument. kind: query | key | stream | fixed | parameter | temperature | constant; `default` may depend on sizes."""

    name: str
    kind: str
    dims: tuple[str, ...] = ()
    default: Any = None

    @property
    def layout(self) -> tuple[str, ...]:
        lead = {"query": ("B", "T", "H"), "stream": ("B", "T", "H"), "key": ("B", "S", "H"), "constant": ()}
        return (*lead.get(self.kind, ("H",)), *self.dims)

    @property
    def per_position(self) -> bool:
        return self.kind in ("query", "key", "stream")


@dataclass(frozen=True)
class AttentionSignature:
    """What an attention is given and yields: of an output, whether it belongs to positions, and its dims.

    `values` are the averaged features, as (name, dims): the averages come in one tensor, one after the other.
    """

    name: str
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
    even: tuple[str, ...] = ()  # dims of which halves are turned

    def __post_init__(self) -> None:
        self.result(lse=False)
        self.result(lse=True)

    def result(self, lse: bool) -> Any:
        """The named tuple of several outputs, and of the log-sum-exp where it is asked for."""
        names = tuple(n for n, *_ in self.outputs)
        return result_type(self.name, (*names, "lse") if lse else names)

    def head_axes(self, names: Sequence[str]) -> tuple[int, ...]:
        """Where heads are in each tensor that is given."""
        places = {a.name: a.layout.index("H") for a in self.arguments if a.name in names}
        return tuple(places[n] for n in names)

    def result_head_axes(self, lse: bool) -> tuple[int, ...]:
        """Where heads are in each result: outputs, and perhaps the log-sum-exp, which a softmax has."""
        outputs = [2 if per_position else 1 for _, per_position, _ in self.outputs]
        return (*outputs, *([1 if self.nodes else 2] if lse and self.normaliser == "softmax" else []))

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
    """Tensors of fitting shapes, dtypes and devices, inputs in one common dtype, or autocast's; the constants; and the setting.

    Under autocast an input of one number a position and head may be wider than the others, and stays so.
    """
    tensors: dict[str, Tensor] = {}
    constants: dict[str, float] = {}
    sizes: dict[str, tuple[int, str]] = {}
    heads: dict[str, int] = {}
    later = []
    for a in s.arguments:
        value, what = given[a.name], f"{s.name}: {a.name}"
        if a.kind == "constant":
            constants[a.name] = _constant(what, a.default if value is None else value)
            continue
        if a.kind == "temperature" and not isinstance(value, Tensor):
            later.append((a, value))
            continue
        _check_tensor(s, a, value, sizes, heads)
        tensors[a.name] = value
    if not any(a.per_position for a in s.arguments if a.name in tensors):
        raise ArgumentError(f"{s.name}: no sequence was given")
    first = next(iter(tensors))
    for n, x in tensors.items():
        if x.device != tensors[first].device:
            raise ArgumentError(f"{s.name}: {n} is on {x.device}, but {first} is on {tensors[first].device}")
    H = _all_heads(s, heads)
    plain = {d: n for d, (n, _) in sizes.items()}
    device = tensors[first].device
    cast = autocast_dtype(device.type)
    low = _common_dtype(s, tensors, cast)
    dtype = torch.float64 if low == torch.float64 else torch.float32
    for a, value in later:
        tensors[a.name] = torch.full((H,), temperature(s, a, value, plain), dtype=dtype, device=device)
    made = {}
    for a in s.arguments:  # in the order of declaration
        if a.name in tensors:
            x, kind = tensors[a.name], low if a.per_position else dtype
            if cast is not None and a.per_position and not a.dims:  # no operand of a product
                kind = torch.promote_types(x.dtype, low)
            made[a.name] = as_dtype(x, kind)
    S = plain.get("S", plain.get("T", 0))
    T = plain[s.nodes] if s.nodes is not None else plain["T"]
    batch = plain["B"]
    return made, constants, Setting(batch, T, S, H, plain, dtype, low, device, causal)


def _all_heads(s: AttentionSignature, heads: dict[str, int]) -> int:
    """How many heads there are: the most that an argument has."""
    H = max(heads.values())
    for n, count in heads.items():
        grouped = next(a for a in s.arguments if a.name == n).per_position
        if (grouped and H % count) or (not grouped and count != H):
            allowed = "must divide the largest" if grouped else "must be all of them"
            raise ArgumentError(
                f"{s.name}: {n} has H = {count} heads, and there are {H}: its number of heads {allowed}"
            )
    return H


def _common_dtype(s: AttentionSignature, tensors: dict[str, Tensor], cast: torch.dtype | None) -> torch.dtype:
    """Of the inputs, in which products are computed; `cast` is autocast's."""
    if any(x.dtype == torch.float64 for x in tensors.values()):
        return torch.float64
    if cast is not None:
        return cast
    inputs = [tensors[a.name].dtype for a in s.arguments if a.per_position]
    return functools.reduce(torch.promote_types, inputs)


def setting_of(s: AttentionSignature, tensors: dict[str, Tensor], causal: bool) -> Setting:
    """The setting of tensors that were checked before."""
    sizes: dict[str, int] = {}
    for a in s.arguments:
        if a.name in tensors:
            for dim, n in zip(a.layout, tensors[a.name].shape, strict=True):
                sizes[dim] = max(n, sizes.get(dim, n)) if dim == "H" else n
    inputs = [a for a in s.arguments if a.per_position]
    some = tensors[next((a for a in inputs if a.dims), inputs[0]).name]
    dtype = torch.promote_types(some.dtype, torch.float32)
    queries = sizes[s.nodes or "T"]
    keys = sizes["T"] if s.aligned else sizes["S"]
    return Setting(sizes["B"], queries, keys, sizes["H"], sizes, dtype, some.dtype, some.device, causal)


def _check_tensor(
    s: AttentionSignature, a: AttentionArgument, value: object, sizes: dict[str, tuple[int, str]], heads: dict[str, int]
) -> None:
    what = f"{s.name}: {a.name}"
    layout = tuple("T" if d == "S" and s.aligned else d for d in a.layout)
    shape = f"[{', '.join(layout)}]"
    if not isinstance(value, Tensor):
        raise ArgumentError(f"{what} must be a tensor {shape}, got {type(value).__name__}")
    if value.dtype not in FLOATS:
        raise ArgumentError(
            f"{what} must be float32, bfloat16, float16 or float64, got {str(value.dtype).removeprefix('torch.')}"
        )
    check_dense(what, value)
    if value.dim() != len(layout):
        raise ArgumentError(f"{what} must have {len(layout)} axes {shape}, got the shape {list(value.shape)}")
    for dim, n in zip(layout, value.shape, strict=True):
        if dim == "H":
            heads[a.name] = n
            if n == 0:
                raise ArgumentError(f"{what} has no heads; {a.name} must be {shape}, got {list(value.shape)}")
            continue
        known = sizes.setdefault(dim, (n, a.name))
        if known[0] != n:
            raise ArgumentError(
                f"{what} has {dim} = {n}, but {known[1]} has {dim} = {known[0]}; {a.name} must be {shape}, "
                f"got {list(value.shape)}"
            )
        if n == 0 and dim not in ("B", "T", "S"):
            raise ArgumentError(f"{what} has {dim} = 0; widths must be at least 1")
        if n % 2 and dim in s.even:
            raise ArgumentError(
                f"{what} has {dim} = {n}, but must have an even {dim}, whose halves are turned; {a.name} must be {shape}, "
                f"got {list(value.shape)}"
            )
    if a.kind == "temperature":
        check_positive(s, a.name, value)


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


def temperature(s: AttentionSignature, a: AttentionArgument, value: object, sizes: dict[str, int]) -> float:
    if value is None and a.default is not None:
        return float(a.default(sizes) if callable(a.default) else a.default)
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ArgumentError(f"{s.name}: {a.name} must be a tensor [H] or a number, got {value!r}")
    if value <= 0:
        raise ArgumentError(f"{s.name}: {a.name} must be above 0, got {value!r}")
    return float(value)


def _constant(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise ArgumentError(f"{what} must be a finite number, got {value!r}")
    return float(value)
