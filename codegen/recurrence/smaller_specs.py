"""Make a spec smaller, as long as it still shows something: what an error of the compiler is reported with.

Outputs, terms, factors and auxiliary quantities are left out one after the other, the largest first, and what nothing reads any
more goes with them. `spec_text` prints the result as the text of a file.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import sympy

from chunkform.errors import SpecError
from chunkform.spec.language import Matrix, Recurrence
from chunkform.spec.language import functions as of_vectors
from chunkform.spec.language.expression import ONE, Contraction, entry
from chunkform.spec.language.terms import names_in

from ..ir.step_program import Domain

HEAD = "from sympy import Abs, Max, Min\nfrom chunkform.spec.language import *\nfrom chunkform.spec.language import Recurrence\n"
METHODS = {"input": "inputs", "decay parameter": "head_decay"}  # that declare a kind, where it isn't called like it
TIMELESS = ("constant", "parameter", "decay parameter")


def reduced(r: Recurrence, shows: Callable[[Recurrence], bool], seconds: float) -> tuple[Recurrence, int]:
    """(the smallest spec found that still `shows` what it is about, how many were tried), within so many seconds."""
    end, tried = time.monotonic() + seconds, {spec_text(r)}
    while True:
        for smaller in _smaller_specs(r):
            if time.monotonic() > end:
                return r, len(tried) - 1
            text = spec_text(smaller)
            if text in tried:
                continue
            tried.add(text)
            if shows(smaller):
                r = smaller
                break
        else:
            return r, len(tried) - 1


# --- smaller specs ----------------------------------------------------------------------------------------------------


def _smaller_specs(r: Recurrence) -> Iterator[Recurrence]:
    """Specs with one thing less, the largest first."""
    for n in range(len(r.outputs)):
        if len(r.outputs) > 1:
            yield from _pruned(r, outputs=[*r.outputs[:n], *r.outputs[n + 1 :]])
    lets = {x.name: x.term for x in r.lets}
    for kind in ("updates", "outputs", "lets"):
        for n, equation in enumerate(equations := getattr(r, kind)):
            for term in _smaller_terms(equation.term, lets):
                yield from _pruned(r, **{kind: [*equations[:n], replace(equation, term=term), *equations[n + 1 :]]})
    for n, state in enumerate(r.states):
        if state.initial is not None:
            yield from _pruned(r, states=[*r.states[:n], replace(state, initial=None), *r.states[n + 1 :]])


def _pruned(r: Recurrence, **changes: object) -> Iterator[Recurrence]:
    """The spec with these lists changed and without what nothing reads, if it is a spec still."""
    made = copy.copy(r)
    made.claims = []
    for name, value in changes.items():
        setattr(made, name, value)
    updates = {x.name: x for x in made.updates}
    lets = {x.name: x for x in made.lets}
    used: set[str] = set()
    pending = [x.term for x in made.outputs]
    while pending:
        for name in names_in(pending.pop()):
            base = name.partition(".")[0]
            if base in used:
                continue
            used.add(base)
            if base in updates:
                pending.append(updates[base].term)
            if base in lets:
                pending.append(lets[base].term)
            pending += [s.initial for s in made.states if s.name == base and s.initial is not None]
    made.updates = [x for x in made.updates if x.name in used]
    made.lets = [x for x in made.lets if x.name in used]
    made.states = [x for x in made.states if x.name in used]
    read = [v for v in made.variables if v.name in used]
    dims = {d for s in made.states for d in s.dims} | {d for x in made.outputs for d in _dims(x.term)}
    sized = next(([v] for v in made.variables if v.kind in ("input", "decay") and v not in read), [])
    missing = [
        next((v for v in made.variables if d in v.dims), None) for d in dims if not any(d in v.dims for v in read)
    ]
    kept = {v.name for v in (*read, *missing) if v is not None}
    if not any(v.kind in ("input", "decay") for v in made.variables if v.name in kept):
        kept |= {v.name for v in sized}
    made.variables = [v for v in made.variables if v.name in kept]
    made.dim_list = [d for d in made.dim_list if d in dims or any(d in v.dims for v in made.variables)]
    timeless = any(all(kind in TIMELESS for kind in names_in(x.term).values()) for x in made.outputs)
    try:
        if not timeless and made.validate():
            yield made
    except SpecError:
        return


def _dims(term: object) -> tuple[Any, ...]:
    return term.shape if isinstance(term, Matrix) else ()


def _smaller_terms(x: Any, lets: dict[str, Any]) -> Iterator[Any]:
    """Terms of the same shape with something less, the largest cuts first."""
    if isinstance(x, Matrix):
        yield from _smaller_matrices(x, lets)
        return
    if isinstance(x, Contraction):
        for m in _smaller_matrices(x.matrix, lets):
            yield Contraction(m)
        return
    if x.is_Symbol:
        if x.name in lets:
            yield lets[x.name]
        return
    if x.is_number:
        if x != 1:
            yield sympy.Integer(1)
        return
    yield from (a for a in x.args if a.is_real is not False and not a.is_number)
    for n, a in enumerate(x.args):
        for smaller in _smaller_terms(a, lets):
            yield x.func(*x.args[:n], smaller, *x.args[n + 1 :])


def _smaller_matrices(x: Matrix, lets: dict[str, Any]) -> Iterator[Matrix]:
    if x.op == "symbol":
        if x.args[0] in lets:
            yield lets[x.args[0]]
        return
    parts = [a for a in x.args if isinstance(a, Matrix)]
    yield from (a for a in parts if a.shape == x.shape)
    yield from (a.T for a in parts if a.shape == x.shape[::-1] and a.shape != x.shape and x.op != "transpose")
    for n, a in enumerate(x.args):
        if isinstance(a, Matrix) or (x.op in ("scale", "full") and isinstance(a, sympy.Basic)):
            for smaller in _smaller_terms(a, lets):
                if _dims(smaller) == _dims(a):
                    yield Matrix(x.op, (*x.args[:n], smaller, *x.args[n + 1 :]), x.rows, x.cols, x.where)


# --- printing ---------------------------------------------------------------------------------------------------------


def spec_text(r: Recurrence) -> str:
    """The spec as the text of a file."""
    lines = [HEAD, f'r = Recurrence("{r.name}")']
    lines += [f'{d} = r.dims("{d}")' for d in r.dim_list]
    for v in r.variables:
        default = "" if v.default is None else f", {v.default}"
        dims = "".join(f", {d}" for d in v.dims)
        default += _domain_text(v.domain)
        lines.append(f'{v.name} = r.{METHODS.get(v.kind, v.kind)}("{v.name}"{dims}{default})')
    for s in r.states:
        start = "" if s.initial is None else f", initial={term_text(s.initial)}"
        start += _domain_text(s.domain)
        lines.append(f'{s.name} = r.state("{s.name}"{"".join(f", {d}" for d in s.dims)}{start})')
    states = {s.name for s in r.states}
    lets, written = list(r.lets), set[str]()
    for kind, equations in (("update", r.updates), ("output", r.outputs)):
        for x in equations:
            for let in list(lets):  # once what they read is known
                read = {n.partition(".")[0] for n in names_in(let.term) if n.endswith(".next")}
                if read <= written:
                    lines.append(f'{let.name} = r.let("{let.name}", {term_text(let.term)})')
                    lets.remove(let)
            name = x.name if x.name in states and kind == "update" else f'"{x.name}"'
            lines.append(f"r.{kind}({name}, {term_text(x.term)})")
            written.add(x.name)
    return "\n".join(lines) + "\n"


def _domain_text(domain: Domain | None) -> str:
    if domain is None:
        return ""
    return f", domain=({', '.join('None' if x is None else str(float(x)) for x in domain)})"


def term_text(x: object) -> str:
    """A term as Python reads it back."""
    if not isinstance(x, Matrix):
        return _scalar_text(sympy.sympify(x))
    match x.op:
        case "symbol":
            return x.args[0]
        case "add":
            return f"({term_text(x.args[0])} + {term_text(x.args[1])})"
        case "scale" | "matmul":
            return f"({term_text(x.args[0])} * {term_text(x.args[1])})"
        case "transpose":
            return f"{term_text(x.args[0])}.T"
        case "eye":
            return f"eye({x.rows})"
        case "full":
            vector = (
                f"ones({x.cols}).T" if x.rows is ONE else f"ones({', '.join(str(y) for y in x.shape if y is not ONE)})"
            )
            return vector if x.args[0] == 1 else f"({_scalar_text(x.args[0])} * {vector})"
        case "map":
            return _map_text(x)
    return f"{x.op}({', '.join(map(term_text, x.args))})"


def _map_text(x: Matrix) -> str:
    body, *args = x.args
    slot = entry(0)
    if len(args) == 1 and body.is_Pow and body.base == slot and x.is_vector and body.exp.is_number:
        return f"{term_text(args[0])}**({body.exp})"
    name = body.func.__name__.removesuffix("_")
    if body.args == (slot,) and hasattr(of_vectors, name):
        return f"{name}({term_text(args[0])})"
    slots = ", ".join(f"x{i}_" for i in range(len(args)))
    return f"apply(lambda {slots}: {_scalar_text(body)}, {', '.join(map(term_text, args))})"


def _scalar_text(x: sympy.Expr) -> str:
    """Products of vectors in it are printed as such."""
    named = {s: sympy.Symbol(f"({_product_text(s.matrix)})") for s in x.free_symbols if isinstance(s, Contraction)}
    shown = str(x.xreplace(named))
    return shown if x.is_Symbol or (x.is_Integer and x >= 0) else f"({shown})"


def _product_text(m: Matrix) -> str:
    return term_text(m)[1:-1]
