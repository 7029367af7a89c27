"""Compare an op's numbers with the float64 oracle: outputs, last states and every gradient, on fresh random inputs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chunkform.errors import SpecError

from ..checking.accuracy import Judged, head_axis, judge, relative_error
from ..ir.expr import Node, walk
from ..ir.step_program import StepProgram
from .chunkwise.compiled import Compiled
from .definition import Oracle, defined
from .oracle import oracle
from .samples import POSITIVE, Case, Sample, sample

EXPLODED = 1e12
PERTURBED = 4  # how many roundings of the arguments are tried
FLOORS = (None, -40.0, -10.0, -3.0)  # of log decays
BOUND = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


@dataclass(frozen=True)
class Row:
    """The error of one quantity: ||out - ref|| / ||ref|| of its worst head, against its bound."""

    name: str
    quantity: str
    case: Case
    error: float
    bound: float
    rounding: float | None = None  # what rounding makes of the definition; taken where `bound` isn't met
    head: int = 0
    solve: str = ""  # of a program, that the quantity is the residual or the condition of

    @property
    def judged(self) -> Judged:
        return Judged(self.head, self.error, self.bound, self.rounding)

    @property
    def ok(self) -> bool:
        return self.judged.ok

    @property
    def allowed(self) -> float:
        return self.judged.allowed


def check_op(c: Compiled, op: Callable[..., Any], case: Case, backend: str | None = None) -> list[Row]:
    """The errors of one call, forward and backward. `op` is the generated function.

    A quantity that misses its bound is judged by the problem's own conditioning (see `Row.rounding`). A recurrence whose values
    float32 can't hold is checked with milder decays, or on a shorter sequence, and one that has none with positive arguments; the
    rows' cases say which.

    Raises:
        SpecError: it has no finite values with any of them.
    """
    keys = {v.name: v.argument for v in c.step.variables}
    for held, s, exact in samples(c, case):
        rows = _rows(c, op, held, s, keys, exact, backend)
        if rows is not None:
            return rows
    raise SpecError(
        f"{c.name} can't be checked: it should have finite values for random arguments, and has none even after one step, also "
        "where these are positive",
        c.spec.where,
    )


def _rows(
    c: Compiled,
    op: Callable[..., Any],
    case: Case,
    s: Sample,
    keys: dict[str, str],
    exact: dict[str, Tensor],
    backend: str | None,
) -> list[Row] | None:
    """The rows of one sample; None where a quantity misses its bound, and its definition itself overflows in float32."""
    arguments = {n: x.detach().clone().requires_grad_() for n, x in s.given.items()}
    states = {n: None if x is None else x.detach().clone().requires_grad_() for n, x in s.states.items()}
    asked: dict[str, Any] = {}
    if states:
        initial: Any = tuple(states.values()) if len(states) > 1 else next(iter(states.values()))
        if all(x is None for x in states.values()):
            initial = None
        asked = {"initial_state": initial, "output_final_state": True}
    asked |= case.packing
    *outputs, last = op(**{keys[n]: x for n, x in arguments.items()}, **s.constants, **asked, backend=backend)
    lasts = dict(zip(states, last if isinstance(last, tuple) else (last,), strict=True)) if states else {}
    named = dict(zip(c.step.outputs, outputs, strict=True))
    wanted = [*arguments.values(), *(x for x in states.values() if x is not None)]
    torch.autograd.backward(
        [*named.values(), *lasts.values()],
        [*(s.cotangents[n] for n in named), *(s.final_cotangents[n] for n in lasts)],
        inputs=wanted,
    )
    computed = {**named, **{f"final {n}": x for n, x in lasts.items()}}
    computed |= {f"d{n}": x.grad for n, x in arguments.items()}
    computed |= {f"d initial {n}": x.grad for n, x in states.items() if x is not None}
    judged = judge_all(c, computed, exact, s, case)
    rows = [
        Row(
            c.name,
            f"d{keys[n[1:]]}" if n not in named and n[1:] in keys else n,
            case,
            j.error,
            j.bound,
            j.rounding,
            j.head,
        )
        for n, j in judged.items()
    ]
    return None if any(j.overflows for j in judged.values()) and case.steps > 1 else rows


def judge_all(
    c: Any,
    computed: dict[str, Tensor | None],
    exact: dict[str, Tensor],
    s: Sample,
    case: Case,
    of: Oracle = oracle,
    bounds: Mapping[str, float] | None = None,
    **options: Any,
) -> dict[str, Judged]:
    """The worst head of each quantity. Where one misses the bound of the case's dtype, or its own of `bounds`, it is judged by
    what rounding makes of the definition: of its arguments, and of a run in float32. No gradient counts as zeros."""
    bound, gradients = BOUND[case.dtype], any(n.startswith("d") and n not in c.step.outputs for n in computed)

    @functools.cache
    def others() -> list[dict[str, Tensor]]:
        off = [_rounded(s, case, seed) for seed in range(PERTURBED)]
        found = [defined(c, x, case.lengths, of=of, gradients=gradients) for x in off]
        if case.dtype != torch.float64:  # what float32 rounds on the way differs from run to run as well
            found += [defined(c, x, case.lengths, torch.float32, of, gradients, **options) for x in (s, *off)]
        return found

    def rounded(n: str) -> Callable[[], list[Tensor]]:
        return lambda: [x[n] for x in others()]

    found = {}
    for n, x in computed.items():
        value = torch.zeros_like(exact[n]) if x is None else x
        own = (bounds or {}).get(n, bound)
        dtype = case.dtype if x is None else None
        found[n] = judge(value, exact[n], head_axis(c.step, n), own, rounded(n), dtype)
    return found


def judge_rounded(
    c: Any, computed: dict[str, Tensor | None], exact: dict[str, Tensor], s: Sample, case: Case
) -> dict[str, Judged]:
    """The same for what is computed in float64, and of which the result alone is rounded."""
    wide = torch.float64
    units = {n: torch.finfo(wide if x is None else x.dtype).eps / 2 for n, x in computed.items()}
    bounds = {n: max(x, BOUND[wide]) for n, x in units.items()}
    return judge_all(c, computed, exact, s, dataclasses.replace(case, dtype=wide), bounds=bounds)


def samples(
    c: object,
    case: Case,
    largest: float = EXPLODED,
    draw: Callable[[Any, Case], Sample] | None = None,
    of: Oracle = oracle,
    gradients: bool = True,
) -> Iterator[tuple[Case, Sample, dict[str, Tensor]]]:
    """(case, arguments, the oracle's values): random arguments, the wildest first whose values are below `largest`, so that
    float32 can hold and multiply them.

    For each length milder decays are tried as well, for what divides by a decay; shorter ones are for what explodes. Positive
    arguments are for what has no values otherwise, even after one step. `draw` and `of`: a program's own `sample` and oracle.
    """

    def sampled(case: Case, steps: int, floor: float | None) -> tuple[Case, Sample, dict[str, Tensor]] | None:
        return _sampled(c, case, steps, floor, largest, draw or sample, of, gradients)

    lengths = [case.steps]
    while lengths[-1] > 1:
        lengths.append(lengths[-1] // 2 | 1 if lengths[-1] > 3 else 1)
    tries = list(itertools.product(lengths, FLOORS))
    for positive in POSITIVE:
        case = dataclasses.replace(case, positive=positive)
        if sampled(case, *tries[-1]) is None:
            continue
        for steps, floor in tries:
            found = sampled(case, steps, floor)
            if found is not None:
                yield found


def _sampled(
    c: Any,
    case: Case,
    steps: int,
    floor: float | None,
    largest: float,
    draw: Callable[[Any, Case], Sample],
    of: Oracle,
    gradients: bool,
) -> tuple[Case, Sample, dict[str, Tensor]] | None:
    """Arguments for so many steps, with log decays no lower than a floor, if the oracle's values are below `largest`."""
    case = dataclasses.replace(case, steps=steps)
    s = draw(c, case)
    note = case.decay
    if floor is not None:
        decays = {v.name for v in c.step.variables if v.is_decay}
        s = dataclasses.replace(s, given={n: x.clamp(min=floor) if n in decays else x for n, x in s.given.items()})
        note = f"{case.decay}, at least {floor:g}"
    exact = defined(c, s, case.lengths, of=of, gradients=gradients)
    bounds = {f"final {x.name}": max(largest, 2 * _largest_number(x.initial)) for x in c.step.states}
    if all(
        not x.numel() or (bool(x.isfinite().all()) and float(x.abs().max()) < bounds.get(n, largest))
        for n, x in exact.items()
    ):
        return dataclasses.replace(case, decay=note), s, exact
    return None


def _largest_number(x: Node | None) -> float:
    """What a state may start with, as a maximum below all others: after no step it is that still."""
    return max((abs(float(y.attrs[0])) for y in walk(x) if y.op == "const"), default=0.0) if x is not None else 0.0


def _rounded(s: Sample, case: Case, seed: int = 0) -> Sample:
    """The sample with each input off by half a unit in the last place."""
    g = torch.Generator().manual_seed(case.seed + 1 + seed)
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


def error_of(
    program: StepProgram, quantity: str, value: Tensor | None, reference: Tensor, dtype: torch.dtype | None = None
) -> float:
    """The error of a quantity's worst head; no gradient counts as zeros."""
    value = torch.zeros_like(reference) if value is None else value
    return relative_error(value, reference, head_axis(program, quantity), dtype)
