"""Conjugate gradients in one Triton kernel, printed from the chunk program of the matrix's product with a vector.

Two kernels: one sweeps the sequence and keeps the states before each chunk; the other has a program for each chunk, which holds
that state, the chunk's writes and its decays on chip, and runs all steps for all solves of the chunk at once. What of the product
doesn't depend on the vector is computed in the prologue of the loop over steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..ir.code import Code, Item, Literal, Load, Method, Name, Starred, call, plus, times, where
from ..ir.expr import (
    COL,
    ROW,
    ZERO,
    Node,
    dim_of,
    factors_of,
    leaf,
    mul,
    plain_name,
    rebuild,
    total,
    walk,
)
from ..ir.expr import replace as substituted
from ..ir.kernel_ir import KernelFunction, let
from ..ir.launch_ir import Function, Passed, ref
from ..ir.python_code import Fixed, beside, made_by, method, several
from ..ir.step_program import DECAYS, PER_HEAD
from ..ir.words import Definition, Definitions, apart
from ..printing.cannot_print import CannotPrint
from ..printing.code_passes import finished_function, finished_kernel
from ..printing.kernel_text import kernel_definition
from ..printing.launch_text import launch_definition
from ..recurrence.chunkwise.chunk_program import chunk_program
from ..recurrence.chunkwise.planner import Map, Sweep
from ..recurrence.step.adjoint import gradient_name
from ..recurrence.triton.kernels.arguments import Argument, Role
from ..recurrence.triton.kernels.tile_lowering import Tiles
from ..recurrence.triton.kernels.tile_names import Scope
from ..recurrence.triton.kernels.tile_values import Once, Value
from ..recurrence.triton.plan_passes.hoist import Opened, opened
from ..recurrence.triton.plan_passes.roles import at_row
from ..recurrence.triton.print.axis_names import axis_name, block_name, size_name
from .graph import Operation
from .solve_gate import Solved, gate_solves, gate_sums
from .solve_kernels import Part, Square, checkpoints_kernel, solves_kernel, sums_kernel
from .solve_launchers import Solve, matrix_launcher, solve_launcher, sums_launcher

MODULES = {
    "chunkform.runtime.chunk_kernels.decays": "LEAST_LOG2 LOG2E power",
    "chunkform.runtime.launch.launch": "DTYPES cdiv launch padded steps whole",
    "chunkform.runtime.solves.solves": "conjugate_gradients",
    "chunkform.runtime.chunk_kernels.split_precision": "INTERPRETED narrowed widened",
    "chunkform.runtime.solves.launch": "CONVERGED conjugate_step over_root relative solve_config strides3",
}
OWN = frozenset(  # what the kernels' skeleton calls its own
    [
        "x",
        "p",
        "r",
        "hp",
        "along",
        "delta",
        "size",
        "rest",
        "inside",
        "place",
        "state",
        "first",
        "last_out",
        "checkpoints_out",
        "x_out",
        "fine_out",
        "residual_out",
        "checkpoints_p",
        "right_p",
        "right_b",
        "right_t",
        "right_h",
        "tolerance",
        "SIGN",
        "COUNT",
        "block_tile",
    ]
)
RESERVED = OWN | frozenset(
    [
        "B",
        "T",
        "H",
        "C",
        "DT",
        "LEVELS",
        "EVEN",
        "EXACT",
        "tl",
        "triton",
        "torch",
        "i",
        "c",
        "h",
        "b",
        "bh",
        "t0",
        "at",
        "step",
        "last",
        "chunks",
        "tile",
        "given",
        "states",
        "constants",
        "right",
        "steps",
        "config",
        "some",
        "residual",
        "launch",
        "power",
        "whole",
        "before",
        "count",
        "solves",
        "checkpoints",
        "matrix",
        "CONVERGED",
        "conjugate_step",
        "over_root",
        "narrowed",
        "relative",
        "widened",
    ]
)


class CannotSolve(Exception):
    """Why no kernel here solves with this matrix."""


ELEMENTWISE = (
    "leaf",
    "const",
    "number",
    "size",
    "add",
    "mul",
    "pow",
    "fn",
    "max",
    "expand",
)


@dataclass(frozen=True)
class SolveForm:
    """The kernels of a solve, and the functions that launch them, in the order in which they stand in a file."""

    parts: tuple[KernelFunction | Function, ...]

    @property
    def definitions(self) -> Definitions:
        return apart(_definition(x) for x in self.parts)


def solve_form(op: Operation, fine: bool = False) -> SolveForm:
    """`triton_matrix` and `triton_solve`, which use the functions of `MODULES`; `fine`: what it finds goes on in float32 as well.
    Raises `CannotSolve`."""
    try:
        return SolveForm(tuple(_Solve(op, fine).parts()))
    except CannotPrint as why:
        raise CannotSolve(str(why)) from why


def summed_parameters(op: Operation) -> tuple[str, ...]:
    """The parameters for which the section has `triton_parameters(given, constants, cotangent)`: their gradients, [H, ..]."""
    try:
        return tuple(_Solve(op).parameters()[1])
    except (CannotPrint, CannotSolve):
        return ()


class _Chunk(Tiles):
    """Tiles of one chunk whose decays are summed on the spot, and whose sums leave nothing."""

    by_head = False

    def __init__(self, o: Opened, name_of: Callable[[Node], str]) -> None:
        super().__init__(Scope.of(o, o.definitions, name_of))
        self.names |= OWN

    def _cumulative(
        self,
        d: Node,
        inclusive: bool,
        end: bool = False,
        over: tuple[str, ...] | None = None,
    ) -> tuple[str, str]:
        node = self.decays[d]
        if node.op != "leaf" or node.attrs[0] != "decay" or node.axes:
            raise CannotPrint("its decay isn't one argument, a scalar a step")
        name = self.name_of(node)
        self.argument(name, Role.GIVEN, "step", node)
        if Once(name, "sums") not in self.loads:
            self.loads[Once(name, "sums")] = name
            self.names |= {f"{name}_{x}" for x in ("own", "a", "a_before", "a_end", "n")}
            number = Load(
                plus(f"{name}_p", times("t0", f"{name}_t"), times("i", f"{name}_t")),
                Name("i_ok"),
                Literal(0.0),
            )
            own = Name(f"{name}_own")
            self.head += [
                let(own.id, number.to("tl.float32") * "LOG2E"),
                let(own.id, call("tl.maximum", own, "LEAST_LOG2")),
                let(f"{name}_a", call("tl.cumsum", own, axis=0)),
                let(f"{name}_a_before", Name(f"{name}_a") - own),
                let(f"{name}_a_end", call("tl.sum", own, axis=0)),
                let(f"{name}_n", 0),
            ]
        suffix = "_end" if end else "" if inclusive else "_before"
        return f"{name}_a{suffix}", f"{name}_n"


class _Solve:
    def __init__(self, op: Operation, fine: bool = False) -> None:
        c, self.fine = op.compiled, fine
        if c.forward is None or c.forward.form.write_leaves():
            raise CannotSolve("its product isn't chunk-parallel")
        self.op, self.c = op, c
        sweeps = [s for s in c.forward.stages if isinstance(s, Sweep)]
        if len(sweeps) != 1 or len(sweeps[0].group) != 1 or len(sweeps[0].chunk.outputs) != 1:
            raise CannotSolve("it is made of several states")
        self.sweep = sweeps[0]
        (self.value,) = next(x for x in c.forward.stages if isinstance(x, Map)).values.values()
        assert op.vector is not None
        self.vector = op.vector
        self.names: dict[tuple[str, ...], str] = {}
        if any(
            y.op
            not in (
                "leaf",
                "const",
                "number",
                "add",
                "mul",
                "pow",
                "fn",
                "max",
                "expand",
            )
            for y in walk(self.value)
        ):
            raise CannotSolve("something else is contracted in it")

    def name_of(self, x: Node) -> str:
        key = tuple(map(str, x.attrs[:2])) if x.op == "leaf" else (x.key,)
        if key not in self.names:
            name = x.attrs[1] if x.op == "leaf" else "decay"
            dims = self.c.step.dims
            own = (*map(size_name, dims), *map(axis_name, dims), *self.names.values())
            taken = RESERVED | set(map(plain_name, own))
            while plain_name(name) in taken:
                name += "_"
            self.names[key] = name
        return self.names[key]

    # --- the two kernels --------------------------------------------------------------------------------------------

    def checkpoints(self) -> tuple[Part, Opened]:
        """The sweep: the state before each chunk is stored, and then carried on."""
        s = self.sweep.group[0]
        bare = Sweep((s,), False, "row", (), (s.name,), chunk_program((s,), (), False, {}))
        o = opened(bare)
        if o.of_prologue or o.definitions or len(o.full) != 1 or len(o.tile) != 1:
            raise CannotSolve("its state's sweep needs a prologue")
        tiles = _Chunk(o, self.name_of)
        own = tiles.ordered(tuple(o.rename.get(a, a) for a in s.axes))
        tiles.memo[leaf("state in", s.name, tuple(o.rename.get(a, a) for a in s.axes))] = Value(Name("state"), own)
        v = tiles.value(o.states[s.name])
        body = [
            *tiles.head,
            *tiles.body,
            let("state", v.over(own), note=tiles.note(o.states[s.name])),
        ]
        return Part(tuple(tiles.arguments.values()), (), tuple(body)), o

    def steps(self) -> tuple[Part, Opened]:
        """The solves of one chunk: what is fixed, and one product."""
        s = self.sweep.group[0]
        o = opened(self.sweep)
        if o.of_prologue or o.definitions or len(o.full) != 1 or len(o.tile) != 1:
            raise CannotSolve("its product needs a prologue")
        tiles = _Chunk(o, self.name_of)
        axes = tuple(o.rename.get(a, a) for a in s.axes)
        tiles.memo[leaf("state in", s.name, axes)] = Value(Name("state"), tiles.ordered(axes), raw=True)
        ((read, node),) = o.outputs.items()
        vectors = {
            y for y in walk(node, at_row(self.value)) if y.op == "leaf" and y.attrs[:2] == ("input", self.vector)
        }
        for y in vectors:
            tiles.memo[y] = Value(Name("p"), tiles.ordered(y.axes), raw=True, wide=call("widened", "p"))
        node = self.fixed(node, tiles)
        (own,) = (a for a in at_row(self.value).axes if a != ROW)
        rest = self.fixed(at_row(self.value), tiles)
        ahead, tiles.body = tiles.body, []
        v = tiles.value(self.inner_first(node, tiles))
        name = v.name if v.named else tiles.assign("y", v.over(v.axes), v.axes).name
        made = leaf("fixed", name, (ROW, own))
        tiles.memo[made] = Value(Name(name), (ROW, own))
        rest = substituted(
            rest,
            {y: made for y in walk(rest) if y.op == "leaf" and y.attrs[:2] == read.attrs[:2]},
        )
        out = tiles.value(rest)
        product = let("hp", out.over((ROW, own)), note="" if rest is made else tiles.note(rest))
        setup, loop = (*tiles.head, *ahead), (*tiles.body, product)
        return Part(tuple(tiles.arguments.values()), setup, loop), o

    def inner_first(self, x: Node, tiles: Tiles) -> Node:
        """x with leaves in place of what its products make of other products; these come before all else, in the dtype of
        operands, so that fewer sums are held at once."""
        if x.op == "sum":
            factors = factors_of(x.args[0])
            inside = [f for f in factors if set(f.axes) <= {ROW, COL}]
            if any(y.op == "sum" for y in walk(*inside)):
                v = tiles.value(mul(*inside))
                v = tiles.assign(
                    "g",
                    v.over(v.axes).to("DT"),
                    v.axes,
                    raw=True,
                    note=tiles.note(mul(*inside)),
                )
                made = leaf("fixed", v.name, v.axes)
                tiles.memo[made] = v
                return total(mul(made, *(f for f in factors if f not in inside)), x.attrs[0])
        return rebuild(x, (self.inner_first(a, tiles) for a in x.args)) if x.args else x

    def fixed(self, x: Node, tiles: Tiles) -> Node:
        """x with leaves in place of what doesn't depend on the vector; these are computed at once."""

        def moves(y: Node) -> bool:
            return any(
                z.op == "leaf" and (z.attrs[:2] == ("input", self.vector) or z.attrs[0] == "read") for z in walk(y)
            )

        def still(y: Node) -> Node:
            if y.op in ("const", "number", "size"):
                return y
            v = tiles.value(y)
            if not v.named:
                v = tiles.assign("f", v.over(v.axes), v.axes, note=tiles.note(y))
            if y.op == "leaf":
                return y
            made = leaf("fixed", v.name, y.axes)
            tiles.memo[made] = v
            return made

        def visit(y: Node) -> Node:
            if not moves(y):
                return still(y)
            if y.op == "mul":
                inside = [f for f in y.args if not moves(f) and set(f.axes) <= {ROW, COL}]
                others = [f for f in y.args if f not in inside]
                parts = [still(mul(*inside))] if inside else []
                return mul(*parts, *(visit(f) for f in others))
            return rebuild(y, (visit(a) for a in y.args)) if y.args else y

        return visit(x)

    def parameters(self) -> tuple[Part, dict[str, tuple[Code, bool]]]:
        """Sums over batch and steps for parameters whose gradient is a product at each step: for each its value, and whether it
        runs over the vector's dim."""
        c = self.c
        assert c.backward is not None
        o = opened(self.sweep)
        tiles = _Chunk(replace(o, full=o.full, decays={}), self.name_of)
        found: dict[str, tuple[Code, bool]] = {}
        started = {
            y.attrs[:2] for s in c.step.states if s.initial is not None for y in walk(s.initial) if y.op == "leaf"
        }
        for v in c.step.variables:
            node = c.backward.form.values.get(gradient_name(v))
            if v.kind not in PER_HEAD or node is None or node is ZERO or (v.kind, v.name) in started:
                continue
            kinds = {y.attrs[0] for y in walk(node) if y.op == "leaf"}
            plain = all(y.op in ELEMENTWISE for y in walk(node)) and kinds <= {
                "input",
                "cotangent",
                "constant",
                *PER_HEAD,
            }
            if not plain or len(node.axes) > 1 or node.axes != v.axes or any(a != o.full[0] for a in node.axes):
                continue
            value = tiles.value(at_row(node))
            axes = (ROW, *node.axes)
            if set(value.axes) != set(axes):
                continue
            there = where(Name("i_ok").along(0, len(axes)), value.over(axes), 0.0)
            found[v.name] = call("tl.sum", there, axis=0), bool(node.axes)
        return Part(tuple(tiles.arguments.values()), (), (*tiles.head, *tiles.body)), found

    # --- what stands in a file --------------------------------------------------------------------------------------

    def parts(self) -> list[KernelFunction | Function]:
        sums, found = self.parameters()
        kept, o = self.checkpoints()
        solved, o2 = self.steps()
        p, s = self.c.step, self.sweep.group[0]
        (dim,) = {dim_of(a) for a in s.axes}
        down = axis_name(_Chunk(o2, self.name_of).ordered((*o2.full, *o2.tile))[0])
        full, tile, place = axis_name(o.full[0]), axis_name(o.tile[0]), axis_name(dim)
        swept, solving = self.square(o, full), self.square(o2, down)
        solve = Solve(
            s.name,
            solving,
            tuple(
                (self.name_of(v.leaf), v.name, v.per_step)
                for v in p.variables
                if v.kind != "constant" and v.name != self.vector
            ),
            f"torch_{self.op.name}_matrix",
            self.initial(),
            self.fine,
            lambda part: tuple(map(self.passed, part.arguments)),
        )
        meaning = self.meaning()
        kernels = (
            finished_kernel(checkpoints_kernel(kept, s.name, swept, full, tile)),
            finished_kernel(solves_kernel(solved, solving, place)),
        )
        gate_solves(meaning, (kept, solved), (swept, solving), kernels)
        parts: list[KernelFunction | Function] = [*kernels]
        parts += [matrix_launcher(solve, kept), solve_launcher(solve, solved)]
        if found:
            tensors = [
                (self.name_of(a.source), _given(a.source))
                for a in sums.arguments
                if a.source is not None and a.layout in ("step", "head")
            ]
            wide = {name: over_dim for name, (_, over_dim) in found.items()}
            kernel = finished_kernel(sums_kernel(sums, solving, place, found))
            gate_sums(replace(meaning, gradients={n: self.gradient(n) for n in found}), sums, solving, kernel)
            parts += [kernel, sums_launcher(solve, sums, tensors, wide)]
        return parts

    def meaning(self) -> Solved:
        """What the kernels are for."""
        return Solved(self.c.step, self.vector, {})

    def gradient(self, parameter: str) -> Node:
        """What a step adds to the gradient of a parameter."""
        assert self.c.backward is not None
        return self.c.backward.form.values[gradient_name(self.c.step.variable(parameter))]

    def square(self, o: Opened, down: str) -> Square:
        """The state as a tile of a kernel has it."""
        first, second = (axis_name(o.rename.get(a, a)) for a in self.sweep.group[0].axes)
        (dim,) = {dim_of(a) for a in self.sweep.group[0].axes}
        return Square(size_name(dim), block_name(dim), (first, second), down)

    def passed(self, a: Argument) -> Passed:
        """An argument as the launch gives it."""
        x = a.source
        assert x is not None
        if a.layout == "number":
            return Passed(Fixed("constants")[x.attrs[1]])
        name = ref(self.name_of(x))
        return Passed(beside(name, Starred(made_by("strides3", name))) if a.layout == "step" else name)

    def initial(self) -> Code | None:
        """The spec's own initial state, as torch has it."""
        s = self.c.step.states[0]
        if s.initial is None:
            return None
        from ..printing.expressions import NodePrinter, Torch

        printer = NodePrinter(Torch(lambda d: size_name(d), like="some"), taken=set(RESERVED) | {"some"})

        def of_leaf(x: Node) -> Code:
            kind, name, _ = x.attrs
            if kind == "constant":
                return Item(Name("constants"), Literal(name))
            wide = Method(Name(self.name_of(x)), "float", ())
            return Method(wide, "exp", ()) if kind in DECAYS else wide

        made, results = printer.values({"first": s.initial}, of_leaf, orders={"first": s.axes})
        if made:
            raise CannotSolve("its initial state takes several statements")
        shape = several("B", "H", *(size_name(dim_of(a)) for a in s.axes))
        whole = made_by("torch.as_tensor", results["first"], dtype="torch.float32", device="some.device")
        return method(whole, "expand", shape)


def _given(x: Node) -> Code:
    """What the function for parameters takes a leaf from."""
    kind, name, _ = x.attrs
    if kind == "cotangent":
        return made_by("steps", "cotangent")
    value = Fixed("given")[name]
    return made_by("steps", value) if kind == "input" else method(value, "contiguous")


def _definition(x: KernelFunction | Function) -> Definition:
    if isinstance(x, Function):
        return launch_definition(finished_function(x))
    return kernel_definition(x)
