"""Calls of ops that must agree bit for bit: with other steps later, with zeros or no state, once more, alone and in company.

A check returns what differs, by name: an output's own, "final S", "dq", "d initial S", each with its largest difference.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import pkgutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import chunkform.generated
from chunkform.runtime.op.signature import Signature

NAMES = sorted(m.name for m in pkgutil.iter_modules(chunkform.generated.__path__[:1]) if not m.ispkg)
RECURRENCES = tuple(
    n
    for n in NAMES
    if "Signature(" in (Path(chunkform.generated.__file__).parent / f"{n}.py").read_text()
    and "AttentionSignature(" not in (Path(chunkform.generated.__file__).parent / f"{n}.py").read_text()
)


@dataclass(frozen=True)
class Case:
    """Sizes of a call; `lengths` of packed sequences, which make up one batch entry."""

    steps: int
    dtype: torch.dtype = torch.float32
    batch: int = 3
    heads: int = 2
    widths: tuple[int, ...] = (16, 24)
    lengths: tuple[int, ...] | None = None
    device: str = "cpu"
    seed: int = 0
    decay: float = 1.0  # what log decays are multiplied by


@dataclass(frozen=True)
class Problem:
    """Arguments of an op by the names under which they are passed, and gradients that come in."""

    op: Any
    signature: Signature
    given: dict[str, Tensor]
    constants: dict[str, float]
    states: tuple[Tensor, ...] | None
    cotangents: tuple[Tensor, ...]
    final_cotangents: tuple[Tensor, ...]
    lengths: tuple[int, ...] | None = None

    @property
    def per_step(self) -> set[str]:
        return {a.key for a in self.signature.tensors if a.per_step}

    @property
    def outputs(self) -> list[str]:
        return [n for n, _ in self.signature.outputs if n not in self.signature.hidden]


def problem(name: str, case: Case) -> Problem:
    """Random arguments of an op of the catalogue."""
    module = importlib.import_module(f"chunkform.generated.{name}")
    return problem_of(getattr(module, name), module.SIGNATURE, case)


def problem_of(op: Any, s: Signature, case: Case) -> Problem:
    """Random arguments: inputs of order 1 / sqrt(width), usual decays with a strong one here and there, positive parameters."""
    g = torch.Generator().manual_seed(case.seed)
    every = [a.dims for a in s.arguments] + [d for _, d in s.states] + [d for _, d in s.outputs]
    names = list(dict.fromkeys(d for dims in every for d in dims))
    sizes = dict(zip(names, itertools.cycle(case.widths), strict=False))
    batch, steps = (case.batch, case.steps) if case.lengths is None else (1, sum(case.lengths))
    sequences = case.batch if case.lengths is None else len(case.lengths)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    given: dict[str, Tensor] = {}
    for a in s.tensors:
        own = [sizes[d] for d in a.dims]
        lead = [batch, steps, case.heads] if a.per_step else [case.heads]
        if a.kind.startswith("decay"):
            x = torch.nn.functional.logsigmoid(normal(*lead, *own) + 2)
            x = torch.where(torch.rand(x.shape, generator=g) < 0.02, -12.0, x) * case.decay
        elif a.kind == "input" and own:
            x = normal(*lead, *own) / own[0] ** 0.5
        else:
            x = torch.rand(*lead, *own, generator=g) + (0.5 if a.kind == "parameter" else 0.0)
        wide = case.dtype == torch.float64
        kind = case.dtype if a.kind == "input" or wide else torch.float32
        given[a.key] = x.to(case.device, kind)
    wide_kind = torch.promote_types(case.dtype, torch.float32)
    shapes = [(sequences, case.heads, *(sizes[d] for d in dims)) for _, dims in s.states]
    states = (
        tuple((0.1 * normal(*shape)).to(case.device, wide_kind) for shape in shapes) if has_zero_start(op) else None
    )
    shown = [dims for n, dims in s.outputs if n not in s.hidden]
    cotangents = [normal(batch, steps, case.heads, *(sizes[d] for d in dims)) for dims in shown]
    finals = [(0.1 * normal(*shape)).to(case.device, wide_kind) for shape in shapes]
    return Problem(
        op,
        s,
        given,
        {a.name: 0.5 if a.default is None else a.default for a in s.constants},
        states,
        tuple(x.to(case.device, case.dtype) for x in cotangents),
        tuple(finals),
        case.lengths,
    )


def has_zero_start(op: Any) -> bool:
    """Is the initial state zero where none is given?"""
    return "zeros where None" in op.__doc__


def run(p: Problem, **options: Any) -> dict[str, Tensor]:
    """Every quantity that the op gives."""
    given = {n: x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for n, x in p.given.items()}
    states = None if p.states is None else tuple(x.detach().clone().requires_grad_() for x in p.states)
    starts = None
    if p.lengths is not None:
        starts = torch.tensor([0, *p.lengths]).cumsum(0).to(next(iter(given.values())).device)
    *outputs, last = p.op(
        **given, **p.constants, initial_state=states, output_final_state=True, cu_seqlens=starts, **options
    )
    finals = last if isinstance(last, tuple) else (last,)
    torch.autograd.backward([*outputs, *finals], [*p.cotangents, *p.final_cotangents])
    names = [n for n, _ in p.signature.states]
    found = dict(zip(p.outputs, outputs, strict=True))
    found |= {f"final {n}": x for n, x in zip(names, finals, strict=True)}
    found |= {f"d{n}": torch.zeros_like(x) if x.grad is None else x.grad for n, x in given.items()}
    if states is not None:
        found |= {f"d initial {n}": x.grad for n, x in zip(names, states, strict=True)}
    return {n: x.detach() for n, x in found.items()}


# --- checks -----------------------------------------------------------------------------------------------------------


def later_steps(p: Problem, other: Problem, at: int, **options: Any) -> dict[str, float]:
    """What steps from `at` on, those of `other`, change of outputs before, and of the gradients of a loss on these."""
    quiet = replace(
        p,
        cotangents=tuple(torch.cat((g[:, :at], torch.zeros_like(g[:, at:])), 1) for g in p.cotangents),
        final_cotangents=tuple(map(torch.zeros_like, p.final_cotangents)),
    )
    changed = {
        n: torch.cat((x[:, :at], other.given[n][:, at:]), 1) if n in p.per_step else x for n, x in p.given.items()
    }
    one, two = run(quiet, **options), run(replace(quiet, given=changed), **options)
    for found in (one, two):
        for n in p.outputs:
            found[n] = found[n][:, :at]
        for n, _ in p.signature.states:
            del found[f"final {n}"]
    return differing(two, one)


def no_state(p: Problem, **options: Any) -> dict[str, float]:
    """What differs between an initial state of zeros and none."""
    zeros = tuple(map(torch.zeros_like, p.final_cotangents))
    return differing(run(replace(p, states=None), **options), run(replace(p, states=zeros), **options))


def once_more(p: Problem, times: int = 2, **options: Any) -> dict[str, float]:
    """What differs between runs of one call."""
    first = run(p, **options)
    found: dict[str, float] = {}
    for _ in range(times - 1):
        found |= differing(run(p, **options), first)
    return found


def other_entries(p: Problem, **options: Any) -> dict[str, float]:
    """What differs between batch entries, or packed sequences, alone and beside each other."""
    whole = run(p, **options)
    count = len(p.final_cotangents[0])
    kept = [n for n in whole if n[1:] not in p.given or n[1:] in p.per_step]  # a parameter's gradient is a sum
    alone = [run(sequence(p, n), **options) for n in range(count)]

    def joined(n: str) -> Tensor:
        is_state = n.startswith(("final ", "d initial "))
        return torch.cat([x[n] for x in alone], 0 if is_state or p.lengths is None else 1)

    return differing({n: whole[n] for n in kept}, {n: joined(n) for n in kept})


def other_heads(p: Problem, **options: Any) -> dict[str, float]:
    """What differs between heads alone, and beside each other."""
    whole = run(p, **options)

    def axis(n: str) -> int:
        if n.startswith(("final ", "d initial ")):
            return 1
        return 0 if n[1:] in p.given and n[1:] not in p.per_step else 2

    alone = []
    for h in range(p.final_cotangents[0].shape[1]):
        parts = {n: x.narrow(2 if n in p.per_step else 0, h, 1) for n, x in p.given.items()}
        own = replace(
            p,
            given=parts,
            states=None if p.states is None else tuple(x[:, h : h + 1] for x in p.states),
            cotangents=tuple(x[:, :, h : h + 1] for x in p.cotangents),
            final_cotangents=tuple(x[:, h : h + 1] for x in p.final_cotangents),
        )
        alone.append(run(own, **options))
    return differing(whole, {n: torch.cat([x[n] for x in alone], axis(n)) for n in whole})


def sequence(p: Problem, n: int) -> Problem:
    """One batch entry, or one of packed sequences, alone."""
    row = slice(n, n + 1)
    entry, here = row, slice(None)
    if p.lengths is not None:
        entry, here = slice(0, 1), slice(sum(p.lengths[:n]), sum(p.lengths[: n + 1]))
    return dataclasses.replace(
        p,
        given={k: x[entry, here] if k in p.per_step else x for k, x in p.given.items()},
        states=None if p.states is None else tuple(x[row] for x in p.states),
        cotangents=tuple(x[entry, here] for x in p.cotangents),
        final_cotangents=tuple(x[row] for x in p.final_cotangents),
        lengths=None,
    )


def differing(got: dict[str, Tensor], want: dict[str, Tensor]) -> dict[str, float]:
    """Quantities of both whose bits differ (0 is -0, NaN is NaN), each with the largest difference beside the largest entry."""
    return {n: _distance(got[n], want[n]) for n in want if n in got and not same(got[n], want[n])}


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _distance(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    return float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-300))


# --- attentions -------------------------------------------------------------------------------------------------------

ATTENTIONS = tuple(n for n in NAMES if n not in RECURRENCES and hasattr(getattr(chunkform.generated, n), "__code__"))


@dataclass(frozen=True)
class AttentionProblem:
    """Arguments of an attention, and gradients of its outputs and, last, of its log-sum-exp. `options`: causal, if it can be."""

    op: Any
    given: dict[str, Tensor]
    per_position: set[str]
    cotangents: tuple[Tensor, ...]
    along: tuple[bool, ...]  # is each result along positions?
    options: dict[str, Any]


def attention_problem(name: str, case: Case, causal: bool = True) -> AttentionProblem:
    """Random arguments of an attention of the catalogue; causal where its queries have positions."""
    module = importlib.import_module(f"chunkform.generated.{name}")
    op, s = getattr(module, name), module.SIGNATURE
    g = torch.Generator().manual_seed(case.seed)
    names = list(dict.fromkeys(d for a in s.arguments for d in a.dims))
    sizes = dict(zip(names, itertools.cycle(case.widths), strict=False))
    given: dict[str, Tensor] = {}
    for a in s.arguments:
        if a.kind == "constant":
            continue
        lead = [case.batch, case.steps, case.heads] if a.per_step else [case.heads]
        own = [sizes[d] for d in a.dims]
        x = torch.rand(*lead, generator=g) + 0.5 if not own else torch.randn(*lead, *own, generator=g) / own[-1] ** 0.5
        wide = a.kind == "temperature" and case.dtype != torch.float64
        given[a.name] = x.to(case.device, torch.float32 if wide else case.dtype)
    options = {"causal": causal} if s.nodes is None else {}
    options |= {"output_lse": True} if s.normaliser == "softmax" else {}
    with torch.no_grad():
        found = op(**given, **options)
    results = found if isinstance(found, tuple) else (found,)
    cotangents = tuple(torch.randn(x.shape, generator=g).to(x) for x in results)
    along = tuple([p for _, p, _ in s.outputs] + [s.nodes is None] * (len(results) - len(s.outputs)))
    per_position = {a.name for a in s.arguments if a.per_step}
    return AttentionProblem(op, given, per_position, cotangents, along, options)


def run_attention(p: AttentionProblem, **options: Any) -> dict[str, Tensor]:
    """Results, by number, and gradients."""
    given = {n: x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for n, x in p.given.items()}
    found = p.op(**given, **(p.options | options))
    results = found if isinstance(found, tuple) else (found,)
    torch.autograd.backward(list(results), list(p.cotangents))
    out = {str(n): x.detach() for n, x in enumerate(results)}
    return out | {f"d{n}": torch.zeros_like(x) if x.grad is None else x.grad for n, x in given.items()}


def later_positions(p: AttentionProblem, other: AttentionProblem, at: int, **options: Any) -> dict[str, float]:
    """As `later_steps`."""
    quiet = replace(p, cotangents=tuple(torch.cat((g[:, :at], torch.zeros_like(g[:, at:])), 1) for g in p.cotangents))
    changed = {
        n: torch.cat((x[:, :at], other.given[n][:, at:]), 1) if n in p.per_position else x for n, x in p.given.items()
    }
    one, two = run_attention(quiet, **options), run_attention(replace(quiet, given=changed), **options)
    for found in (one, two):
        for n in range(len(p.cotangents)):
            found[str(n)] = found[str(n)][:, :at]
    return differing(two, one)


def other_attention_entries(p: AttentionProblem, **options: Any) -> dict[str, float]:
    """As `other_entries`."""
    whole = run_attention(p, **options)
    kept = [n for n in whole if n.isdigit() or n[1:] in p.per_position]
    alone = []
    for b in range(len(p.cotangents[0])):
        row = slice(b, b + 1)
        given = {n: x[row] if n in p.per_position else x for n, x in p.given.items()}
        alone.append(run_attention(replace(p, given=given, cotangents=tuple(g[row] for g in p.cotangents)), **options))
    return differing({n: whole[n] for n in kept}, {n: torch.cat([x[n] for x in alone]) for n in kept})
