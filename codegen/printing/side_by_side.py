"""The functions of several ops side by side in one file: each function with its op's name in its own."""

from __future__ import annotations

from ..ir.words import Definitions, apart, defined, reached


def function_name(op: str, backend: str, kind: str) -> str:
    """The name of an op's function in the generated file."""
    return f"{backend}_{op}_{kind}"


def of_op(some: Definitions, op: str, backend: str, roots: list[str], beside: Definitions = ()) -> Definitions:
    """The functions that the roots need, each with the op's name in its own; those of torch that stand `beside` them in the file
    by the names that they have there."""
    names = {n: _renamed(n, op, "torch") for n in defined(beside)}
    names |= {n: _renamed(n, op, backend) for n in defined(some)}
    return apart(x.renamed(names) for x in reached(some, roots))


def _renamed(name: str, op: str, backend: str) -> str:
    if name.startswith(f"{backend}_"):
        return function_name(op, backend, name.removeprefix(f"{backend}_"))
    return f"_{op}{name}" if name.startswith("_") else f"{op}_{name}"
