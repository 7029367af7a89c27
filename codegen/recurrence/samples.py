"""Random arguments of a recurrence's op: of which sizes, how strong the decays are, and incoming gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..ir.expr import dim_of
from .chunkwise.compiled import Compiled

FEW = 4
POSITIVE = ((), ("states",), ("states", "variables"))  # what is drawn positive, for functions such as logarithms


@dataclass(frozen=True)
class Case:
    """What to run: sizes (T need not be a multiple of any chunk), dtype, device, how strong the decays are."""

    batch: int = 2
    steps: int = 150
    heads: int = 2
    width: int = 32
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    seed: int = 0
    decay: str = "usual"  # usual | extreme | none | strong | constant | constant -20 | forgetful
    initial: bool = True
    same: bool = False  # are all dims of the same size? Else each is 8 wider than the one before
    positive: tuple[str, ...] = ()  # as in POSITIVE
    widths: tuple[int, ...] = ()  # of the dims, in order, in the place of `width`
    groups: tuple[tuple[str, int], ...] = ()  # arguments with fewer heads than `heads`
    packed: str = ""  # one | several: sequences packed in one batch entry of so many steps

    @property
    def lengths(self) -> tuple[int, ...] | None:
        """Of packed sequences; of several, some are empty, and one has a single step."""
        if not self.packed:
            return None
        first, one = self.steps // 3, min(1, self.steps)
        return (self.steps,) if self.packed == "one" else (0, first, one, 0, self.steps - first - one)

    @property
    def packing(self) -> dict[str, Tensor]:
        """What a call says of packed sequences: `cu_seqlens`, or nothing."""
        if self.lengths is None:
            return {}
        starts = torch.tensor([0, *self.lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        return {"cu_seqlens": starts.to(self.device)}


@dataclass(frozen=True)
class Sample:
    """Random arguments of an op and incoming gradients."""

    given: dict[str, Tensor]
    states: dict[str, Tensor | None]
    constants: dict[str, float]
    cotangents: dict[str, Tensor | None]
    final_cotangents: dict[str, Tensor | None]


def sample(c: Compiled, case: Case) -> Sample:
    """Random arguments. Inputs are scaled by 1 / sqrt(width) where they run over a dim, so that reads stay of order one."""
    g = torch.Generator().manual_seed(case.seed)
    dims = {d: case.width + (0 if case.same else 8 * i) for i, d in enumerate(c.step.dims)}
    dims |= dict(zip(c.step.dims, case.widths, strict=False))
    lengths, few = case.lengths, dict(case.groups)
    batch = case.batch if lengths is None else 1
    half = case.dtype in (torch.bfloat16, torch.float16)
    wide = torch.float32 if half else case.dtype

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    given: dict[str, Tensor] = {}
    constants: dict[str, float] = {}
    for v in c.step.variables:
        own = [dims[dim_of(a)] for a in v.axes]
        heads = few.get(v.name, case.heads)
        lead = [batch, case.steps, heads] if v.per_step else [heads]
        if v.kind == "constant":
            constants[v.name] = v.number
        elif v.is_decay:
            given[v.name] = _log_decay(normal(*lead, *own), case.decay, g).to(wide)
        elif v.domain is not None:
            given[v.name] = _between(normal(*lead, *own), *v.bounds).to(case.dtype if v.kind == "input" else wide)
        elif own:
            x = normal(*lead, *own) / own[0] ** 0.5
            given[v.name] = _of_order_one(x, v.axes).to(case.dtype if v.kind == "input" else wide)
        else:
            given[v.name] = torch.rand(*lead, generator=g).to(case.dtype if v.kind == "input" else wide)
    if "variables" in case.positive:
        own_values = {v.name for v in c.step.variables if v.is_decay or v.domain is not None}
        given = {n: x if n in own_values else x.abs() for n, x in given.items()}
    sequences = batch if lengths is None else len(lengths)
    shapes = {s.name: [sequences, case.heads, *(dims[dim_of(a)] for a in s.axes)] for s in c.step.states}
    states: dict[str, Tensor | None] = {
        n: (0.1 * normal(*shape)).to(wide) if case.initial and c.step.state(n).initial is None else None
        for n, shape in shapes.items()
    }
    for s in c.step.states:
        if s.domain is not None and (x := states[s.name]) is not None:
            states[s.name] = _between(10 * x, *s.bounds).to(wide)
    if "states" in case.positive:
        own_values = {s.name for s in c.step.states if s.domain is not None}
        states = {n: x if x is None or n in own_values else x.abs() for n, x in states.items()}
    cotangents: dict[str, Tensor | None] = {
        n: normal(batch, case.steps, case.heads, *(dims[dim_of(a)] for a in axes)).to(case.dtype)
        for n, axes in c.step.output_axes.items()
    }
    finals: dict[str, Tensor | None] = {n: (0.1 * normal(*shape)).to(wide) for n, shape in shapes.items()}

    def moved(x: dict[str, Tensor | None]) -> Any:
        return {n: None if t is None else t.to(case.device) for n, t in x.items()}

    return Sample(moved(dict(given)), moved(states), constants, moved(cotangents), moved(finals))


def _of_order_one(x: Tensor, axes: tuple[str, ...]) -> Tensor:
    """Vectors of few entries no longer than 1, as those of many hardly are: a step that corrects by k k^T would blow up."""
    if len(axes) != 1 or x.shape[-1] >= FEW:
        return x
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1.0)


def _between(x: Tensor, low: float | None, high: float | None) -> Tensor:
    """Within a domain, whatever x is; between two bounds mostly nearer to the upper one, as decays are."""
    if low is not None and high is not None:
        return low + (high - low) * torch.sigmoid(x + 1.0)
    return low + x.exp() if low is not None else (high or 0.0) - x.exp()


def _log_decay(x: Tensor, how: str, g: torch.Generator) -> Tensor:
    if how == "none":
        return torch.zeros_like(x)
    if how == "strong":
        return -8.0 * torch.rand(x.shape, generator=g)
    if how.startswith("constant"):
        return torch.full_like(x, float(how.partition(" ")[2] or -12.0))
    if how == "forgetful":
        return -28.0 * torch.rand(x.shape, generator=g)
    usual = torch.nn.functional.logsigmoid(x + 2.0)
    if how == "extreme":
        pick = torch.rand(x.shape, generator=g)
        usual = torch.where(pick < 0.1, torch.full_like(x, -1e4), usual)
        usual = torch.where((pick >= 0.1) & (pick < 0.15), torch.full_like(x, -torch.inf), usual)
        usual = torch.where((pick >= 0.15) & (pick < 0.3), torch.zeros_like(x), usual)
        return torch.where((pick >= 0.3) & (pick < 0.35), torch.full_like(x, -45.0), usual)
    return usual
