"""What the passes made of a program, as data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from chunkform.spec.language.program import Program

from ..exact.random_points import GateResult
from ..ir.expr import ZERO
from ..ir.step_program import StepProgram, Var, axes_of
from .adjoint_graph import AdjointGraph
from .graph import Graph


@dataclass(frozen=True)
class CompiledProgram:
    """Everything that is known of a program."""

    spec: Program
    graph: Graph
    adjoint: AdjointGraph
    gates: tuple[GateResult, ...]
    family: str = "program"

    @property
    def name(self) -> str:
        return self.spec.name

    @cached_property
    def step(self) -> StepProgram:
        """The program's arguments, states and outputs, as a recurrence has them; what a step computes isn't said here."""
        from .states import state_vars

        g = self.graph
        return StepProgram(
            self.name,
            tuple(d.name for d in self.spec.step.dim_list),
            tuple(
                Var(v.name, v.kind, axes_of(v.dims), v.default, v.domain)
                for v in self.spec.step.variables
                if v.kind != "solved"
            ),
            state_vars(g),
            {},
            dict.fromkeys(g.outputs, ZERO),
            output_axes={n: g.dims[q] for n, q in g.outputs.items()},
        )
