"""Complex terms: what is written with `1j` is taken apart into its real and its imaginary part where it is declared.

So a complex state is two real ones that turn into each other, and whatever comes after the declaration sees these alone.
"""

from __future__ import annotations

import sympy

from chunkform.errors import SpecError

from .expression import Contraction, Matrix, Term, entry, matmul, scalar_of, scale
from .foreign import got
from .source import caller

ZERO = sympy.Integer(0)
_TAKEN = "complex terms take + - * /, whole powers, exp, sin, cos and absolute"
_UNKNOWN = (sympy.re, sympy.im, sympy.arg, sympy.atan2, sympy.conjugate)


def is_complex(term: Term) -> bool:
    """Has a term an imaginary part?"""
    return term.imaginary if isinstance(term, Matrix) else bool(term.has(sympy.I)) or any(_contractions(term))


def real(term: Term) -> Term:
    """The real part of a complex term."""
    return parts(_term(term, "real"))[0]


def imag(term: Term) -> Term:
    """The imaginary part of a complex term."""
    return parts(_term(term, "imag"))[1]


def conj(term: Term) -> Term:
    """The conjugate of a complex term."""
    a, b = parts(_term(term, "conj"))
    return complex_of(a, _negative(b))


def _term(x: object, user: str) -> Term:
    value = x if isinstance(x, Matrix) else scalar_of(x)
    if value is None:
        raise SpecError(f"{user} takes a term of the spec, got {got(x)}", caller())
    return value


def complex_of(a: Term, b: Term) -> Term:
    """a + 1j * b."""
    return _plus(a, _times(sympy.I, b))


def parts(term: Term) -> tuple[Term, Term]:
    """The real and the imaginary part; the number 0 where there is none.

    Raises:
        SpecError: a function whose parts aren't known.
    """
    if not is_complex(term):
        return term, ZERO
    if not isinstance(term, Matrix):
        return _of_scalar(term)
    match term.op:
        case "add":
            (a, b), (c, d) = map(parts, term.args)
            return _plus(a, c), _plus(b, d)
        case "scale" | "matmul" | "hadamard":
            (a, b), (c, d) = map(parts, term.args)
            product = _entries if term.op == "hadamard" else _times
            return _plus(product(a, c), _negative(product(b, d))), _plus(product(a, d), product(b, c))
        case "transpose" | "diag" | "full":
            a, b = parts(term.args[0])
            return _again(term, a), _again(term, b)
    return _of_map(term)


def _of_scalar(x: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    known = {c: complex_of(*_lifted(c.matrix)) for c in _contractions(x)}
    x = x.xreplace(known).xreplace({n: sympy.nsimplify(n, rational=True) for n in x.atoms(sympy.Float)})
    return _split(x, x)


def _lifted(m: Matrix) -> tuple[Term, Term]:
    a, b = parts(m)
    return tuple(Contraction(y) if isinstance(y, Matrix) else y for y in (a, b))  # type: ignore[return-value]


def _contractions(x: sympy.Expr) -> list[Contraction]:
    return [c for c in x.free_symbols if isinstance(c, Contraction) and c.matrix.imaginary]


def _split(x: sympy.Expr, shown: Term) -> tuple[sympy.Expr, sympy.Expr]:
    try:
        a, b = x.as_real_imag()
        found = (a, b) if not (a.has(*_UNKNOWN) or b.has(*_UNKNOWN)) else x.expand(complex=True).as_real_imag()
    except (TypeError, ValueError, NotImplementedError, AttributeError):
        found = (sympy.I, ZERO)
    if any(y.has(sympy.I, *_UNKNOWN) for y in found):
        raise SpecError(f"the real and imaginary parts of {shown} aren't known: {_TAKEN}", caller())
    return found


def _of_map(m: Matrix) -> tuple[Term, Term]:
    """A function of entries: its variables that are complex become two each."""
    body, *args = m.args
    slots: dict[sympy.Symbol, sympy.Expr] = {}
    given: list[Matrix] = []
    for i, x in enumerate(args):
        new = []
        for y in parts(x):
            new.append(ZERO if not isinstance(y, Matrix) else sympy.Symbol(f"y{len(given)}_", real=True))
            given += [y] if isinstance(y, Matrix) else []
        slots[entry(i)] = new[0] + sympy.I * new[1]
    found = _split(body.xreplace(slots), m)
    return _entrywise(found[0], given, m), _entrywise(found[1], given, m)


def _entrywise(body: sympy.Expr, given: list[Matrix], m: Matrix) -> Term:
    if body == 0:
        return ZERO
    used = [(i, x) for i, x in enumerate(given) if sympy.Symbol(f"y{i}_", real=True) in body.free_symbols]
    if not used:
        return Matrix("full", (body,), m.rows, m.cols)
    renamed = {sympy.Symbol(f"y{i}_", real=True): entry(k) for k, (i, _) in enumerate(used)}
    if body == next(iter(renamed)):
        return used[0][1]
    return Matrix("map", (body.xreplace(renamed), *(x for _, x in used)), m.rows, m.cols)


def _again(m: Matrix, part: Term) -> Term:
    """The operation of m on a part of what it is applied to."""
    if part == 0:
        return ZERO
    if m.op == "transpose" and isinstance(part, Matrix):
        return part.T
    return Matrix(m.op, (part,), m.rows, m.cols)


def _plus(a: Term, b: Term) -> Term:
    return b if _nothing(a) else a if _nothing(b) else a + b


def _negative(a: Term) -> Term:
    return ZERO if _nothing(a) else -a


def _times(a: Term, b: Term) -> Term:
    if _nothing(a) or _nothing(b):
        return ZERO
    if isinstance(a, Matrix) and isinstance(b, Matrix):
        return matmul(a, b)
    return scale(a, b) if isinstance(b, Matrix) else scale(b, a) if isinstance(a, Matrix) else a * b


def _entries(a: Term, b: Term) -> Term:
    if _nothing(a) or _nothing(b):
        return ZERO
    return Matrix("hadamard", (a, b), a.rows, a.cols)


def _nothing(a: Term) -> bool:
    return not isinstance(a, Matrix) and a == 0
