"""Gradients of decays, head by head and channel by channel: each head forgets at a pace of its own, from hardly at all to all but
everything in one step; and outputs and gradients of a prefix, bit by bit, where what comes after it changes.

    python tests/shared/decay_errors.py [--device cuda] [--backend triton] [--dtype bfloat16] [--gradients] [NAME ..]

prints for each recurrence the worst of its decays' gradients against what is allowed.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from chunkform.codegen.commands.compile import compile_module
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.samples import Case, Sample, sample
from shared.spec_files import catalogue, compiled_once, read
from shared.triton_errors import CRASHED, EXTRA, module, named, poisoned, reference

LEVELS = (-0.01, -1.0, -4.0, -8.0, -12.0, -20.0)  # log decays of a step
AMPLIFIED = 10.0  # times the error of a step-by-step run with a state in float32 is allowed
BOUND = {torch.float32: 1e-5, torch.float64: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}
PUBLISHED = Path(__file__).parents[2] / "spec" / "published"

Run = Callable[[str, Sample], dict[str, Tensor]]


@functools.cache
def specs() -> dict[str, Any]:
    """All recurrences of the catalogue, the tests and the benchmarks that have decays."""
    folders = (PUBLISHED, EXTRA, CRASHED)
    found = [*(r for x in folders for path in sorted(x.glob("[!_]*.py")) for r in read(path)), *catalogue()]
    return {r.name: r for r in found}


@functools.cache
def compiled(name: str) -> Compiled:
    return compiled_once(specs()[name])


def with_decays(name: str) -> list[str]:
    return [v.name for v in compiled(name).step.variables if v.is_decay]


def by_channel(name: str) -> bool:
    """Has it a decay for each channel, and a form over chunks?"""
    c = compiled(name)
    return c.family == "chunk-parallel" and any(v.is_decay and v.axes for v in c.step.variables)


def graded(name: str, case: Case) -> Sample:
    """Arguments whose heads forget at these levels: first each all of it at one pace; then every second channel of a head, or
    every fourth step where there are no channels, while the rest hardly forgets."""
    c = compiled(name)
    s = sample(c, replace(case, heads=2 * len(LEVELS)))
    levels = torch.tensor(LEVELS)
    given = dict(s.given)
    for v in (v for v in c.step.variables if v.is_decay):
        x = given[v.name]
        head = levels.repeat(2).reshape(-1, *[1] * len(v.axes)).expand(x.shape[-1 - len(v.axes) :])
        pace = head.expand(x.shape).clone()
        mixed = slice(len(LEVELS), None)
        if v.axes:
            pace[..., mixed, 1::2] = -0.05
        elif v.per_step:
            weak = torch.arange(x.shape[1]) % 4 != 0
            pace[:, weak, mixed] = -0.05
        given[v.name] = pace.to(x)
    return replace(s, given=given)


def rounded(c: Compiled, s: Sample, dtype: torch.dtype) -> Sample:
    inputs = {v.name for v in c.step.variables if v.kind == "input"}
    given = {n: x.to(dtype) if n in inputs else x for n, x in s.given.items()}
    return replace(s, given=given, cotangents={n: None if x is None else x.to(dtype) for n, x in s.cotangents.items()})


def moved(s: Sample, device: str) -> Sample:
    def to(x: dict[str, Any]) -> dict[str, Any]:
        return {n: None if y is None else y.to(device) for n, y in x.items()}

    return Sample(to(s.given), to(s.states), s.constants, to(s.cotangents), to(s.final_cotangents))


def torch_form(name: str, s: Sample) -> dict[str, Tensor]:
    return _run(compile_module(specs()[name]), "torch", s)


def triton_form(name: str, s: Sample) -> dict[str, Tensor]:
    return _run(_triton(name), "triton", s)


@functools.cache
def _triton(name: str) -> Any:
    return module(name) if name not in specs() else compile_module(specs()[name])


def _run(m: Any, stem: str, s: Sample) -> dict[str, Tensor]:
    needs = frozenset([*s.given, *s.states])
    forward, backward = getattr(m, f"{stem}_forward"), getattr(m, f"{stem}_backward")
    with poisoned():
        outputs, finals, saved = forward(s.given, s.states, s.constants)
        gradients, initial = backward(s.given, s.states, s.constants, saved, s.cotangents, s.final_cotangents, needs)
    return named(outputs, finals, gradients, initial)


@dataclass(frozen=True)
class Worst:
    """Of a decay's gradient: the head and channel that exceed most what they may."""

    quantity: str
    place: tuple[int, ...]
    error: float
    allowed: float

    @property
    def ok(self) -> bool:
        return self.error <= self.allowed  # NaN fails


def worst(name: str, run: Run, case: Case, dtype: torch.dtype = torch.float32) -> list[Worst]:
    """For each decay the worst of its gradient's relative errors, of a norm over batch and time, against what it may be."""
    c = compiled(name)
    s = rounded(c, graded(name, replace(case, device="cpu")), dtype)
    exact, single = reference(c, s), reference(c, s, torch.float32)
    out = run(name, moved(s, case.device))
    found = []
    for v in (v for v in c.step.variables if v.is_decay):
        quantity = f"d{v.name}"
        over = (0, 1) if v.per_step else ()

        def norm(x: Tensor, over: tuple[int, ...] = over) -> Tensor:
            return x.double().norm(dim=over) if over else x.double().abs()

        true = exact[quantity]
        size = norm(true)
        off, step = (norm(x[quantity].cpu().double() - true) for x in (out, single))
        allowed = torch.clamp(AMPLIFIED * step / size, min=BOUND[dtype])
        # operands of products hold nothing below their smallest normal number: a gradient as small may be zero
        smallest = torch.finfo(dtype).tiny * (true.numel() / size.numel()) ** 0.5
        tiny = size < smallest
        error = torch.where(tiny, torch.where(norm(out[quantity].cpu()) < 2 * smallest, 0.0, torch.inf), off / size)
        allowed = torch.where(tiny, torch.ones_like(allowed), allowed)
        ratio = torch.where(error.isnan(), torch.inf, error / allowed)
        place = torch.unravel_index(ratio.argmax(), ratio.shape)
        found.append(Worst(quantity, tuple(int(i) for i in place), float(error[place]), float(allowed[place])))
    return found


# --- causality ------------------------------------------------------------------------------------------------------


def changed_after(
    name: str, run: Run, case: Case, edges: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> list[str]:
    """What isn't the same, bit by bit, before a step where all inputs change from that step on: outputs, and gradients of a loss
    on what comes before it."""
    c = compiled(name)
    per_step = {v.name for v in c.step.variables if v.per_step}
    defects = []
    s = rounded(c, sample(c, replace(case, device="cpu")), dtype)
    for n, edge in enumerate(edges):
        other = rounded(c, sample(c, replace(case, device="cpu", seed=case.seed + 1 + n, decay="strong")), dtype)
        results = []
        for later in (s, other):
            given = {
                k: torch.cat((x[:, :edge], later.given[k][:, edge:]), 1) if k in per_step else x
                for k, x in s.given.items()
            }
            cotangents = {
                k: None if x is None else torch.cat((x[:, :edge], torch.zeros_like(x[:, edge:])), 1)
                for k, x in s.cotangents.items()
            }
            finals = {k: None if x is None else torch.zeros_like(x) for k, x in s.final_cotangents.items()}
            mine = Sample(given, s.states, s.constants, cotangents, finals)
            results.append({k: x.cpu() for k, x in run(name, moved(mine, case.device)).items()})
        for quantity, x in results[0].items():
            y = results[1][quantity]
            if quantity.startswith("final "):
                continue
            if quantity in c.step.outputs or quantity[1:] in per_step:
                x, y = x[:, :edge], y[:, :edge]
            elif not quantity.startswith("d initial "):
                continue  # a parameter's gradient is summed over all steps
            if not torch.equal(x, y):
                defects.append(f"{quantity} before {edge}: {(x.double() - y.double()).abs().max():.1e}")
    return defects


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    for option, default in (
        ("backend", "torch"),
        ("device", "cpu"),
        ("dtype", "float32"),
        ("steps", 150),
        ("width", 16),
    ):
        parser.add_argument(f"--{option}", default=default, type=type(default))
    parser.add_argument("--gradients", action="store_true", help="leave out what later steps change")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args(arguments)
    dtype = getattr(torch, options.dtype)
    run = triton_form if options.backend == "triton" else torch_form
    case = Case(batch=1, steps=options.steps, width=options.width, device=options.device)
    for name in options.names or [n for n in specs() if by_channel(n)]:
        for x in worst(name, run, case, dtype):
            verdict, place = "ok " if x.ok else "BAD", str(x.place)
            print(f"{verdict} {name:28} {x.quantity:12} {place:10} {x.error:9.1e} of {x.allowed:.1e}", flush=True)
        if options.gradients:
            continue
        later = changed_after(name, run, replace(case, heads=2), (41, 64, 77), dtype)
        print(f"{'ok ' if not later else 'BAD'} {name:28} {'; '.join(later)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
