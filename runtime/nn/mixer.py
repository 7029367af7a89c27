"""A layer that mixes over time with a generated op: projections, gates, normalisation, and a cache for generation."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chunkform.errors import ArgumentError, nearest
from chunkform.provided import compiler
from chunkform.types import Spec

from ..op.arguments import autocast_dtype
from ..op.naming import named
from ..op.op import Signature
from ..op.shown import brief_fields
from .arguments import Arguments
from .calls import Maps, call_of
from .rows import gated_rms_norm, in_kernels

NORM_EPS = 1e-6


@dataclass(frozen=True)
class Cache:
    """What a layer remembers of the sequences so far: the op's state, and the last inputs of the short convolution.

    The state is a tensor or several, [B, ...]; an attention's are what it has made keys of, [B, T, H, ...].
    """

    state: Tensor | tuple[Tensor, ...]
    tail: Tensor | None

    __repr__ = brief_fields

    def rows(self, index: Tensor) -> Cache:
        """The cache of some of the sequences, in another order or several times, as a beam search wants it."""
        many = isinstance(self.state, tuple)
        states = tuple(x[index] for x in (self.state if many else (self.state,)))
        return Cache(states if many else states[0], None if self.tail is None else self.tail[index])


class Mixer(nn.Module):
    """A recurrence, a program of them or an attention as a layer, [B, T, width] -> the same, causal in T.

        mixer = Mixer("gated_delta_rule", width=512, heads=8)
        y = mixer(x)

    The arguments of the op are made from x by what its signature says of them (see arguments.py; of attentions, calls.py);
    what comes out is normalised in each head, gated by x, and projected back.

    Args:
        op: a name of the catalogue, a spec file, an op (of `chunkform.generated` or `chunkform.compile`), or a `Recurrence`,
            `Program` or `Attention`.
        width: the model's width.
        heads: how many heads.
        dims: the size of a head in each of the op's dims, such as {"d": 64, "e": 128}; width // heads where not said.
        heads_of: arguments with fewer heads, such as {"q": 2, "k": 2}; heads must be a multiple.
        convolution: taps of the short causal convolution before the recurrence; 0 for none.
        gate: multiply the output by SiLU(a projection of x).
        memory: how many steps the decays last at initialisation, from the shortest to the longest.
        maps: for arguments by name, what makes them from their projection, [B, T, heads, *dims] -> the same, in the
            place of the usual map; for a decay it gives the log decay, and of a parameter what the op gets. A recurrence
            that takes a sigmoid itself wants {"b": lambda x: x}; one whose parameter must be positive {"u": F.softplus}.
        constants: values of the op's constants.
        backend: "torch" or "triton"; None for the best one.
        deterministic: have the op's bits of a sequence depend on nothing else in the call.
        device, dtype: of the parameters. On the meta device they take no memory: `to_empty(device=..)` gives them some, and
            `reset_parameters()` their first values.
        context_parallel: a ProcessGroup or a one-dimensional DeviceMesh of processes that hold a segment of the sequence each;
            x is then this process's part, and `cu_seqlens` has the boundaries in the whole sequence.

    Raises:
        chunkform.errors.ArgumentError: an op without a signature, sizes that don't fit, or names that the op doesn't
            have.
    """

    @named
    def __init__(
        self,
        op: str | os.PathLike[str] | Callable[..., Any] | Spec,
        width: int,
        heads: int,
        dims: Mapping[str, int] | None = None,
        heads_of: Mapping[str, int] | None = None,
        convolution: int = 4,
        gate: bool = True,
        memory: tuple[float, float] = (4.0, 1024.0),
        maps: Maps | None = None,
        constants: Mapping[str, float] | None = None,
        backend: str | None = None,
        context_parallel: object = None,
        deterministic: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("width", width), ("heads", heads)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ArgumentError(f"Mixer: {name} must be a whole number of at least 1, got {value!r}")
        numbers = (
            len(memory) == 2 and all(isinstance(x, Real) for x in memory) if isinstance(memory, tuple | list) else False
        )
        if not numbers or not 0 < memory[0] <= memory[1] < math.inf:
            raise ArgumentError(f"Mixer: memory must be two numbers of steps, 0 < low <= high, got {memory!r}")
        self.call = call_of(resolved(op))
        s = self.call.signature
        self.width, self.heads, self.backend = width, heads, backend
        self.context_parallel = context_parallel
        if not isinstance(deterministic, bool):
            raise ArgumentError(f"Mixer: deterministic must be True or False, got {deterministic!r}")
        self.deterministic = deterministic
        names = [a.name for a in s.arguments]
        _known("constants", constants, [a.name for a in s.arguments if a.kind == "constant"], s.name)
        _known("maps", maps, [a.name for a in s.arguments if a.kind != "constant"], s.name)
        _known("heads_of", heads_of, names, s.name)
        self.constants = dict(constants or {})
        missing = [a.name for a in s.arguments if a.kind == "constant" and a.default is None]
        if absent := [n for n in missing if n not in self.constants]:
            raise ArgumentError(
                f"Mixer: {s.name} needs a value for {', '.join(absent)}: constants={{{absent[0]!r}: ...}}"
            )
        self.sizes = _sizes(s, width, heads, dims)
        counts = {n: (heads_of or {}).get(n, heads) for n in names}
        for n, count in counts.items():
            if count < 1 or heads % count:
                raise ArgumentError(f"Mixer: heads_of[{n!r}] = {count} must divide heads = {heads}")
        new: Any = {"device": device, "dtype": dtype}
        self.arguments = Arguments(self.call, width, counts, self.sizes, convolution, memory, maps or {}, **new)
        of_head = sum(math.prod(self.sizes[d] for d in dims) for _, dims in self.call.outputs)
        self.norm = nn.Parameter(torch.ones(of_head, **new))
        self.gate = nn.Linear(width, heads * of_head, bias=False, **new) if gate else None
        self.out = nn.Linear(heads * of_head, width, bias=False, **new)

    def reset_parameters(self) -> None:
        """First values for all parameters, as a new layer has them: after `to_empty`, say."""
        self.arguments.reset_parameters()
        nn.init.ones_(self.norm)
        for part in (self.gate, self.out):
            if part is not None:
                part.reset_parameters()

    @property
    def inputs(self) -> dict[str, str]:
        """What each argument of the op is made by, in words; `maps` of the constructor changes it."""
        return self.arguments.described()

    if TYPE_CHECKING:  # a module's call is its forward

        @overload
        def __call__(self, x: Tensor, cache: Cache | None = None, cu_seqlens: Tensor | None = None) -> Tensor: ...

        @overload
        def __call__(
            self,
            x: Tensor,
            cache: Cache | None = None,
            cu_seqlens: Tensor | None = None,
            *,
            output_cache: Literal[True],
        ) -> tuple[Tensor, Cache]: ...

        @overload
        def __call__(
            self,
            x: Tensor,
            cache: Cache | None = None,
            cu_seqlens: Tensor | None = None,
            output_cache: bool = False,
        ) -> Tensor | tuple[Tensor, Cache]: ...

        def __call__(self, *arguments: object, **options: object) -> Any: ...

    @named
    def forward(
        self,
        x: Tensor,
        cache: Cache | None = None,
        cu_seqlens: Tensor | None = None,
        output_cache: bool = False,
    ) -> Tensor | tuple[Tensor, Cache]:
        """y [B, T, width], or (y, cache) where `output_cache`: what the next call needs to go on after x's last step.

        With `cu_seqlens` [N + 1], x is [1, T, width], sequences one after the other that don't see each other, and a
        cache has N rows.
        """
        self._check(x, 3, "[B, T, width]")
        if self.context_parallel is not None and (cache is not None or output_cache):
            raise ArgumentError("Mixer: with context_parallel there is no cache: a sequence's last step is on one rank")
        state, tail = (None, None) if cache is None else (cache.state, cache.tail)
        given, tail = self.arguments(x, tail, cu_seqlens, self.context_parallel)
        outputs, state = self.call(given, state, cu_seqlens, output_cache, self._options)
        y = self._finished(outputs, x)
        return (y, Cache(state, tail)) if output_cache else y

    @named
    def step(self, x: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """One step of generation: x [B, width] -> (y [B, width], cache). A cache of None is the sequence's start.

        Under `torch.no_grad()` it is the op's own decoding step, one launch; otherwise the op on one step, which has
        gradients.
        """
        self._check(x, 2, "[B, width]")
        x = x.unsqueeze(1)
        state, tail = (None, None) if cache is None else (cache.state, cache.tail)
        given, tail = self.arguments(x, tail)
        outputs, state = self.call.step(given, state, self._options)
        return self._finished(outputs, x).squeeze(1), Cache(state, tail)

    def _finished(self, outputs: list[Tensor], x: Tensor) -> Tensor:
        """Normalised in each head, gated, and projected back."""
        dims = [d for _, d in self.call.outputs]
        parts = [o.flatten(3) if d else o.unsqueeze(-1) for o, d in zip(outputs, dims, strict=True)]
        o = torch.cat(parts, -1) if len(parts) > 1 else parts[0]
        if self.gate is not None and in_kernels(o):
            o = gated_rms_norm(o, self.gate(x).unflatten(-1, o.shape[2:]), self.norm, NORM_EPS).flatten(2)
        else:
            o = (F.rms_norm(o, o.shape[-1:], eps=NORM_EPS) * self.norm.to(o.dtype)).flatten(2)
            o = o if self.gate is None else o * F.silu(self.gate(x))
        return self.out(o.to(x.dtype) if autocast_dtype(x.device.type) is None else o)

    @property
    def _options(self) -> dict[str, object]:
        more = {"backend": self.backend, "context_parallel": self.context_parallel}
        if self.deterministic:
            more["deterministic"] = True
        return self.constants | {name: value for name, value in more.items() if value is not None}

    def _check(self, x: Tensor, axes: int, layout: str) -> None:
        if not isinstance(x, Tensor) or x.dim() != axes or x.shape[-1] != self.width:
            got = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ArgumentError(f"Mixer: x must be {layout} with width {self.width}, got {got}")
        if not x.is_floating_point():
            raise ArgumentError(f"Mixer: x must be of a floating dtype, got {str(x.dtype).removeprefix('torch.')}")

    def extra_repr(self) -> str:
        sizes = ", ".join(f"{n}={size}" for n, size in self.sizes.items())
        return f"{self.call.signature.name}, width={self.width}, heads={self.heads}, {sizes}"


# --- ops --------------------------------------------------------------------------------------------------------------


def resolved(op: object) -> Callable[..., Any]:
    """The op that is meant: itself, that of the catalogue with this name, or what a spec or a spec file compiles to."""
    if isinstance(op, os.PathLike) or (isinstance(op, str) and (op.endswith(".py") or os.sep in op)):
        return compiler().compile(op)
    if isinstance(op, str):
        generated = importlib.import_module("chunkform.generated")
        try:
            return getattr(generated, op)
        except AttributeError as error:
            if os.path.isfile(op):
                return resolved(os.path.abspath(op))
            here = [f"{op}.py"] if os.path.isfile(f"{op}.py") else []
            near = nearest(op, [*here, *dir(generated)]) or f"; there are {', '.join(dir(generated))}"
            raise ArgumentError(f"Mixer: there is no op {op!r} in the catalogue{near}") from error
    if callable(op):
        return op
    return compiler().compile(op)


def _sizes(s: Signature, width: int, heads: int, dims: Mapping[str, int] | None) -> dict[str, int]:
    groups = (*(a.dims for a in s.arguments), *(d for _, d in s.states), *(d for _, d in s.outputs))
    names = list(dict.fromkeys(d for group in groups for d in group))
    _known("dims", dims, names, s.name)
    sizes = {n: (dims or {}).get(n, width // heads) for n in names}
    for n, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ArgumentError(
                f"Mixer: dims[{n!r}] must be a whole number of at least 1, got {size!r} (width // heads by default)"
            )
    return sizes


def _known(what: str, given: Mapping[str, object] | None, names: list[str], op: str) -> None:
    for n in given or {}:
        if n not in names:
            raise ArgumentError(f"Mixer: {what} has {n!r}, but {op} has {', '.join(names) or 'none'}")
