"""The Triton kernels of an attention: the tile's functions, put into the skeleton of blocked kernels.

With head groups, a factor that is a number of each query head can't wait until the sum over a group's heads is done: it is then
applied inside of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..ir import ONE, Node, factors_of, mul
from .normalisers import normalisers
from .print_tile import (
    LOG2E,
    _printed,
    arguments,
    derivatives_of,
    gradients_in,
    tile_of,
    triton_functions,
    weight_call,
    weights_text,
)
from .split import Split


def kernels_text(s: Split, found: Any, normaliser: str) -> str:
    from ..emit import environment

    derivatives, rule = derivatives_of(s, found), normalisers(s.lowered.query)[normaliser]
    scores = [{"n": n, "score": f"score{n}", "query": f"query{n}", "key": f"key{n}"} for n in _numbers(s.scores)]
    names = arguments(s)
    unscaled, scale = plain_score(s) if normaliser == "softmax" else ("", "")
    return (
        environment()
        .get_template("attention_triton.py.jinja")
        .render(
            functions=f"{triton_functions(s, found, normaliser)}\n\n\n{weights_text(s, rule)}",
            weight=weight_call(rule, ""),
            weight_t=weight_call(rule, "_t"),
            scores=scores,
            columns=list(s.columns),
            derived_columns=list(s.columns),
            rows=list(s.rows),
            scalars=list(s.scalars),
            pointers=" ".join(f"{n}_p," for n in (*s.columns, *s.rows, *s.scalars)),
            arguments=", ".join(names),
            unscaled=unscaled,
            scale=scale,
            raw_arguments=", ".join(f"{n}_raw" if n in s.columns else n for n in names),
            of_rows=[_gradient(n, derivatives[n].factor, "rows") for n in gradients_in(s, derivatives, "")],
            of_keys=[_gradient(n, derivatives[n].factor, "keys") for n in gradients_in(s, derivatives, "_t")],
            normaliser=normaliser,
            softmax=normaliser == "softmax",
            linear=normaliser == "linear",
            names=_tuple,
        )
    )


def plain_score(s: Split) -> tuple[str, str]:
    """(the score, a number in base 2) where the energy is a positive number times one score: its largest is that of the score."""
    tile = tile_of(s)
    rest = [f for f in factors_of(tile) if f.axes]
    numbers = [f for f in factors_of(tile) if not f.axes]
    if (
        len(rest) != 1
        or rest[0].op != "leaf"
        or rest[0].attrs[0] != "score"
        or not all(positive(s, f) for f in numbers)
    ):
        return "", ""
    _, results = _printed({"scale": mul(LOG2E, *numbers)}, ())  # type: ignore[arg-type]
    return rest[0].attrs[1], results["scale"]


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
        case "pow":
            return positive(s, x.args[0])
        case "leaf" if x.attrs[0] == "scalar":
            return positive(s, s.scalars[x.attrs[1]])
        case "leaf":
            return any(v.name == x.attrs[1] and v.kind == "temperature" for v in s.lowered.spec.variables)
    return False


def _gradient(name: str, factor: Node, kernel: str) -> dict[str, str]:
    kind = name.rstrip("0123456789")
    n = name.removeprefix(kind)
    what = {"score": "query" if kernel == "rows" else "key"}.get(kind, kind) + n
    text = ""
    if factor is not ONE:
        _, results = _printed({"factor": factor}, ())  # type: ignore[arg-type]
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
    }


def _numbers(names: Iterable[str]) -> list[str]:
    return [n.removeprefix("score") for n in names]


def _tuple(names: Iterable[str]) -> str:
    found = list(names)
    return "(" + "".join(f'"{n}", ' for n in found).strip() + ")"
