"""Features as one kernel over positions: products of what is given at a position by each head's matrices, and what follows.

A value of a position is a tile, positions down and its dim across, or a vector of numbers; products are rounded to the dtype of
what is given, as torch's are, and everything else is in float32. What a kernel can't make so (what depends on where a position
is, or has two dims of its own) is left to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from dataclasses import replace as replaced

from ..ir.code import Attribute, Code, Group, Items, Literal, Load, Name, call, plus, times
from ..ir.expr import Node, dim_of, leaf, leaves, rename, replace, walk
from ..ir.kernel_ir import Body, Do, For, KernelFunction, Let, Parameter, Statement, Store, let
from ..ir.python_code import Fixed, dictionary, leaf_code, made_by, several
from ..printing.dialects import Operand, Triton
from ..printing.expressions import NodePrinter
from .feature_maps import Map
from .lower import KEY, QUERY, Lowered

PROGRAM = call("tl.program_id", 0)
MATRICES = 4  # of a head that a kernel holds
OPERATIONS = ("leaf", "const", "number", "size", "add", "mul", "pow", "fn", "max", "sum")
LEAVES = ("query", "key", "parameter", "constant")


@dataclass(frozen=True)
class Made:
    """What one kernel makes, over the positions of one side, in the text of its parts."""

    side: str
    results: dict[str, Node]
    same: dict[str, str]  # what is another result
    positions: tuple[Node, ...]  # leaves of each kind, in the order of the kernel's arguments
    parameters: tuple[Node, ...]
    constants: tuple[Node, ...]
    dims: tuple[str, ...]
    matrices: dict[str, Node]  # parameters that torch makes of others, before the kernel
    begins: str = ""  # the kernel's name

    @property
    def name(self) -> str:
        return self.begins + {QUERY: "query", KEY: "key"}[self.side] + "_features_kernel"


def made_by_kernels(p: Lowered, made: Map, begins: str = "") -> list[Made]:
    """The kernels for a map: one for each side, where what is made of streams alone is on that of keys."""
    streams = {f"{v.name}_i" for v in p.spec.variables if v.kind == "stream"}
    results = {n: one_sided(x, streams) for n, x in made.results.items()}
    matrices = {y: leaf("parameter", f"matrix{n}", y.axes) for n, y in enumerate(_matrices(results), 1)}
    results = {n: replace(x, matrices) for n, x in results.items()}
    named = {x.attrs[1]: y for y, x in matrices.items()}
    found = [replaced(_side(side, results, named), begins=begins) for side in (QUERY, KEY)]
    return [x for x in found if any(y.op == "sum" for y in walk(*x.results.values()))]


def one_sided(x: Node, streams: set[str]) -> Node:
    """What belongs to a query of streams, over the positions of keys: the same."""
    queries = {y.attrs[1] for y in leaves(x) if QUERY in y.axes}
    if not queries or not queries <= streams:
        return x
    x = rename(x, {QUERY: KEY})
    return replace(x, {y: leaf("key", f"{y.attrs[1][:-2]}_j", y.attrs[2]) for y in leaves(x) if y.attrs[0] == "query"})


def _matrices(results: dict[str, Node]) -> list[Node]:
    """Products of parameters that are matrices of a head."""
    return [y for y in walk(*results.values()) if y.op == "sum" and len(y.axes) == 2 and of_heads(y)]


def of_heads(x: Node) -> bool:
    """Is it a number, or made of parameters?"""
    return all(y.attrs[0] in ("parameter", "constant") for y in walk(x) if y.op == "leaf")


def _side(side: str, results: dict[str, Node], matrices: dict[str, Node]) -> Made:
    own = {n: x for n, x in results.items() if x.op != "leaf" and side in x.axes and fits(x, side)}
    leaves = _leaves(own)
    first: dict[Node, str] = {}
    same = {n: first[x] for n, x in own.items() if first.setdefault(x, n) != n}
    own = {n: x for n, x in own.items() if n not in same}
    while len([y for y in leaves if is_matrix(y)]) > MATRICES:
        name, _ = own.popitem()
        same = {n: other for n, other in same.items() if other != name}
        leaves = _leaves(own)
    dims = {dim_of(a) for x in walk(*own.values()) for a in x.axes if a != side}
    dims |= {x.attrs[0] for x in walk(*own.values()) if x.op == "size"}
    return Made(
        side,
        own,
        same,
        tuple(y for y in leaves if side in y.axes),
        tuple(y for y in leaves if y.attrs[0] == "parameter"),
        tuple(y for y in leaves if y.attrs[0] == "constant"),
        tuple(sorted(dims)),
        {y.attrs[1]: matrices[y.attrs[1]] for y in leaves if y.attrs[1] in matrices},
    )


def _leaves(results: dict[str, Node]) -> list[Node]:
    """One leaf of each quantity, however its axes are called where it is used."""
    found = {y.attrs[:2]: y for y in leaves(*results.values())}
    return [found[name] for name in sorted(found)]


def is_matrix(x: Node) -> bool:
    return x.op == "leaf" and x.attrs[0] == "parameter" and len(x.axes) == 2


def fits(x: Node, side: str) -> bool:
    """Can the kernel over positions make it?"""
    products = {y.args[0] for y in walk(x) if y.op == "sum" and is_product(y, side)}
    for y in walk(x):
        if (
            y.op not in OPERATIONS
            or (y.op == "leaf" and y.attrs[0] not in LEAVES)
            or (y.op == "sum" and y.attrs == (side,))
        ):
            return False
        if y in products or is_matrix(y):
            continue
        if len(set(y.axes) - {side}) > 1 or any(is_matrix(a) for a in y.args):
            return False
    return True


def is_product(x: Node, side: str) -> bool:
    """Is it a sum of a value of each position by a matrix?"""
    body, (bound,) = x.args[0], x.attrs
    if body.op != "mul" or len(body.axes) != 3 or side not in body.axes:
        return False
    matrices = [f for f in body.args if is_matrix(f)]
    return len(matrices) == 1 and all(set(f.axes) <= {side, bound} for f in body.args if f not in matrices)


@dataclass(frozen=True)
class InTiles(Triton):
    """Triton where products are rounded as torch rounds them: to `low`."""

    def contract(self, groups: list[Operand], bound: int, rank: int) -> Code | None:
        (a, own_a), (b, own_b) = sorted(groups, key=lambda x: min(p for p in x[1] if p != bound))
        left = self.align(a, own_a, (own_a[0] if own_a[0] != bound else own_a[1], bound))
        right = self.align(b, own_b, (bound, own_b[0] if own_b[0] != bound else own_b[1]))
        product = call("tl.dot", left.to("low"), right.to("low"), input_precision=Literal("tf32x3"))
        return product.to("low").to("tl.float32")


def in_tiles(nodes: dict[str, Node], side: str, name: Callable[[Node], str]) -> tuple[Body, dict[str, Code]]:
    """Statements for nodes over the positions of a side, and the value of each, given the names of leaves. Positions lie down
    where the first node is a leaf that has them."""
    taken = {name(y) for y in walk(*nodes.values()) if y.op == "leaf"}
    orders = {n: (side, *(a for a in x.axes if a != side)) for n, x in nodes.items()}
    printer = NodePrinter(InTiles(_size, _index, _mask, _block), prefix="t_", taken=taken)
    made, results = printer.values(nodes, lambda x: leaf_code(name(x)), orders=orders)
    return tuple(Let((n,), x) for n, x in made), results


POSITIONS = (QUERY, KEY)


def _size(dim: str) -> str:
    return "T" if dim in POSITIONS else dim


def _index(dim: str) -> Code:
    return Name("position") if dim in POSITIONS else call("tl.arange", 0, f"B{dim}")


def _mask(dim: str) -> Code:
    return Group(_index(dim) < _size(dim))


def _block(dim: str) -> str:
    return "BT" if dim in POSITIONS else f"B{dim}"


def features_kernel(m: Made) -> KernelFunction:
    """The kernel: each program makes the features of some positions of one head, block after block."""
    body, results = in_tiles({y.attrs[1]: y for y in m.positions} | m.results, m.side, lambda x: x.attrs[1])
    low = max(m.positions, key=lambda y: len(y.axes)).attrs[1]
    return KernelFunction(
        m.name,
        (
            *(of_positions(y.attrs[1]) for y in m.positions),
            *(_parameters(y) for y in m.parameters),
            *((Parameter(y.attrs[1]),) for y in m.constants),
            *(of_positions(n) for n in m.results),
        ),
        ("T", "H", "EACH"),
        (*(w for d in m.dims for w in (d, f"B{d}")), "BT"),
        "Features of some positions of one head.",
        (
            let("blocks", call("tl.cdiv", "T", Name("BT") * "EACH")),
            let("index", PROGRAM // "blocks"),
            let("first", PROGRAM % "blocks" * (Name("BT") * "EACH")),
            Let(
                ("batch", "head"),
                Items(tuple(x.to("tl.int64") for x in (Name("index") // "H", Name("index") % "H")), bare=True),
            ),
            let("low", Attribute(Attribute(Name(f"{low}_p"), "dtype"), "element_ty")),
            *(let(y.attrs[1], _loaded_parameter(y)) for y in m.parameters),
            For(
                "turn",
                call("range", 0, "EACH"),
                (
                    let("start", plus("first", times("turn", "BT"))),
                    let("position", plus("start", call("tl.arange", 0, "BT"))),
                    *(let(y.attrs[1], _loaded(y.attrs[1], own_dims(y, m.side))) for y in m.positions),
                    *body,
                    *(_stored(n, own_dims(x, m.side), results[n]) for n, x in m.results.items()),
                ),
            ),
        ),
        unspecialised=("T", "EACH"),
    )


def of_positions(name: str) -> tuple[Parameter, ...]:
    """A tensor of positions, [B, T, H, ..], and its strides."""
    return tuple(Parameter(f"{name}_{n}") for n in "pbth")


def _parameters(x: Node) -> tuple[Parameter, ...]:
    name, axes = x.attrs[1:]
    return tuple(Parameter(f"{name}_{n}") for n in ("p", "h", *range(1, len(axes) + 1)))


def _loaded_parameter(x: Node) -> Code:
    name, axes = x.attrs[1:]
    at = plus(f"{name}_p", times("head", f"{name}_h"))
    widths = [w for a in axes for w in (dim_of(a), f"B{dim_of(a)}")]
    if len(axes) == 2:
        return call("load_matrix", at, f"{name}_1", f"{name}_2", *widths).to("low")
    return call("load_vector", at, f"{name}_1", *widths) if axes else Load(at)


def _at(name: str) -> Code:
    return plus(f"{name}_p", times("batch", f"{name}_b"), times("head", f"{name}_h"))


HERE = Name("position") < "T"


def _place(name: str) -> Code:
    return plus(_at(name), times(Name("position").to("tl.int64"), f"{name}_t"))


def _loaded(name: str, dims: list[str]) -> Code:
    if not dims:
        return Load(_place(name), HERE, Literal(0.0)).to("tl.float32")
    block = call("load_block", _at(name), "start", f"{name}_t", "T", dims[0], f"B{dims[0]}", "BT", Literal(True))
    return block.to("tl.float32")


def _stored(name: str, dims: list[str], value: Code) -> Statement:
    if not dims:
        return Store(_place(name), value, HERE)
    return Do(call("store_block", _at(name), "start", f"{name}_t", "T", dims[0], f"B{dims[0]}", "BT", value))


def own_dims(x: Node, side: str) -> list[str]:
    return [dim_of(a) for a in x.axes if a != side]


def call_of(m: Made) -> Code:
    """The call that makes the results by name, or None where they are too wide."""
    positions, others = (several(*(y.attrs[1] for y in x)) for x in (m.positions, (*m.parameters, *m.constants)))
    outs = dictionary((n, _last(own_dims(x, m.side))) for n, x in m.results.items())
    count = {QUERY: "at.queries", KEY: "at.keys"}[m.side]
    sizes = dictionary((d, Fixed(f"size_{d}")) for d in m.dims)
    return made_by("of_positions", m.name, "at", count, positions, others, outs, sizes)


def _last(dims: Iterable[str]) -> Code:
    return next((Fixed(f"size_{d}") for d in dims), Literal(None))
