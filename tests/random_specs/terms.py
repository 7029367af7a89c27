"""Terms of random specs, each of which is a spec's text and what torch makes of it: no line of this is the compiler's.

A tensor has leading axes [B, H] or what broadcasts to them, and then those of the term's dims.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Shape = tuple[str, ...]  # dims: () a number, ("d",) a vector, ("d", "e") a matrix


@dataclass(frozen=True)
class Term:
    """An operation of `OPERATIONS`, a name (`name`, `prev`, `next`, `let`) or a `number`. `way` picks a spelling."""

    op: str
    args: tuple[Any, ...]
    shape: Shape
    way: int = 0

    @property
    def text(self) -> str:
        match self.op:
            case "name" | "let":
                return self.args[0]
            case "prev" | "next":
                return f"{self.args[0]}.{self.op}"
            case "number":
                return f"({self.args[0]!r})" if self.args[0] < 0 else repr(self.args[0])
            case "ones" | "eye":
                return f"{self.op}({self.args[0]})"
            case "size":
                return f"r.size({self.args[0]})"
        spellings, _ = OPERATIONS[self.op]
        return spellings[self.way % len(spellings)].format(*(a.text for a in self.args))

    def value(self, step: Step) -> Tensor:
        if self not in step.done:
            step.done[self] = self._value(step)
        return step.done[self]

    def _value(self, step: Step) -> Tensor:
        match self.op:
            case "name":
                return step.given[self.args[0]]
            case "prev":
                return step.states[self.args[0]]
            case "next":
                return step.after[self.args[0]]
            case "let":
                return self.args[1].value(step)
            case "number":
                return torch.tensor(float(self.args[0]), dtype=step.dtype)
            case "ones":
                return torch.ones(step.sizes[self.args[0]], dtype=step.dtype)
            case "eye":
                return torch.eye(step.sizes[self.args[0]], dtype=step.dtype)
            case "size":
                return torch.tensor(float(step.sizes[self.args[0]]), dtype=step.dtype)
        _, function = OPERATIONS[self.op]
        return function(*(_Shaped(a.value(step), len(a.shape)) for a in self.args))


class Step:
    """What a step's terms are made of: arguments and states of this step, and the states that it has made."""

    def __init__(self, given: dict[str, Tensor], states: dict[str, Tensor], sizes: dict[str, int], dtype: Any) -> None:
        self.given, self.states, self.sizes, self.dtype = given, states, sizes, dtype
        self.after: dict[str, Tensor] = {}
        self.done: dict[Term, Tensor] = {}


class _Shaped:
    """A tensor, and how many of its last axes are a term's own."""

    def __init__(self, x: Tensor, axes: int) -> None:
        self.x, self.axes = x, axes

    def up(self, axes: int) -> Tensor:
        """A number, beside something of so many axes."""
        return self.x if self.axes else self.x[(..., *(None,) * axes)]


def _entrywise(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of terms of one shape, or of these and numbers."""

    def of(*args: _Shaped) -> Tensor:
        axes = max(a.axes for a in args)
        return function(*(a.up(axes) for a in args))

    return of


def _dot(a: Any, b: Any) -> Tensor:
    return (a.x * b.x).sum(-1)


def _normalized(a: Any) -> Tensor:
    return a.x / torch.sqrt((a.x * a.x).sum(-1, keepdim=True) + 1e-6)


_FUNCTIONS = {
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": torch.nn.functional.softplus,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "silu": torch.nn.functional.silu,
    "relu": torch.relu,
    "absolute": torch.abs,
}

OPERATIONS: dict[str, tuple[tuple[str, ...], Callable[..., Tensor]]] = {
    "add": (("({0} + {1})", "({1} + {0})"), _entrywise(torch.add)),
    "subtract": (("({0} - {1})", "(-{1} + {0})"), _entrywise(torch.sub)),
    "negative": (("(-{0})", "(-1 * {0})"), _entrywise(torch.neg)),
    "scale": (("({0} * {1})", "({1} * {0})", "({1} / (1 / {0}))"), _entrywise(torch.mul)),
    "over": (("({0} / {1})", "({0} * (1 / {1}))", "({0} * {1} ** (-1))"), _entrywise(torch.div)),
    "square": (("({0} ** 2)",), _entrywise(torch.square)),
    "root": (("sqrt({0})", "({0} ** 0.5)"), _entrywise(torch.sqrt)),
    "hadamard": (("hadamard({0}, {1})", "hadamard({1}, {0})"), _entrywise(torch.mul)),
    "diagonal times": (("(diag({0}) * {1})",), lambda v, x: v.x * x.x),
    "ratio": (("({0} / {1})",), _entrywise(torch.div)),
    "dot": (("dot({0}, {1})", "({0}.T * {1})", "({1}.T * {0})"), _dot),
    "total": (("total({0})",), lambda a: a.x.sum(-1)),
    "norm": (("norm({0})",), lambda a: torch.sqrt((a.x * a.x).sum(-1))),
    "outer": (("({0} * {1}.T)", "({1} * {0}.T).T"), lambda a, b: a.x[..., :, None] * b.x[..., None, :]),
    "rows": (("({1}.T * {0})", "({0}.T * {1}).T"), lambda v, m: (v.x[..., :, None] * m.x).sum(-2)),
    "columns": (("({0} * {1})", "({1}.T * {0}.T).T"), lambda m, v: (m.x * v.x[..., None, :]).sum(-1)),
    "product": (("({0} * {1})", "({1}.T * {0}.T).T"), lambda a, b: a.x @ b.x),
    "scale rows": (("(diag({0}) * {1})", "({1}.T * diag({0})).T"), lambda v, m: v.x[..., :, None] * m.x),
    "scale columns": (("({1} * diag({0}))", "(diag({0}) * {1}.T).T"), lambda v, m: v.x[..., None, :] * m.x),
    "transpose": (("{0}.T",), lambda m: m.x.transpose(-1, -2)),
    "diag": (("diag({0})",), lambda v: torch.diag_embed(v.x)),
    "normalize": (("normalize({0})", "({0} / sqrt(dot({0}, {0}) + 1e-6))"), _normalized),
    "softmax": (("softmax({0})",), lambda a: torch.softmax(a.x, -1)),
    "largest": (("Max({0}, {1})",), _entrywise(torch.maximum)),
    "smallest": (("Min({0}, {1})",), _entrywise(torch.minimum)),
    **{name: ((f"{name}({{0}})",), _entrywise(f)) for name, f in _FUNCTIONS.items()},
}


def number(x: float) -> Term:
    return Term("number", (x,), ())


def call(op: str, *args: Term, shape: Shape | None = None, way: int = 0) -> Term:
    """An operation, whose shape is that of its last argument if nothing else is said."""
    return Term(op, args, args[-1].shape if shape is None else shape, way)
