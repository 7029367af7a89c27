"""`Program`: several ops as one, declared like one step of a recurrence in which matrices may be solved for.

p = Program("mesa")
d = p.dims("d")
q, u = p.inputs("q u", d)
lam = p.decay("lam")
lam_0 = p.parameters("lam_0", sign="> 0")
H = p.state("H", d, d, initial=lam_0 * eye(d))
p.update(H, lam * H.prev + u * u.T)
p.output("o", p.solve("x", H.next, q, cg(30)))

The compiler finds the ops: a recurrence for the quantities that read the same states, a map for those that read none, a solve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chunkform.errors import DimensionError, NameError_, SpecError

from .applying import Applied, apply
from .attention import Attention
from .declaration import Declaration
from .definite import POSITIVE, SIGNS, require_definite
from .expression import Dim, Matrix, Term, column, scalar_of, shape_text
from .methods import Method, neumann
from .names import quantity_name, split_names
from .recurrence import Recurrence, State
from .source import Source, caller


@dataclass(frozen=True)
class Solve:
    """`name` = matrix^-1 right, at each step. `step` is the step size of a method that has one."""

    name: str
    matrix: Matrix
    right: Matrix
    method: Method
    where: Source
    step: Term | None = None


class Program(Declaration):
    """An op made of several. See the module's docstring; the documentation's page on programs has more."""

    noun = "program"

    def __init__(self, name: str, doc: str = "", source: str = "") -> None:
        super().__init__(name, doc, source)
        self.step = Recurrence(name, doc, source)  # all that a recurrence may declare
        self.solves: list[Solve] = []
        self.applied: list[Applied] = []
        self.signs: dict[str, int] = {}

    # --- declaring --------------------------------------------------------------------------------------------------

    def dims(self, names: str) -> Any:
        """Named dimensions, as in a recurrence."""
        return self.step.dims(names)

    def inputs(self, names: str, *dims: Dim, domain: Any = None, sign: str | None = None) -> Any:
        """Quantities given at each step. `sign` (">= 0" or "> 0") says what each entry is, `domain` as in a recurrence."""
        return self._signed(self.step.inputs(names, *dims, domain=domain), names, sign)

    def parameters(self, names: str, *dims: Dim, domain: Any = None, sign: str | None = None) -> Any:
        """Quantities given once per head. `sign` (">= 0" or "> 0") says what each entry is, `domain` as in a recurrence."""
        return self._signed(self.step.parameters(names, *dims, domain=domain), names, sign)

    parameter = parameters

    def decay(self, names: str, *dim: Dim) -> Any:
        """A decay in (0, 1], given to the op as its natural logarithm `log_<name>`."""
        return self.step.decay(names, *dim)

    def head_decay(self, names: str, *dim: Dim) -> Any:
        """A decay that is constant in time, given per head as its natural logarithm."""
        return self.step.head_decay(names, *dim)

    def size(self, dim: Dim) -> Any:
        """The size of a dim, as a number."""
        return self.step.size(dim)

    def constant(self, name: str, default: float | None = None, *, domain: object = None) -> Any:
        """A number given to the op as a keyword; `domain` as in a recurrence."""
        made = self.step.constant(name, default, domain=domain)
        if default is not None and default > 0:
            self.signs[quantity_name(name)] = POSITIVE
        return made

    def state(self, name: str, *dims: Dim, initial: Term | float | None = None) -> State:
        """A state, as in a recurrence."""
        return self.step.state(name, *dims, initial=initial)

    def update(self, state: State, term: object) -> None:
        """`state.next = term`."""
        self.step.update(state, term)

    def let(self, name: str, term: Term) -> Any:
        """A quantity of the step that others read: a node of the graph, where it isn't a matrix."""
        return self.step.let(name, term)

    def output(self, name: str, term: object) -> None:
        """An output of the op, one value a step."""
        self.step.output(name, term)

    def solve(self, name: str, matrix: Matrix, right: Matrix, method: Method | None = None) -> Any:
        """The vector x with matrix x = right, at each step.

        The matrix must be symmetric positive definite by construction: a state that decays and is written c u u^T with c at
        least 0, from a positive multiple of the identity; or such a sum plus a positive diagonal. `method` is cg(steps),
        neumann(steps) or sherman_morrison(). The initial state that a call gives must be positive definite too.
        """
        from .methods import cg, sherman_morrison

        where = caller()
        name = quantity_name(name)
        method = cg(30) if method is None else method
        if not isinstance(method, Method):
            raise SpecError(
                f"the method of the solve {name} is cg(..), neumann(..) or sherman_morrison(), got {method!r}", where
            )
        what = f"the solve {name}"
        right = column(right, what)
        require_definite(self.step, self.signs, matrix, what)
        if right.rows != matrix.rows:
            raise DimensionError(
                f"{what}: the matrix {shape_text(matrix)} and the right side {shape_text(right)} must have the same dim",
                where,
            )
        for term in (matrix, right):
            self.step._check_term(term, what)
        step: Any = None
        if isinstance(method, neumann) and method.step is not None:
            step = self._step_size(name, matrix, method)
        if isinstance(method, sherman_morrison):
            from .rank_one import rank_one_state

            rank_one_state(self.step, matrix, what)
        made = self.step._declare(name, "solved", (right.rows,))
        self.solves.append(Solve(name, matrix, right, method, where, step))
        return made

    def apply(self, op: Recurrence | Attention | str, **quantities: object) -> Any:
        """The outputs of a recurrence or of an attention: one of the catalogue, by name, that of a spec file (looked for beside
        this one too), or any other. Its inputs are named as it names them.

        Decays, parameters and constants are handed on as they are, so they must be this program's own; an input may be any term.
        What has a default in an attention may be left out, or be a number. A step's query sees the keys up to its own step.
        """
        return apply(self.step, self.signs, self.applied, op, quantities)

    # --- reading ----------------------------------------------------------------------------------------------------

    def validate(self) -> Program:
        """Check what only the whole program can show; returns self."""
        if not self.step.outputs:
            raise SpecError(f"{self.name} has no output: write p.output(...)", self.where)
        if not self.step.states and not self.applied:
            raise SpecError(
                f"{self.name} has no state: declare one with p.state(...), or apply a recurrence or an attention",
                self.where,
            )
        for state in self.step.states:
            if not any(u.name == state.name for u in self.step.updates):
                raise SpecError(
                    f"the state {state.name} is never updated: write p.update({state.name}, ...)", state.where
                )
        for s in self.solves:
            for x in self.step.outputs:
                if x.name == f"{s.name}_residual":
                    raise NameError_(
                        f"the name {x.name!r} is that of what the solve {s.name} leaves: choose another for the output",
                        x.where,
                    )
        return self

    # --- parts ------------------------------------------------------------------------------------------------------

    def _signed(self, made: object, names: str, sign: str | None) -> Any:
        if sign is not None:
            if sign not in SIGNS:
                raise SpecError(f'the sign of {names} is ">= 0" or "> 0", got {sign!r}', caller())
            self.signs |= dict.fromkeys(map(quantity_name, split_names(names)), SIGNS[sign])
        return made

    def _step_size(self, name: str, matrix: Matrix, method: neumann) -> Any:
        """The step size as a quantity of this program: a number, a term, or one over the matrix's trace."""
        if method.step == "trace":
            from .trace import trace_of

            return 1 / trace_of(self.step, matrix, name)
        value = scalar_of(method.step)
        if value is None or (value.is_number and not value.is_positive):
            raise SpecError(
                f'the step size of {name} is a positive number, a scalar term, or "trace", got {method.step!r}',
                caller(),
            )
        if not value.is_number:
            self.step._check_term(value, f"the step size of {name}")
        return value
