"""Kernels of what is made of each step for itself: streams that sweeps load, decays of a function, and outputs and gradients of
several terms.

A program takes some steps of one head, as rows of tiles over a dim, or as numbers; sums over a dim stay in the program. Where a
gradient is a parameter's, the program leaves the sum over its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ....ir.code import Attribute, Code, Group, Literal, Load, Name, Starred, call, shape, zeros
from ....ir.expr import Node, dim_of, expand, factors_of, leaf, mul, plain_name, rebuild, total, walk
from ....ir.kernel_ir import For, KernelFunction, Parameter, Statement, Store, added, let
from ....ir.launch_ir import Alloc, Launch, Passed, in_needs, ref
from ....ir.launch_ir import Statement as LaunchStatement
from ....ir.launch_ir import stored as stored_to
from ....ir.python_code import Fixed, beside, choice, either, made_by, several
from ....ir.spellings import Function
from ....ir.step_program import DECAYS, LOGARITHM_OF, PER_HEAD
from ....printing.expressions import NodePrinter, Triton
from ....printing.terms import Axes
from ...normal_form.matrix_parameters import PER_STEP as DIFFERS
from ...normal_form.matrix_parameters import differs, outer_product
from ..print.axis_names import axis_name, block_name, size_name
from ..print.names import Names
from ..print.sizes import cdiv, padded, sizes

STEP = "!"  # the axis of steps; sorts before every dim
OPERATIONS = frozenset("leaf const number size add mul pow fn max sum peak expand".split())
PER_STEP = DIFFERS - {"sums"}  # [B, T, H, ...]
KINDS = PER_STEP | {"sums", "constant", *PER_HEAD, LOGARITHM_OF["decay parameter"]}
ZERO, FINITE = 0, 1  # what padding holds, as `NodePrinter` has it


@dataclass(frozen=True)
class Result:
    """What a per-step kernel makes: the Python name of a tensor [B, T, H, *order], the value, and its dtype.
    `summed`: over sequences and steps, [H, *order], as a parameter's gradient is. `wanted`: the gradient that it is for,
    None for any. `within`: (tensor, n, count) where it is the nth of `count` values of each step in a tensor that is there,
    [B, count * T, H, *order]."""

    name: str
    node: Node
    order: Axes
    dtype: str | Code
    summed: bool = False
    wanted: str | None = None
    within: tuple[str, int, int] | None = None


@dataclass(frozen=True)
class RowKernel:
    """A per-step kernel. `leaves` are its tensors: the name of each there, that of the tensor, and the leaf; `axes` those that
    have an index, a size and a block."""

    function: KernelFunction
    axes: tuple[str, ...]
    results: tuple[Result, ...]
    leaves: tuple[tuple[str, str, Node], ...] = ()
    sweeps = False

    @property
    def name(self) -> str:
        return self.function.name


def printable(node: Node, order: Axes, summed: bool = False) -> bool:
    """Does a per-step kernel make this value? Not what has two axes beside steps, nor what is the same at each step."""
    nodes = list(walk(node))
    return (
        len(order) < 2
        and all(x.op in OPERATIONS and len(x.axes) < 2 for x in nodes)
        and all(x.attrs[0] in KINDS for x in nodes if x.op == "leaf")
        and differs(node)
        and (not summed or STEP in by_step(node).axes)
    )


def matrix_product(x: Node) -> tuple[Node, Node] | None:
    """(a parameter that is a matrix, a vector over one of its axes) whose product a sum is."""
    if x.op != "sum":
        return None
    (bound,), factors = x.attrs, factors_of(x.args[0])
    matrices = [f for f in factors if f.op == "leaf" and f.attrs[0] in PER_HEAD and len(f.axes) == 2]
    vector = mul(*(f for f in factors if f not in matrices))
    return (matrices[0], vector) if len(matrices) == 1 and vector.axes == (bound,) else None


def outer_vectors(x: Node, order: Axes) -> tuple[Node, Node] | None:
    """The vectors of each step whose product over these two axes a term is, where per-step kernels make both."""
    found = outer_product(x, order)
    return found if found is not None and all(printable(v, v.axes) for v in found) else None


def row_kernel(name: str, results: list[Result], names: Names, name_of: Callable[[Node], str]) -> RowKernel:
    """The kernel that makes these. `name_of` names the tensors of leaves."""
    nodes = {r.name: by_step(r.node) for r in results}
    nodes = {r.name: total(nodes[r.name], STEP) if r.summed else expand(nodes[r.name], r.order) for r in results}
    orders = {r.name: r.order if r.summed else (STEP, *r.order) for r in results}
    leaves = {x.attrs[:2]: x for r in results for x in walk(r.node) if x.op == "leaf"}
    axes = tuple(dict.fromkeys(a for a in _dims(results)))
    perhaps = sometimes(results)
    program, step = call("tl.program_id", 0), Name("n")
    body: list[Statement] = [
        let("h", (program % "H").to("tl.int64")),
        let("n", program // "H" * "ROWS" + call("tl.arange", 0, "ROWS")),
        let("i_ok", step < "count"),
        let("b", (step // "T").to("tl.int64")),
        let("step", (step % "T").to("tl.int64")),
        let("at", step.to("tl.int64") * "H" + "h"),
    ]
    for a in axes:
        index = axis_name(a)
        body += [
            let(index, call("tl.arange", 0, block_name(a))),
            let(f"{index}_ok", Name(index) < size_name(dim_of(a))),
        ]
    parameters: list[tuple[Parameter, ...]] = []
    texts: dict[tuple[str, str], str] = {}
    taken = set(names.taken)
    for key, x in leaves.items():
        base = name_of(x)
        while base in texts.values():  # a decay, and its logarithm
            base += "_"
        texts[key] = base
        taken.add(plain_name(base))
        missing = perhaps.get(key) is not None
        parameters.append(parameters_of(base, x, missing))
        body += loaded(base, x, missing)
    printer = NodePrinter(
        Triton(
            lambda d: "ROWS" if d == STEP else size_name(d),
            lambda d: "n" if d == STEP else axis_name(d),
            lambda d: "i_ok" if d == STEP else f"{axis_name(d)}_ok",
            lambda d: "ROWS" if d == STEP else block_name(d),
        ),
        taken=taken,
    )
    made, values = printer.values(
        nodes,
        lambda x: Name(texts[x.attrs[:2]]),
        orders=orders,
        padding=lambda x: FINITE if x.attrs[0] in DECAYS else ZERO,
    )
    body += [let(n, value) for n, value in made]
    for r in results:
        parameters.append((Parameter(f"{r.name}_out", optional=r.wanted is not None),))
        body.append(stored(r, values[r.name]))
    sizes = dict.fromkeys(size_name(dim_of(a)) for a in axes)
    function = KernelFunction(
        name,
        tuple(parameters),
        ("T", "H", "count"),
        (*sizes, *(block_name(a) for a in axes), "ROWS"),
        "What is made of each step for itself.",
        tuple(body),
        ("T", "count"),
    )
    tensors = tuple((texts[k], name_of(x), x) for k, x in leaves.items())
    return RowKernel(function, axes, tuple(results), tensors)


def launched(kernel: RowKernel) -> list[LaunchStatement]:
    """The statements that allocate what the kernel makes, and launch it."""
    results = kernel.results
    perhaps = sometimes(results)
    rows = made_by("config.rows", *map(padded, kernel.axes))
    found: list[LaunchStatement] = []
    for r in (r for r in results if r.within is None):
        count = [cdiv(Fixed("B") * Fixed("T"), rows)] if r.summed else ["B", "T"]
        shape = beside(*count, "H", *sizes(r.order))
        found.append(Alloc(r.name, shape, "torch.float32" if r.summed else r.dtype, when_wanted(r)))
    arguments = [passed(tensor, x, perhaps.get(x.attrs[:2])) for _, tensor, x in kernel.leaves]
    arguments += [stored_to(ref(r.name if r.within is None else r.within[0])) for r in results]
    words: list[tuple[str, Code]] = [
        (size, Fixed(size)) for size in dict.fromkeys(size_name(dim_of(a)) for a in kernel.axes)
    ]
    words += [(block_name(a), padded(a)) for a in kernel.axes]
    words += [("ROWS", rows), ("num_warps", Literal(4))]
    places = (Fixed("T"), Fixed("H"), Fixed("B") * Fixed("T"))
    grid = cdiv(Fixed("B") * Fixed("T"), rows) * Fixed("H")
    return [*found, Launch(kernel.name, grid, tuple(arguments), places, tuple(words))]


def by_step(node: Node) -> Node:
    """The node over an axis of steps as well, where values differ from step to step."""
    done: dict[Node, Node] = {}
    for x in walk(node):
        if x.op == "leaf" and x.attrs[0] in DIFFERS:
            done[x] = leaf(x.attrs[0], x.attrs[1], (STEP, *x.attrs[2]))
        else:
            done[x] = rebuild(x, [done[a] for a in x.args]) if x.args else x
    return done[node]


def _dims(results: list[Result]) -> list[str]:
    """The dims that tiles have, as axes, and those whose sizes are in values."""
    nodes = [x for r in results for x in walk(r.node)]
    return sorted(
        {dim_of(a) for x in nodes for a in x.axes}
        | {dim_of(a) for r in results for a in r.order}
        | {x.attrs[0] for x in nodes if x.op == "size"}
    )


def when_wanted(r: Result) -> Code | None:
    """When a result is wanted, None for always."""
    return None if r.wanted is None else in_needs(r.wanted)


def sometimes(results: Iterable[Result]) -> dict[tuple[str, str], tuple[str, ...] | None]:
    """The gradients that a leaf is used for; None for any."""
    found: dict[tuple[str, str], list[str | None]] = {}
    for r in results:
        for key in {x.attrs[:2] for x in walk(r.node) if x.op == "leaf"}:
            found.setdefault(key, []).append(r.wanted)
    return {k: None if None in x else tuple(dict.fromkeys(map(str, x))) for k, x in found.items()}


def _is_given(x: Node) -> bool:
    """Is a leaf there whatever is wanted?"""
    return x.attrs[0] not in ("read", "write", "stored", "multiplied", "sums", "state-adjoint product")


def parameters_of(base: str, x: Node, missing: bool) -> tuple[Parameter, ...]:
    """The parameters of a leaf, which may be `missing`."""
    kind, optional = x.attrs[0], missing and not _is_given(x)
    if kind == "constant":
        return (Parameter(base),)
    if kind == "sums":
        return Parameter(f"{base}_sums", optional), Parameter(f"{base}_n")
    if kind in PER_STEP:
        return Parameter(f"{base}_p", optional), *(Parameter(f"{base}_{x}") for x in "bthg")
    return (Parameter(f"{base}_p", optional),)


def passed(base: str, x: Node, gradients: tuple[str, ...] | None) -> Passed:
    """What a launch passes for a leaf, which is used for these gradients, or for any."""
    kind = x.attrs[0]
    if kind == "constant":
        return Passed(Fixed("constants")[x.attrs[1]])
    tensor = ref(base)
    if kind in PER_STEP:
        given, nothing = several(tensor, Starred(made_by("strides", tensor, "H"))), several(None, 0, 0, 0, 1)
    elif kind == "sums":
        given, nothing = several(tensor, Attribute(tensor, "shape")[2]), several(None, 0)
    else:
        return Passed(tensor)
    if gradients is None or _is_given(x):
        return Passed(beside(*given.values))
    when = either(*map(in_needs, gradients))
    return Passed(Starred(Group(choice(given, when, nothing))), wanted=frozenset(gradients))


def loaded(base: str, x: Node, missing: bool, rows: str = "ROWS") -> list[Statement]:
    """The statements that load a leaf, of so many steps; zeros where it is `missing`."""
    kind, _, order = x.attrs
    if kind == "constant":
        return []
    none = zeros(shape(rows, *(block_name(dim_of(a)) for a in order)))
    if kind == "sums":
        row = (Name("b") * "H" + "h") * f"{base}_n" + "tile"
        one = Load(Name(f"{base}_sums") + row * "T" + "step", Name("i_ok"), Literal(0.0))
        return [let(base, none), For("tile", call("range", f"{base}_n"), (added(base, one),))]
    pointer: Code = Name(f"{base}_p")
    if kind in PER_STEP:
        pointer = pointer + Name("h") // f"{base}_g" * f"{base}_h"
        line, row, mask = Name("b") * f"{base}_b", Name("step") * f"{base}_t", Name("i_ok")
        if order:
            index = axis_name(dim_of(order[0]))
            pointer = pointer + (line + row).along(0, 2) + Name(index).along(1, 2)
            value: Code = Load(pointer, mask.along(0, 2) & Name(f"{index}_ok").along(1, 2), Literal(0.0))
        else:
            value = Load(pointer + line + row, mask, Literal(0.0))
    elif order:
        index, width = axis_name(dim_of(order[0])), size_name(dim_of(order[0]))
        value = Load(pointer + Name("h") * width + index, Name(f"{index}_ok"), Literal(0.0))
    else:
        value = Load(pointer + "h")
    value = value.to("tl.float32")
    if kind in DECAYS:
        value = Function("exp", value)
    return [let(base, value, fallback=none if missing and not _is_given(x) else None)]


def stored(r: Result, value: Code) -> Store:
    """The statement that stores a result."""
    index, width = (axis_name(dim_of(r.order[0])), size_name(dim_of(r.order[0]))) if r.order else ("", "")
    pointer, rank = Name(f"{r.name}_out"), 1 + len(r.order)
    if r.summed:
        place: Code = call("tl.program_id", 0).to("tl.int64")
        return (
            Store(pointer + place * width + index, value, Name(f"{index}_ok"))
            if r.order
            else Store(pointer + place, value)
        )
    place = Name("at")
    if r.within is not None:
        _, n, count = r.within
        place = (Name("n").to("tl.int64") * count + n) * "H" + "h"
    if not r.order:
        return Store(pointer + place, value, Name("i_ok"))
    mask = Name("i_ok").along(0, rank) & Name(f"{index}_ok").along(1, rank)
    return Store(pointer + place.along(0, rank) * width + Name(index).along(1, rank), value, mask)
