"""The Triton kernels of an attention: the tile's functions, put into the skeleton of blocked kernels.

Where an energy is a number times a score, and whatever else, what belongs to a row or a key alone can be added to the score as
the tile's products are summed: the row's shift of a softmax, in the kernel for keys, and a column, in the forward kernel.

With head groups, a factor that is a number of each query head can't wait until the sum over a group's heads is done: it is then
applied inside of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from chunkform.runtime.attention.arguments import After

from ..ir.expr import ONE, Node, factors_of, leaf, leaves, mul, replace, terms_of, walk
from ..printing.templates import render
from .feature_maps import AVERAGED, Derivative, Map
from .normalisers import normalisers, shifted
from .print_features import in_tiles
from .print_tile import (
    LOG2E,
    arguments,
    derivatives_of,
    gradients_in,
    printed,
    scale_function,
    shifted_text,
    tile_of,
    triton_functions,
    weight_call,
    weights_text,
)
from .split import Split


def kernels_text(s: Split, outputs: Map, found: Any, normaliser: str, same: bool) -> str:
    """`same`: may the key's feature be what is averaged?"""
    derivatives, rule = derivatives_of(s, found), normalisers(s.lowered.query)[normaliser]
    scores = [{"n": n, "score": f"score{n}", "query": f"query{n}", "key": f"key{n}"} for n in _numbers(s.scores)]
    names, after = arguments(s), product_of_averages(s, outputs)
    scaled = scaled_score(s, derivatives) if normaliser == "softmax" else None
    unscaled, scale, beside, functions = False, "", "", ""
    if scaled is not None:
        unscaled = not scaled.rest
        beside = beside_name(scaled)
        _, results = printed({"scale": mul(LOG2E, *scaled.numbers)}, ())  # type: ignore[arg-type]
        scale = results["scale"]
        functions = f"\n\n\n{shifted_text(s, rule)}\n\n\n{scale_function(s, scaled.numbers)}"
    return render(
        "attention/attention_triton.py.jinja",
        functions=f"{triton_functions(s, found, normaliser)}\n\n\n{weights_text(s, rule)}{functions}",
        weight=weight_call(rule, ""),
        weight_t=weight_call(rule, "_t"),
        shifted_weight_t=weight_call(shifted(rule), "_t").replace("tile_", "shifted_"),
        folded=next((x for x in scores if scaled and x["score"] == scaled.score), None),
        beside=beside,
        scores=scores,
        columns=list(s.columns),
        derived_columns=list(s.columns),
        rows=list(s.rows),
        scalars=list(s.scalars),
        pointers=" ".join(f"{n}_p," for n in (*s.columns, *s.rows, *s.scalars)),
        arguments=", ".join(names),
        unscaled=unscaled,
        scale=scale,
        scaled_energy=f"{scaled.score} * ({scale})" if scaled else "",
        raw_arguments=", ".join(f"{n}_raw" if n in s.columns else n for n in names),
        of_rows=[_gradient(n, derivatives[n], "rows") for n in gradients_in(s, derivatives, "")],
        of_keys=[_gradient(n, derivatives[n], "keys") for n in gradients_in(s, derivatives, "_t")],
        wild=wild(tile_of(s)),
        normaliser=normaliser,
        softmax=normaliser == "softmax",
        linear=normaliser == "linear",
        after=after,
        same=same,
        product=None if after is None else product_text(outputs, after),
        names=_tuple,
    )


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


def product_text(outputs: Map, after: After) -> tuple[list[str], str]:
    """Statements for the output, and its text, over a tile of averages, rows down, and the matrix, whose rows are the averages'
    channels in the kernel."""
    node = outputs.results[after.output]
    averages, matrix = (next(y for y in walk(node) if y.op == "leaf" and y.attrs[0] == kind) for kind in KINDS)
    kind, name, axes = matrix.attrs
    turned = leaf(kind, name, axes[::-1] if after.across else axes)
    texts = dict(zip(KINDS, ("average", "matrix"), strict=True))
    nodes = {"average": averages, "out": replace(node, {matrix: turned})}
    lines, results = in_tiles(nodes, averages.attrs[2][0], lambda x: texts[x.attrs[0]])
    return lines, results["out"]


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
    if len(found) != 1 or any(reads(derivatives[n].inner, name) for n in gradients_in(s, derivatives, "_t")):
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


def _gradient(name: str, found: Derivative, kernel: str) -> dict[str, Any]:
    factor = found.factor
    kind = name.rstrip("0123456789")
    n = name.removeprefix(kind)
    what = {"score": "query" if kernel == "rows" else "key"}.get(kind, kind) + n
    text = ""
    if factor is not ONE:
        _, results = printed({"factor": factor}, ())  # type: ignore[arg-type]
        text = f" * ({results['factor']})"
    return {
        "name": name,
        "kind": kind,
        "n": n,
        "query": f"query{n}",
        "key": f"key{n}",
        "total": f"d{what}_total",
        "out": f"d{what}_out",
        "factor": text if kernel == "rows" else "",
        "scale": text if kernel == "keys" else "",
        "guarded": wild(found.inner),
    }


def _numbers(names: Iterable[str]) -> list[str]:
    return [n.removeprefix("score") for n in names]


def _tuple(names: Iterable[str]) -> str:
    found = list(names)
    return "(" + "".join(f'"{n}", ' for n in found).strip() + ")"
