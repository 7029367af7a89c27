"""The tile's function and its derivatives as functions that kernels call.

A tile is two-dimensional: rows down and keys across (`energy`), or the other way (`energy_t`), as the kernels for keys have it.
Energies are in base 2.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir.code import Binary, Call, Code, Expanded, Literal, Name, Negative, call
from ..ir.code_parts import rebuilt
from ..ir.expr import Node, add, leaf, leaves, mul, number, rename, replace, terms_of
from ..ir.kernel_ir import Body, Let, Return, TileFunction
from ..ir.python_code import leaf_code
from ..printing.dialects import Triton
from ..printing.expressions import NodePrinter
from .feature_maps import Derivative
from .lower import KEY, QUERY
from .normalisers import Normaliser, shifted
from .operations import EPS, by_functions
from .split import Split

PAIR = (QUERY, KEY)
SIDES = (("", PAIR), ("_t", (KEY, QUERY)))  # the suffix of a function, and what lies down and across
LOG2E = number("1/log(2)")
FLOAT32_EPS = Literal(2.0**-23)


def tile_of(s: Split) -> Node:
    """The tile's function over `0i` and `0j`, whatever the axis of its queries is called, as printers take it."""
    return by_functions(rename(s.tile, {s.lowered.query: QUERY}))


def derivatives_of(s: Split, found: Mapping[Node, Derivative]) -> dict[str, Derivative]:
    mapping = {s.lowered.query: QUERY}
    return {x.attrs[1]: Derivative(d.kind, d.factor, by_functions(rename(d.inner, mapping))) for x, d in found.items()}


def tile_arguments(s: Split) -> list[str]:
    """What the tile's function may take, in order: scores, columns, rows, scalars."""
    return [*s.scores, *s.columns, *s.rows, *s.scalars]


def arguments(s: Split) -> list[str]:
    return [*tile_arguments(s), "i", "j"]


def gradients_in(derivatives: Mapping[str, Derivative], suffix: str) -> list[str]:
    """The leaves whose cotangents the kernel for rows (no suffix), or the one for keys, sums."""
    kinds = ("score", "column") if suffix else ("score", "row", "scalar")
    return [n for n, d in derivatives.items() if d.kind in kinds]


def energy_functions(s: Split, derivatives: Mapping[str, Derivative], normaliser: str) -> list[TileFunction]:
    """Energies of a tile, and what is to be summed for the cotangent of each of its leaves; for both sides."""
    tile, linear, found = tile_of(s), normaliser == "linear", []
    based = tile if linear else add(*(mul(LOG2E, t) for t in terms_of(tile)))
    for suffix, order in SIDES:
        lies = "keys down, rows across" if suffix else "rows down, keys across"
        told = f"The energies of a tile{'' if linear else ' in base 2'}; {lies}."
        found.append(_function(f"energy{suffix}", tuple(arguments(s)), told, *in_tile(_stored(based, order), order)))
        for n in gradients_in(derivatives, suffix):
            told = f"What is to be summed for the cotangent of {n}; {lies}."
            body = in_tile(_stored(derivatives[n].inner, order), order)
            found.append(_function(f"d{n}{suffix}", ("dE", *arguments(s)), told, *body))
    return found


def weight_functions(s: Split, normaliser: Normaliser) -> list[TileFunction]:
    """What makes weights of energies, in base 2 where it is an exponential, and the gradients of energies."""
    return [x for suffix, order in SIDES for x in _weights(s, normaliser, "tile", suffix, order)]


def shifted_functions(s: Split, normaliser: Normaliser) -> list[TileFunction]:
    """The same where what belongs to the row alone is in energies and in G, as the kernel for keys may have them."""
    return _weights(s, shifted(normaliser), "shifted", *SIDES[1])


def _weights(s: Split, normaliser: Normaliser, prefix: str, suffix: str, order: tuple[str, str]) -> list[TileFunction]:
    mapping = {s.lowered.query: QUERY}
    weight, gradient = (_stored(rename(x, mapping), order) for x in (normaliser.weight, normaliser.gradient))
    exponential = weight.op == "fn" and weight.attrs[0] == "exp"
    body, value = in_tile(weight.args[0] if exponential else weight, order)
    value = call("tl.exp2", value) if exponential else value
    told = "The weights of a tile of energies."
    weights = _function(f"{prefix}_weight{suffix}", tuple(names_of(weight)), told, body, value)
    body, value = in_tile(gradient, order)
    given = ("weight", "G", "D") if prefix == "tile" else ("weight", "G")
    value = differences(value) if suffix else value
    told = "The gradient of a tile of energies."
    return [weights, _function(f"{prefix}_gradient{suffix}", given, told, body, value)]


def differences(x: Code) -> Code:
    """a + (-b)[..] as a - b[..]: of a sum with a product, Triton makes a product that starts from b, and so waits for b to be
    loaded. Where b is at hand, as a block of rows has it, that saves the sum."""
    match x:
        case Binary(operator="+", left=left, right=Expanded(value=Negative(value=Name() as b), own=own)):
            return Binary("-", differences(left), Expanded(b, own))
    return rebuilt(x, differences)


def weight_call(normaliser: Normaliser, suffix: str, prefix: str = "tile") -> Call:
    """The call that makes the weights of energies `e`, of rows shifted by `shift`."""
    given = {"energy": "e", "lse": "shift"}
    return call(f"{prefix}_weight{suffix}", *(given[n] for n in names_of(normaliser.weight)))


def names_of(x: Node) -> list[str]:
    return sorted({y.attrs[1] for y in leaves(x)})


def in_tile(x: Node, order: tuple[str, ...]) -> tuple[Body, Code]:
    """Statements for a node over a tile, and its value."""
    dialect = Triton(lambda d: d, lambda d: d, lambda d: d, lambda d: d)
    printer = NodePrinter(dialect, prefix="t_", taken={y.attrs[1] for y in leaves(x)})
    made, results = printer.values(
        {"x": x}, lambda y: FLOAT32_EPS if y is EPS else leaf_code(y.attrs[1]), orders={"x": order}
    )
    return tuple(Let((name,), value) for name, value in made), results["x"]


def number_in_tile(x: Node) -> Code:
    """The value of a node that is a number of each head."""
    return in_tile(x, ())[1]


def _stored(x: Node, order: tuple[str, str]) -> Node:
    """x with the leaves over pairs stored in this order."""
    return replace(x, {y: leaf(y.attrs[0], y.attrs[1], order) for y in leaves(x) if len(y.axes) == 2})


def _function(name: str, parameters: tuple[str, ...], told: str, body: Body, value: Code) -> TileFunction:
    return TileFunction(name, parameters, told, (*body, Return(value)))
