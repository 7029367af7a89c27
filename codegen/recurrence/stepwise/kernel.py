"""The text of one kernel: its names, its arguments, where they lie in memory, and its statements.

In a kernel, `at_d` are a program's indices along dim d, `in_d` says which of them exist, `wide_d` are the indices in 64 bits;
`at_d_e` and `in_d_e` are the same for a contiguous block over d and e. `index` counts batch entries times heads, `now` steps;
`then` is the step that comes after it in the loop, and `there` its place in the segment. What a step takes from memory is loaded
during the step before it, as nothing else would fill the time that memory takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ...ir.expr import Node, dim_of
from ...ir.step_program import StepProgram, Var
from ...printing.expressions import FINITE, ZERO, NodePrinter, Triton
from ..chunkwise.compiled import Compiled
from .names import names_of, sizes
from .tiling import OWN, PART, WHOLE, Tiling

Axes = tuple[str, ...]


@dataclass
class Pointer:
    """A tensor that a kernel is given: its name there, what the launcher passes, and the names of its strides, if any.

    `lead` has the index at which a program starts on each axis before the tensor's own ones: batch entry, step, head.
    """

    name: str
    call: str
    strides: list[str] = field(default_factory=list)
    lead: tuple[str, ...] = ()


@dataclass(frozen=True)
class Loads:
    """Statements before a loop over steps, and those of each step, that load what a step takes."""

    first: list[str] = field(default_factory=list)
    each: list[str] = field(default_factory=list)

    def __add__(self, other: Loads) -> Loads:
        return Loads(self.first + other.first, self.each + other.each)


class Kernel:
    """Collects what a kernel needs while its parts are printed."""

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
        self.following = {n: self.names.fresh(f"next_{n}") for s in c.step.states for n in (s.name, f"d{s.name}")}

    # --- arguments

    def strided(self, name: str, call: str, lead: tuple[str, ...], own: int = 0) -> Pointer:
        """A tensor with any strides along the axes of `lead` and along `own` further ones."""
        strides = [self.names.fresh(f"{name}_stride{i}") for i in range(len(lead) + own)]
        return self._add(Pointer(self.names.fresh(f"{name}_at"), call, strides, lead))

    def head_of(self, name: str) -> str:
        """The head that an argument is read at: it may have fewer than there are, each for a group of neighbours."""
        group = self.names.fresh(f"{name}_group")
        self.groups.append((group, name))
        return f"head // {group}"

    def contiguous(self, name: str, call: str) -> Pointer:
        return self._add(Pointer(self.names.fresh(f"{name}_at"), call))

    def _add(self, x: Pointer) -> Pointer:
        self.pointers.append(x)
        return x

    def advance(self, x: Pointer) -> str:
        """Move a pointer to where this program starts."""
        parts = [f"{f'({i})' if ' ' in i else i} * {s}" for i, s in zip(x.lead, x.strides, strict=False)]
        return f"{x.name} += {' + '.join(parts)}"

    # --- addresses, loads and stores

    def address(self, x: Pointer, row: str, axes: Axes) -> str:
        """The start of block number `row` in a contiguous tensor of blocks over `axes`."""
        if not axes:
            return f"{x.name} + {row}"
        count = " * ".join(f"size_{dim_of(a)}" for a in axes)
        return f"{x.name} + {f'({row})' if ' ' in row else row} * {f'({count})' if len(axes) > 1 else count}"

    def row_now(self, kind: str) -> str:
        """The row of step `now` in a contiguous [B, T, H, ...]; parts lie one after the other, a tensor for each tile."""
        return "(line + now) * heads + head" + (" + tile * lines * heads" if kind == PART else "")

    def load(self, address: str, axes: Axes, offsets: str | None = None) -> str:
        return f"{self.raw(address, axes, offsets)}.to(tl.float32)"

    def raw(self, address: str, axes: Axes, offsets: str | None = None) -> str:
        """A load in the dtype of memory."""
        if not axes:
            return f"tl.load({address})"
        offsets = f"at_{self._block(axes)}" if offsets is None else offsets
        return f"tl.load({address} + {offsets}, mask=in_{self._block(axes)}, other=0.0)"

    def load_strided(self, x: Pointer, axes: Axes, decay: bool = False) -> str:
        """The value of a variable, at step `now` where it has steps; a decay from its logarithm."""
        return self.value(self.raw_strided(x, axes), decay)

    def raw_strided(self, x: Pointer, axes: Axes, step: str = "now") -> str:
        own = x.strides[len(x.lead) :]
        offsets = " + ".join(f"{at} * {s}" for at, s in zip(over(axes, "wide_{}"), own, strict=True))
        return self.raw(f"{x.name} + {step} * {x.strides[1]}" if len(x.lead) == 3 else x.name, axes, offsets)

    def loads(self, name: str, x: Pointer, axes: Axes, decay: bool = False) -> Loads:
        """`name` as a variable's value at step `now`; vectors and numbers are prefetched by a step, where registers are left."""
        matrices = any(len(v.axes) > 1 for v in self.c.step.variables if v.kind.endswith("parameter"))
        if len(axes) > 1:
            self.matrices[name] = axes
        if len(axes) > 1 or matrices:
            return Loads([], [f"{name} = {self.load_strided(x, axes, decay)}"])
        return self.prefetched(name, [self.raw_strided(x, axes, step) for step in ("now", "then")], decay)

    def prefetched(self, name: str, raw: list[str], decay: bool = False) -> Loads:
        """`name` as what was loaded a step before. raw: the texts that load it, for the first step and for the next one."""
        held = self.names.fresh(f"{name}_ahead")
        return Loads([f"{held} = {raw[0]}"], [f"{name} = {self.value(held, decay)}", f"{held} = {raw[1]}"])

    def value(self, raw: str, decay: bool = False) -> str:
        """What was loaded as a number to compute with."""
        return f"tl.exp({raw}.to(tl.float32))" if decay else f"{raw}.to(tl.float32)"

    def store(self, address: str, axes: Axes, value: str, kind: str = OWN, offsets: str | None = None) -> str:
        masks = ["first"] if kind == WHOLE and self.tiling.dim else []
        if axes:
            masks.append(f"in_{self._block(axes)}")
            address += f" + at_{self._block(axes)}" if offsets is None else f" + {offsets}"
        mask = f", mask={' & '.join(masks)}" if masks else ""
        return f"tl.store({address}, {value}{mask})"

    def kind(self, axes: Axes) -> str:
        """Is a tensor over these axes cut into tiles, or does each program have the whole?"""
        return OWN if any(dim_of(a) == self.tiling.dim for a in axes) else WHOLE

    def _block(self, axes: Axes) -> str:
        """The end of the names of the offsets and the mask of a contiguous block."""
        if len(axes) > 1 and axes not in self.blocks:
            self.blocks.append(axes)
        return "_".join(dim_of(a) for a in axes)

    def block_lines(self) -> list[str]:
        """Statements that define the offsets and masks of all blocks in use."""
        lines = []
        for axes in self.blocks:
            parts = [
                " * ".join([at, *(f"size_{dim_of(a)}" for a in axes[i + 1 :])])
                for i, at in enumerate(over(axes, "at_{}"))
            ]
            lines.append(f"at_{self._block(axes)} = {' + '.join(parts)}")
            lines.append(f"in_{self._block(axes)} = {' & '.join(over(axes, 'in_{}'))}")
        return lines

    # --- statements

    def print(
        self, program: StepProgram, nodes: dict[str, Node], orders: dict[str, Axes], whole: set[str]
    ) -> tuple[list[str], dict[str, str]]:
        """Statements for nodes, and the text of each result."""
        dialect = Triton(lambda d: f"size_{d}", lambda d: f"at_{d}", lambda d: f"in_{d}", lambda d: f"block_{d}")
        return NodePrinter(dialect, taken=set(self.names.taken)).statements(
            nodes,
            self.names.leaf,
            names=program.names,
            orders=orders,
            padding=lambda x: FINITE if x.attrs[0].startswith("decay") else ZERO,
            whole=whole,
        )

    def assign(self, results: dict[str, str]) -> list[str]:
        """The new states, none of which is set before the last is known."""
        if len(results) == 1:
            return [f"{self.names.of('state', n)} = {text}" for n, text in results.items()]
        lines = [f"{self.following[n]} = {text}" for n, text in results.items()]
        return lines + [f"{self.names.of('state', n)} = {self.following[n]}" for n in results]

    # --- what the launcher needs

    def launch(self, lines: Iterable[str]) -> dict[str, Any]:
        """Arguments by their roles, the widths of tiles, and the size of the largest one."""
        states = [s.axes for s in self.c.step.states]
        parameters = [v.axes for v in self.c.step.variables if v.kind.endswith("parameter")]
        largest = sorted(
            {" * ".join(sorted(f"block_{dim_of(a)}" for a in axes)) for axes in states + parameters if axes}
        )
        beside = [" * ".join(f"block_{dim_of(a)}" for a in axes if dim_of(a) != self.tiling.dim) for axes in states]
        return {
            "dims": self.dims,
            "blocks": self.block_lines(),
            "tiled": self.tiling.dim,
            "beside": max(beside, key=lambda text: text.count("block_")) or "1",
            "pointers": [x.name for x in self.pointers],
            "strides": [x.strides for x in self.pointers if x.strides],
            "calls": [x.call for x in self.pointers],
            "strided": [x.call for x in self.pointers if x.strides],
            "constants": [(self.names.of("constant", v.name), v.name) for v in self.constants],
            "parts": PART in self.tiling.kinds.values(),
            "groups": self.groups,
            "smallest": 16 if any("tl.dot" in x for x in lines) else 1,
            "entries": f"max({', '.join(largest)}, 1)" if largest else "1",
            "held": _entries(states),
            "loaded": _entries(list(self.matrices.values())),
            "fixed": _entries([axes for axes in parameters if len(axes) > 1]),
        }


def _entries(tiles: list[Axes]) -> str:
    """How many entries tiles have together; empty where there are none."""
    return " + ".join(" * ".join(f"block_{dim_of(a)}" for a in axes) or "1" for axes in tiles)


def over(axes: Axes, form: str) -> list[str]:
    """`form`, such as in_{}, for each axis, as a vector that broadcasts over all of them."""
    texts = []
    for i, axis in enumerate(axes):
        index = f"[{', '.join(':' if j == i else 'None' for j in range(len(axes)))}]" if len(axes) > 1 else ""
        texts.append(form.format(dim_of(axis)) + index)
    return texts
