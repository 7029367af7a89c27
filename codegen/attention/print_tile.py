"""The tile's function and its derivatives as functions in torch and in Triton.

In torch a tile is [B, H, rows, keys]. In Triton it is two-dimensional: rows down and keys across (`energy`), or the other way
(`energy_t`), as the kernels for keys have it. Triton's energies are in base 2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..ir.expr import Node, add, leaf, leaves, mul, number, rename, terms_of, walk
from ..printing.dialects import Triton
from ..printing.expressions import NodePrinter
from ..printing.torch_expressions import TorchText
from .feature_maps import Derivative
from .lower import KEY, QUERY
from .normalisers import Normaliser, shifted
from .operations import EPS, by_functions
from .split import Split

PAIR = (QUERY, KEY)
LOG2E = number("1/log(2)")
FLOAT32_EPS = repr(2.0**-23)


def tile_of(s: Split) -> Node:
    """The tile's function over `0i` and `0j`, whatever the axis of its queries is called, as printers take it."""
    return by_functions(rename(s.tile, {s.lowered.query: QUERY}))


def derivatives_of(s: Split, found: dict[Node, Derivative]) -> dict[str, Derivative]:
    mapping = {s.lowered.query: QUERY}
    return {x.attrs[1]: Derivative(d.factor, by_functions(rename(d.inner, mapping))) for x, d in found.items()}


def tile_arguments(s: Split) -> list[str]:
    """What the tile's function may take, in order: scores, columns, rows, scalars."""
    return [*s.scores, *s.columns, *s.rows, *s.scalars]


def used_positions(*nodes: Node) -> list[str]:
    return sorted({x.attrs[1] for x in leaves(*nodes) if x.attrs[0] == "position"})


# --- torch ------------------------------------------------------------------------------------------------------------


def torch_functions(s: Split, found: dict[Node, Derivative]) -> str:
    tile, derivatives = tile_of(s), derivatives_of(s, found)
    arguments = ", ".join([*tile_arguments(s), "i", "j"])
    lines: list[str] = []
    text = TorchText(lambda x: x.attrs[1], lines, {}, prefix="t_")
    text.count([tile])
    result = text.aligned(tile, PAIR)
    out = [f"def torch_energy({arguments}):", '    """The energies of a block of pairs, [B, H, rows, keys]."""']
    out += _eps(s, tile)
    out += [f"    {line}" for line in lines] + [f"    return {_tensor(result, tile)}", "", ""]
    lines = []
    text = TorchText(lambda x: x.attrs[1], lines, {}, prefix="t_")
    whole = {n: mul(d.factor, d.inner) for n, d in derivatives.items()}
    text.count(whole.values())
    results = {n: text.aligned(g, PAIR) for n, g in whole.items()}
    out += [
        f"def torch_energy_gradients(dE, {arguments}):",
        '    """dE times the energy\'s derivative by each of its leaves, pair by pair."""',
    ]
    out += _eps(s, *whole.values())
    out += [f"    {line}" for line in lines]
    out += ["    return {" + ", ".join(f'"{n}": {r}' for n, r in results.items()) + "}"]
    return "\n".join(out)


def _eps(s: Split, *nodes: Node) -> list[str]:
    """The statement that gives `EPS` its name, where it is used."""
    some = tile_arguments(s)[0]
    text = f"    eps = torch.full((), torch.finfo({some}.dtype).eps, dtype={some}.dtype, device={some}.device)"
    return [text] if EPS in leaves(*nodes) else []


def _tensor(text: str, node: Node) -> str:
    """The text of a tensor, where a tile's function may be a plain number."""
    return text if node.axes or any(x.op == "leaf" for x in walk(node)) else f"torch.tensor({text})"


# --- Triton -----------------------------------------------------------------------------------------------------------


def triton_functions(s: Split, found: dict[Node, Derivative], normaliser: str) -> str:
    tile, derivatives = tile_of(s), derivatives_of(s, found)
    based = tile if normaliser == "linear" else add(*(mul(LOG2E, t) for t in terms_of(tile)))
    out = []
    for suffix, order in (("", PAIR), ("_t", (KEY, QUERY))):
        wanted = "rows down, keys across" if not suffix else "keys down, rows across"
        base = "" if normaliser == "linear" else " in base 2"
        lines, results = printed({"energy": _stored(based, order)}, order)
        out += [
            "@triton.jit",
            f"def energy{suffix}({', '.join(arguments(s))}):",
            f'    """The energies of a tile{base}; {wanted}."""',
            *(f"    {line}" for line in lines),
            f"    return {results['energy']}",
            "",
            "",
        ]
        for name in gradients_in(s, derivatives, suffix):
            lines, results = printed({name: _stored(derivatives[name].inner, order)}, order)
            out += [
                "@triton.jit",
                f"def d{name}{suffix}(dE, {', '.join(arguments(s))}):",
                f'    """What is to be summed for the cotangent of {name}; {wanted}."""',
                *(f"    {line}" for line in lines),
                f"    return {results[name]}",
                "",
                "",
            ]
    return "\n".join(out).rstrip()


def weights_text(s: Split, normaliser: Normaliser) -> str:
    """What makes weights of energies, in base 2 where it is an exponential, and the gradients of energies."""
    return "\n".join(_weights(s, normaliser, "tile", (("", PAIR), ("_t", (KEY, QUERY))))).rstrip()


def shifted_text(s: Split, normaliser: Normaliser) -> str:
    """The same where what belongs to the row alone is in energies and in G, as the kernel for keys may have them."""
    return "\n".join(_weights(s, shifted(normaliser), "shifted", (("_t", (KEY, QUERY)),))).rstrip()


def scale_function(s: Split, numbers: tuple[Node, ...]) -> str:
    """A function of torch tensors: what multiplies the score, [H], or None for 1."""
    lines: list[str] = []
    text = TorchText(lambda x: x.attrs[1], lines, {}, prefix="t_")
    result = text.value(mul(*numbers)) if numbers else "None"
    head = [
        f"def score_scale({', '.join(s.scalars)}):",
        '    """What multiplies the score, a number a head; None for 1."""',
    ]
    return "\n".join([*head, *(f"    {line}" for line in lines), f"    return {result}"])


def _weights(s: Split, normaliser: Normaliser, prefix: str, sides: Iterable[tuple[str, tuple[str, str]]]) -> list[str]:
    out: list[str] = []
    mapping = {s.lowered.query: QUERY}
    weight, gradient = rename(normaliser.weight, mapping), rename(normaliser.gradient, mapping)
    for suffix, order in sides:
        exponential = weight.op == "fn" and weight.attrs[0] == "exp"
        lines, results = printed({"weight": _stored(weight.args[0] if exponential else weight, order)}, order)
        text = f"tl.exp2({results['weight']})" if exponential else results["weight"]
        out += _function(
            f"{prefix}_weight{suffix}", ", ".join(_names(weight)), "The weights of a tile of energies.", lines, text
        )
        lines, results = printed({"dE": _stored(gradient, order)}, order)
        if suffix:
            results["dE"] = differences(results["dE"])
        told = "The gradient of a tile of energies."
        given = "weight, G, D" if prefix == "tile" else "weight, G"
        out += _function(f"{prefix}_gradient{suffix}", given, told, lines, results["dE"])
    return out


def differences(text: str) -> str:
    """a + (-b)[..] as a - b[..]: of a sum with a product, Triton makes a product that starts from b, and so waits for b to be
    loaded. Where b is at hand, as a block of rows has it, that saves the sum."""
    return re.sub(r"\+ \(-(\w+)\)(\[[^\]]*\])", r"- \1\2", text)


def weight_call(normaliser: Normaliser, suffix: str) -> str:
    """The call that makes the weights of energies `e`, of rows shifted by `shift`."""
    given = {"energy": "e", "lse": "shift"}
    return f"tile_weight{suffix}({', '.join(given[n] for n in _names(normaliser.weight))})"


def _names(x: Node) -> list[str]:
    return sorted({y.attrs[1] for y in leaves(x)})


def _function(name: str, arguments: str, told: str, lines: list[str], result: str) -> list[str]:
    head = ["@triton.jit", f"def {name}({arguments}):", f'    """{told}"""']
    return [*head, *(f"    {line}" for line in lines), f"    return {result}", "", ""]


def gradients_in(s: Split, derivatives: Iterable[str], suffix: str) -> list[str]:
    """The leaves whose cotangents the kernel for rows (no suffix), or the one for keys, sums."""
    kinds = ("score", "column") if suffix else ("score", "row", "scalar")
    return [n for n in derivatives if n.startswith(kinds)]


def arguments(s: Split) -> list[str]:
    return [*tile_arguments(s), "i", "j"]


def _stored(x: Node, order: tuple[str, str]) -> Node:
    """x with the leaves over pairs stored in this order."""
    from ..ir.expr import replace

    return replace(x, {y: leaf(y.attrs[0], y.attrs[1], order) for y in leaves(x) if len(y.axes) == 2})


def printed(nodes: dict[str, Node], order: tuple[str, str]) -> tuple[list[str], dict[str, str]]:
    dialect = Triton(lambda d: d, lambda d: d, lambda d: d, lambda d: d)
    printer = NodePrinter(dialect, prefix="t_", taken={y.attrs[1] for x in nodes.values() for y in leaves(x)})
    return printer.statements(
        nodes, lambda x: FLOAT32_EPS if x is EPS else x.attrs[1], orders=dict.fromkeys(nodes, order)
    )
