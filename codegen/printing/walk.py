"""The walk over operations that every printer of expressions takes: one operation of the expression graph -> what stands for it.

How an operation is spelt is in `dialects.py`, and where it needs parentheses in `codegen/ir/code.py`. Printers differ in how a
value lies: by positions (`expressions.py`), by named axes behind those of a batch (`torch_expressions.py`), or in tiles
(`recurrence/triton/kernels/tile_lowering.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

from ..ir.code import MUL, Code
from ..ir.code_parts import starts_with_minus, without_minus


class Operation(Protocol):
    """A node, or a term."""

    @property
    def op(self) -> str: ...
    @property
    def attrs(self) -> tuple[Any, ...]: ...


X = TypeVar("X", bound=Operation)
Made = TypeVar("Made")  # an expression, perhaps with how it lies


class Walk(ABC, Generic[X, Made]):
    """What each operation is made of."""

    def operation(self, x: X) -> Made:
        """The value of x from the values of its arguments."""
        match x.op:
            case "leaf":
                return self.leaf(x)
            case "const" | "number":
                return self.number(x)
            case "size":
                return self.size(x)
            case "eye":
                return self.eye(x)
            case "add":
                return self.sum(x)
            case "mul":
                return self.product(x)
            case "pow":
                return self.power(x)
            case "fn":
                return self.function(x)
            case "max":
                return self.largest(x)
            case "sum":
                return self.contraction(x)
            case "peak":
                return self.peak(x)
            case "expand":
                return self.expansion(x)
        return self.other(x)

    @abstractmethod
    def leaf(self, x: X) -> Made: ...
    @abstractmethod
    def number(self, x: X) -> Made: ...
    @abstractmethod
    def size(self, x: X) -> Made: ...
    @abstractmethod
    def eye(self, x: X) -> Made: ...
    @abstractmethod
    def sum(self, x: X) -> Made: ...
    @abstractmethod
    def product(self, x: X) -> Made: ...
    @abstractmethod
    def power(self, x: X) -> Made: ...
    @abstractmethod
    def function(self, x: X) -> Made: ...
    @abstractmethod
    def largest(self, x: X) -> Made: ...
    @abstractmethod
    def contraction(self, x: X) -> Made: ...
    @abstractmethod
    def peak(self, x: X) -> Made: ...
    @abstractmethod
    def expansion(self, x: X) -> Made: ...
    @abstractmethod
    def other(self, x: X) -> Made:
        """An operation of chunk programs, or of attentions."""


def summed(parts: Iterable[Code]) -> Code:
    """The sum of parts, of which those that start with a minus are subtracted."""
    total, *others = parts
    for x in others:
        total = total - without_minus(x) if starts_with_minus(x) and x.level >= MUL else total + x
    return total
