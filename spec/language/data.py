"""A recurrence as plain data, its expression graph in JSON's types, and back: what travels with a model's weights.

Reading runs no code: a node is one of the operations below over earlier nodes, and goes through the same checks as what an author
writes. Lines of the spec's file aren't kept, nor are claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import sympy

from chunkform.errors import SpecError

from .domain import Domain
from .expression import ONE, Contraction, Dim, Matrix, Term, diag, entry, eye, hadamard, lift
from .functions import sigmoid_, softplus_
from .recurrence import Recurrence, State, name_of
from .row_map import RowMap

FORMAT = 1
MOST_NODES = 20_000
MOST_DIGITS = 200  # of a number
HIGHEST_POWER = 100  # of a number that is an exponent
SCALAR: dict[str, Callable[..., sympy.Expr]] = {
    f.__name__: f
    for f in (
        sympy.Add, sympy.Mul, sympy.Pow, sympy.exp, sympy.log, sympy.sin, sympy.cos, sympy.tan, sympy.tanh, sympy.sinh,
        sympy.cosh, sympy.atan, sympy.erf, sympy.Abs, sympy.Max, sympy.Min, sympy.sign, sympy.Heaviside, sigmoid_, softplus_,
    )
}  # fmt: skip
TOO_DEEP = "its operations are nested too deeply, some hundreds one in the other"
CONSTANTS = {"pi": sympy.pi, "E": sympy.E}

Node = list[object]


def as_data(r: Recurrence) -> dict[str, object]:
    """A recurrence as dicts, lists, strings and numbers, which JSON can hold; `from_data` reads it.

    Raises:
        chunkform.errors.SpecError: it isn't a recurrence, or has a term that no node stands for.
    """
    if not isinstance(r, Recurrence):
        raise SpecError(f"only a recurrence can be written as data, got {type(r).__name__}")
    try:
        return _written(r)
    except RecursionError as error:
        raise SpecError(f"{r.name} can't be written as data: {TOO_DEEP}") from error


def _written(r: Recurrence) -> dict[str, object]:
    graph = _Graph()
    states = [
        {"name": s.name, "dims": [d.name for d in s.dims]}
        | ({} if s.initial is None else {"initial": graph.number(s.initial)})
        | _domain(s.domain)
        for s in r.states
    ]
    kinds = (("let", r.lets), ("update", r.updates), ("output", r.outputs))
    in_order = sorted(((x, kind) for kind, them in kinds for x in them), key=lambda pair: pair[0].order)
    equations = [{"kind": kind, "name": x.name, "term": graph.number(x.term)} for x, kind in in_order]
    wide = {"wide": sorted(r.wide)} if r.wide else {}
    return {
        "format": FORMAT,
        "name": r.name,
        "dims": [d.name for d in r.dim_list],
        "variables": [
            {"name": v.name, "kind": v.kind, "dims": [d.name for d in v.dims]}
            | ({} if v.default is None else {"default": str(v.default)})
            | _domain(v.domain)
            for v in r.variables
        ],
        "states": states,
        "equations": equations,
        "nodes": graph.nodes,
        **wide,
    }


class _Graph:
    """Nodes in an order in which each has its parts before it; equal terms are one node."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._numbers: dict[object, int] = {}

    def number(self, term: object) -> int:
        known = self._numbers.get(term)
        if known is None:
            node = self._node(term)
            known = self._numbers[term] = len(self.nodes)
            self.nodes.append(node)
        return known

    def _node(self, x: object) -> Node:
        if isinstance(x, Contraction):
            return self._node(x.matrix)
        if isinstance(x, Matrix):
            return self._of_matrix(x)
        if isinstance(x, sympy.Symbol):
            slot = _slot_of(x)
            return ["symbol", name_of(x)] if slot is None else ["slot", slot]
        if isinstance(x, sympy.Rational):
            return ["number", str(x)]
        if isinstance(x, sympy.Float):
            return ["number", str(sympy.nsimplify(x, rational=True))]
        for name, value in CONSTANTS.items():
            if x == value:
                return [name]
        name = type(x).__name__
        if isinstance(x, sympy.Expr) and SCALAR.get(name) is x.func:
            return [name, *(self.number(a) for a in x.args)]
        raise SpecError(f"{x} can't be written as data: no node stands for {name}")

    def _of_matrix(self, m: Matrix) -> Node:
        match m.op:
            case "symbol":
                return ["symbol", m.args[0]]
            case "eye":
                return ["eye", m.rows.name]
            case "full":
                return ["full", self.number(m.args[0]), m.rows.name, m.cols.name]
            case "transpose" | "add" | "scale" | "matmul" | "hadamard" | "diag" | "map":
                return [f"matrix {m.op}", *(self.number(a) for a in m.args)]
        raise SpecError(f"{m} can't be written as data: no node stands for {m.op}")


# --- reading ----------------------------------------------------------------------------------------------------------


def from_data(data: Mapping[str, object]) -> Recurrence:
    """The recurrence that `as_data` wrote.

    Raises:
        chunkform.errors.ChunkformError: the data aren't those of a recurrence that could be declared.
    """
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise SpecError(f"the data of a spec must be an object with format {FORMAT}, got {str(data)[:60]!r}")
    try:
        return _Reader(data).read()
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise SpecError(f"the data of a spec can't be read: {type(error).__name__}: {str(error)[:100]}") from error


def _domain(domain: Domain | None) -> dict[str, object]:
    return {} if domain is None else {"domain": [None if x is None else str(x) for x in domain]}


def _bounds(v: Mapping[str, object]) -> tuple[object, ...] | None:
    if v.get("domain") is None:
        return None
    return tuple(None if x is None else _rational(_text(x)) for x in _objects(v["domain"], 2))


class _Reader:
    def __init__(self, data: Mapping[str, object]) -> None:
        self.data = data
        made = Recurrence if _objects(data["states"], 100) else RowMap
        self.r: Recurrence = made(_text(data["name"]))
        self.dims: dict[str, Dim] = {"1": ONE}
        self.symbols: dict[str, Term] = {}
        self.nodes = _objects(data["nodes"], MOST_NODES)
        self.made: dict[int, Term] = {}

    def read(self) -> Recurrence:
        r = self.r
        for name in _objects(self.data["dims"], 100):
            self.dims[_text(name)] = r.dims(_text(name))
        for v in _objects(self.data["variables"], 1000):
            self._declare(v)
        states: dict[str, State] = {}
        for s in _objects(self.data["states"], 100):
            initial = None if "initial" not in s else self.term(s["initial"])
            made = r.state(_text(s["name"]), *self._dims(s), initial=initial, domain=_bounds(s))
            states[made.name] = made
            self.symbols |= {f"{made.name}.prev": made.prev, f"{made.name}.next": made.next}
        for e in _objects(self.data["equations"], 10_000):
            name, term = _text(e["name"]), self.term(e["term"])
            if e["kind"] == "let":
                self.symbols[name] = r.let(name, term)
            elif e["kind"] == "update":
                r.update(states[name], term)
            elif e["kind"] != "output":
                raise SpecError(f"the data of a spec have equations of kind let, update or output, not {e['kind']!r}")
            elif name in _objects(self.data.get("wide", []), 1000) and isinstance(r, RowMap):
                r.output(name, term, wide=True)
            else:
                r.output(name, term)
        return r.validate()

    def _dims(self, given: Mapping[str, object]) -> list[Dim]:
        return [self.dims[_text(n)] for n in _objects(given["dims"], 2)]

    def _declare(self, v: Mapping[str, object]) -> None:
        name, dims, r, domain = _text(v["name"]), self._dims(v), self.r, _bounds(v)
        match v["kind"]:
            case "input":
                made = r.inputs(name, *dims, domain=domain)
            case "parameter":
                made = r.parameters(name, *dims, domain=domain)
            case "decay":
                made = r.decay(name, *dims)
            case "decay parameter":
                made = r.head_decay(name, *dims)
            case "constant":
                made = r.constant(name, float(_text(v["default"])) if "default" in v else None, domain=domain)
            case other:
                raise SpecError(f"the data of a spec have a variable of the unknown kind {other!r}")
        self.symbols[name] = made

    def term(self, number: object) -> Term:
        """The term of a node. Its parts have smaller numbers, so that there is no circle, and all below it are made in order."""
        if not isinstance(number, int) or not 0 <= number < len(self.nodes):
            raise SpecError(f"the data of a spec name a node {number!r} that there isn't")
        wanted, waiting = set(), [number]
        while waiting:
            i = waiting.pop()
            if i not in wanted and i not in self.made:
                wanted.add(i)
                waiting += self._parts(i)
        for i in sorted(wanted):
            self.made[i] = self._made(self.nodes[i])
        return self.made[number]

    def _parts(self, i: int) -> list[int]:
        op, *rest = self.nodes[i]
        parts = [] if op in ("symbol", "slot", "number", "eye", *CONSTANTS) else rest[:1] if op == "full" else rest
        if not all(isinstance(p, int) and 0 <= p < i for p in parts):
            raise SpecError(f"the data of a spec have a node that isn't made of earlier ones: {self.nodes[i]}")
        return parts

    def _made(self, node: Sequence[object]) -> Term:
        op, *rest = node
        match op:
            case "symbol":
                return self.symbols[_text(rest[0])]
            case "slot":
                return entry(int(str(rest[0])))
            case "number":
                return sympy.Rational(_rational(_text(rest[0])))
            case "eye":
                return eye(self.dims[_text(rest[0])])
            case "full":
                rows, cols = (self.dims[_text(n)] for n in rest[1:])
                return Matrix("full", (_scalar(self.made[_index(rest[0])]),), rows, cols)
            case str() if op in CONSTANTS:
                return CONSTANTS[op]
        parts = [self.made[_index(p)] for p in rest]
        if isinstance(op, str) and op in SCALAR:
            return _applied(op, [_scalar(p) for p in parts])
        return _matrix(str(op), parts)


def _matrix(op: str, parts: list[Term]) -> Term:
    """One operation on matrices, by the language's own, which look at dims."""
    match op, parts:
        case "matrix transpose", [Matrix() as a]:
            return a.T
        case "matrix add", [Matrix() as a, Matrix() as b]:
            return a + b
        case "matrix scale", [a, Matrix() as b]:
            return Matrix("scale", (_scalar(a), b), b.rows, b.cols)
        case "matrix matmul", [Matrix() as a, Matrix() as b]:
            return lift(a * b) if isinstance(a * b, Matrix) else a * b
        case "matrix hadamard", [Matrix() as a, Matrix() as b]:
            return hadamard(a, b)
        case "matrix diag", [Matrix() as a]:
            return diag(a)
        case "matrix map", [body, Matrix() as first, *others]:
            if all(isinstance(x, Matrix) and x.shape == first.shape for x in others):
                return Matrix("map", (_scalar(body), first, *others), first.rows, first.cols)
    raise SpecError(f"the data of a spec have an unknown operation, or one of other parts than it takes: {op!r}")


def _applied(name: str, parts: list[sympy.Expr]) -> sympy.Expr:
    if name == "Pow" and parts[0].is_number and abs(parts[1]) > HIGHEST_POWER:
        raise SpecError(f"the data of a spec have a power {parts[1]} of a number: at most {HIGHEST_POWER} is read")
    return SCALAR[name](*parts)


def _scalar(x: object) -> sympy.Expr:
    if not isinstance(x, sympy.Expr):
        raise SpecError(f"the data of a spec have {x} where a scalar is meant")
    return x


def _slot_of(x: sympy.Symbol) -> int | None:
    """Which argument of a map a symbol stands for."""
    name = x.name
    is_slot = type(x) is sympy.Symbol and name.startswith("x") and name.endswith("_") and name[1:-1].isdigit()
    return int(name[1:-1]) if is_slot else None


def _rational(text: str) -> Fraction:
    if len(text) > MOST_DIGITS or "e" in text.lower():
        raise SpecError(f"the data of a spec have the number {text[:40]!r}: digits, with one / or point, are read")
    return Fraction(text)


def _text(x: object) -> str:
    if not isinstance(x, str):
        raise SpecError(f"the data of a spec have {x!r} where a name is meant")
    return x


def _index(x: object) -> int:
    assert isinstance(x, int)
    return x


def _objects(x: object, most: int) -> list:
    if not isinstance(x, list | tuple) or len(x) > most:
        raise SpecError(f"the data of a spec must have lists of at most {most} entries here, got {str(x)[:60]!r}")
    return list(x)
