"""The functions that make what steps take of parameters alone, and the parameters' gradients through it."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.code import Attribute, Code
from ...ir.expr import Node, dim_of
from ...ir.launch_ir import Body, Function, Return, Set, Statement, takes
from ...ir.python_code import Fixed, dictionary, made_by, method, several
from ...printing.expressions import NodePrinter, Torch
from .names import Names, names_of, printed
from .timeless import Timeless


def coefficient_functions(t: Timeless, begins: str) -> tuple[Function, Function]:
    """Both in torch: there are but a few values a head."""
    names = names_of(t.over.step, {f"size_{d}" for d in t.over.step.dims})
    tensors = [v for v in t.variables if v.kind != "constant"]
    heads = [Attribute(Fixed("given")[v.name], "shape")[0] for v in tensors]
    some = next(iter(t.made))
    cotangents = tuple(Set((names.of("cotangent", f"d{n}"),), Fixed("gradients")[n]) for n in t.made)
    return (
        Function(
            f"{begins}_coefficients",
            takes("given", "constants"),
            "What steps take of parameters alone, [H, ...].",
            (
                Set(("heads",), made_by("max", *heads, 0)),
                *_given(t, names),
                *_results(names, t.made, {n: x.axes for n, x in t.made.items()}),
            ),
            frees=False,
        ),
        Function(
            f"{begins}_coefficient_gradients",
            takes("given", "constants", "gradients"),
            "Gradients of parameters, [H, ...], from those of what steps take.",
            (
                Set(("heads",), Attribute(Fixed("gradients")[some], "shape")[0]),
                *_given(t, names),
                *cotangents,
                *_results(names, t.gradients, {v.name: v.axes for v in tensors}),
            ),
            frees=False,
        ),
    )


def _given(t: Timeless, names: Names) -> Iterator[Statement]:
    """Sizes, and what is given."""
    tensors = {v.name: Fixed("given")[v.name] for v in t.variables if v.kind != "constant"}
    yield Set(("like",), method(next(iter(tensors.values())), "new_zeros", several(), dtype="torch.float32"))
    places = {dim_of(a): (v.name, i - len(v.axes)) for v in t.variables for i, a in enumerate(v.axes)}
    for d, (name, i) in places.items():
        yield Set((f"size_{d}",), Attribute(tensors[name], "shape")[i])
    for v in t.variables:
        if v.kind == "constant":
            value: Code = Fixed("constants")[v.name]
        else:
            value = made_by("with_heads", method(tensors[v.name], "float"), "heads")
        yield Set((names.of(v.kind, v.name),), method(value, "exp") if v.is_decay else value)


def _results(names: Names, nodes: dict[str, Node], orders: dict[str, tuple[str, ...]]) -> Body:
    printer = NodePrinter(Torch(lambda d: f"size_{d}", "like"), taken=set(names.taken))
    made, results = printed(printer, nodes, names, {n: orders[n] for n in nodes})
    return (*made, Return(dictionary(results.items())))


__all__ = ["coefficient_functions"]
