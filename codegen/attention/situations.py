"""The situations in which an attention's op is called, as factors of a covering array; see `codegen/recurrence/situations.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from chunkform.spec.language.attention import Attention

from ..checking.accuracy import Judged
from ..checking.covering import Row
from ..checking.layouts import LAYOUTS, laid_out
from .check import Case, Sample, grouped, judge_all, oracle, sample
from .compiled import CompiledAttention

# The first choice of each factor is the simplest. Halves of a dim may be turned, so widths are even.
STEPS = (20, 0, 1, 63, 64, 65, 150, 257)
WIDTHS = ((16, 24, 20), (32, 32, 32), (6, 10, 4), (34, 20, 18), (72, 40, 24), (24, 96, 66))
DTYPES = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True)
class AttentionSubject:
    """An attention with its op."""

    spec: Attention
    compiled: CompiledAttention
    op: Callable[..., Any]
    device: str = "cpu"

    @property
    def name(self) -> str:
        return self.spec.name

    @cached_property
    def order(self) -> list[str]:
        """Tensors in the order in which they are passed: those that have a default come last."""
        tensors = [v for v in self.spec.variables if v.kind != "constant"]
        return [v.name for v in sorted(tensors, key=lambda v: v.default is not None)]

    @cached_property
    def defaulted(self) -> list[str]:
        return [v.name for v in self.spec.variables if v.default is not None]

    @property
    def together(self) -> tuple[tuple[str, ...], ...]:
        return ()

    @cached_property
    def factors(self) -> dict[str, Sequence[Any]]:
        """What may differ between two calls of this op."""
        a = self.spec
        kinds = {v.kind for v in a.variables}
        dims = len([d for d in a.dim_list if d != a.nodes])
        found: dict[str, Sequence[Any]] = {
            "dtype": DTYPES,
            "T": STEPS,
            "widths": tuple(dict.fromkeys(x[:dims] if dims <= 3 else (*x, *x)[:dims] for x in WIDTHS)),
            "sequences": ("two", "one"),
        }
        if "query" in kinds and "stream" not in kinds:
            found["keys"] = ("as many", "more", "fewer")
        if a.nodes is not None:
            found["nodes"] = (5, 1, 17)
        else:
            found["causal"] = ("no", "yes")
        some = [v for v in a.variables if v.kind in grouped(a)]
        found["heads"] = ("two", "one", *(("fewer in keys",) if some and len(kinds) > 1 else ()))
        found["layout"] = LAYOUTS
        found["arguments"] = ("by name", "in order")
        if self.defaulted:
            found["defaults"] = ("given", "left to their defaults")
        if a.normaliser == "softmax":
            found["log-sum-exp"] = ("wanted", "not wanted")
        found["gradients"] = ("all", "some", "the others", "none")
        found["backend"] = ("chosen", "torch") if self.device == "cpu" else ("chosen", "torch", "triton")
        return found

    def allowed(self, row: Row) -> bool:
        """May these choices be made together?"""
        return not (row.get("backend") == "triton" and row.get("dtype") == "float64")

    def tried(self, row: Row) -> dict[str, Judged]:
        """The worst head of each quantity of one call."""
        case = self.case(row)
        s = self.drawn(row, case)
        computed = self.computed(row, case, s)
        exact = oracle(self.compiled, s, case.causal)
        return judge_all(self.compiled, computed, exact, s, case)

    def case(self, row: Row) -> Case:
        steps = row["T"]
        keys = {"more": steps + 21, "fewer": max(0, steps - 13)}.get(row.get("keys", ""))
        return Case(
            batch=2 if row["sequences"] == "two" else 1,
            steps=steps,
            keys=keys,
            heads={"one": 1, "two": 2}.get(row["heads"], 4),
            key_heads=(1, 2) if row["heads"] == "fewer in keys" else (),
            nodes=row.get("nodes", 5),
            dtype=getattr(torch, row["dtype"]),
            device=self.device,
            causal=row.get("causal") == "yes",
            widths=row["widths"],
        )

    def drawn(self, row: Row, case: Case) -> Sample:
        """Random arguments; what is left to its default has the declaration's value."""
        s = sample(self.compiled, case)
        given, constants = dict(s.given), dict(s.constants)
        sizes = {
            d.name: n
            for d, n in zip((d for d in self.spec.dim_list if d != self.spec.nodes), case.widths, strict=False)
        }
        for v in self.spec.variables:
            left = row.get("defaults") == "left to their defaults"
            if v.default is None or (v.kind != "constant" and not left):
                continue
            value = float(v.default.subs({x: sizes[str(x)] for x in v.default.free_symbols}))
            if v.kind == "constant":
                constants[v.name] = value if left else 0.75 * value
            else:
                given[v.name] = torch.full_like(given[v.name], value)
        cotangents = {n: x for n, x in s.cotangents.items() if n != "lse" or row.get("log-sum-exp") == "wanted"}
        return dataclasses.replace(s, given=given, constants=constants, cotangents=cotangents)

    def computed(self, row: Row, case: Case, s: Sample) -> dict[str, Tensor | None]:
        """Outputs, log-sum-exp and gradients of one call."""
        left = row.get("defaults") == "left to their defaults"
        passed = [n for n in self.order if not (left and n in self.defaulted)]
        wanted = {"all": passed, "some": passed[::2], "the others": passed[1::2], "none": []}[row["gradients"]]
        given = {n: laid_out(s.given[n], row["layout"]).requires_grad_(n in wanted) for n in passed}
        before = {n: x.detach().clone() for n, x in given.items()}
        options: dict[str, Any] = {n: x for n, x in s.constants.items() if not (left and n in self.defaulted)}
        if case.causal:
            options["causal"] = True
        if row.get("log-sum-exp") == "wanted":
            options["output_lse"] = True
        if row["backend"] != "chosen":
            options["backend"] = row["backend"]
        if row["arguments"] == "in order":
            results = self.op(*given.values(), **options)
        else:
            results = self.op(**given, **options)
        names = [*(x.name for x in self.spec.outputs), *(["lse"] if "output_lse" in options else [])]
        outputs: tuple[Tensor, ...] = results if isinstance(results, tuple) else (results,)
        found: dict[str, Tensor | None] = dict(zip(names, outputs, strict=True))
        if row["gradients"] != "none":
            pairs = [(x, s.cotangents[n]) for n, x in found.items() if x is not None and x.requires_grad]
            torch.autograd.backward([x for x, _ in pairs], [laid_out(y.to(x.dtype), row["layout"]) for x, y in pairs])
            found |= {f"d{n}": given[n].grad for n in wanted}
        self._check(found, given, before, case)
        return {n: None if x is None else x.detach() for n, x in found.items()}

    def _check(
        self, found: Mapping[str, Tensor | None], given: Mapping[str, Tensor], before: Mapping[str, Tensor], case: Case
    ) -> None:
        inputs = any(v.kind in ("query", "key", "stream") for v in self.spec.variables)
        for x in self.spec.outputs:
            y = found[x.name]
            if inputs and y is not None and y.dtype != case.dtype:
                raise ValueError(f"{x.name} is {y.dtype}, and should be {case.dtype}")
        changed = [n for n, x in given.items() if not torch.equal(x.detach(), before[n])]
        if changed:
            raise ValueError(f"the call has changed its argument {changed[0]}")
