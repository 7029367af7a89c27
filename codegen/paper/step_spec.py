"""The `Recurrence` of what a document's step does: its formulas as terms of a spec."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, TypeAlias

import sympy

from chunkform.errors import ChunkformError
from chunkform.spec.language import Recurrence, functions
from chunkform.spec.language import diag as spec_diag
from chunkform.spec.language import eye as spec_eye
from chunkform.spec.language import hadamard as spec_hadamard
from chunkform.spec.language import ones as spec_ones
from chunkform.spec.language.expression import Dim, Matrix
from chunkform.spec.language.formula import Formula, walk

from .row import Fault
from .shapes import SCALAR, Shape, is_row
from .steps import DECAYS, STEP, Steps, letter_of, read_names, reads_now, safe


def is_decay(name: str, steps: Steps, shape: Shape, said: str) -> bool:
    """Whether an input is a decay: it scales a state, and the document takes its logarithm, or calls it as decays are called."""
    if said:
        return said == "decay"
    if name not in DECAYS and name.removesuffix("bar").removesuffix("tilde").removesuffix("hat") not in DECAYS:
        return False
    for state, body in steps.states.items():
        for y in body.args if body.op == "add" else (body,):
            names = read_names(y)
            if state in names and name in names:
                return True
    return False


def build(name: str, steps: Steps, shapes: Mapping[str, Shape], kinds: Mapping[str, str], source: str) -> Recurrence:
    """The recurrence of these steps.

    Raises:
        Fault: an equation says what a spec can't.
    """
    r = Recurrence(name, source=source)
    dims: dict[str, Dim] = {}
    for shape in (shapes[n] for n in (*steps.given, *steps.states) if n in shapes):
        for d in shape:
            if d != "1" and d not in dims:
                dims[d] = r.dims(d)
    values: dict[str, Callable[[Formula | None], Any]] = {}

    def over(shape: Shape) -> tuple[Dim, ...]:
        return tuple(dims[d] for d in shape if d != "1")

    stepped = {
        y.attrs[0]
        for b in (*steps.states.values(), *steps.lets.values(), *steps.outputs.values())
        for y in walk(b)
        if y.op == "at" and y.args
    }

    def decays(n: str) -> bool:
        shape = shapes.get(n, SCALAR)
        return n in stepped and len(over(shape)) < 2 and is_decay(n, steps, shape, kinds.get(n, ""))

    for n in sorted(steps.given, key=lambda n: (n not in stepped, decays(n))):
        shape = shapes.get(n, SCALAR)
        declare = r.parameters if n not in stepped else r.decay if decays(n) else r.inputs
        made = declare(safe(n), *over(shape))
        values[n] = _given(n, made.T if is_row(shape) else made)
    states = {}
    for n in steps.states:
        shape = shapes[n]
        initial = steps.initial.get(n)
        start = term(initial, values, dims) if initial is not None else None
        states[n] = r.state(safe(n), *over(shape), **({} if start is None else {"initial": start}))
        values[n] = _state(n, states[n], is_row(shape))
    for n in ordered({**steps.lets, **steps.states}):  # what reads a state after its step stands behind the update
        state = n in steps.states
        value = term((steps.states if state else steps.lets)[n], values, dims)
        row = is_row(shapes[n]) if state else is_row_of(value)
        if state:
            r.update(states[n], value.T if row else value)
            continue
        own = safe(n) + "w" if n in steps.outputs else safe(n)  # what is written and given out has a name for each
        made = r.let(own, value.T if row else value)
        values[n] = _given(n, made.T if row else made)
    for n, body in steps.outputs.items():
        value = term(body, values, dims)
        row = is_row_of(value)
        r.output(safe(n) if n not in steps.states else safe(n) + "out", value.T if row else value)
    return r.validate()


def is_row_of(value: object) -> bool:
    return isinstance(value, Matrix) and str(value.rows) == "1" and str(value.cols) != "1"


def ordered(bodies: Mapping[str, Formula]) -> list[str]:
    """Names so that each stands behind what it reads at the same step."""
    left, found = list(bodies), []
    while left:
        free = next((n for n in left if not any(reads_now(bodies[n], m) for m in left if m != n)), left[0])
        left.remove(free)
        found.append(free)
    return found


def _given(name: str, made: object) -> Callable[[Formula | None], Any]:
    def value(at: Formula | None) -> Any:
        if at is not None and letter_of(at) != (STEP, 0):
            raise Fault(f"a step reads {name} at {at}; only its value at the step itself can be read")
        return made

    return value


def _state(name: str, state: Any, row: bool) -> Callable[[Formula | None], Any]:
    def value(at: Formula | None) -> Any:
        place = letter_of(at) if at is not None else None
        if place not in ((STEP, 0), (STEP, -1)):
            raise Fault(f"a step reads the state {name} at {at}")
        found = state.next if place == (STEP, 0) else state.prev
        return found.T if row else found

    return value


def term(x: Formula, values: Mapping[str, Callable[[Formula | None], Any]], dims: Mapping[str, Dim]) -> Any:
    """A formula about one step as a term of a spec.

    Raises:
        Fault: a spec can't say it.
    """

    def inner(y: Formula) -> Any:
        return term(y, values, dims)

    try:
        if x.op in FOLDED:
            return reduce(FOLDED[x.op], map(inner, x.args))
        match x.op:
            case "number":
                return sympy.Rational(x.attrs[0].numerator, x.attrs[0].denominator)
            case "at":
                if x.attrs[0] not in values:
                    raise Fault(f"{x.attrs[0]} isn't known at a step")
                return values[x.attrs[0]](x.args[0] if x.args else None)
            case "negative":
                return -inner(x.args[0])
            case "transpose":
                found = inner(x.args[0])
                return found.T if isinstance(found, Matrix) else found
            case "inverse":
                return _inverse(inner(x.args[0]))
            case "diag":
                return spec_diag(inner(x.args[0]))
            case "eye":
                return spec_eye(dims[x.attrs[0]])
            case "ones":
                return spec_ones(dims[x.attrs[0]])
            case "norm":
                raise Fault("a norm that isn't squared")
            case "exp" | "log" | "sqrt" | "function":
                return _function(x.op if x.op != "function" else x.attrs[0])(inner(x.args[0]))
    except ChunkformError as error:
        where = getattr(error, "where", None)
        raise Fault(str(error).removeprefix(f"{where}: ")) from None
    said = x.attrs[0] if x.op == "apply" else x.op
    raise Fault(f"{said} isn't of the language of recurrences")


def entries(a: Any, b: Any) -> Any:
    """The product of entries, where a vector repeats along what it lacks."""
    if not (isinstance(a, Matrix) and isinstance(b, Matrix)) or a.shape == b.shape:
        return a * b if not (isinstance(a, Matrix) and isinstance(b, Matrix)) else spec_hadamard(a, b)
    for x, y in ((a, b), (b, a)):
        if str(x.cols) == "1" and x.rows == y.rows:
            return spec_diag(x) * y
        if str(x.rows) == "1" and x.cols == y.cols:
            return y * spec_diag(x)
    return spec_hadamard(a, b)


Term: TypeAlias = "sympy.Expr | Matrix"  # of a spec


def _inner_product(a: Term, b: Term) -> Term:
    return a.T * b if isinstance(a, Matrix) else a * b


FOLDED: dict[str, Callable[[Term, Term], Term]] = {  # operations of two terms after the other
    "add": operator.add,
    "product": operator.mul,
    "hadamard": entries,
    "divide": operator.truediv,
    "power": operator.pow,
    "inner": _inner_product,
}


def _inverse(x: Term) -> Term:
    if isinstance(x, Matrix):
        raise Fault("the inverse of a matrix isn't of the language of recurrences")
    return 1 / x


def _function(name: str) -> Callable[[Term], Term]:
    made: Callable[[Term], Term] | None = getattr(functions, {"abs": "absolute"}.get(name, name), None)
    if made is None:
        raise Fault(f"the function {name} isn't of the language of recurrences")
    return made
