"""The statements of one kernel: its names, its arguments, and where they lie in memory.

In a kernel, `at_d` are a program's indices along dim d, `in_d` says which of them exist, `wide_d` are the indices in 64 bits;
`at_d_e` and `in_d_e` are the same for a contiguous block over d and e. `index` counts batch entries times heads, `now` steps;
`then` is the step that comes after it in the loop, and `there` its place in the segment. What a step takes from memory is loaded
during the step before it, as nothing else would fill the time that memory takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from ...ir.code import Call, Code, Group, Literal, Load, Name, call, plus, shape, summed, times, zeros
from ...ir.code_parts import walk_code
from ...ir.expr import Node, dim_of, fn, mul, number, plain_name, replace, walk
from ...ir.kernel_ir import KernelFunction, Let, Parameter, Statement, Store, added, expressions, let, statements
from ...ir.python_code import Fixed, made_by
from ...ir.spellings import Function
from ...ir.step_program import DECAYS, StepProgram, Var
from ...printing.expressions import FINITE, ZERO, NodePrinter, Triton
from ..chunkwise.compiled import Compiled
from .names import names_of, sizes
from .tiling import OWN, PART, WHOLE, Tiling

Axes = tuple[str, ...]
TOGETHER = ((8, 48), (4, 96))  # steps that are taken at once, where each makes at most so many nodes
AHEAD = 4  # steps whose loads are under way while others are computed, where each entry of a state takes a function
SEVERAL = "several"  # are they, in this launch?


@dataclass
class Pointer:
    """A tensor that a kernel is given: its name there, what it is of (`key`, in the role that a launch passes), and the names of
    its strides, if any.

    `lead` has the index at which a program starts on each axis before the tensor's own ones: batch entry, step, head.
    """

    name: str
    role: str
    key: str
    axes: Axes
    strides: list[str] = field(default_factory=list)
    lead: tuple[Code, ...] = ()


class Kernel:
    """Collects what a kernel needs while its parts are made."""

    def __init__(self, c: Compiled, tiling: Tiling) -> None:
        self.c, self.tiling = c, tiling
        self.dims = list(sizes(c.step).dims)
        reserved = {f"{p}_{d}" for d in self.dims for p in ("at", "wide", "in", "SIZE", "BLOCK", "size", "block")}
        self.names = names_of(c.step, reserved)
        self.names.known["tile", "first"] = "once"
        self.pointers: list[Pointer] = []
        self.matrices: dict[str, Axes] = {}  # that each step loads
        self.blocks: list[Axes] = []
        self.constants: list[Var] = []
        self.groups: list[tuple[str, str]] = []
        self.together = 1  # steps that are taken at once
        self.ahead = False  # is what they load loaded while those before them are computed?
        self.following = {n: self.names.fresh(f"next_{n}") for s in c.step.states for n in (s.name, f"d{s.name}")}

    # --- arguments

    def strided(self, name: str, role: str, key: str, lead: tuple[Code, ...], axes: Axes, own: bool = True) -> Pointer:
        """A tensor with any strides along the axes of `lead`, and along its own ones where it has strides of its `own`."""
        count = len(lead) + (len(axes) if own else 0)
        strides = [self.names.fresh(f"{name}_stride{i}") for i in range(count)]
        return self._add(Pointer(self.names.fresh(f"{name}_at"), role, key, axes, strides, lead))

    def head_of(self, name: str) -> Code:
        """The head that an argument is read at: it may have fewer than there are, each for a group of neighbours."""
        group = self.names.fresh(f"{name}_group")
        self.groups.append((group, name))
        return Group(Name("head") // group)

    def contiguous(self, name: str, role: str, key: str, axes: Axes) -> Pointer:
        return self._add(Pointer(self.names.fresh(f"{name}_at"), role, key, axes))

    def _add(self, x: Pointer) -> Pointer:
        self.pointers.append(x)
        return x

    def advance(self, x: Pointer) -> Let:
        """Move a pointer to where this program starts."""
        return added(x.name, summed(*(i * s for i, s in zip(x.lead, x.strides, strict=False))))

    # --- addresses, loads and stores

    def address(self, x: Pointer, row: Code) -> Code:
        """The start of block number `row` in a contiguous tensor of blocks over its axes."""
        return summed(Name(x.name), row * count_of(x.axes) if x.axes else row)

    def row_now(self, kind: str) -> Code:
        """The row of step `now` in a contiguous [B, T, H, ...]; parts lie one after the other, a tensor for each tile."""
        row = (Name("line") + "now") * "heads" + "head"
        return row + Name("tile") * "lines" * "heads" if kind == PART else row

    def load(self, address: Code, axes: Axes, offsets: Code | None = None) -> Code:
        return self.raw(address, axes, offsets).to("tl.float32")

    def raw(self, address: Code, axes: Axes, offsets: Code | None = None) -> Load:
        """A load in the dtype of memory."""
        if not axes:
            return Load(address)
        offsets = Name(f"at_{self._block(axes)}") if offsets is None else offsets
        return Load(summed(address, offsets), Name(f"in_{self._block(axes)}"), Literal(0.0))

    def load_strided(self, x: Pointer, decay: bool = False, axes: Axes | None = None) -> Code:
        """The value of a variable, at step `now` where it has steps; a decay from its logarithm."""
        return self.value(self.raw_strided(x, axes), decay)

    def raw_strided(self, x: Pointer, axes: Axes | None = None) -> Load:
        """A load of what has strides of its own; `axes`: others in the place of its own."""
        axes = x.axes if axes is None else axes
        own = x.strides[len(x.lead) :]
        offsets = [at * s for at, s in zip(over(axes, "wide_{}"), own, strict=True)]
        address: Code = Name(x.name)
        if len(x.lead) == 3:
            address = address + Name("now") * x.strides[1]
        return self.raw(address, axes, summed(*offsets) if offsets else None)

    def step_load(self, name: str, x: Pointer, decay: bool = False) -> Let:
        """`name` as a variable's value at step `now`; vectors and numbers are prefetched by a step, where registers are left."""
        matrices = any(len(v.axes) > 1 for v in self.c.step.variables if v.is_parameter)
        if len(x.axes) > 1:
            self.matrices[name] = x.axes
        if len(x.axes) > 1 or matrices:
            return let(name, self.load_strided(x, decay))
        return self.prefetch(name, self.raw_strided(x), decay)

    def prefetch(self, name: str, raw: Load, decay: bool = False) -> Let:
        """`name` as what was loaded a step before."""
        return Let((name,), self.value(raw, decay), prefetch=self.names.fresh(f"{name}_prefetched"))

    def take_together(self, nodes: Iterable[Node], axes: Iterable[Axes]) -> None:
        """Take several steps at once, each of which makes these nodes and takes what is over `axes`, where states are held in
        tiles and a step computes less than memory takes."""
        nodes = list(nodes)
        self.together = together_of(self.tiling, nodes, axes)
        if self.together > 1 and any(x.op == "fn" and len(x.axes) > 1 for x in walk(*nodes)):
            self.together, self.ahead = min(self.together, AHEAD), True

    @property
    def beside(self) -> Code:
        """How many entries of a state lie beside each of the axis that is cut."""
        return _blocks(beside(self.c.step, self.tiling))

    @property
    def when(self) -> Code | None:
        """What a launch says of whether several steps are taken at once; None where it has no choice."""
        return None if self.together == 1 or not beside(self.c.step, self.tiling) else Name(SEVERAL)

    def value(self, raw: Code, decay: bool = False) -> Code:
        """What was loaded as a number to compute with."""
        return Function("exp", raw.to("tl.float32")) if decay else raw.to("tl.float32")

    def store(self, address: Code, axes: Axes, value: Code, kind: str = OWN, offsets: Code | None = None) -> Store:
        masks = [Name("first")] if kind == WHOLE and self.tiling.dim else []
        if axes:
            masks.append(Name(f"in_{self._block(axes)}"))
            address = summed(address, Name(f"at_{self._block(axes)}") if offsets is None else offsets)
        return Store(address, value, both(masks) if masks else None)

    def kind(self, axes: Axes) -> str:
        """Is a tensor over these axes cut into tiles, or does each program have the whole?"""
        return OWN if any(dim_of(a) == self.tiling.dim for a in axes) else WHOLE

    def _block(self, axes: Axes) -> str:
        """The end of the names of the offsets and the mask of a contiguous block."""
        if len(axes) > 1 and axes not in self.blocks:
            self.blocks.append(axes)
        return "_".join(dim_of(a) for a in axes)

    def block_lets(self) -> list[Let]:
        """Statements that define the offsets and masks of all blocks in use."""
        found = []
        for axes in self.blocks:
            parts = [
                reduce(lambda x, a: x * f"size_{dim_of(a)}", axes[i + 1 :], at)
                for i, at in enumerate(over(axes, "at_{}"))
            ]
            found.append(let(f"at_{self._block(axes)}", summed(*parts)))
            found.append(let(f"in_{self._block(axes)}", both(over(axes, "in_{}"))))
        return found

    def index_lets(self, dim: str) -> list[Let]:
        """Statements that define a program's indices along a dim."""
        at: Code = call("tl.arange", 0, f"block_{dim}")
        return [
            let(f"at_{dim}", Name("tile") * f"block_{dim}" + at if dim == self.tiling.dim else at),
            let(f"wide_{dim}", call("tl.cast", f"at_{dim}", "tl.int64")),
            let(f"in_{dim}", Name(f"at_{dim}") < f"size_{dim}"),
        ]

    # --- statements

    def values(
        self, program: StepProgram, nodes: dict[str, Node], orders: dict[str, Axes], whole: set[str]
    ) -> tuple[list[Let], dict[str, Code]]:
        """Statements for nodes, and each result."""
        if self.ahead:
            nodes = in_powers_of_two(nodes)
        dialect = Triton(lambda d: f"size_{d}", lambda d: f"at_{d}", lambda d: f"in_{d}", lambda d: f"block_{d}")
        made, results = NodePrinter(dialect, taken=set(self.names.taken)).values(
            nodes,
            self.names.leaf,
            names=program.names,
            orders=orders,
            padding=lambda x: FINITE if x.attrs[0] in DECAYS else ZERO,
            whole=whole,
        )
        return [let(name, x) for name, x in made], results

    def assign(self, results: dict[str, Code]) -> list[Let]:
        """The new states, none of which is set before the last is known."""
        if len(results) == 1:
            return [let(self.names.of("state", n), value) for n, value in results.items()]
        made = [let(self.following[n], value) for n, value in results.items()]
        return made + [let(self.names.of("state", n), self.following[n]) for n in results]

    def total(self, axes: Axes) -> Code:
        """Where a sum over steps begins."""
        return zeros(shape(*(f"block_{dim_of(a)}" for a in axes))) if axes else call("tl.cast", 0.0, "tl.float32")

    # --- what the launcher needs

    def parameters(self) -> list[tuple[Parameter, ...]]:
        """Those of tensors and numbers, but for what says where sequences are."""
        names = [[x.name for x in self.pointers], *(x.strides for x in self.pointers if x.strides)]
        names += [[self.names.of("constant", v.name)] for v in self.constants]
        return [tuple(map(Parameter, line)) for line in names]

    def launch(self, f: KernelFunction) -> dict[str, Any]:
        """Arguments by their roles, the widths of tiles, and the size of the largest one."""
        states = [s.axes for s in self.c.step.states]
        parameters = [v.axes for v in self.c.step.variables if v.is_parameter]
        tiles = sorted({tuple(sorted(map(dim_of, axes), key=plain_name)) for axes in states + parameters if axes})
        largest = [*map(_blocks, tiles)]
        return {
            "function": f,
            "kernel": self,
            "dims": self.dims,
            "tiled": self.tiling.dim,
            "beside": self.beside,
            "several": self.when is not None,
            "constants": [(self.names.of("constant", v.name), v.name) for v in self.constants],
            "partial_sums": PART in self.tiling.kinds.values(),
            "groups": self.groups,
            "smallest": 16 if multiplies(f.body) else 1,
            "entries": made_by("max", *largest, 1) if largest else Literal(1),
            "held": _entries(states),
            "loaded": _entries(list(self.matrices.values())),
            "fixed": _entries([axes for axes in parameters if len(axes) > 1]),
            "tiles": 2 * sum(len(axes) > 1 for axes in states + parameters),
        }


def together_of(tiling: Tiling, nodes: Iterable[Node], axes: Iterable[Axes]) -> int:
    """How many steps are taken at once."""
    if tiling.dim is None or any(len(a) > 1 for a in axes):
        return 1
    made = sum(bool(x.args) and x.op != "expand" for x in walk(*nodes))
    return next((n for n, most in TOGETHER if made <= most), 1)


def in_powers_of_two(nodes: Mapping[str, Node]) -> dict[str, Node]:
    """Exponentials of a state's entries to base two, as a GPU has them: the factor goes to what has fewer entries."""
    entries = {x for x in walk(*nodes.values()) if x.op == "fn" and x.attrs[0] == "exp" and len(x.axes) > 1}
    two = {x: fn("exp2", mul(number("1/log(2)"), x.args[0])) for x in entries}
    return {n: replace(x, two) for n, x in nodes.items()}


def beside(p: StepProgram, tiling: Tiling) -> list[str]:
    """The dims of a state beside the axis that is cut."""
    return max(([d for d in map(dim_of, s.axes) if d != tiling.dim] for s in p.states), key=len)


def multiplies(body: Iterable[Statement]) -> bool:
    """Are there products of matrices, whose axes can't be narrow?"""
    nodes = (y for x in statements(body) for e in expressions(x) for y in walk_code(e))
    return any(isinstance(y, Call) and y.function == "tl.dot" for y in nodes)


def _entries(tiles: list[Axes]) -> Code | None:
    """How many entries tiles have together, if there are any."""
    return plus(*(_blocks(map(dim_of, axes)) for axes in tiles)) if tiles else None


def _blocks(dims: Iterable[str]) -> Code:
    """How many entries a tile over these has."""
    widths = [Fixed(f"block_{d}") for d in dims]
    return times(*widths) if widths else Literal(1)


def count_of(axes: Axes) -> Code:
    """How many entries a tensor over these axes has."""
    names: list[Code] = [Name(f"size_{dim_of(a)}") for a in axes]
    return reduce(lambda a, b: a * b, names)


def both(masks: Sequence[Code]) -> Code:
    """All masks hold."""
    return reduce(lambda a, b: a & b, masks)


def over(axes: Axes, form: str) -> list[Code]:
    """`form`, such as in_{}, for each axis, as a vector that broadcasts over all of them."""
    return [Name(form.format(dim_of(a))).along(i, len(axes)) for i, a in enumerate(axes)]
