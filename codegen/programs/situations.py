"""The situations in which a program's op is called: those of its step, and what its solves allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from chunkform.spec.language import Program, Recurrence

from ..checking.covering import Row
from ..recurrence.definition import Oracle
from ..recurrence.samples import Case, Sample
from ..recurrence.situations import StepSubject
from .compiled import CompiledProgram
from .oracle import fading, oracle, sample
from .states import solved_states

# of their gradients by kernels in bfloat16: sums over all later steps
DENSE = 40  # steps of a program that solves with dense matrices wider than 64


@dataclass(frozen=True)
class ProgramSubject(StepSubject[Program, CompiledProgram]):
    """A program with its op."""

    @property
    def oracle(self) -> Oracle:
        return oracle

    def sampled(self, case: Case) -> Sample:
        return sample(self.compiled, case)

    @property
    def declared(self) -> Recurrence:
        return self.spec.step

    @cached_property
    def fades(self) -> bool:
        return bool(fading(self.compiled.graph))

    @cached_property
    def definite(self) -> set[str]:
        return solved_states(self.compiled.graph)

    @cached_property
    def factors(self) -> dict[str, Sequence[object]]:
        found = super().factors
        if self.compiled.graph.attends:  # no state holds the keys; sums of log gates must be numbers
            found |= {"initial state": ("none",), "final state": ("not wanted",)}
            found |= {"log decays": ("usual", "0")} if "log decays" in found else {}
        return found

    def allowed(self, row: Row) -> bool:
        dense = bool(self.spec.solves)  # solves of each step are what takes the time
        return super().allowed(row) and not (dense and max(row.get("widths", (1,))) > 64 and row.get("T", 0) > DENSE)
