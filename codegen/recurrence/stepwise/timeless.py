"""What parameters alone make, as parameters of the steps: it is made once, before them.

In a kernel that takes step after step, functions of parameters would be computed anew in each, for every entry of a state, and
the gradient of each parameter summed in registers. Here steps are over what functions of parameters make, and so are gradients:
those of the parameters follow after the last step. What there is one value of for each row of a state stays in the steps: to
launch kernels of its own takes longer than to compute it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ...ir.expr import Node, add, leaf, leaf_names, mul, rebuild, walk
from ...ir.step_program import PER_HEAD, StepProgram, Var
from ..chunkwise.compiled import Compiled
from ..gates.timeless_gate import gate_timeless
from ..step.adjoint import adjoint, gradient_name
from ..step.elementwise import adjoint_of
from .initial import depends_on_parameters
from .names import sizes

CHEAP = ("leaf", "const", "number", "size", "expand", "add", "mul")  # operations that a step may do again


@dataclass(frozen=True)
class Timeless:
    """`over`: the recurrence over what is `made` of parameters, by name. `gradients`: of each of these parameters, over the
    cotangents of what is made."""

    over: Compiled
    made: dict[str, Node]
    gradients: dict[str, Node]
    variables: tuple[Var, ...]  # that it is made of


def timeless(c: Compiled) -> Timeless | None:
    """The recurrence over what parameters alone make; None where that is nothing that costs. Parameters that a state
    begins with stay as they are.

    Raises `GateError` where its steps or gradients aren't those of c.
    """
    p = c.step
    found = _Search(p)
    updates, outputs = ({n: found.over(x) for n, x in table.items()} for table in (p.updates, p.outputs))
    if not found.made or depends_on_parameters(c):
        return None
    made = {name: x for x, name in found.made.items()}
    read = _read([*updates.values(), *outputs.values()])
    gone = {key for key in _read(made.values()) if key[0] in PER_HEAD} - read
    variables = (
        *(v for v in p.variables if (v.kind, v.name) not in gone),
        *(Var(name, "parameter", x.axes, handed=True) for name, x in made.items()),
    )
    step = replace(p, variables=variables, updates=updates, outputs=outputs, names=found.names(), origins={})
    if not sizes(p).dims.keys() <= sizes(step).dims.keys():  # a dim that parameters alone have
        return None
    over = replace(c, step=step, adjoint=adjoint_of(step))
    own = tuple(v for v in p.variables if (v.kind, v.name) in _read(made.values()))
    alone = StepProgram(p.name, p.dims, own, (), {}, made, output_axes={n: x.axes for n, x in made.items()})
    back = adjoint(alone).program.outputs
    gradients = {v.name: back[gradient_name(v)] for v in own if v.is_parameter}
    gate_timeless(c.adjoint, over.adjoint, made, gradients)
    return Timeless(over, made, gradients, own)


def _read(nodes: Iterable[Node]) -> set[tuple[str, str]]:
    return set().union(*map(leaf_names, nodes))


@dataclass
class _Search:
    """Nodes over what is found to be made of parameters alone."""

    p: StepProgram
    made: dict[Node, str] = field(default_factory=dict)  # the names of what is made
    done: dict[Node, Node] = field(default_factory=dict)

    def over(self, x: Node) -> Node:
        """x over what parameters alone make."""
        if x not in self.done:
            self.done[x] = self._over(x)
        return self.done[x]

    def _over(self, x: Node) -> Node:
        if x.op in ("add", "mul"):
            own = self._together([a for a in x.args if self._is_timeless(a)])
            joined = (add if x.op == "add" else mul)(*own)
            if _costs(joined):
                return rebuild(x, [self._parameter(joined), *(self.over(a) for a in x.args if a not in own)])
        elif x.op != "expand" and self._is_timeless(x):
            return self._parameter(x) if _costs(x) else x
        return rebuild(x, map(self.over, x.args)) if x.args else x

    def _together(self, some: list[Node]) -> list[Node]:
        """Those that are joined: over no more axes than one of them, so that what is made is no larger than what it's made of."""
        widest = max(some, key=lambda a: len(a.axes), default=None)
        return [] if widest is None else [a for a in some if set(a.axes) <= set(widest.axes)]

    def _is_timeless(self, x: Node) -> bool:
        """Is it made of parameters, numbers and constants?"""
        return all(kind in (*PER_HEAD, "constant") for kind, _ in leaf_names(x))

    def _parameter(self, x: Node) -> Node:
        if x not in self.made:
            self.made[x] = self._name(self.p.names.get(x, "coefficient"))
        return leaf("parameter", self.made[x], x.axes)

    def _name(self, stem: str) -> str:
        p = self.p
        taken = {*(v.name for v in p.variables), *(s.name for s in p.states), *p.outputs, *self.made.values()}
        name, n = stem, 1
        while name in taken or f"d{name}" in taken:
            n += 1
            name = f"{stem}{n}"
        return name

    def names(self) -> dict[Node, str]:
        """The names of inner nodes that are left."""
        named = ((self.done.get(x, x), name) for x, name in self.p.names.items() if x not in self.made)
        return {x: name for x, name in named if x.op != "leaf"}


def _costs(x: Node) -> bool:
    """Is it made for each entry of a state, of parameters, by functions, roots or quotients, or by sums over an axis?"""
    parameters = any(kind in PER_HEAD for kind, _ in leaf_names(x))
    return parameters and len(x.axes) > 1 and any(y.op not in CHEAP and not _is_power(y) for y in walk(x))


def _is_power(x: Node) -> bool:
    return x.op == "pow" and x.attrs[0].denominator == 1 and x.attrs[0] > 0


__all__ = ["Timeless", "timeless"]
