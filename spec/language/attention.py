"""`Attention`: pairwise attention declared by the energy of a query position i and a key position j.

a = Attention("kattention")
e, d = a.dims("E D")
x_i, x_j = a.stream("x", e)
Q, K = a.parameters("Q K", d, e)
b = a.parameters("b", d)
beta = a.inverse_temperature("beta")
a.softmax(dot(Q * x_i, K * x_j) - dot(K * x_j, K * x_j) / 2 + dot(b, K * x_j), beta)
a.output("y", a.average(x_j))

`a.average` is the average over j, under the weights that the energy gives; an output may be any term in averages and in what
belongs to position i. Position enters as a symbol, too (`i, j = a.positions()`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NoReturn

import sympy

from chunkform.errors import AttributeError_, DimensionError, NameError_, SpecError

from .declaration import Declaration
from .expression import ONE, Atom, Dim, Matrix, Term, column, scalar_of, shape_text
from .names import FUNCTION_NAMES, quantity_name, split_names
from .recurrence import Equation, atoms, matrices
from .source import Source, again, caller

OPTIONS = frozenset("causal output_lse lse context_parallel backend deterministic self op OP".split())  # of every op
# What generated functions that read arguments call their own, and what they call.
RESERVED = frozenset(
    "at given constants averaged cotangents features needs found made mass dtype low i j row drow T H BT EACH batch blocks "
    "first head index position start turn torch triton tl combine contract expanded fit half_turn inner joined later "
    "load_block load_matrix load_vector of_positions over_batch parted store_block key_features_kernel query_features_kernel "
    "moved_features moved_key_features_kernel moved_query_features_kernel".split()
)
NUMBERED = re.compile(r"t_\d+|d?(query|key|value|score|column|row|scalar|average|matrix)\d+(_\w+)?|size_0[ij]")
LAYOUT = frozenset("B T S H".split())  # what the axes of every op are called
ELSEWHERE = {  # what recurrences have, and what an attention says instead
    "inputs": "a.queries and a.keys, or a.stream for both",
    "let": "a name of Python's, as in score = dot(q, k)",
    "decay": "a term of the energy, as c_i - c_j of a stream of sums of log decays",
    "state": "a.average, which is over all keys",
    "causal": "causal=True where the op is called",
    "update": "a.softmax, a.exponential or a.linear",
}
SIDES = {"query": "_i", "key": "_j", "fixed": "_k"}  # how a quantity of a position is called in terms


@dataclass(frozen=True)
class AttentionVariable:
    """What an attention is given. kind:

    query, key    one value a query position, or a key position
    stream        one value a position, used as query and as key
    fixed         one value for each of a fixed set of queries (the first dim), per head
    parameter     one value a head
    temperature   a positive number a head; `default` may be a term in the sizes of dims
    constant      one number
    """

    name: str
    kind: str
    dims: tuple[Dim, ...]
    where: Source
    default: Any = None


@dataclass(frozen=True)
class Average:
    """The weighted average of a term over j; `name` is what its symbol is called."""

    name: str
    term: Term
    where: Source


class Attention(Declaration):
    """Pairwise attention. See the module's docstring; the documentation's page on attention has the whole language."""

    noun = "attention"

    def __init__(self, name: str, doc: str = "", source: str = "") -> None:
        super().__init__(name, doc, source)
        self.dim_list: list[Dim] = []
        self.variables: list[AttentionVariable] = []
        self.averages: list[Average] = []
        self.outputs: list[Equation] = []
        self.normaliser = ""
        self.energy: Equation | None = None
        self.beta: sympy.Expr = sympy.Integer(1)
        self.nodes: Dim | None = None  # the dim that counts fixed queries

    def __getattr__(self, name: str) -> NoReturn:
        if name in ELSEWHERE:
            raise AttributeError_(f"an attention has no {name}: write {ELSEWHERE[name]}", caller())
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # --- declaring --------------------------------------------------------------------------------------------------

    def dims(self, names: str) -> Any:
        """Named dimensions: `d, e = a.dims("d e")`."""
        made = []
        for name in split_names(names):
            if name in LAYOUT:
                raise NameError_(f"{name!r} is an axis of every op, and can't be a dim: choose another", caller())
            name = self._new(name, "dim")
            made.append(Dim(name))
            self.dim_list.append(made[-1])
        return made[0] if len(made) == 1 else tuple(made)

    def queries(self, names: str, *dims: Dim) -> Any:
        """Quantities of each query position i, [B, T, H, ...]: scalars, or vectors over one dim."""
        return self._declare(names, "query", dims)

    def keys(self, names: str, *dims: Dim) -> Any:
        """Quantities of each key position j, [B, S, H, ...]."""
        return self._declare(names, "key", dims)

    def stream(self, name: str, *dims: Dim) -> tuple[Any, Any]:
        """One quantity of each position, [B, T, H, ...], as `x_i` and as `x_j`."""
        (variable,) = self._variables(name, "stream", dims, most=1)
        return _symbol(variable.name, "query", dims), _symbol(variable.name, "key", dims)

    def fixed_queries(self, names: str, nodes: Dim, *dims: Dim) -> Any:
        """A fixed set of queries, `nodes` many, [H, nodes, ...]: the symbol of one of them. There are then no query positions."""
        if self.nodes is not None and nodes != self.nodes:
            raise DimensionError(f"there is one set of fixed queries, over {self.nodes}; got {nodes}", caller())
        made = self._variables(names, "fixed", (nodes, *dims), most=2)
        self.nodes = nodes
        symbols = tuple(_symbol(v.name, "fixed", dims) for v in made)
        return symbols[0] if len(symbols) == 1 else symbols

    def parameters(self, names: str, *dims: Dim) -> Any:
        """Quantities given once a head, [H, ...]: scalars, vectors or matrices."""
        return self._declare(names, "parameter", dims)

    def inverse_temperature(self, name: str, default: object = None) -> Any:
        """A positive scalar a head, [H] or one number. `default` may be made of `a.size(dim)`."""
        value = None if default is None else scalar_of(default)
        if default is not None and (value is None or any(_kind(s) != "size" for s in value.free_symbols)):
            raise SpecError(
                f"the default of {name} must be made of numbers and sizes of dims, got {default!r}", caller()
            )
        (variable,) = self._variables(name, "temperature", (), most=0, default=value)
        return _symbol(variable.name, "temperature", ())

    def constant(self, name: str, default: float | None = None) -> Any:
        """A number given to the op as a keyword."""
        value = None if default is None else scalar_of(default)
        if default is not None and not (value is not None and value.is_number and value.is_finite and value.is_real):
            raise SpecError(f"the default of constant {name} must be a finite number, got {default!r}", caller())
        (variable,) = self._variables(name, "constant", (), most=0, default=value)
        return _symbol(variable.name, "constant", ())

    def size(self, dim: Dim) -> Atom:
        """The size of a dim, as a number."""
        if dim not in self.dim_list:
            raise DimensionError(f"{dim!r} is not a dim of {self.name}", caller())
        return Atom(dim.name, "size")

    def positions(self) -> tuple[Any, Any]:
        """The positions i and j as numbers. The last query stands where the last key does."""
        return Atom("i", "position"), Atom("j", "position")

    # --- equations --------------------------------------------------------------------------------------------------

    def softmax(self, energy: object, beta: object = 1) -> None:
        """Weights softmax_j(beta E_ij), where beta > 0."""
        self._energy("softmax", energy, beta)

    def exponential(self, energy: object, beta: object = 1) -> None:
        """Weights exp(beta E_ij), without a normaliser. They overflow where the energy is above 88."""
        self._energy("exponential", energy, beta)

    def linear(self, energy: object) -> None:
        """Weights E_ij, without a normaliser."""
        self._energy("linear", energy, 1)

    def average(self, term: object) -> Any:
        """sum_j A_ij term: a vector or a scalar for each i; with fixed queries a matrix or a vector over all of them."""
        where = caller()
        value = self._term(term, "the averaged term")
        self._check_term(value, "the averaged term", averages=False)
        if isinstance(value, Matrix) and not value.is_vector:
            raise DimensionError(f"the averaged term must be a vector or a scalar, got {shape_text(value)}", where)
        if isinstance(value, Matrix):
            value = column(value, "average")
        name = f"average{len(self.averages) + 1}"
        self.averages.append(Average(name, value, where))
        own = (value.rows,) if isinstance(value, Matrix) else ()
        return _named(name, "average", (self.nodes, *own) if self.nodes is not None else own)

    def energy_gradient(self, by: object) -> Any:
        """dE_ij / dx_i, to be averaged: `a.average(a.energy_gradient(x_i))`."""
        kind = _kind(by)
        if kind not in ("query", "fixed") or (isinstance(by, Matrix) and by.op != "symbol"):
            raise SpecError(f"the energy's gradient is by a quantity of position i, got {by!r}", caller())
        name = energy_gradient_name(_name(by))
        return (
            Matrix("symbol", (name, "energy gradient"), by.rows, ONE)
            if isinstance(by, Matrix)
            else Atom(name, "energy gradient")
        )

    def output(self, name: str, term: object) -> None:
        """An output: a term in averages, in what belongs to position i, and in parameters."""
        name = self._new(name, "output")
        value = self._term(term, f"the output {name}")
        self._check_term(value, f"the output {name}", averages=True)
        self.outputs.append(Equation(name, value, caller()))

    # --- looking at it ----------------------------------------------------------------------------------------------

    def validate(self) -> Attention:
        """Check what only the whole declaration can show; returns self."""
        if self.energy is None:
            raise SpecError(f"{self.name} has no energy: write a.softmax(energy)", self.where)
        if not self.outputs:
            raise SpecError(f'{self.name} has no output: write a.output("y", a.average(...))', self.where)
        kinds = {v.kind for v in self.variables}
        if self.nodes is None and not kinds & {"query", "stream"}:
            raise SpecError(f"{self.name} has no queries: write a.queries, a.stream or a.fixed_queries", self.where)
        if self.nodes is not None and kinds & {"query", "stream"}:
            raise SpecError(
                f"{self.name} has fixed queries, and so no others: declare its sequence with a.keys", self.where
            )
        if not kinds & {"key", "stream"}:
            raise SpecError(f"{self.name} has no keys: write a.keys or a.stream", self.where)
        for dim in self.dim_list:
            if not any(dim in v.dims for v in self.variables):
                raise DimensionError(f"nothing given has the dim {dim}, so its size can't be known", self.where)
        return self

    # --- checks -----------------------------------------------------------------------------------------------------

    def _energy(self, normaliser: str, energy: object, beta: object) -> None:
        where = caller()
        if self.energy is not None:
            hint = again(where, self.name)
            raise SpecError(f"the energy of {self.name} is declared twice, first at {self.energy.where}{hint}", where)
        value = self._term(energy, "the energy")
        if isinstance(value, Matrix):
            raise DimensionError(f"the energy must be a scalar, got {shape_text(value)}", where)
        self._check_term(value, "the energy", averages=False)
        scale = scalar_of(beta)
        if scale is None:
            raise SpecError(f"beta must be a scalar, got {beta!r}", where)
        if scale.is_number and not scale.is_positive:
            raise SpecError(f"beta must be above 0, got {scale}", where)
        self._check_term(scale, "beta", averages=False)
        for s in scale.free_symbols:
            if _kind(s) in (*SIDES, "position"):
                raise SpecError(f"beta is one number a head, but {s} belongs to a position", where)
        self.normaliser, self.energy, self.beta = normaliser, Equation("E", value, where), scale

    def _declare(self, names: str, kind: str, dims: tuple) -> Any:
        made = self._variables(names, kind, dims, most=2 if kind == "parameter" else 1)
        symbols = tuple(_symbol(v.name, kind, dims) for v in made)
        return symbols[0] if len(symbols) == 1 else symbols

    def _variables(
        self, names: str, kind: str, dims: tuple, most: int, default: object = None
    ) -> list[AttentionVariable]:
        made = []
        for name in split_names(names):
            name = self._new(name, kind)
            if len(dims) > most:
                raise DimensionError(f"{name} has {len(dims)} dims; at most {most} possible", caller())
            for dim in dims:
                if not isinstance(dim, Dim) or dim not in self.dim_list:
                    known = ", ".join(x.name for x in self.dim_list) or "none declared"
                    raise DimensionError(
                        f"the dims of {name} must be dims of {self.name} ({known}), got {dim!r}", caller()
                    )
            made.append(AttentionVariable(name, kind, dims, caller(), default))
        self.variables += made
        return made

    def _new(self, given: object, kind: str) -> str:
        """A name that isn't used so far, as Python spells it."""
        name = quantity_name(given)
        own = _called(name, kind)
        if name in OPTIONS | FUNCTION_NAMES or any(n in RESERVED or NUMBERED.fullmatch(n) for n in own):
            raise NameError_(f"the name {name!r} is reserved: choose another", caller())
        declared = [(d.name, "dim") for d in self.dim_list] + [(v.name, v.kind) for v in self.variables]
        for other, its in [*declared, *((y.name, "output") for y in self.outputs)]:
            if name == other:
                told = "" if name == given else f" ({given!r} is {name!r} to Python)"
                hint = again(caller(), self.name)
                raise NameError_(f"the name {name!r} is used twice in {self.name}{told}{hint}", caller())
            if both := own & _called(other, its):
                raise NameError_(
                    f"the {kind} {name!r} and the {its} {other!r} of {self.name} would both be called {both.pop()} in its op: "
                    "choose another",
                    caller(),
                )
        return name

    def _term(self, term: object, what: str) -> Term:
        value = term if isinstance(term, Matrix) else scalar_of(term)
        if value is None:
            raise SpecError(f"{what} must be a term of the spec, got {term!r}", caller())
        return value

    def _check_term(self, term: Term, what: str, averages: bool) -> None:
        for m in matrices(term):
            for dim in m.shape:
                if dim not in (*self.dim_list, ONE):
                    raise DimensionError(f"{what} uses {m}, but {dim} is not a dim of {self.name}", caller())
        known = {v.name for v in self.variables}
        for s in atoms(term):
            name, kind = _name(s), _kind(s)
            base = name[:-2] if kind in SIDES else name
            if kind == "average" and not averages:
                raise SpecError(f"{what} uses an average, which is known after the energy only", caller())
            if averages and kind in ("key", "fixed", "position"):
                hint = "average it: a.average(...)" if kind == "key" else "an output has its averages, and parameters"
                raise SpecError(f"{what} uses {name}, which has no value there: {hint}", caller())
            if kind == "energy gradient" and (averages or what != "the averaged term"):
                raise SpecError(f"{what} uses the energy's gradient, which can only be averaged", caller())
            if kind == "position" and name == "i" and self.nodes is not None:
                raise SpecError(f"{what} uses the position i, but fixed queries have none", caller())
            if kind in (*SIDES, "parameter", "temperature", "constant") and base not in known:
                raise NameError_(f"{what} uses {name}, which is not declared in {self.name}", caller())
            if kind is None:
                raise NameError_(
                    f"{what} uses the unknown symbol {name}: declare it with a.queries, a.keys, ...", caller()
                )


def rotate(x: Matrix, angle: Matrix) -> Matrix:
    """x with each pair (x_n, x_{n + d/2}) rotated by angle_n; d, the size of x, is even, and the angle's halves should be equal.

    Its halves are turned as rotary positions do it: x cos(angle) + (-x_second, x_first) sin(angle).
    """
    from .expression import hadamard
    from .functions import cos, sin

    x, angle = column(x, "rotate"), column(angle, "rotate")
    if x.shape != angle.shape:
        raise DimensionError(f"rotate of {shape_text(x)} by {shape_text(angle)}: the dims must be the same", caller())
    return hadamard(x, cos(angle)) + hadamard(Matrix("half_turn", (x,), x.rows, ONE), sin(angle))


def frequencies(dim: Dim, base: float = 10000) -> Matrix:
    """The vector of rotary frequencies, base^(-2 n / d) for n = 0 .. d/2 - 1, twice."""
    if not isinstance(dim, Dim):
        raise DimensionError(f"frequencies takes a dim, got {dim!r}", caller())
    value = scalar_of(base)
    if value is None or not value.is_positive:
        raise SpecError(f"the base of frequencies must be a positive number, got {base!r}", caller())
    return Matrix("frequencies", (value,), dim, ONE)


def _called(name: str, kind: str) -> set[str]:
    """What generated functions call it: an output's gradient, a dim's size, a quantity at a position."""
    match kind:
        case "output":
            return {f"d{name}"}
        case "dim":
            return {name, f"B{name}", f"size_{name}"}
        case "stream":
            return {f"{name}_i", f"{name}_j"}
    return {name + SIDES.get(kind, "")}


def energy_gradient_name(name: str) -> str:
    """What the energy's gradient by a quantity is called in terms."""
    return f"dE.{name}"


def _symbol(name: str, kind: str, dims: tuple[Dim, ...]) -> Any:
    return _named(name + SIDES.get(kind, ""), kind, dims)


def _named(name: str, kind: str, dims: tuple[Dim, ...]) -> Any:
    if not dims:
        return Atom(name, kind)
    rows, cols = (*dims, ONE)[:2]
    return Matrix("symbol", (name, kind), rows, cols)


def _kind(s: object) -> str | None:
    if isinstance(s, Matrix):
        return s.args[1] if s.op == "symbol" else None
    return s.kind if isinstance(s, Atom) else None


def _name(s: Any) -> str:
    return s.args[0] if isinstance(s, Matrix) else s.name
