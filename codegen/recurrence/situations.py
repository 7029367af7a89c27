"""The situations in which an op is called, as factors of a covering array, and what the op makes of one beside its definition.

What an op should be comes from the declaration alone: the order of its arguments, their names, constants' defaults. Nothing is
asked of the generated text.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from chunkform.errors import SpecError
from chunkform.spec.language import Declaration, Recurrence
from chunkform.spec.language.recurrence import Variable

from ..checking.accuracy import Judged
from ..checking.checked import Op
from ..checking.covering import Row
from ..checking.layouts import LAYOUTS, laid_out
from ..ir.expr import dim_of, walk
from ..ir.step_program import StepProgram, number_within
from .check import BOUND, EXPLODED, judge_all, judge_rounded, samples
from .chunkwise.compiled import Compiled
from .definition import Oracle
from .oracle import initial_state, oracle
from .samples import Case, Sample, sample

# The first choice of each factor is the simplest: what a failure has in common is found by going back to it.
STEPS = (20, 0, 1, 64, 65, 129, 150, 197, 330)  # below, at and above several chunks, with a tail and without
# Of a vector of one entry that is divided by its own size nothing is left but rounding: such a dim is as wide as at first.
WIDTHS = ((16, 24, 20), (32, 32, 32), (5, 9, 3), (33, 20, 17), (72, 40, 24), (24, 96, 66), (1, 24, 20), (16, 1, 20))
DTYPES = ("float32", "float64", "bfloat16", "float16")
DECAYS = {
    "usual": "usual",
    "0": "none",
    "-12 at each step": "constant",
    "-20 at each step": "constant -20",
    "down to -28": "forgetful",
    "down to -inf": "extreme",
}
HALF, KERNELS_HALF = 1e4, 2e3  # the largest value in float16's cases; nothing on the way may come near 65504
DECAYS_BOUND = 2e-2


class Stepped(Protocol):
    """What is compiled, and has steps."""

    @property
    def step(self) -> StepProgram: ...


D = TypeVar("D", bound=Declaration)
C = TypeVar("C", bound=Stepped)


@dataclass(frozen=True)
class StepSubject(Generic[D, C]):
    """A declaration of steps with its op; subclasses say how to draw its arguments and what these should give."""

    spec: D
    compiled: C
    op: Op
    device: str = "cpu"

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def declared(self) -> Recurrence:
        """What declares the arguments and states."""
        raise NotImplementedError

    @property
    def oracle(self) -> Oracle:
        raise NotImplementedError

    def sampled(self, case: Case) -> Sample:
        raise NotImplementedError

    @cached_property
    def keys(self) -> dict[str, str]:
        """The names under which tensors are passed, in the order of their declaration."""
        some = [v for v in self.declared.variables if v.kind not in ("constant", "solved")]
        return {v.name: v.argument for v in some}

    @cached_property
    def numbers(self) -> list[Variable]:
        """The constants."""
        return [v for v in self.declared.variables if v.kind == "constant"]

    @cached_property
    def defaults(self) -> dict[str, float | None]:
        return {v.name: None if v.default is None else float(v.default) for v in self.numbers}

    @cached_property
    def backends(self) -> tuple[str, ...]:
        """Those that may be asked for here."""
        if self.device == "cpu" or "triton" not in backends_of(self.op):
            return ("torch",)
        return ("torch", "triton")

    @property
    def packs(self) -> bool:
        """Do the op's kernels take packed sequences? Those of programs take none yet."""
        return "triton" not in self.backends or "packed" in backends_of(self.op)["triton"].features

    @cached_property
    def fades(self) -> bool:
        """Is a matrix that is solved for singular once its decays have forgotten its initial value?"""
        return False

    @cached_property
    def definite(self) -> set[str]:
        """States that are solved for, and so must be positive definite."""
        return set()

    @cached_property
    def factors(self) -> dict[str, Sequence[Any]]:
        """What may differ between two calls of this op."""
        r = self.declared
        tensors, dims = list(self.keys), len(r.dim_list)
        free = [s for s in self.compiled.step.states if s.initial is None or self.spec is self.declared]
        found: dict[str, Sequence[Any]] = {
            "dtype": DTYPES,
            "T": STEPS,
            "widths": tuple(dict.fromkeys(self._widths(x[:dims] if dims <= 3 else (*x, *x)[:dims]) for x in WIDTHS)),
            "sequences": ("two", "one", "one packed", "several packed"),
            "heads": (
                "two",
                "one",
                *(("fewer in the first argument", "fewer in the others") if len(tensors) > 1 else ()),
            ),
            "initial state": ("given", "none", "zeros", *(("first given",) if len(free) > 1 else ())),
        }
        if any(v.is_decay for v in r.variables):
            found["log decays"] = ("usual", "0") if self.fades else tuple(DECAYS)
        found["layout"] = LAYOUTS
        found["arguments"] = ("by name", "in order")
        if any(x is not None for x in self.defaults.values()):
            found["constants"] = ("given", "left to their defaults")
        found["precision"] = ("default", "high", "fast")
        found["recompute"] = ("auto", "always", "never")
        found["deterministic"] = ("no", "yes")
        found["gradients"] = ("all", "some", *(("the others",) if len(tensors) > 1 else ()), "none")
        found["final state"] = ("wanted", "not wanted", "in bfloat16")
        found["backend"] = ("chosen", *self.backends)
        if not self.compiled.step.states:
            found |= {"sequences": ("two", "one"), "initial state": ("none",), "final state": ("not wanted",)}
            found["recompute"] = ("auto",)
        return found

    @property
    def together(self) -> tuple[tuple[str, ...], ...]:
        """Gradients of initial states, which are taken with all others."""
        return (("sequences", "initial state", "gradients"),)

    def _widths(self, widths: tuple[int, ...]) -> tuple[int, ...]:
        dims = (d.name for d in self.declared.dim_list)
        return tuple(WIDTHS[0][0] if x == 1 and d in self.divided_by else x for d, x in zip(dims, widths, strict=True))

    @cached_property
    def divided_by(self) -> set[str]:
        """Dims that a sum is over by which something is divided."""
        step = self.compiled.step
        every = [x for y in (*step.outputs.values(), *step.updates.values()) for x in walk(y)]
        below = [x.args[0] for x in every if x.op == "pow" and x.attrs[0] < 0]
        sums = [y for x in below for y in walk(x) if y.op == "sum"]
        return {dim_of(a) for y in sums for a in y.attrs}

    def allowed(self, row: Row) -> bool:
        """May these choices be made together?"""
        triton = row.get("backend") == "triton"
        if triton and row.get("dtype") == "float64":
            return False
        packed = row.get("sequences", "").endswith("packed")
        return not (packed and self.device != "cpu" and row.get("backend", "torch") != "torch" and not self.packs)

    # --- one call ---------------------------------------------------------------------------------------------------

    def tried(self, row: Row) -> dict[str, Judged]:
        """The worst head of each quantity of one call.

        Raises:
            SpecError: there are no arguments for which the recurrence has finite values.
        """
        case = self.case(row)
        largest = EXPLODED
        if case.dtype == torch.float16:
            largest = KERNELS_HALF if self._on_triton(row) else HALF
        gradients = row["gradients"] != "none"
        found: dict[str, Judged] = {}
        for held, s, exact in samples(self.compiled, case, largest, self._drawn(row), self.oracle, gradients):
            computed = self.computed(row, held, s)
            bounds = {
                n: BOUND[torch.bfloat16] for n in computed if n.startswith("final ") and "bfl" in row["final state"]
            }
            if self._on_tensor_cores(row) and held.dtype == torch.bfloat16:
                decays = {v.name for v in self.declared.variables if v.is_decay}
                bounds |= {n: DECAYS_BOUND for n in computed if n.startswith("d") and n[1:] in decays}
            missing = [n for n in exact if n not in computed]
            exact = {n: x for n, x in exact.items() if n not in missing}
            low = {"low": held.dtype} if self._on_tensor_cores(row) and self.oracle is oracle else {}
            if self._rounds_once(row):
                found = judge_rounded(self.compiled, computed, exact, s, held)
            else:
                found = judge_all(self.compiled, computed, exact, s, held, self.oracle, bounds, **low)
            if held.steps <= 1 or not any(j.overflows for j in found.values()):
                break
        if found:
            kept = " in bfloat16" if row["final state"] == "in bfloat16" else ""
            return {self.shown(n) + kept * n.startswith("final "): j for n, j in found.items()}
        raise SpecError(f"{self.name} can't be checked: it has no finite values for random arguments", self.spec.where)

    def case(self, row: Row) -> Case:
        half = row["precision"] == "fast" and row["dtype"] == "float32" and self._on_triton(row)
        packed = {"one packed": "one", "several packed": "several"}.get(row["sequences"], "")
        names = list(self.keys)
        few = {"fewer in the first argument": names[:1], "fewer in the others": names[1:]}.get(row["heads"], [])
        heads = {"one": 1, "two": 2}.get(row["heads"], 4)
        return Case(
            batch=2 if row["sequences"] == "two" else 1,
            steps=row["T"],
            heads=heads,
            dtype=torch.bfloat16 if half else getattr(torch, row["dtype"]),
            device=self.device,
            seed=row.get("seed", 0),
            decay=DECAYS[row.get("log decays", "usual")],
            initial=row["initial state"] != "none",
            widths=row["widths"],
            groups=tuple((n, 1 + i % 2) for i, n in enumerate(few)),
            packed=packed,
        )

    def shown(self, quantity: str) -> str:
        """By the name that a user knows."""
        name = quantity[1:]
        return f"d{self.keys[name]}" if quantity not in self.compiled.step.outputs and name in self.keys else quantity

    def _drawn(self, row: Row) -> Callable[[Any, Case], Sample]:
        def draw(_: object, case: Case) -> Sample:
            s = self.sampled(case)
            states = dict(s.states)
            if self.spec is self.declared and row["initial state"] in ("given", "first given"):
                states = {
                    n: self._start(n, s, case, self._constants(row)) if x is None else x for n, x in states.items()
                }
            if row["initial state"] == "zeros":
                states = {n: x if x is None or n in self.definite else torch.zeros_like(x) for n, x in states.items()}
            if row["initial state"] == "first given":
                first = next(n for n, x in states.items() if x is not None)
                states = {n: x if n == first else None for n, x in states.items()}
            finals: dict[str, Tensor | None] = dict(s.final_cotangents)
            if row["final state"] == "not wanted":
                finals = dict.fromkeys(finals)
            if row["final state"] == "in bfloat16":  # in which its gradient comes
                finals = {n: None if x is None else x.to(torch.bfloat16) for n, x in finals.items()}
            return dataclasses.replace(s, states=states, final_cotangents=finals, constants=self._constants(row))

        return draw

    def _constants(self, row: Row) -> dict[str, float]:
        """Those that are left to their defaults have the declaration's; others a number that isn't their default."""
        factor = 1.0 if row.get("constants", "given") != "given" else 0.75
        given = [0.5 if v.default is None else factor * float(v.default) for v in self.numbers]
        return {v.name: number_within(x, v.domain) for v, x in zip(self.numbers, given, strict=True)}

    def _start(self, name: str, s: Sample, case: Case, constants: dict[str, float]) -> Tensor:
        """An initial state near the spec's own, where the recurrence lives."""
        step = self.compiled.step
        sizes = dict(zip((d.name for d in self.declared.dim_list), case.widths, strict=False))
        axis = {v.name: 0 for v in step.variables if not v.per_step}
        few = {n: x.double() for n, x in s.given.items() if n in axis}
        whole = {n: x.repeat_interleave(case.heads // x.shape[0], 0) for n, x in few.items()}
        sequences = len(case.lengths) if case.lengths else case.batch
        own = initial_state(step, name, whole, constants, sizes, sequences, case.heads, case.device)
        g = torch.Generator().manual_seed(case.seed + 7)
        width = max([1, *(sizes.get(dim_of(a), 1) for a in step.state(name).axes)])
        noise = torch.randn(own.shape, generator=g).to(case.device) * 0.1 / width**0.5
        return (own + noise).to(torch.float64 if case.dtype == torch.float64 else torch.float32)

    def computed(self, row: Row, case: Case, s: Sample) -> dict[str, Tensor | None]:
        """Outputs, final states and gradients of one call, by declared names."""
        dtype = getattr(torch, row["dtype"])
        inputs = {v.name for v in self.declared.variables if v.kind == "input"}

        def placed(x: Tensor, n: str) -> Tensor:
            return laid_out(x.to(dtype) if n in inputs else x, row["layout"])

        every = list(s.given)
        wanted = {"all": every, "some": every[::2], "the others": every[1::2], "none": []}[row["gradients"]]
        given = {n: placed(s.given[n], n).requires_grad_(n in wanted) for n in self.keys}
        before = {n: x.detach().clone() for n, x in given.items()}
        all_of = row["gradients"] == "all"
        states = {n: None if x is None else x.detach().clone().requires_grad_(all_of) for n, x in s.states.items()}
        initial: Any = tuple(states.values()) if len(states) > 1 else next(iter(states.values()), None)
        initial = None if all(x is None for x in states.values()) else initial
        last = row["final state"] != "not wanted"
        options: dict[str, Any] = {n: row[n] for n in ("precision", "recompute") if row[n] not in ("default", "auto")}
        if row["deterministic"] == "yes":
            options["deterministic"] = True
        if row["backend"] != "chosen":
            options["backend"] = row["backend"]
        if row["final state"] == "in bfloat16":
            options["state_dtype"] = torch.bfloat16
        options |= case.packing
        if row.get("constants", "given") == "given":
            options |= s.constants
        else:
            options |= {n: x for n, x in s.constants.items() if self.defaults[n] is None}
        if row["arguments"] == "in order":
            results = self.op(*given.values(), *((initial, last) if states else ()), **options)
        else:
            if initial is not None:
                options["initial_state"] = initial
            if states:
                options["output_final_state"] = last
            results = self.op(**{self.keys[n]: x for n, x in given.items()}, **options)
        *outputs, finals = results
        found: dict[str, Tensor | None] = dict(zip((x.name for x in self.declared.outputs), outputs, strict=True))
        if not last and finals is not None:
            raise ValueError("the final state is returned, which wasn't asked for")
        if last:
            finals = finals if isinstance(finals, tuple) else (finals,)
            found |= {f"final {n}": x for n, x in zip(states, finals, strict=True)}
        self._check_dtypes(found, row, dtype)
        if row["gradients"] != "none":
            incoming = {**s.cotangents, **{f"final {n}": x for n, x in s.final_cotangents.items()}}
            pairs = [(x, incoming[n]) for n, x in found.items() if x is not None and x.requires_grad]
            torch.autograd.backward(
                [x for x, _ in pairs],
                [laid_out(y.to(x.dtype), row["layout"]) for x, y in pairs],  # type: ignore[union-attr]
            )
            found |= {f"d{n}": given[n].grad for n in wanted}
            found |= {f"d initial {n}": x.grad for n, x in states.items() if x is not None and all_of}
        changed = [n for n, x in given.items() if not torch.equal(x.detach(), before[n])]
        if changed:
            raise ValueError(f"the call has changed its argument {changed[0]}")
        return {n: None if x is None else x.detach() for n, x in found.items()}

    def _check_dtypes(self, found: Mapping[str, Tensor | None], row: Row, dtype: torch.dtype) -> None:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        kept = torch.bfloat16 if row["final state"] == "in bfloat16" else wide
        leading = self.compiled.step.leading.kind == "input"
        for n, x in found.items():
            expected = kept if n.startswith("final ") else dtype if leading else wide
            if x is not None and x.dtype != expected:
                raise ValueError(f"{n} is {x.dtype}, and should be {expected}")

    def _rounds_once(self, row: Row) -> bool:
        """Is all of it computed in float64, and each result rounded once?"""
        wider = row["precision"] == "high" and row["dtype"] != "float64"
        return wider and not self._on_triton(row) and self.oracle is oracle

    def _on_triton(self, row: Row) -> bool:
        return "triton" in self.backends and row["backend"] != "torch" and row["dtype"] != "float64"

    def _on_tensor_cores(self, row: Row) -> bool:
        """Do kernels round what they multiply to two bytes?"""
        return self._on_triton(row) and self.case(row).dtype in (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Subject(StepSubject[Recurrence, Compiled]):
    """A recurrence with its op."""

    @property
    def declared(self) -> Recurrence:
        return self.spec

    @property
    def oracle(self) -> Oracle:
        return oracle

    def sampled(self, case: Case) -> Sample:
        return sample(self.compiled, case)


def backends_of(op: Op) -> Mapping[str, Any]:
    """The backends that an op was generated with, by name."""
    return sys.modules[op.__module__].OP.backends
