"""The tile's function and its derivatives as functions in torch, where a tile is [B, H, rows, keys]."""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.code import Attribute, Code, Items, Literal, Name, call
from ..ir.expr import Node, leaves, mul, walk
from ..ir.launch_ir import Body, Function, Return, Statement, assign, takes
from ..ir.python_code import dictionary
from ..ir.words import Definition
from ..printing.code_passes import finished_function
from ..printing.launch_text import launch_definition
from ..printing.torch_expressions import TorchText
from .feature_maps import Derivative
from .operations import EPS
from .split import Split
from .tile_functions import PAIR, derivatives_of, tile_arguments, tile_of


def torch_functions(s: Split, found: dict[Node, Derivative]) -> list[Definition]:
    tile, derivatives = tile_of(s), derivatives_of(s, found)
    arguments = [*tile_arguments(s), "i", "j"]
    made: list[Statement] = []
    printer = TorchText(lambda x: x.attrs[1], made, {}, prefix="t_")
    printer.count([tile])
    energy = _tensor(printer.aligned(tile, PAIR), tile)
    told = "The energies of a block of pairs, [B, H, rows, keys]."
    functions = [_function("torch_energy", arguments, told, (*_eps(s, tile), *made, Return(energy)))]
    made = []
    printer = TorchText(lambda x: x.attrs[1], made, {}, prefix="t_")
    whole = {n: mul(d.factor, d.inner) for n, d in derivatives.items()}
    printer.count(whole.values())
    results = dictionary((n, printer.aligned(g, PAIR)) for n, g in whole.items())
    told = "dE times the energy's derivative by each of its leaves, pair by pair."
    body = (*_eps(s, *whole.values()), *made, Return(results))
    return [*functions, _function("torch_energy_gradients", ["dE", *arguments], told, body)]


def scale_function(s: Split, numbers: tuple[Node, ...]) -> Definition:
    """A function of torch tensors: what multiplies the score, [H], or None for 1."""
    body: list[Statement] = []
    printer = TorchText(lambda x: x.attrs[1], body, {}, prefix="t_")
    value = printer.value(mul(*numbers)) if numbers else Literal(None)
    body.append(Return(value))
    return _function("score_scale", s.scalars, "What multiplies the score, a number a head; None for 1.", tuple(body))


def _function(name: str, arguments: Iterable[str], told: str, body: Body) -> Definition:
    f = Function(name, takes(*arguments), told, body, frees=False)
    return launch_definition(finished_function(f))


def _eps(s: Split, *nodes: Node) -> Body:
    """The statement that gives `EPS` its name, where it is used."""
    some = Name(tile_arguments(s)[0])
    like = {n: Attribute(some, n) for n in ("dtype", "device")}
    eps = Attribute(call("torch.finfo", like["dtype"]), "eps")
    return (assign("eps", call("torch.full", Items(()), eps, **like)),) if EPS in leaves(*nodes) else ()


def _tensor(value: Code, node: Node) -> Code:
    """A tensor, where a tile's function may be a plain number."""
    return value if node.axes or any(x.op == "leaf" for x in walk(node)) else call("torch.tensor", value)
