"""Calls of generated ops and what the float64 oracle makes of them: packed sequences, head groups, any options.

Quantities have the names of `codegen.check`: an output's own, "final S", "dq", "d initial S".
"""

import dataclasses
import importlib
import itertools
import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from chunkform.codegen.checking.accuracy import errors_apart, head_axis
from chunkform.codegen.ir.expr import dim_of
from chunkform.codegen.recurrence.check import BOUND
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.oracle import oracle
from chunkform.codegen.recurrence.samples import Case, sample

from .spec_files import catalogue, compiled_once

# How much more than one sample of rounding's effect a result may be off: the samples themselves vary that much.
AMPLIFIED = 16.0
SPECS = {r.name: r for r in catalogue()}


@cache
def compiled(name: str) -> Compiled:
    return compiled_once(SPECS[name])


def op_of(name: str):
    return getattr(importlib.import_module(f"chunkform.generated.{name}"), name)


@dataclass(frozen=True)
class Problem:
    """Arguments of an op by declared names; `lengths` of packed sequences, or None."""

    name: str
    given: dict[str, Tensor]
    states: dict[str, Tensor | None]
    constants: dict[str, float]
    cotangents: dict[str, Tensor | None]
    final_cotangents: dict[str, Tensor | None]
    heads: int
    lengths: tuple[int, ...] | None = None
    dtype: torch.dtype = torch.float32

    @property
    def keys(self) -> dict[str, str]:
        return {v.name: f"log_{v.name}" if v.is_decay else v.name for v in compiled(self.name).step.variables}

    @property
    def cu_seqlens(self) -> Tensor | None:
        if self.lengths is None:
            return None
        device = next(iter(self.given.values())).device
        return torch.tensor([0, *self.lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32).to(device)


def problem(
    name: str,
    case: Case,
    lengths: tuple[int, ...] | None = None,
    groups: dict[str, int] | None = None,
    sizes: tuple[int, ...] = (),
) -> Problem:
    """Random arguments: with `lengths`, sequences packed in one batch entry; with `groups`, fewer heads for some.

    `sizes` are those of the dims, in order, from the first again where there are more dims; else as `sample` has them.
    """
    c = compiled(name)
    dims = dict(zip(c.step.dims, itertools.cycle(sizes), strict=False)) if sizes else {}
    if lengths is not None:
        case = dataclasses.replace(case, batch=1, steps=sum(lengths))
    if dims:
        case = dataclasses.replace(case, width=max(sizes))
    s = sample(c, case)
    states, finals = s.states, s.final_cotangents
    if lengths is not None:
        many = sample(c, dataclasses.replace(case, batch=len(lengths), steps=1))
        states, finals = many.states, many.final_cotangents

    def cut(x: Tensor | None, axes: tuple[str, ...]) -> Tensor | None:
        for i, axis in enumerate(axes, (x.ndim if x is not None else 0) - len(axes)):
            x = x.narrow(i, 0, dims[dim_of(axis)]).clone() if x is not None and dims else x
        return x

    own = {v.name: v.axes for v in c.step.variables} | {s.name: s.axes for s in c.step.states} | c.step.output_axes
    given, states, cotangents, finals = (
        {n: cut(x, own[n]) for n, x in part.items()} for part in (s.given, states, s.cotangents, finals)
    )
    for n, heads in (groups or {}).items():
        v = c.step.variable(n)
        given[n] = given[n].narrow(2 if v.per_step else 0, 0, heads).clone()
    return Problem(name, given, states, s.constants, cotangents, finals, case.heads, lengths, case.dtype)


def run(p: Problem, backward: bool = True, op=None, **options) -> dict[str, Tensor]:
    """Every quantity that the op gives."""
    given = {
        n: x.detach().clone(memory_format=torch.preserve_format).requires_grad_(backward) for n, x in p.given.items()
    }
    states = {n: None if x is None else x.detach().clone().requires_grad_(backward) for n, x in p.states.items()}
    initial = None if all(x is None for x in states.values()) else tuple(states.values())
    *outputs, last = (op or op_of(p.name))(
        **{p.keys[n]: x for n, x in given.items()},
        **p.constants,
        initial_state=initial,
        output_final_state=True,
        cu_seqlens=p.cu_seqlens,
        **options,
    )
    last = last if isinstance(last, tuple) else (last,)
    found = dict(zip(compiled(p.name).step.outputs, outputs, strict=True))
    found |= {f"final {n}": x for n, x in zip(states, last, strict=True)}
    if backward:
        incoming = [*p.cotangents.values(), *p.final_cotangents.values()]
        torch.autograd.backward(list(found.values()), [g.to(x.dtype) for x, g in zip(found.values(), incoming)])
        found |= {f"d{p.keys[n]}": torch.zeros_like(x) if x.grad is None else x.grad for n, x in given.items()}
        found |= {f"d initial {n}": x.grad for n, x in states.items() if x is not None}
    return {n: x.detach() for n, x in found.items()}


def reference(p: Problem, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """The same by the oracle: a sequence at a time, with every head's own arguments, and gradients summed over groups."""
    c = compiled(p.name)
    axis = {v.name: 2 if v.per_step else 0 for v in c.step.variables}
    whole = {n: x.repeat_interleave(p.heads // x.shape[axis[n]], axis[n]) for n, x in p.given.items()}
    if p.lengths is None:
        outputs, finals, gradients, initial = oracle(
            c, whole, p.states, p.constants, p.cotangents, p.final_cotangents, dtype
        )
    else:
        outputs, finals, gradients, initial = _one_by_one(p, whole, axis, dtype)
    reduced = {
        n: g.unflatten(axis[n], (p.given[n].shape[axis[n]], p.heads // p.given[n].shape[axis[n]])).sum(axis[n] + 1)
        for n, g in gradients.items()
    }
    return {
        **outputs,
        **{f"final {n}": x for n, x in finals.items()},
        **{f"d{p.keys[n]}": x for n, x in reduced.items()},
        **{f"d initial {n}": x for n, x in initial.items() if p.states[n] is not None},
    }


def _one_by_one(p: Problem, whole: dict[str, Tensor], axis: dict[str, int], dtype: torch.dtype):
    assert p.lengths is not None
    parts, at = [], 0
    for n, length in enumerate(p.lengths):
        here, at = slice(at, at + length), at + length

        def cut(x, here=here):
            return None if x is None else x[:, here]

        def row(states, n=n):
            return {k: None if x is None else x[n : n + 1] for k, x in states.items()}

        own = {k: cut(x) if axis[k] == 2 else x for k, x in whole.items()}
        incoming = {k: cut(x) for k, x in p.cotangents.items()}
        parts.append(
            oracle(compiled(p.name), own, row(p.states), p.constants, incoming, row(p.final_cotangents), dtype)
        )
    outputs, finals, gradients, initial = ({k: [part[i][k] for part in parts] for k in parts[0][i]} for i in range(4))
    return (
        {k: torch.cat(x, 1) for k, x in outputs.items()},
        {k: torch.cat(x) for k, x in finals.items()},
        {k: torch.cat(x, 1) if axis[k] == 2 else sum(x) for k, x in gradients.items()},
        {k: torch.cat(x) for k, x in initial.items()},
    )


def misses(
    p: Problem, got: dict[str, Tensor], bound: float | None = None, beside: bool = False
) -> dict[str, tuple[float, float]]:
    """Quantities that are further from the oracle than `bound`, and than what rounding does to the definition: (error, bound).

    Where the oracle's value doesn't fit into the result's dtype, the result is to be infinite or as large as that. With
    `beside`, errors count beside the largest quantity of the same kind, results or gradients, instead of their own.
    """
    want = reference(p)
    bound = BOUND[p.dtype] if bound is None else bound
    assert got.keys() == want.keys()
    assert all(got[n].shape == want[n].shape for n in want), {n: (got[n].shape, want[n].shape) for n in want}
    scale = max((float(x.nan_to_num().norm()) for x in want.values()), default=0.0)
    axes = {n: head_axis(compiled(p.name).step, n) for n in want}
    sizes = {n: _largest_head(x, axes[n]) for n, x in want.items()}
    missed: dict[str, Tensor] = {}
    for n, x in want.items():
        alike = max((sizes[m] for m in want if m.startswith("d") == n.startswith("d")), default=0.0)
        errors = _errors(got[n], x, scale, axes[n], beside=alike if beside else 0.0)
        if not (errors <= bound).all():
            missed[n] = errors
    if not missed:
        return {}
    others = [reference(p, torch.float32), reference(_rounded(p))]
    found = {}
    for n, errors in missed.items():
        some = [_errors(x[n], want[n], scale, axes[n], got[n].dtype) for x in others]
        allowed = AMPLIFIED * torch.stack(torch.broadcast_tensors(*some)).amax(0)
        allowed = torch.where(allowed.isnan(), math.inf, allowed.clamp(min=bound))
        errors, allowed = torch.broadcast_tensors(errors, allowed)
        if not (
            (errors <= allowed) | allowed.isinf()
        ).all():  # where rounding the definition leaves no value, anything goes
            head = int((errors / allowed).nan_to_num(nan=math.inf).argmax())
            found[n] = (float(errors[head]), float(allowed[head]))
    return found


def _largest_head(x: Tensor, heads: int) -> float:
    return max((float(y.nan_to_num().norm()) for y in x.unbind(heads)), default=0.0)


def _errors(
    value: Tensor, want: Tensor, scale: float, heads: int, dtype: torch.dtype | None = None, beside: float = 0.0
) -> Tensor:
    """The relative error of each head where the oracle's value is finite and fits into the dtype, or that beside a given size.

    Where all of it is zero, the error beside `scale`, the largest norm of the call's quantities.
    """
    largest = torch.finfo(dtype or value.dtype).max
    fits = want.abs() < 0.99 * largest
    if not fits.all():
        beyond = ~fits & want.isfinite() & (want.abs() > 1.01 * largest)
        if not (value[beyond].abs().nan_to_num(nan=0.0) >= 0.98 * largest).all():
            return torch.tensor([math.inf])
        value, want = torch.where(fits, value, 0), torch.where(fits, want, 0)
    if scale and not want.any():
        return value.to(torch.float64).norm()[None] / scale
    if beside:
        difference = value.to(torch.float64) - want
        return torch.stack([x.norm() / beside for x in difference.unbind(heads)]) if want.numel() else want.new_zeros(1)
    return errors_apart(value, want, heads, dtype)


def _rounded(p: Problem) -> Problem:
    """The problem with each argument off by half a unit in the last place of its dtype."""
    g = torch.Generator().manual_seed(1)
    unit = torch.finfo(p.dtype).eps / 2

    def off(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        sign = torch.where(torch.rand(x.shape, generator=g) < 0.5, -1.0, 1.0).to(x.device, torch.float64)
        return x.to(torch.float64) * (1 + unit * sign)

    return dataclasses.replace(
        p, given={n: off(x) for n, x in p.given.items()}, states={n: off(x) for n, x in p.states.items()}
    )
