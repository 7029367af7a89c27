"""The tile's function and its derivatives as functions in torch, where a tile is [B, H, rows, keys]."""

from __future__ import annotations

from ..ir.code import Code, call
from ..ir.expr import Node, leaves, mul, walk
from ..printing.torch_expressions import TorchText
from .feature_maps import Derivative
from .operations import EPS
from .split import Split
from .tile_functions import PAIR, derivatives_of, tile_arguments, tile_of


def torch_functions(s: Split, found: dict[Node, Derivative]) -> str:
    tile, derivatives = tile_of(s), derivatives_of(s, found)
    arguments = ", ".join([*tile_arguments(s), "i", "j"])
    lines: list[str] = []
    text = TorchText(lambda x: x.attrs[1], lines, {}, prefix="t_")
    text.count([tile])
    result = text.aligned(tile, PAIR)
    out = [f"def torch_energy({arguments}):", '    """The energies of a block of pairs, [B, H, rows, keys]."""']
    out += _eps(s, tile)
    out += [f"    {line}" for line in lines] + [f"    return {_tensor(result, tile).text}", "", ""]
    lines = []
    text = TorchText(lambda x: x.attrs[1], lines, {}, prefix="t_")
    whole = {n: mul(d.factor, d.inner) for n, d in derivatives.items()}
    text.count(whole.values())
    results = {n: text.aligned(g, PAIR).text for n, g in whole.items()}
    out += [
        f"def torch_energy_gradients(dE, {arguments}):",
        '    """dE times the energy\'s derivative by each of its leaves, pair by pair."""',
    ]
    out += _eps(s, *whole.values())
    out += [f"    {line}" for line in lines]
    out += ["    return {" + ", ".join(f'"{n}": {r}' for n, r in results.items()) + "}"]
    return "\n".join(out)


def scale_function(s: Split, numbers: tuple[Node, ...]) -> str:
    """A function of torch tensors: what multiplies the score, [H], or None for 1."""
    lines: list[str] = []
    text = TorchText(lambda x: x.attrs[1], lines, {}, prefix="t_")
    result = text.value(mul(*numbers)).text if numbers else "None"
    head = [
        f"def score_scale({', '.join(s.scalars)}):",
        '    """What multiplies the score, a number a head; None for 1."""',
    ]
    return "\n".join([*head, *(f"    {line}" for line in lines), f"    return {result}"])


def _eps(s: Split, *nodes: Node) -> list[str]:
    """The statement that gives `EPS` its name, where it is used."""
    some = tile_arguments(s)[0]
    text = f"    eps = torch.full((), torch.finfo({some}.dtype).eps, dtype={some}.dtype, device={some}.device)"
    return [text] if EPS in leaves(*nodes) else []


def _tensor(value: Code, node: Node) -> Code:
    """A tensor, where a tile's function may be a plain number."""
    return value if node.axes or any(x.op == "leaf" for x in walk(node)) else call("torch.tensor", value)
