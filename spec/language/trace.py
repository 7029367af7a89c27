"""The trace of a matrix as a recurrence of its own: one over it is a step size that never diverges."""

from __future__ import annotations

from typing import Any

from chunkform.errors import SpecError

from .expression import Matrix, dot, ones, total
from .recurrence import Recurrence, State
from .source import caller
from .terms import factors, summands


def trace_of(r: Recurrence, matrix: Matrix, name: str) -> Any:
    """The trace of a matrix, where its states decay by scalars; declares the states that it takes."""
    return _Trace(r, name).of(matrix)


class _Trace:
    def __init__(self, r: Recurrence, name: str) -> None:
        self.r, self.name = r, name
        self.lets = {x.name: x for x in r.lets}
        self.made: dict[str, State] = {}

    def of(self, m: Matrix) -> Any:
        whole: Any = 0
        for term in summands(m, self.lets):
            scalar, parts = factors(term)
            whole += scalar * self.product(parts, term)
        return whole

    def product(self, parts: list[Matrix], term: Matrix) -> Any:
        if len(parts) == 2 and parts[0].is_vector:
            return dot(parts[0], parts[1].T)
        if len(parts) == 1 and parts[0].op == "eye":
            return dot(ones(parts[0].rows), ones(parts[0].rows))
        if len(parts) == 1 and parts[0].op == "diag":
            return total(parts[0].args[0])
        bare = parts[0].args[0] if parts and parts[0].op == "transpose" else parts[0] if parts else None
        if len(parts) == 1 and bare is not None and bare.op == "symbol" and bare.args[1] == "state":
            state, which = bare.args[0].split(".")
            mine = self.state(state)
            return mine.prev if which == "prev" else mine.next
        raise SpecError(
            f'the step size "trace" of {self.name} takes states that decay by scalars; the trace of {term} has no recurrence of '
            "its own: give a step size as a number or a term",
            caller(),
        )

    def state(self, name: str) -> State:
        if name not in self.made:
            old = next(s for s in self.r.states if s.name == name)
            start = self.of(old.initial) if isinstance(old.initial, Matrix) else None
            self.made[name] = self.r.state(f"trace_{name}_{self.name}", initial=start)
            self.r.update(self.made[name], self.of(self.r.equation(name).term))
        return self.made[name]
