"""What functions that launch kernels begin with, and how they hand on what they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....ir.code import Attribute
from ....ir.expr import dim_of
from ....ir.launch_ir import Code, Define, If, Set, Statement, in_needs, ref
from ....ir.python_code import Fixed, dictionary, made_by
from ....ir.step_program import StepProgram, Var
from ..print.axis_names import size_name
from ..print.names import Names


def inputs(p: StepProgram, names: Names, first: Var | None = None) -> list[Statement]:
    """The statements that take what a function is given: tensors, and sizes. `some` is the first that has each step's, or
    `first`."""
    found: list[Statement] = []
    given = [v for v in p.variables if v.kind != "constant"]
    for v in given:
        value = Fixed("given")[v.name]
        found.append(Set((names(v.leaf),), made_by("steps", value) if v.per_step else value))
    stepwise = next(v for v in p.variables if v.per_step)
    found.append(Define(("some",), ref(names((first or stepwise).leaf))))
    found.append(Define(("B", "T"), Attribute(ref(names(stepwise.leaf)), "shape")[:2]))
    heads = (Attribute(ref(names(v.leaf)), "shape")[2 if v.per_step else 0] for v in given)
    found.append(Define(("H",), made_by("max", *heads, 0)))
    for v in given:
        if not v.per_step:
            found.append(Set((names(v.leaf),), made_by("with_heads", ref(names(v.leaf)), "H")))
    for d in p.dims:
        with_dim = next((v for v in p.variables if d in map(dim_of, v.axes)), None)
        if with_dim is None:
            s = next(s for s in p.states if d in map(dim_of, s.axes))
            at = [dim_of(a) for a in s.axes].index(d) - len(s.axes)
            size = Attribute(Fixed("states")[s.name], "shape")[at]
        else:
            at = [dim_of(a) for a in with_dim.axes].index(d) - len(with_dim.axes)
            size = Attribute(ref(names(with_dim.leaf)), "shape")[at]
        found.append(Define((size_name(d),), size))
    return found


def entries(values: Mapping[str, Code]) -> Code:
    """A dictionary."""
    return dictionary(values.items())


def if_wanted(result: str, body: Sequence[Statement]) -> If:
    """Statements that are for one result."""
    return If(in_needs(result), tuple(body), wanted=frozenset({result}))
