"""Shapes to measure at, and random arguments of an op drawn from its signature."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from chunkform.runtime.op.op import Argument, Signature


@dataclass(frozen=True)
class Shape:
    """B sequences of T steps, H heads, every dim D wide but for those of `widths`."""

    name: str
    batch: int
    steps: int
    heads: int
    width: int
    widths: tuple[tuple[str, int], ...] = ()

    def wide(self, dims: tuple[str, ...]) -> tuple[int, ...]:
        """The widths of dims."""
        own = dict(self.widths)
        return tuple(own.get(d, self.width) for d in dims)

    @property
    def tokens(self) -> int:
        """Steps of all sequences and heads together."""
        return self.batch * self.steps * self.heads

    @property
    def spelled(self) -> str:
        return f"{self.batch}x{self.steps}x{self.heads}x{self.width}"

    def at(self, batch: int, steps: int) -> Shape:
        """The same heads and widths at another size: kernels tuned for one are used at the other."""
        return Shape(f"{batch}x{steps}x{self.heads}x{self.width}", batch, steps, self.heads, self.width)


SHAPES = {
    s.name: s
    for s in (
        Shape("S1", 8, 4096, 16, 128),
        Shape("S2", 1, 32768, 16, 128),
        Shape("S3", 8, 4096, 32, 64),
        Shape("S4", 1, 4096, 16, 128),
        Shape("S5", 1, 131072, 8, 128),
        Shape("D256", 8, 4096, 8, 256),
        Shape("D96", 8, 4096, 16, 96),
        Shape("tiny", 2, 100, 2, 16),
    )
}
LENGTHS = tuple(f"1x{2**n}x16x128" for n in range(10, 17))

# A decay is sigmoid(normal + shift): its mean is about 0.83, 0.99, 0.9998 and 0.2.
DECAYS = {"usual": 2.0, "slow": 5.0, "lasting": 9.0, "fast": -2.0}


def parse_shape(text: str) -> Shape:
    """A shape by its name, or as BxTxHxD."""
    if text in SHAPES:
        return SHAPES[text]
    if not re.fullmatch(r"\d+x\d+x\d+x\d+", text):
        raise ValueError(f"a shape is one of {', '.join(SHAPES)}, or BxTxHxD such as 1x8192x16x128; got {text!r}")
    batch, steps, heads, width = (int(n) for n in text.split("x"))
    return Shape(text, batch, steps, heads, width)


def extent(a: Argument, shape: Shape) -> tuple[int, ...]:
    """The sizes of an argument at a shape."""
    lead = (shape.batch, shape.steps, shape.heads) if a.per_step else (shape.heads,)
    return lead + shape.wide(a.dims)


def draw(
    signature: Signature,
    shape: Shape,
    *,
    device: str,
    dtype: torch.dtype,
    unit: tuple[str, ...] = (),
    decay: str = "usual",
    seed: int = 0,
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """(arguments by the names under which they are passed, incoming gradients of the outputs).

    The same seed yields the same values. Arguments named in `unit` are vectors of length one, others normal; a number per step
    lies between 0 and 1. Logarithms of decays are float32. Constants keep their defaults, and aren't drawn.
    """
    g = torch.Generator(device=device).manual_seed(seed)

    def normal(size: tuple[int, ...]) -> Tensor:
        return torch.randn(size, generator=g, device=device)

    given = {}
    for a in signature.arguments:
        if a.kind == "constant":
            continue
        x = normal(extent(a, shape))
        if a.kind.startswith("decay"):
            given[a.key] = torch.nn.functional.logsigmoid(x + DECAYS[decay])
        elif a.name in unit:
            given[a.key] = torch.nn.functional.normalize(x, dim=-1).to(dtype)
        elif a.dims:
            given[a.key] = x.to(dtype)
        else:
            given[a.key] = torch.sigmoid(x).to(dtype)
    lead = (shape.batch, shape.steps, shape.heads)
    cotangents = [normal(lead + shape.wide(dims)).to(dtype) for _, dims in signature.outputs]
    return given, cotangents
