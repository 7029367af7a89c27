"""The step program: what one step of a recurrence, or of its adjoint, computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from chunkform.spec.language.recurrence import DECAYS, PER_HEAD, argument_name

from .expr import Node, canonical_axis, leaf

LOGARITHM_OF = {x: f"log {x}" for x in DECAYS}  # kinds of leaves that are decays' logarithms
WHOSE_LOGARITHM = {log: x for x, log in LOGARITHM_OF.items()}
Domain = tuple[Fraction | None, Fraction | None]  # values lie between; None where there is no bound


@dataclass(frozen=True)
class Var:
    """A quantity that a program is given. kind:

    input, decay        one value a step (a decay is in (0, 1])
    parameter, decay parameter   one value a head
    constant            one number
    cotangent           the incoming gradient of an output, one value a step
    trajectory          the previous state of the forward program, one value a step
    """

    name: str
    kind: str
    axes: tuple[str, ...]
    default: float | None = None
    domain: Domain | None = None
    handed: bool = False  # is it what another part of the same step has made, in float32 at least?

    @property
    def leaf(self) -> Node:
        return leaf(self.kind, self.name, self.axes)

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """Of the domain, as floats."""
        return _floats(self.domain)

    @property
    def number(self) -> float:
        """What a constant may be: its default, or else 0.5, or what is nearest to that within its domain."""
        return number_within(0.5, self.domain) if self.default is None else float(self.default)

    @property
    def is_decay(self) -> bool:
        return self.kind in DECAYS

    @property
    def argument(self) -> str:
        """What the op's argument is called."""
        return argument_name(self.name, self.is_decay)

    @property
    def is_parameter(self) -> bool:
        return self.kind in PER_HEAD

    @property
    def per_step(self) -> bool:
        return self.kind in ("input", "decay", "cotangent", "trajectory")


@dataclass(frozen=True)
class StateVar:
    """A state. `initial` is None for zeros. `turns`: it's a sum of angles, of which whole turns don't count."""

    name: str
    axes: tuple[str, ...]
    initial: Node | None = None
    domain: Domain | None = None
    turns: bool = False

    @property
    def leaf(self) -> Node:
        return leaf("state", self.name, self.axes)

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """Of the domain, as floats."""
        return _floats(self.domain)


@dataclass(frozen=True)
class StepProgram:
    """One step. `updates` gives each state after the step, `outputs` each output, both as nodes over the leaves.

    direction is +1 for a forward program, which goes t = 1..n, and -1 for an adjoint, which goes t = n..1.
    `names` holds names for inner nodes (used in print only); `origins` where in the spec a node was written.
    """

    name: str
    dims: tuple[str, ...]
    variables: tuple[Var, ...]
    states: tuple[StateVar, ...]
    updates: dict[str, Node]
    outputs: dict[str, Node]
    direction: int = 1
    names: dict[Node, str] = field(default_factory=dict)
    origins: dict[Node, Any] = field(default_factory=dict)
    output_axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    handed: frozenset[str] = (
        frozenset()
    )  # outputs in float32 at least: another part of the same step takes them, or the spec says so

    @property
    def leading(self) -> Var:
        """The variable whose dtype the outputs have: the first input with axes, or else the first input or tensor. One that an
        earlier part hands on is float32, and has its say where all are."""
        given = [v for v in self.variables if v.kind != "constant"]
        tensors = [v for v in given if not v.handed] or given
        inputs = [v for v in tensors if v.kind == "input"]
        return next((v for v in inputs if v.axes), (inputs or tensors)[0])

    def variable(self, name: str) -> Var:
        return next(v for v in self.variables if v.name == name)

    def state(self, name: str) -> StateVar:
        return next(s for s in self.states if s.name == name)


def number_within(x: float, domain: Domain | None) -> float:
    """A number within a domain: x where it is, or else one that is inside."""
    low, high = _floats(domain)
    if (low is None or low <= x) and (high is None or x <= high):
        return x
    if low is not None:
        return low + 1 if high is None else (low + high) / 2
    return x if high is None else high - 1


def _floats(domain: Domain | None) -> tuple[float | None, float | None]:
    low, high = domain or (None, None)
    return None if low is None else float(low), None if high is None else float(high)


def axes_of(dims: tuple[object, ...]) -> tuple[str, ...]:
    """Axes for dims in order, primed where a dim comes twice."""
    axes: list[str] = []
    for dim in dims:
        axes.append(canonical_axis(str(dim), set(axes)))
    return tuple(axes)
