"""A second, independent judge for the tests: float64 tensors, the recurrences written out by hand, and autograd.

It shares nothing with `codegen/claims` but the formula trees: no arithmetic, no runner, no dual numbers.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import Formula, free_indices
from chunkform.spec.language.statements import Equal

SIZES = {
    "n": 5,
    "d": 3,
    "e": 2,
    "c": 2,
    "N": 2,
    "E": 4,
    "D": 3,
    "m": 2,
    "T1": 2,
    "T2": 4,
    "k": 3,
    "d_in": 2,
    "d_out": 3,
}


class NoValue(Exception):
    """Out of range, or singular: nothing is said at this index."""


class WrongShape(Exception):
    """The formula's shapes do not fit."""


class NotCovered(Exception):
    """The formula has something that this evaluator does not know."""


class Point:
    """One random point: numbers for everything given, the forward run of the setting's recurrence, and gradients by
    autograd."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self.random = torch.Generator().manual_seed(seed)
        self.sizes = {name: SIZES[name] for name in setting.sizes}
        if "N" in self.sizes:
            self.sizes["n"] = self.sizes["N"] * self.sizes["c"]
        self.given: dict[tuple, torch.Tensor] = {}
        self.run: dict[str, dict[int, torch.Tensor]] = {}
        if setting.recurrence is not None:
            self.forward(setting.recurrence.name)

    def draw(self, rows: int, cols: int, positive: bool = False) -> torch.Tensor:
        x = torch.randn(rows, cols, generator=self.random, dtype=torch.float64)
        return 0.3 + 0.6 * torch.rand(rows, cols, generator=self.random, dtype=torch.float64) if positive else x

    def forward(self, name: str) -> None:
        """The four recurrences that the documents are about, by hand."""
        n, d, e = (self.sizes[x] for x in "nde")
        steps = range(1, n + 1)
        leaf: dict[str, dict[int, torch.Tensor]] = {x: {t: self.draw(d, 1) for t in steps} for x in "qk"}
        state = "s" if name.startswith("inverse") else "S"
        leaf["lam"] = {t: self.draw(1, 1, positive=True) for t in steps}
        third = "o" if name.startswith("inverse") else "v"
        leaf[third] = {t: self.draw(e, 1) for t in steps}
        for by_step in leaf.values():
            for x in by_step.values():
                x.requires_grad_(True)
        s = self.draw(d, e).requires_grad_(True)
        states, out = {0: s}, {}
        for t in steps:
            q, k, x, lam = (leaf[name_][t] for name_ in ("q", "k", third, "lam"))
            match name:
                case "lightning_attention":
                    s = lam * s + k @ x.T
                    out[t] = s.T @ q
                case "linear_attention":
                    s = s + k @ x.T
                    out[t] = s.T @ q
                case "inverse_attention":
                    out[t] = x - lam * s.T @ q
                    s = lam * s + (1 - lam) * k @ out[t].T
                case "inverse_attention_unstable":
                    out[t] = (x - lam * s.T @ q) / (q.T @ k)
                    s = lam * s + k @ out[t].T
                case _:
                    raise NotCovered(name)
            s.retain_grad()
            out[t].retain_grad()
            states[t] = s
        output = "v" if name.startswith("inverse") else "o"
        self.run = {**leaf, state: states, output: out}
        if output == "v":
            self.run["w"] = out
        cotangents = {t: self.draw(e, 1) for t in steps}
        loss = sum((out[t] * cotangents[t]).sum() for t in steps) + (s * self.draw(d, e)).sum()
        loss.backward()
        self.gradients = {x: {t: v.grad for t, v in by.items()} for x, by in self.run.items()}
        self.gradients[output] = cotangents
        if output == "v":
            self.gradients["w"] = {t: out[t].grad for t in steps}
        self.run = {x: {t: v.detach() for t, v in by.items()} for x, by in self.run.items()}

    def quantity(self, name: str, index: tuple[int, ...]) -> torch.Tensor:
        q = self.setting.quantities[name]
        if q.kind == "defined":
            env = dict(zip(q.parameters, index))
            if q.start is not None and index[0] <= q.start[0]:
                if index[0] < q.start[0]:
                    raise NoValue
                return self.value(q.start[1], env)
            return self.value(q.body, env)
        if q.kind == "given":
            for i, (low, high) in zip(index, q.ranges):
                if not self.integer(low, {}) <= i <= self.integer(high, {}):
                    raise NoValue
            if (name, index) not in self.given:
                rows, cols = (self.size(x) for x in q.dims)
                self.given[name, index] = self.draw(rows, cols, "decay" in q.domain or q.domain == "positive")
            return self.given[name, index]
        if q.source.endswith(".carried"):
            raise NotCovered(q.source)
        by_step = self.run[q.source] if q.kind == "spec" else self.gradients[q.source]
        if index[0] not in by_step or by_step[index[0]] is None:
            raise NoValue
        found = by_step[index[0]]
        return found * self.run[q.source][index[0]] if q.kind == "log gradient" else found

    def size(self, dim: str) -> int:
        return 1 if dim == "1" else sum(self.sizes[x] for x in dim.split("+"))

    def integer(self, x: Formula, env: dict[str, int]) -> int:
        match x.op:
            case "number":
                return int(x.attrs[0])
            case "index":
                if x.attrs[0] not in env:
                    raise NoValue
                return env[x.attrs[0]]
            case "size":
                return self.sizes[x.attrs[0]]
            case "add":
                return sum(self.integer(a, env) for a in x.args)
            case "negative":
                return -self.integer(x.args[0], env)
            case "product":
                result = 1
                for a in x.args:
                    result *= self.integer(a, env)
                return result
        raise NotCovered(x.op)

    def value(self, x: Formula, env: dict[str, int]) -> torch.Tensor:
        found = self._alone(x, env)
        if found is None and x.op in BOUND:
            found = self._bound(x, env)
        if found is None and x.op in FOLDED:
            found = reduce(FOLDED[x.op], (self.value(y, env) for y in x.args))
        if found is None and x.op in OPERATIONS:
            found = OPERATIONS[x.op](x, *(self.value(y, env) for y in x.args))
        if found is None:
            raise NotCovered(x.op)
        return found

    def _alone(self, x: Formula, env: dict[str, int]) -> torch.Tensor | None:
        """Numbers and what has a name; what takes one value, and places in it."""
        args = x.args
        match x.op:
            case "number":
                return torch.tensor([[float(x.attrs[0])]], dtype=torch.float64)
            case "index" | "size":
                return torch.tensor([[float(self.integer(x, env))]], dtype=torch.float64)
            case "at":
                return self.quantity(x.attrs[0], tuple(self.integer(a, env) for a in args))
            case "named" | "call":
                return self.value(args[0], env)
            case "power":
                a, k = self.value(args[0], env), self.integer(args[1], env)
                return torch.linalg.matrix_power(square(a), k)
            case "eye":
                return torch.eye(self.size(x.attrs[0]), dtype=torch.float64)
            case "ones":
                return torch.ones(self.size(x.attrs[0]), 1, dtype=torch.float64)
            case "unit":
                return torch.eye(self.size(x.attrs[0]), dtype=torch.float64)[:, self.integer(args[0], env) - 1 :][:, :1]
            case "row":
                return self.value(args[0], env)[self.integer(args[1], env) - 1 :][:1]
        return None

    def _bound(self, x: Formula, env: dict[str, int]) -> torch.Tensor | None:
        """What runs over an index, or chooses by one."""
        args = x.args
        match x.op:
            case "sum" | "product over":
                low, high = self.integer(args[0], env), self.integer(args[1], env)
                terms = [self.value(args[2], {**env, x.attrs[0]: i}) for i in range(low, high + 1)]
                if not terms and x.op == "sum":
                    raise NoValue
                if not terms:
                    return torch.ones(1, 1, dtype=torch.float64)
                return reduce(operator.add if x.op == "sum" else operator.mul, terms)
            case "matrix":
                i, j, rows, cols = x.attrs
                entries = [
                    [self.value(args[0], {**env, i: r, j: c}) for c in range(1, self.size(cols) + 1)]
                    for r in range(1, self.size(rows) + 1)
                ]
                return torch.cat([torch.cat(line, 1) for line in entries], 0)
            case "stack":
                i, rows = x.attrs
                return torch.cat([self.value(args[0], {**env, i: r}) for r in range(1, self.size(rows) + 1)], 0)
            case "cases":
                for condition, body in zip(args[::2], args[1::2]):
                    if condition.op == "otherwise" or self.true(condition, env):
                        return self.value(body, env)
        return None

    def true(self, x: Formula, env: dict[str, int]) -> bool:
        a, b = (self.integer(y, env) for y in x.args)
        return {">=": a >= b, ">": a > b, "<=": a <= b, "<": a < b, "=": a == b}[x.attrs[0]]


def scalar_and_vector(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.numel() == 1 and 1 in b.shape) or (b.numel() == 1 and 1 in a.shape)


def is_true(statement: Equal, setting: Setting, seeds: Any = (0, 1)) -> bool | None:
    """Whether the equation is true at random points; None where it says nothing."""
    compared = 0
    for seed in seeds:
        point = Point(setting, seed)
        for env in indices(statement, setting, point):
            try:
                values = [point.value(side, env) for side in statement.sides]
            except NoValue:
                continue
            except WrongShape:
                return False
            if any(not torch.isfinite(v).all() for v in values):
                continue
            for a, b in itertools.pairwise(values):
                if a.shape != b.shape or not torch.allclose(a, b, rtol=1e-7, atol=1e-8):
                    return False
            compared += 1
    return True if compared else None


def indices(statement: Equal, setting: Setting, point: Point) -> Any:
    stated = {name: (low, high) for name, low, high in statement.over}
    free = list(stated) + sorted({i for side in statement.sides for i in free_indices(side)} - set(stated))

    def extend(env: dict[str, int], rest: list[str]) -> Any:
        if not rest:
            yield env
            return
        name = rest[0]
        low, high = stated.get(name) or setting.index_ranges.get(name) or (None, None)
        first = 1 if low is None else point.integer(low, env)
        last = point.sizes["n"] if high is None else point.integer(high, env)
        for value in range(first, last + 1):
            yield from extend({**env, name: value}, rest[1:])

    return extend({}, free)


def square(a: torch.Tensor) -> torch.Tensor:
    if a.shape[0] != a.shape[1]:
        raise WrongShape
    return a


def vector(a: torch.Tensor) -> torch.Tensor:
    if 1 not in a.shape:
        raise WrongShape
    return a


def spreads(a: torch.Tensor, b: torch.Tensor) -> bool:
    return all(p == q or 1 in (p, q) for p, q in zip(a.shape, b.shape))


def plus(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.shape != b.shape and (1 not in (*a.shape, *b.shape) or not scalar_and_vector(a, b)):
        raise WrongShape
    return a + b


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.numel() == 1 or b.numel() == 1:
        return a * b
    if a.shape[1] != b.shape[0]:
        raise WrongShape
    return a @ b


def entrywise(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if not spreads(a, b):
        raise WrongShape
    return a * b


def quotient(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if b.numel() > 1 and a.shape != b.shape and not spreads(a, b):
        raise WrongShape
    return a / b


def inverted(a: torch.Tensor) -> torch.Tensor:
    if abs(torch.linalg.det(square(a))) < 1e-9:
        raise NoValue
    return torch.linalg.inv(a)


def inner(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.shape != b.shape:
        raise WrongShape
    return (a * b).sum().reshape(1, 1)


def beside(*blocks: torch.Tensor) -> torch.Tensor:
    if len({b.shape[0] for b in blocks}) > 1:
        raise WrongShape
    return torch.cat(blocks, 1)


def differences(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.shape[1] != 1 or b.shape[1] != 1:
        raise WrongShape
    return a - b.T


BOUND = ("sum", "product over", "matrix", "stack", "cases")
FOLDED = {"add": plus, "product": product, "hadamard": entrywise}
OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {  # of a formula, and the values of its parts
    "negative": lambda x, a: -a,
    "transpose": lambda x, a: a.T,
    "inverse": lambda x, a: inverted(a),
    "divide": lambda x, a, b: quotient(a, b),
    "sqrt": lambda x, a: torch.sqrt(a),
    "exp": lambda x, a: torch.exp(a),
    "log": lambda x, a: torch.log(a),
    "diag": lambda x, a: torch.diag(vector(a).reshape(-1)),
    "tril": lambda x, a: torch.tril(square(a), x.attrs[0]),
    "rowsum": lambda x, a: a.sum(1, keepdim=True),
    "inner": lambda x, a, b: inner(a, b),
    "beside": lambda x, *parts: beside(*parts),
    "differences": lambda x, a, b: differences(a, b),
}
