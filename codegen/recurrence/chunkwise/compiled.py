"""What the passes made of a recurrence, as data, and what was found out about it since."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from chunkform.spec.language import Recurrence

from ...exact.random_points import GateResult
from ...ir.step_program import StepProgram
from ..normal_form.form import NormalForm
from ..normal_form.substeps import Substeps
from ..step.adjoint import Adjoint
from ..step.column_maps import ColumnMaps
from ..step.entries import EntryMaps
from ..step.frames import Frame
from .plan import Plan


@dataclass(frozen=True)
class Part:
    """A stratum, compiled: the names of what earlier ones hand on to it, and of what it hands on."""

    compiled: Compiled
    takes: tuple[str, ...]
    hands: tuple[str, ...]


@dataclass(frozen=True)
class Compiled:
    """Everything that is known of a spec. family:

    chunk-parallel  has a read-write form, and plans of sweeps over chunks
    scan            each entry of a state goes through maps that compose
    strata          `strata` have families of their own
    segment-parallel  `entries` say how a segment of a sequence is a map of the states
    sequential      none of these, and a reason why

    Strata may be those of a step in a moving `frame`; `entries` say then how its segments are joined across processes.
    `substeps`: of a step that is several corrections one after the other, how it is several steps of one, and `substep`
    one of these, compiled. `numbers`: of the formulas at the file's head, by the kind and the plain name of what each is of.
    """

    spec: Recurrence
    step: StepProgram
    adjoint: Adjoint
    family: str
    form: NormalForm | None = None
    adjoint_form: NormalForm | None = None
    forward: Plan | None = None
    backward: Plan | None = None
    reason: str | None = None
    reason_where: Any = None
    gates: tuple[GateResult, ...] = ()
    substeps: Substeps | None = None
    substep: Compiled | None = None
    entries: EntryMaps | ColumnMaps | None = None
    strata: tuple[Part, ...] = ()
    frame: Frame | None = None
    numbers: Mapping[tuple[str, str], int] = field(default_factory=dict, compare=False, repr=False)
    known: dict[Any, Any] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )  # what `once` has found out

    @property
    def name(self) -> str:
        return self.step.name


P = ParamSpec("P")


R = TypeVar("R")


def once(f: Callable[Concatenate[Compiled, P], R]) -> Callable[Concatenate[Compiled, P], R]:
    """A function of a compiled recurrence, which finds out the same thing about it once."""

    @functools.wraps(f)
    def found(c: Compiled, *args: P.args, **words: P.kwargs) -> R:
        key = (f, *map(id, args), *((n, id(x)) for n, x in words.items()))
        if key not in c.known:
            c.known[key] = f(c, *args, **words), args, words  # which stay, so that nothing else has their ids
        return c.known[key][0]

    return found
