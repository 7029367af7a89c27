"""Errors of the Triton kernels on a GPU, against the float64 oracle, and those that rounding alone would make."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from chunkform.codegen.checking.accuracy import head_axis, relative_error
from chunkform.codegen.recurrence.check import error_of, samples
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.oracle import oracle
from chunkform.codegen.recurrence.samples import Case, Sample, sample
from chunkform.codegen.recurrence.triton import IMPORTS, CannotPrint, triton_source
from chunkform.runtime.launch.varlen import Packed

from .heads import FEW
from .printed import kept
from .spec_files import SPECS as EXTRA
from .spec_files import catalogue, compiled_once, read_all

if os.environ.get("TRITON_INTERPRET") == "1":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from shared import bfloat16_interpreted, bounds_interpreted, fast_interpreter  # noqa: F401

ROUNDED = 0.1  # the largest error that rounding arguments may make where errors are judged
CRASHED = Path(__file__).parents[1] / "codegen" / "recurrence" / "triton" / "specs"  # run by the interpreter alone


@functools.cache
def names() -> tuple[str, ...]:
    """The chunk-parallel recurrences of the catalogue and of the tests that have Triton kernels."""
    return tuple(n for n in every_name() if printable(n))


def every_name() -> tuple[str, ...]:
    """The recurrences of the catalogue and of the tests, which takes no compiling."""
    return tuple(sorted(_specs(EXTRA)))


@functools.cache
def compiled(name: str) -> Compiled:
    return compiled_once(_specs(EXTRA, CRASHED)[name])


def load_specs() -> None:
    """Read all of them, for processes that are forked."""
    _specs(EXTRA, CRASHED)


@functools.cache
def _specs(*folders: Path) -> dict[str, Any]:
    return {r.name: r for r in (*catalogue(), *(r for x in folders for r in read_all(x).values()))}


@functools.cache
def printable(name: str) -> bool:
    """Has it kernels over chunks?"""
    if compiled(name).family != "chunk-parallel":
        return False
    try:
        triton_source(compiled(name))
    except CannotPrint:
        return False
    return True


@functools.cache
def module(name: str) -> Any:
    """The Triton section of a recurrence as a module."""
    lines = ["import torch", "import triton", "import triton.language as tl"]
    lines += [f"from {m} import {', '.join(names.split())}" for m, names in IMPORTS.items()]
    path = Path(tempfile.mkdtemp()) / f"{name}.py"
    path.write_text("\n".join(lines) + "\n\n\n" + kept(compiled(name), triton_source))
    spec = importlib.util.spec_from_file_location(f"chunkform_test_{name}", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[made.__name__] = made
    spec.loader.exec_module(made)
    return made


@dataclass(frozen=True)
class Error:
    """`error` of the kernels and `rounding`, the error that rounding inputs and outputs alone makes.

    `definition` is the error of the step-by-step definition itself in float32, taken where float32 kernels miss 1e-5.
    """

    recurrence: str
    quantity: str
    dtype: str
    shape: str
    decay: str
    error: float
    rounding: float
    definition: float | None = None

    @property
    def ratio(self) -> float:
        return self.error / self.rounding if self.rounding else float("inf")


def run(m: Any, s: Sample, needs: frozenset[str] | None = None, packed: Any = None) -> dict[str, torch.Tensor]:
    """Outputs, last states and gradients by Triton, from uninitialised memory full of NaN."""
    needs = needs if needs is not None else frozenset([*s.given, *s.states])
    with poisoned():
        outputs, finals, saved = m.triton_forward(s.given, s.states, s.constants, packed)
        gradients, initial = m.triton_backward(
            s.given, s.states, s.constants, saved, s.cotangents, s.final_cotangents, needs, packed
        )
    return named(outputs, finals, gradients, initial)


def named(outputs: Any, finals: Any, gradients: Any, initial: Any) -> dict[str, torch.Tensor]:
    return (
        dict(outputs)
        | {f"final {n}": x for n, x in finals.items()}
        | {f"d{n}": x for n, x in gradients.items()}
        | {f"d initial {n}": x for n, x in initial.items()}
    )


def packed_difference(name: str, lengths: tuple[int, ...], device: str = "cpu") -> float:
    """The largest relative difference between packed sequences and each of them on its own, over every quantity."""
    c, m = compiled(name), module(name)
    s = sample(c, Case(batch=1, heads=2, width=16, steps=sum(lengths), device=device))
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], device=device)
    random = torch.Generator().manual_seed(1)

    def many(x: torch.Tensor | None) -> torch.Tensor | None:
        return None if x is None else 0.1 * torch.randn(len(lengths), *x.shape[1:], generator=random).to(x)

    states = {n: many(x) for n, x in s.states.items()}
    last = {n: many(x) for n, x in s.final_cotangents.items()}
    whole = run(m, replace(s, states=states, final_cotangents=last), packed=Packed(starts, len(lengths), sum(lengths)))
    per_step = {v.name for v in c.step.variables if v.per_step}
    sums: dict[str, torch.Tensor] = {}
    worst = 0.0
    for n, length in enumerate(lengths):
        begin = int(starts[n])

        def own(x: dict[str, Any], begin: int = begin, length: int = length) -> dict[str, Any]:
            return {
                k: v if k not in per_step and k not in c.step.output_axes else v[:, begin : begin + length]
                for k, v in x.items()
            }

        def row(x: dict[str, Any], n: int = n) -> dict[str, Any]:
            return {k: None if v is None else v[n : n + 1] for k, v in x.items()}

        alone = run(m, Sample(own(s.given), row(states), s.constants, own(s.cotangents), row(last)))
        for quantity, x in alone.items():
            if quantity.startswith(("final ", "d initial ")):
                worst = max(worst, error_of(c.step, quantity, whole[quantity][n : n + 1], x))
            elif quantity in c.step.output_axes or quantity[1:] in per_step:
                worst = max(worst, error_of(c.step, quantity, whole[quantity][:, begin : begin + length], x))
            else:
                sums[quantity] = sums.get(quantity, 0) + x
    return max([worst, *(error_of(c.step, quantity, whole[quantity], x) for quantity, x in sums.items())])


class poisoned:
    """Fresh memory holds NaN, so that what a kernel forgets to write is seen."""

    def __enter__(self) -> None:
        self.original = torch.Tensor.new_empty

        def new_empty(x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
            made = self.original(x, *args, **options)
            return made.fill_(float("nan") if made.is_floating_point() else 7)

        torch.Tensor.new_empty = new_empty  # type: ignore[method-assign]

    def __exit__(self, *_: Any) -> None:
        torch.Tensor.new_empty = self.original  # type: ignore[method-assign]


def reference(c: Compiled, s: Sample, wide: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    """Every quantity of the oracle."""
    return named(*oracle(c, s.given, s.states, s.constants, s.cotangents, s.final_cotangents, wide))


def judged(
    c: Compiled, case: Case, dtype: torch.dtype
) -> tuple[Case, Sample, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """(case, arguments rounded to `dtype`, the exact values, those of the rounded arguments), tame enough to be judged: what
    rounding alone makes of every quantity is far from its size."""
    inputs = {v.name for v in c.step.variables if v.kind == "input"}

    def low(x: dict[str, Any], wanted: Any) -> dict[str, Any]:
        return {n: v.to(dtype) if v is not None and n in wanted else v for n, v in x.items()}

    largest = 1e4 if dtype == torch.float16 else 1e12
    cases = [replace(case, dtype=torch.float32, seed=case.seed + 100 * n) for n in range(4)]
    for held, exact, ref in (found for some in cases for found in samples(c, some, largest)):
        near = replace(exact, given=low(exact.given, inputs), cotangents=low(exact.cotangents, exact.cotangents))
        close = reference(c, near)
        if all(error_of(c.step, n, close[n], x) < ROUNDED for n, x in ref.items()):
            return held, near, ref, close
    raise AssertionError(f"{c.name} makes {dtype} arguments' rounding too large to judge by, even after one step")


def moved(s: Sample, device: str) -> Sample:
    def all_of(x: dict[str, Any]) -> dict[str, Any]:
        return {n: None if v is None else v.to(device) for n, v in x.items()}

    return Sample(all_of(s.given), all_of(s.states), s.constants, all_of(s.cotangents), all_of(s.final_cotangents))


@dataclass
class Run:
    """What the kernels make of one sample, beside what they should."""

    c: Compiled
    case: Case
    near: Sample
    exact: dict[str, torch.Tensor]
    close: dict[str, torch.Tensor]
    out: dict[str, torch.Tensor]

    @functools.cached_property
    def single(self) -> dict[str, torch.Tensor]:
        """The definition in float32."""
        return reference(self.c, self.near, torch.float32)

    @functools.cached_property
    def rounded(self) -> dict[str, torch.Tensor]:
        return {n: x.to(self.out[n].dtype) for n, x in self.close.items()}


def by_head(x: torch.Tensor, axis: int) -> torch.Tensor:
    """[H, all else]; a parameter may have one number a head."""
    return x.movedim(axis, 0).reshape(x.shape[axis], -1)


def errors(name: str, case: Case, dtype: torch.dtype, few: int = FEW) -> list[Error]:
    """Errors of every quantity, where the kernels are given inputs rounded to `dtype`.

    Of each quantity the worst head's. A quantity of fewer than `few` numbers a head is taken over several samples: its relative
    error in one sample is a matter of chance, since each number is a sum over many steps, which may cancel. The oracle's small
    steps are faster on the CPU, which many tests share better than a GPU.
    """
    runs: list[Run] = []

    def samples_of(numbers: int) -> list[Run]:
        count = 1 if numbers >= few else -(-few // max(1, numbers))
        while len(runs) < count:
            c = compiled(name)
            seed = case.seed + 1000 * len(runs)
            held, near, exact, close = judged(c, replace(case, seed=seed, device="cpu"), dtype)
            out = {n: x.cpu() for n, x in run(module(name), moved(near, case.device)).items()}
            runs.append(Run(c, held, near, exact, close, out))
        return runs[:count]

    (first,) = samples_of(few)
    shape = "x".join(str(x) for x in (first.case.batch, first.case.steps, first.case.heads, first.case.width))
    rows = []
    for quantity, x in first.exact.items():
        assert first.out[quantity].shape == x.shape, quantity
        axis = head_axis(first.c.step, quantity)
        several = samples_of(x.numel() // max(1, x.shape[axis]))

        def off(which: str, quantity: str = quantity, several: list[Run] = several, axis: int = axis) -> float:
            values, exact = (
                torch.cat([by_head(getattr(r, n)[quantity], axis) for r in several], 1) for n in (which, "exact")
            )
            return relative_error(values, exact, 0, dtype)  # operands of products hold nothing smaller

        error, kind = off("out"), str(dtype).removeprefix("torch.")
        definition = off("single") if dtype == torch.float32 and not error <= 1e-5 else None
        rows.append(Error(name, quantity, kind, shape, first.case.decay, error, off("rounded"), definition))
    return rows
