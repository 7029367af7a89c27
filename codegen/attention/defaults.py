"""What stands for arguments that aren't given: numbers, or functions of the sizes of dims."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from chunkform.spec.language.attention import AttentionVariable

from ..ir.code import Attribute, Code, Group, Literal, Method, Raised, call
from ..ir.expr import Node, size
from ..ir.launch_ir import Body, Function, Return, assign, takes
from ..ir.lower_terms import scalar_node
from ..ir.python_code import Fixed
from ..ir.words import Definition
from ..printing.code_passes import finished_function
from ..printing.expressions import NodePrinter, Torch
from ..printing.launch_text import launch_definition
from .compiled import CompiledAttention

HALF = Fraction(1, 2)


@dataclass(frozen=True)
class OfSizes(Torch):
    """Numbers of Python: roots are powers, and functions go through a tensor."""

    like: str = ""

    def power(self, value: Code, n: Fraction, uniform: bool) -> Code:
        if abs(n) != HALF:
            return super().power(value, n, uniform)
        root = Raised(Group(value), Literal(float(HALF)))
        return root if n > 0 else Literal(1) / root

    def tensor(self, number: Code) -> Code:
        return call("torch.tensor", number, dtype=Attribute(Fixed("torch"), "float64"))

    def function(self, name: str, value: Code, uniform: bool) -> Code:
        return Method(super().function(name, value, uniform=True), "item", ())


def default_of(v: AttentionVariable) -> Code:
    """A number, or a function of the sizes of dims."""
    return Literal(float(v.default)) if v.default.is_number else Fixed(_name(v))


def _name(v: AttentionVariable) -> str:
    return f"default_{v.name}"


def default_functions(c: CompiledAttention) -> list[Definition]:
    """The functions of sizes that stand for arguments which aren't given."""
    return [_function(v) for v in c.spec.variables if v.default is not None and not v.default.is_number]


def _function(v: AttentionVariable) -> Definition:
    env = {s: size(str(s)) for s in v.default.free_symbols}
    node = scalar_node(v.default, env, lambda _: None, v.where)
    printer = NodePrinter(OfSizes(lambda d: Fixed("sizes")[d]), taken={"sizes", "torch"})
    made, results = printer.values({v.name: node}, _no_leaf)
    body: Body = (*(assign(n, x) for n, x in made), Return(results[v.name]))
    told = f"{v.name}, where it isn't given."
    return launch_definition(finished_function(Function(_name(v), takes("sizes"), told, body, frees=False)))


def _no_leaf(x: Node) -> str:
    raise AssertionError(x)
