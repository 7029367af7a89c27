"""Compare an op's numbers with the float64 oracle: outputs, last states and every gradient, on fresh random inputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .ir import dim_of
from .oracle import oracle
from .pipeline import Compiled

# Where a problem is ill-conditioned, AMPLIFIED times the error that rounding makes of its definition is allowed as well.
AMPLIFIED = 4.0
EXPLODED = 1e12
BOUND = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


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
    decay: str = "usual"  # usual | extreme | none | strong
    initial: bool = True


@dataclass(frozen=True)
class Row:
    """The error of one quantity: ||out - ref|| / ||ref|| against its bound."""

    name: str
    quantity: str
    case: Case
    error: float
    bound: float
    rounding: float | None = (
        None  # what one rounding of the inputs makes of the reference; taken where `bound` isn't met
    )

    @property
    def ok(self) -> bool:
        if self.rounding == math.inf:  # the definition itself overflows in float32
            return True
        return self.error <= self.allowed  # NaN fails

    @property
    def allowed(self) -> float:
        """The bound, or what the problem's own conditioning makes of rounding."""
        return self.bound if self.rounding is None else max(self.bound, AMPLIFIED * self.rounding)


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
    dims = {d: case.width + 8 * i for i, d in enumerate(c.step.dims)}
    half = case.dtype in (torch.bfloat16, torch.float16)
    wide = torch.float32 if half else case.dtype

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    given: dict[str, Tensor] = {}
    constants: dict[str, float] = {}
    for v in c.step.variables:
        own = [dims[dim_of(a)] for a in v.axes]
        lead = [case.batch, case.steps, case.heads] if v.per_step else [case.heads]
        if v.kind == "constant":
            constants[v.name] = 0.5 if v.default is None else v.default
        elif v.is_decay:
            given[v.name] = _log_decay(normal(*lead, *own), case.decay, g).to(wide)
        elif own:
            given[v.name] = (normal(*lead, *own) / own[0] ** 0.5).to(case.dtype if v.kind == "input" else wide)
        else:
            given[v.name] = torch.rand(*lead, generator=g).to(case.dtype if v.kind == "input" else wide)
    shapes = {s.name: [case.batch, case.heads, *(dims[dim_of(a)] for a in s.axes)] for s in c.step.states}
    states: dict[str, Tensor | None] = {
        n: (0.1 * normal(*shape)).to(wide) if case.initial and c.step.state(n).initial is None else None
        for n, shape in shapes.items()
    }
    cotangents: dict[str, Tensor | None] = {
        n: normal(case.batch, case.steps, case.heads, *(dims[dim_of(a)] for a in axes)).to(case.dtype)
        for n, axes in c.step.output_axes.items()
    }
    finals: dict[str, Tensor | None] = {n: (0.1 * normal(*shape)).to(wide) for n, shape in shapes.items()}

    def moved(x: dict[str, Tensor | None]) -> Any:
        return {n: None if t is None else t.to(case.device) for n, t in x.items()}

    return Sample(moved(dict(given)), moved(states), constants, moved(cotangents), moved(finals))


def _log_decay(x: Tensor, how: str, g: torch.Generator) -> Tensor:
    if how == "none":
        return torch.zeros_like(x)
    if how == "strong":
        return -8.0 * torch.rand(x.shape, generator=g)
    usual = torch.nn.functional.logsigmoid(x + 2.0)
    if how == "extreme":
        pick = torch.rand(x.shape, generator=g)
        usual = torch.where(pick < 0.1, torch.full_like(x, -1e4), usual)
        usual = torch.where((pick >= 0.1) & (pick < 0.15), torch.full_like(x, -torch.inf), usual)
        usual = torch.where((pick >= 0.15) & (pick < 0.3), torch.zeros_like(x), usual)
        return torch.where((pick >= 0.3) & (pick < 0.35), torch.full_like(x, -45.0), usual)
    return usual


def check_op(c: Compiled, op: Callable[..., Any], case: Case, backend: str | None = None) -> list[Row]:
    """The errors of one call, forward and backward. `op` is the generated function.

    A quantity that misses its bound is judged by the problem's own conditioning (see `Row.rounding`). A recurrence that
    explodes is checked on a sequence so short that float32 holds its states; the rows' cases say how long it was.
    """
    keys = {v.name: f"log_{v.name}" if v.is_decay else v.name for v in c.step.variables}
    case, s, reference = _tame(c, case, keys)
    arguments = {n: x.detach().clone().requires_grad_() for n, x in s.given.items()}
    states = {n: None if x is None else x.detach().clone().requires_grad_() for n, x in s.states.items()}
    initial: Any = tuple(states.values()) if len(states) > 1 else next(iter(states.values()))
    if all(x is None for x in states.values()):
        initial = None
    *outputs, last = op(
        **{keys[n]: x for n, x in arguments.items()},
        **s.constants,
        initial_state=initial,
        output_final_state=True,
        backend=backend,
    )
    lasts = dict(zip(states, last if isinstance(last, tuple) else (last,), strict=True))
    named = dict(zip(c.step.outputs, outputs, strict=True))
    wanted = [*arguments.values(), *(x for x in states.values() if x is not None)]
    torch.autograd.backward(
        [*named.values(), *lasts.values()],
        [*(s.cotangents[n] for n in named), *(s.final_cotangents[n] for n in lasts)],
        inputs=wanted,
    )
    computed = {**named, **{f"final {n}": x for n, x in lasts.items()}}
    computed |= {f"d{keys[n]}": x.grad for n, x in arguments.items()}
    computed |= {f"d initial {n}": x.grad for n, x in states.items() if x is not None}
    rows = [
        Row(c.name, n, case, relative_error(torch.zeros_like(reference[n]) if x is None else x, reference[n]), bound)
        for n, x in computed.items()
        for bound in [BOUND[case.dtype]]
    ]
    if all(r.ok for r in rows):
        return rows
    others = [_reference(c, _rounded(s, case), keys)]
    if case.dtype != torch.float64:
        others.append(_reference(c, s, keys, torch.float32))

    def rounding(quantity: str) -> float:
        errors = [relative_error(x[quantity], reference[quantity]) for x in others]
        return math.inf if any(math.isnan(e) for e in errors) else max(errors)

    return [r if r.ok else dataclasses.replace(r, rounding=rounding(r.quantity)) for r in rows]


def _tame(c: Compiled, case: Case, keys: dict[str, str]) -> tuple[Case, Sample, dict[str, Tensor]]:
    """The case, its sample and reference, with fewer steps where the recurrence's values leave what float32 can multiply."""
    while True:
        s = sample(c, case)
        reference = _reference(c, s, keys)
        largest = max((float(x.abs().nan_to_num().max()) for x in reference.values() if x.numel()), default=0.0)
        if largest < EXPLODED or case.steps <= 1:
            return case, s, reference
        case = dataclasses.replace(case, steps=case.steps // 2 | 1)


def _reference(c: Compiled, s: Sample, keys: dict[str, str], dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Every quantity of the oracle, by the names of rows."""
    outputs, lasts, gradients, initial = oracle(
        c, s.given, s.states, s.constants, s.cotangents, s.final_cotangents, dtype
    )
    return {
        **outputs,
        **{f"final {n}": x for n, x in lasts.items()},
        **{f"d{keys[n]}": x for n, x in gradients.items()},
        **{f"d initial {n}": x for n, x in initial.items()},
    }


def _rounded(s: Sample, case: Case) -> Sample:
    """The sample with each input off by half a unit in the last place."""
    g = torch.Generator().manual_seed(case.seed + 1)
    unit = torch.finfo(case.dtype).eps / 2

    def off(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        sign = torch.where(torch.rand(x.shape, generator=g) < 0.5, -1.0, 1.0).to(x.device, torch.float64)
        return x.to(torch.float64) * (1 + unit * sign)

    return dataclasses.replace(
        s,
        given={n: off(x) for n, x in s.given.items()},
        states={n: off(x) for n, x in s.states.items()},
    )


def relative_error(value: Tensor, reference: Tensor) -> float:
    """||value - reference|| / ||reference||, in float64; the plain norm where the reference is zero.

    Entries for which the recurrence itself has no finite value (a division by zero) don't count.
    """
    value, reference = value.detach().to(torch.float64), reference.to(torch.float64)
    defined = reference.isfinite()
    if not defined.all():
        value, reference = value[defined], reference[defined]
    difference, scale = (value - reference).norm(), reference.norm()
    return float(difference / scale) if scale > 0 else float(difference)
