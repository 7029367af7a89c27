"""What the kernels over pairs have in common: scores, what belongs to a row or a key alone, and which gradients they sum.

Where an energy is a number times a score, and whatever else, what belongs to a row or a key alone can be added to the score as
the tile's products are summed: the row's shift of a softmax, in the kernel for keys, and a column, in the forward kernel.

With head groups, a factor that is a number of each query head can't wait until the sum over a group's heads is done: it is then
applied inside of the loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chunkform.runtime.attention.arguments import After

from ..ir.code import Call, Code
from ..ir.expr import ONE, Node, factors_of, leaf, leaves, mul, replace, terms_of, walk
from ..ir.kernel_ir import Body
from .feature_maps import AVERAGED, Derivative, Map
from .features_kernel import in_tiles
from .normalisers import Normaliser, shifted
from .split import Score, Split
from .tile_functions import LOG2E, arguments, gradients_in, number_in_tile, tile_of, weight_call


@dataclass(frozen=True)
class Gradient:
    """A cotangent that a kernel sums, of a score's feature of its own side, or of a `row`, a `column` or a `scalar`. `factor`:
    what it is multiplied by, a number a head. `guarded`: what is summed may be no number where a pair is masked."""

    name: str
    kind: str
    score: Score | None
    side: str
    factor: Code | None
    guarded: bool

    @property
    def _of(self) -> str:
        if self.score is None:
            return f"d{self.name}"
        return f"d{self.score.query if self.side == 'rows' else self.score.key}"

    @property
    def total(self) -> str:
        return f"{self._of}_total"

    @property
    def out(self) -> str:
        return f"{self._of}_out"


@dataclass(frozen=True)
class Pairs:
    """`arguments` are those of the tile's function. `scale`: the energy is this, in base 2, times the first score, and what is
    added to it: nothing, where it is `unscaled`, or a column alone, `beside`. `same`: the key's feature may be what is averaged.
    `wild`: the tile's function may be infinite, or no number, of what is masked. `product` makes the output of `after`."""

    scores: tuple[Score, ...]
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    scalars: tuple[str, ...]
    arguments: tuple[str, ...]
    normaliser: str
    weight: Call
    weight_t: Call
    shifted_weight_t: Call
    of_rows: tuple[Gradient, ...]
    of_keys: tuple[Gradient, ...]
    same: bool
    wild: bool
    scale: Code | None = None
    unscaled: bool = False
    beside: str = ""
    after: After | None = None
    product: tuple[Body, Code] | None = None

    @property
    def softmax(self) -> bool:
        return self.normaliser == "softmax"

    @property
    def linear(self) -> bool:
        return self.normaliser == "linear"

    @property
    def folded(self) -> Score | None:
        """The score that what belongs to a row alone may be added to."""
        return None if self.scale is None else self.scores[0]


def pairs_of(
    s: Split,
    outputs: Map,
    derivatives: Mapping[str, Derivative],
    rule: Normaliser,
    scaled: ScaledScore | None,
    same: bool,
) -> Pairs:
    after = product_of_averages(s, outputs)
    return Pairs(
        tuple(s.numbered.values()),
        tuple(s.columns),
        tuple(s.rows),
        tuple(s.scalars),
        tuple(arguments(s)),
        rule.name,
        weight_call(rule, ""),
        weight_call(rule, "_t"),
        weight_call(shifted(rule), "_t", "shifted"),
        tuple(_gradient(s, n, derivatives[n], "rows") for n in gradients_in(derivatives, "")),
        tuple(_gradient(s, n, derivatives[n], "keys") for n in gradients_in(derivatives, "_t")),
        same,
        wild(tile_of(s)),
        None if scaled is None else number_in_tile(mul(LOG2E, *scaled.numbers)),
        scaled is not None and not scaled.rest,
        "" if scaled is None else beside_name(scaled),
        after,
        None if after is None else product_in_tile(outputs, after),
    )


def _gradient(s: Split, name: str, found: Derivative, side: str) -> Gradient:
    factor = None if found.factor is ONE else number_in_tile(found.factor)
    return Gradient(name, found.kind, s.numbered.get(name), side, factor, wild(found.inner))


KINDS = (AVERAGED, "parameter")  # of what `After` is the product of


def product_of_averages(s: Split, outputs: Map) -> After | None:
    """The output as such, where it is the only one."""
    name, node = next(iter(outputs.results.items()))
    if len(outputs.results) > 1 or len(s.values) > 1 or node.op != "sum" or node.args[0].op != "mul":
        return None
    kinds = {f.attrs[0]: f for f in node.args[0].args if f.op == "leaf"}
    if len(node.args[0].args) != 2 or kinds.keys() != set(KINDS):
        return None
    matrix, averages = kinds["parameter"].attrs[2], kinds[AVERAGED].attrs[2]
    if len(matrix) != 2 or len(averages) != 2:
        return None
    return After(name, kinds["parameter"].attrs[1], (matrix[1],) == node.attrs)


def product_in_tile(outputs: Map, after: After) -> tuple[Body, Code]:
    """Statements for the output, and its value, over a tile of averages, rows down, and the matrix, whose rows are the averages'
    channels in the kernel."""
    node = outputs.results[after.output]
    averages, matrix = (next(y for y in walk(node) if y.op == "leaf" and y.attrs[0] == kind) for kind in KINDS)
    kind, name, axes = matrix.attrs
    turned = leaf(kind, name, axes[::-1] if after.across else axes)
    names = dict(zip(KINDS, ("average", "matrix"), strict=True))
    nodes = {"average": averages, "out": replace(node, {matrix: turned})}
    body, results = in_tiles(nodes, averages.attrs[2][0], lambda x: names[x.attrs[0]])
    return body, results["out"]


@dataclass(frozen=True)
class ScaledScore:
    """An energy that is a positive number, the product of `numbers`, times a score, and the terms of `rest`."""

    score: str
    numbers: tuple[Node, ...]
    rest: tuple[Node, ...]


def scaled_score(s: Split, derivatives: dict[str, Derivative]) -> ScaledScore | None:
    """The energy as such, where it is, and no cotangent of the kernel for keys reads the score."""
    name = next(iter(s.scores), "")
    terms = terms_of(tile_of(s))
    found = [t for t in terms if reads(t, name)]
    if len(found) != 1 or any(reads(derivatives[n].inner, name) for n in gradients_in(derivatives, "_t")):
        return None
    own = [f for f in factors_of(found[0]) if f.axes]
    numbers = tuple(f for f in factors_of(found[0]) if not f.axes)
    if len(own) != 1 or own[0].op != "leaf" or not all(positive(s, f) for f in numbers):
        return None
    return ScaledScore(name, numbers, tuple(t for t in terms if t is not found[0]))


def beside_name(scaled: ScaledScore) -> str:
    """The column, where it is all that is added to the score."""
    column = scaled.rest[0] if len(scaled.rest) == 1 else ONE
    return column.attrs[1] if column.op == "leaf" and column.attrs[0] == "column" else ""


def reads(x: Node, name: str) -> bool:
    return any(y.attrs[1] == name for y in leaves(x))


def positive(s: Split, x: Node) -> bool:
    """Is a number a head known to be above 0?"""
    match x.op:
        case "const":
            return x.attrs[0] > 0
        case "size":
            return True
        case "fn":
            return x.attrs[0] == "exp"
        case "mul" | "add":
            return all(positive(s, a) for a in x.args)
        case "max":
            return any(positive(s, a) for a in x.args)
        case "pow":
            return positive(s, x.args[0])
        case "leaf" if x.attrs[0] == "scalar":
            return positive(s, s.scalars[x.attrs[1]])
        case "leaf":
            return any(v.name == x.attrs[1] and v.kind == "temperature" for v in s.lowered.spec.variables)
    return False


UNBOUNDED = ("exp", "log")  # functions of finite numbers that may not be finite


def wild(x: Node) -> bool:
    """May it be infinite, or no number, of what is masked or padding, so that 0 times it isn't 0?"""
    return any((y.op == "fn" and y.attrs[0] in UNBOUNDED) or (y.op == "pow" and y.attrs[0] != 2) for y in walk(x))
