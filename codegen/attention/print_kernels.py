"""The Triton kernels of an attention: the tile's functions, put into the skeleton of blocked kernels.

With head groups, a factor that is a number of each query head can't wait until the sum over a group's heads is done: it is then
applied inside of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..ir import ONE, Node
from .print_tile import _printed, arguments, derivatives_of, gradients_in, triton_functions
from .split import Split


def kernels_text(s: Split, found: Any, normaliser: str) -> str:
    from ..emit import environment

    derivatives = derivatives_of(s, found)
    scores = [{"n": n, "score": f"score{n}", "query": f"query{n}", "key": f"key{n}"} for n in _numbers(s.scores)]
    names = arguments(s)
    return (
        environment()
        .get_template("attention_triton.py.jinja")
        .render(
            functions=triton_functions(s, found, normaliser),
            scores=scores,
            columns=list(s.columns),
            derived_columns=list(s.columns),
            rows=list(s.rows),
            scalars=list(s.scalars),
            pointers=" ".join(f"{n}_p," for n in (*s.columns, *s.rows, *s.scalars)),
            arguments=", ".join(names),
            raw_arguments=", ".join(f"{n}_raw" if n in s.columns else n for n in names),
            of_rows=[_gradient(n, derivatives[n].factor, "rows") for n in gradients_in(s, derivatives, "")],
            of_keys=[_gradient(n, derivatives[n].factor, "keys") for n in gradients_in(s, derivatives, "_t")],
            normaliser=normaliser,
            softmax=normaliser == "softmax",
            linear=normaliser == "linear",
            names=_tuple,
        )
    )


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
