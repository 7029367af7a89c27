"""From a model's activations to the arguments of an op, by the op's signature alone.

    an input with dims   a projection, the short convolution and a SiLU; then, where it is a key, divided by its length
    a scalar input       a projection and a sigmoid: a gate in (0, 1)
    a decay              -softplus of a projection (of low rank where the decay has dims) and a learned offset
    a head's decay       -softplus of a learned number
    a parameter          itself, learned
    one with a domain    by a sigmoid between its bounds, or a softplus from the only one

A key is an input over a dim that no output has, such as q and k of most recurrences: keys of length one are what
keeps delta rules stable. Where every dim is an output's (a square state), each input with dims is a key; where states are
vectors (as in HGRN), none is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention.arguments import AttentionSignature
from ..op.op import Argument, Signature
from ..parallel import tails
from .calls import AttentionCall, Maps, RecurrentCall
from .convolution import ShortConvolution
from .rows import unit


@dataclass(frozen=True)
class Recipe:
    """What a signature says of how arguments are made, and their sizes. `heads` and `dims`: how many heads an argument has, and
    the sizes of its dims. `keys` are divided by their length; `maps`: what takes the place of an argument's last map."""

    signature: Signature | AttentionSignature
    heads: Mapping[str, int]
    dims: Mapping[str, int]
    keys: Collection[Argument]
    maps: Maps
    activation: bool

    def shape(self, a: Argument) -> tuple[int, ...]:
        return (self.heads[a.name], *(self.dims[d] for d in a.dims))

    def channels(self, a: Argument) -> int:
        return math.prod(self.shape(a))


class Arguments(nn.Module):
    """x [B, T, width] -> the op's arguments by keyword, each [B, T, heads, *dims] or [heads, *dims]."""

    def __init__(
        self,
        call: RecurrentCall | AttentionCall,
        width: int,
        heads: Mapping[str, int],
        dims: Mapping[str, int],
        taps: int,
        memory: tuple[float, float],
        maps: Maps,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        own = Recipe(call.signature, dict(heads), dict(dims), call.keys, {**call.maps, **maps}, call.activation)
        self.recipe, given = own, call.signature.arguments
        self.vectors = [a for a in given if a.kind == "input" and a.dims]
        self.gates = [a for a in given if a.per_step and not a.dims]
        self.wide_decays = [a for a in given if a.kind == "decay" and a.dims]

        channels = sum(own.channels(a) for a in self.vectors)
        new: Any = {"device": device, "dtype": dtype}
        self.memory = memory
        self.project = nn.Linear(width, channels, bias=False, **new) if channels else None
        self.convolve = ShortConvolution(channels, taps, **new) if channels and taps else None
        self.gate = nn.Linear(width, sum(own.channels(a) for a in self.gates), **new) if self.gates else None
        self.narrow, self.widen = nn.ModuleDict(), nn.ModuleDict()
        for a in self.wide_decays:
            rank = min(width, max(dims[d] for d in a.dims))
            self.narrow[a.name] = nn.Linear(width, rank, bias=False, **new)
            self.widen[a.name] = nn.Linear(rank, own.channels(a), bias=False, **new)
        self.values = nn.ParameterDict()
        for a in given:
            if a.kind == "parameter" or a.kind.startswith("decay"):
                self.values[a.name] = nn.Parameter(torch.empty(own.shape(a), **new))
        self._reset_values()

    def reset_parameters(self) -> None:
        """First values for all parameters, in the order in which a new layer draws them."""
        layers = (self.project, self.convolve, self.gate)
        pairs = [(self.narrow[n], self.widen[n]) for n in self.narrow]
        for part in (*layers, *(x for pair in pairs for x in pair)):
            if part is not None:
                part.reset_parameters()  # type: ignore[operator]
        self._reset_values()

    @torch.no_grad()
    def _reset_values(self) -> None:
        """Decays last from `memory[0]` to `memory[1]` steps; vectors are ones, and matrices random."""
        for a in self.recipe.signature.arguments:
            if a.name not in self.values:
                continue
            x = self.values[a.name]
            if a.kind.startswith("decay"):
                x.copy_(_offsets(self.recipe.shape(a), self.memory, x.device))
            elif len(a.dims) < 2:
                x.fill_(1.0)
            else:
                x.normal_(0.0, x.shape[-1] ** -0.5)

    def described(self) -> dict[str, str]:
        """What each argument is made by, in words."""
        return {a.name: self._made_by(a) for a in self.recipe.signature.arguments if a.kind != "constant"}

    def _made_by(self, a: Argument) -> str:
        own = a.name in self.recipe.maps
        if a.kind in ("parameter", "decay parameter"):
            last = "the map that was given" if own else "-softplus" if a.kind == "decay parameter" else ""
            return ", ".join(x for x in ("a learned number for each head and entry", last) if x)
        if a.kind == "decay":
            rank = "a projection of low rank" if a.dims else "a projection"
            return f"{rank}, a learned offset, {'the map that was given' if own else '-softplus'}"
        if not a.dims:
            last = "the map that was given" if own else "a sigmoid" if a.domain is None else _within(*a.domain)
            return f"a projection, {last}"
        steps = ["a projection"]
        if self.convolve is not None:
            steps.append(f"a causal convolution over {self.convolve.taps} steps")
            steps += ["a SiLU"] if self.recipe.activation else []
        if own:
            steps.append("the map that was given")
        elif a.domain is not None:
            steps.append(_within(*a.domain))
        elif a in self.recipe.keys:
            steps.append("divided by its length")
        return ", ".join(steps)

    def forward(
        self, x: Tensor, tail: Tensor | None = None, cu_seqlens: Tensor | None = None, context_parallel: object = None
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """(arguments by keyword, new tail of the convolution)."""
        out: dict[str, Tensor] = {}
        own = self.recipe
        if self.project is not None:
            y = self.project(x)
            if self.convolve is not None:
                if context_parallel is not None:  # the steps before this segment lie on other ranks
                    tail, cu_seqlens = tails(y, self.convolve.taps - 1, context_parallel, cu_seqlens)
                y, tail = self.convolve(y, tail, cu_seqlens, silu=own.activation)
            for a, part in zip(self.vectors, y.split([own.channels(a) for a in self.vectors], -1), strict=True):
                out[a.key] = self._mapped(a, part.unflatten(-1, own.shape(a)))
        if self.gate is not None:
            parts = self.gate(x).split([own.channels(a) for a in self.gates], -1)
            for a, part in zip(self.gates, parts, strict=True):
                out[a.key] = self._mapped(a, part)
        for a in self.wide_decays:
            out[a.key] = self._mapped(a, self.widen[a.name](self.narrow[a.name](x)).unflatten(-1, own.shape(a)))
        for a in own.signature.arguments:
            if a.kind in ("parameter", "decay parameter"):
                out[a.key] = self._mapped(a, self.values[a.name])
        return out, tail

    def _mapped(self, a: Argument, x: Tensor) -> Tensor:
        """What the op is given for a projection of x: see the module's table."""
        own, wide = self.recipe, torch.promote_types(x.dtype, torch.float32)
        if a.kind == "decay":
            x = x.to(wide) + self.values[a.name]
        if a.name in own.maps:
            return own.maps[a.name](x)
        if a.kind.startswith("decay"):
            return -F.softplus(x)
        if a.domain is not None:
            return _between(x, *a.domain)
        if a.kind == "input" and not a.dims:
            return x.sigmoid()
        if a not in own.keys:
            return x
        return unit(x)


def _between(x: Tensor, low: float | None, high: float | None) -> Tensor:
    """Within a domain, whatever x is."""
    if low is not None and high is not None:
        return low + (high - low) * x.sigmoid()
    if low is not None:
        return low + F.softplus(x)
    return (0.0 if high is None else high) - F.softplus(-x)


def _within(low: float | None, high: float | None) -> str:
    """That map in words."""
    if low is not None and high is not None:
        return "a sigmoid" if (low, high) == (0, 1) else f"a sigmoid from {low:g} to {high:g}"
    if low is not None:
        return "a softplus" if low == 0 else f"a softplus above {low:g}"
    return f"a softplus below {0.0 if high is None else high:g}"


def _offsets(shape: tuple[int, ...], memory: tuple[float, float], device: torch.device) -> Tensor:
    """Where decays start: they last from memory[0] to memory[1] steps, spread over the channels of a head, or over the heads."""
    low, high = memory
    count = shape[-1]
    spread = torch.linspace(0, 1, count, device=device) if count > 1 else torch.full((1,), 0.5, device=device)
    rates = torch.exp(-(math.log(low) + spread * math.log(high / low)))
    return torch.log(torch.expm1(rates)).expand(shape).clone()  # softplus of this is the rate
