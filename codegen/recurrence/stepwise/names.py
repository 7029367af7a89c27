"""Names in a printed function: of the quantities of a spec, without clashes with each other or with the function's own."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...ir.code import Attribute
from ...ir.expr import Node, dim_of, plain_name
from ...ir.launch_ir import Code, Set, ref
from ...ir.python_code import Each, Fixed, Part, beside, isin, method, several
from ...ir.step_program import StepProgram, Var
from ...printing.expressions import NodePrinter
from ..chunkwise.compiled import Compiled

OWN = (
    "batch steps heads checkpoint offset rest back rows once segment segments start stop now t i torch tl "
    "triton given states constants saved cotangents final_cotangents needs dtype like outputs finals "
    "gradients initial_gradients program tile head tiles first launch entries length index sequences "
    "checkpoints before initial incoming block_of tile_of warps_for stages_for strides_of stacked segment_length "
    "dtype_of computed_in packed layout layout_of entry begin line lines slot room table table_at needs_backward "
    "narrow is_narrow parts_at_most several "
    "gradient_like typed_like moment scratch block_row too_wide rows_of_tile slots block whole_warps origin then there "
    "turn turns programs place flat inplace yields keeps ends row rows_at each_at counts_at starts_at count kept kept_row"
).split()


@dataclass
class Names:
    """`of(kind, name)` is the text of a quantity's value; the spec's own name wherever that is free."""

    taken: set[str] = field(default_factory=lambda: {*OWN, *keyword.kwlist, *dir(builtins)})
    known: dict[tuple[str, str], str] = field(default_factory=dict)

    def of(self, kind: str, name: str) -> str:
        if (kind, name) not in self.known:
            self.known[kind, name] = self.fresh(name)
        return self.known[kind, name]

    def leaf(self, x: Node) -> str:
        """A trajectory is its state's value at another time: both have one name."""
        kind, name = x.attrs[:2]
        return self.of("state" if kind == "trajectory" else kind, name)

    def fresh(self, wanted: str) -> str:
        name, n = wanted, 2
        while plain_name(name) in self.taken:
            name, n = f"{wanted}_{n}", n + 1
        self.taken.add(plain_name(name))
        return name


def names_of(program: StepProgram, reserved: set[str]) -> Names:
    """Names for all quantities of a forward program and its adjoint."""
    names = Names()
    names.taken |= set(map(plain_name, reserved))
    for v in program.variables:
        names.of(v.kind, v.name)
    for s in program.states:
        names.of("state", s.name)
    for s in program.states:
        names.of("state", f"d{s.name}")
    for name in program.outputs:
        names.of("cotangent", f"d{name}")
    return names


@dataclass(frozen=True)
class Sizes:
    """Where the sizes come from: what has those of batch, steps and heads, and each dim's."""

    lead: Code
    dims: dict[str, Code]


def sizes(program: StepProgram) -> Sizes:
    """Of what is `given`."""
    dims: dict[str, Code] = {}
    found = tensors(program)
    for v in found:
        for i, axis in enumerate(v.axes):
            dims.setdefault(dim_of(axis), Attribute(Fixed("given")[v.name], "shape")[i - len(v.axes)])
    lead = next(v for v in found if v.per_step)
    return Sizes(Fixed("given")[lead.name], {d: dims[d] for d in program.dims if d in dims})


def tensors(program: StepProgram) -> list[Var]:
    """The variables that are given as tensors."""
    return [v for v in program.variables if v.kind in ("input", "decay", "parameter", "decay parameter")]


def first_input(c: Compiled) -> str:
    """The variable whose dtype the outputs have."""
    return c.step.leading.name


def wanted_among(table: str, value: Code | None = None) -> Code:
    """Those gradients of a dictionary that are wanted, or the value that is made of each."""
    each = Fixed("gradient") if value is None else value
    wanted = isin("name", "needs")
    return Each(each, ("name", "gradient"), method(ref(table), "items"), wanted, key="name")


def computed(v: Var) -> Code:
    """A variable as steps in torch compute with it."""
    value = method(Fixed("given")[v.name], "to", "dtype")
    return method(value, "exp") if v.is_decay else value


@dataclass(frozen=True)
class Shape:
    """What a tensor's axes are as long as: names, and then the sizes of dims."""

    lead: tuple[Part, ...]
    axes: tuple[str, ...]

    @property
    def entries(self) -> Code:
        """The sizes in a row, as in `batch, heads, size_d`."""
        return beside(*self.lead, *(f"size_{dim_of(a)}" for a in self.axes))

    @property
    def whole(self) -> Code:
        """The sizes as a tuple."""
        return several(self.entries)


def printed(
    printer: NodePrinter,
    nodes: dict[str, Node],
    names: Names,
    orders: dict[str, tuple[str, ...]],
    suggested: Mapping[Node, str] | None = None,
) -> tuple[list[Set], dict[str, Code]]:
    """Nodes in torch: statements, and each result."""

    made, results = printer.values(nodes, names.leaf, names=suggested, orders=orders)
    return [Set((name,), x) for name, x in made], results
