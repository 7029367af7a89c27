"""Statements that are not plain equations: bounds, eigenvalues, stability, existence; analysis.py has those of
calculus."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import singledispatch

import numpy as np
import sympy

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import Formula, formula
from chunkform.spec.language.statements import AtMost, Bounded, Eigenvalues, Factors, OnlyIf, Statement, Together

from .arithmetic import FIELD, FRACTION, PRIME, REAL, Transcendental, Undefined
from .bounds import NotRational, Undecided, decide_bound
from .check import Failure, environments
from .counterexample import smallest
from .effort import Effort
from .evaluate import Evaluator
from .indices import is_decay
from .instance import GENERIC, Instance, Special, integer
from .repair import Repair
from .trial_sizes import proof_sizes
from .values import ShapeFault, rank
from .verdict import Condition, Counterexample, array_text

Bodies = Mapping[str, Formula]
RELATIONS = {
    "=": lambda a, b: a == b,
    "<=": lambda a, b: a <= b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
}


@dataclass(frozen=True)
class Finding:
    """What was found under one reading. `mixed`: true under some conditions only; `exact`: decided instance by instance."""

    failure: Failure | None
    how: str
    conditions: tuple[Condition, ...] = ()
    mixed: bool = False
    exact: bool = False
    counterexample: Counterexample | None = None
    repairs: tuple[Repair, ...] = ()


@singledispatch
def decide(statement: Statement, setting: Setting, bodies: Bodies) -> Finding:
    """Whether a statement is true of a setting, and how that is known."""
    raise TypeError(f"no decision for {type(statement).__name__}")


def joined(findings: list[Finding]) -> Finding:
    """What is found of several statements together."""
    worst = next((f for f in findings if f.failure is not None), None) or next((f for f in findings if f.mixed), None)
    how = "; ".join(dict.fromkeys(f.how for f in findings))
    return replace(worst or findings[0], how=how, conditions=tuple(c for f in findings for c in f.conditions))


@decide.register
def _(statement: AtMost, setting: Setting, bodies: Bodies) -> Finding:
    try:
        bound = decide_bound(statement, setting, bodies=bodies)
    except (NotRational, sympy.PolynomialError):
        return entry_by_entry(statement, setting, bodies)
    if bound.proved:
        how = "proved for all values, by the signs of Bernstein coefficients"
        if bound.unless:
            text = " and ".join(f"{name} < 1" for name in dict.fromkeys(bound.unless))
            return Finding(None, how, (Condition(text, True, "condition"),), mixed=True)
        return Finding(None, how)
    if bound.sides is None:
        raise Undecided("is neither proved nor refuted: no point was found at which it is false, and no proof")
    what = "the sides are equal" if bound.sides[0] == bound.sides[1] else "the left side is larger"
    counter = Counterexample(
        what,
        given=tuple((n, str(v)) for n, v in bound.point),
        sides=((str(statement.left), str(bound.sides[0])), (str(statement.right), str(bound.sides[1]))),
    )
    return Finding(Failure("value", what), "a point where it is false", counterexample=counter)


def entry_by_entry(statement: AtMost, setting: Setting, bodies: Bodies) -> Finding:
    """An inequality of what isn't a function of given scalars: refuted by an instance where an entry of the left side is larger,
    proved where it says that a sum of squares is not negative, else not judged."""
    how = "exact arithmetic, entry by entry"
    misfit = shapes_differ(statement, setting, bodies)
    if misfit:
        return Finding(Failure("shape", misfit), how)
    known = not_negative(statement.right, setting, {}) if statement.left == formula(0) else ""
    if known == "positive" or (known and not statement.strict):
        return Finding(None, f"proved for all values, by its form: a sum of {known} terms")
    found = None
    for special in (GENERIC, nothing_given(setting)) if statement.strict else (GENERIC,):
        found = found or smallest(statement, setting, bodies, special=special, effort=Effort(1.0))
    if found is None:
        raise Undecided("is neither proved nor refuted: no instance was found at which it is false, and no proof")
    return Finding(Failure("value", found.message), "numbers at which it is false", counterexample=found)


def shapes_differ(statement: AtMost, setting: Setting, bodies: Bodies) -> str:
    """What is wrong with the shapes of an inequality's sides; nothing where they fit."""
    for arithmetic in (FIELD, REAL):
        evaluate = Evaluator(Instance(setting, proof_sizes(setting)[0], arithmetic, 0, bodies))
        for env in environments((statement.left, statement.right), statement.over, evaluate):
            try:
                left, right = (evaluate(f, env) for f in (statement.left, statement.right))
            except Undefined:
                continue
            except Transcendental:
                break
            except ShapeFault as fault:
                return str(fault)
            if left.shape != right.shape and not any(f.op == "number" for f in (statement.left, statement.right)):
                return f"{statement.left} is {left.shown}, but {statement.right} is {right.shown}"
            return ""
    return ""


def nothing_given(setting: Setting) -> Special:
    """The point at which all that may be 0 is 0."""
    names = [q.name for q in setting.quantities.values() if q.kind == "given" and q.domain == "real"]
    r = setting.recurrence
    if r is not None:
        names += [v.name for v in r.variables if not is_decay(setting, v.name)]
        names += [*(s.name for s in r.states), *(f"d{x.name}" for x in (*r.states, *r.outputs))]
    return Special(value=tuple((name, 0) for name in names), empties=True)


def not_negative(x: Formula, setting: Setting, known: dict[Formula, str]) -> str:
    """positive, or square, where every entry of x is so by its form, as of k.T * k, |k|^2 or exp(x); nothing for others."""
    if x not in known:
        known[x] = _not_negative(x, setting, known)
    return known[x]


def _not_negative(x: Formula, setting: Setting, known: dict[Formula, str]) -> str:
    signs = [not_negative(a, setting, known) for a in x.args] if x.op in ENTRYWISE else []
    match x.op:
        case "number":
            return "positive" if x.attrs[0] > 0 else "square" if x.attrs[0] == 0 else ""
        case "at":
            q = setting.quantities[x.attrs[0]]
            return "positive" if q.domain == "positive" or is_decay(setting, q.name) else ""
        case "exp" | "softmax":
            return "positive"
        case "add":
            return "" if not all(signs) else "positive" if "positive" in signs else "square"
        case "sqrt" | "transpose" | "rowsum" | "colsum" | "diagonal" | "hadamard" | "divide" if all(signs):
            return "square" if "square" in signs else "positive"
        case "hadamard" if len(x.args) == 2 and x.args[0] == x.args[1]:
            return "square"
        case "inner" if x.args[0] == x.args[1] or all(signs):
            return "square"
        case "sum":
            return "square" if not_negative(x.args[2], setting, known) else ""
        case "function" if x.attrs[0] in ("abs", "relu", "sigmoid"):
            return "positive" if x.attrs[0] == "sigmoid" else "square"
        case "power" if x.args[1].op == "number" and x.args[1].attrs[0] % 2 == 0 and number_like(x.args[0], setting):
            return "square"
        case "product":
            scalars = [a for a in x.args if number_like(a, setting)]
            rest = [a for a in x.args if a not in scalars]
            mirrored = len(rest) % 2 == 0 and rest == [a.T for a in reversed(rest)]
            inside = [not_negative(a, setting, known) for a in scalars]
            if mirrored and all(inside):
                return "positive" if not rest and "square" not in inside else "square"
    return ""


ENTRYWISE = ("add", "sqrt", "transpose", "rowsum", "colsum", "diagonal", "hadamard", "divide", "inner")


def number_like(x: Formula, setting: Setting) -> bool:
    """Whether x is a number, and no vector, by its form."""
    match x.op:
        case "number" | "inner":
            return True
        case "at":
            q = setting.quantities[x.attrs[0]]
            return q.kind != "defined" and q.dims == ("1", "1")
        case "add" | "negative" | "divide" | "exp" | "sqrt" | "function":
            return all(number_like(a, setting) for a in x.args)
        case "power":
            return number_like(x.args[0], setting)
        case "product":
            rest = [a for a in x.args if not number_like(a, setting)]
            return not rest or (rest[0].op == "transpose" and all(is_column(a, setting) for a in (rest[0].T, rest[-1])))
    return False


def is_column(x: Formula, setting: Setting) -> bool:
    q = setting.quantities[x.attrs[0]] if x.op == "at" else None
    return q is not None and q.kind != "defined" and q.dims[1] == "1" != q.dims[0]


@decide.register
def _(statement: Eigenvalues, setting: Setting, bodies: Bodies) -> Finding:
    """Exact: the characteristic polynomial is divided by (x - value) as often as stated."""
    how = "exact: the characteristic polynomial over a prime field"
    for variant, sizes in enumerate(proof_sizes(setting)):
        evaluate = Evaluator(Instance(setting, sizes, FIELD, variant, bodies))
        for env in environments((statement.of,), statement.over, evaluate):
            try:
                matrix = evaluate(statement.of, env)
                values = [(evaluate(v, env), integer(m, env, evaluate.instance.sizes)) for v, m in statement.values]
            except ShapeFault as fault:
                return Finding(Failure("shape", str(fault)), how)
            if matrix.rows != matrix.cols:
                return Finding(Failure("shape", f"{statement.of} is {matrix.shown}, not square"), how)
            rest = characteristic(matrix.a)
            for (value, times), (shown, _) in zip(values, statement.values):
                for k in range(times):
                    rest, left_over = divided(rest, value.a[0, 0])
                    if left_over:
                        counter = eigenvalue_counterexample(statement, setting, bodies)
                        message = f"{shown} is an eigenvalue {k} times, not {times} times"
                        return Finding(Failure("property", message), how, counterexample=counter)
    return Finding(None, how)


def characteristic(a: np.ndarray) -> list[int]:
    """Coefficients of det(x I - a) modulo the prime, highest first (Faddeev and LeVerrier)."""
    n = len(a)
    m = np.zeros((n, n), dtype=object)
    found = [1]
    for k in range(1, n + 1):
        m = (a @ m) % PRIME
        for i in range(n):
            m[i, i] = (m[i, i] + found[-1]) % PRIME
        found.append(-np.trace(a @ m) * pow(k, -1, PRIME) % PRIME)
    return found


def divided(poly: list[int], root: int) -> tuple[list[int], int]:
    """The quotient by (x - root), and the remainder."""
    out = []
    carry = 0
    for c in poly:
        carry = (c + carry * root) % PRIME
        out.append(carry)
    return out[:-1], out[-1]


def eigenvalue_counterexample(statement: Eigenvalues, setting: Setting, bodies: Bodies) -> Counterexample:
    sizes = proof_sizes(setting)[0]
    instance = Instance(setting, sizes, FRACTION, 1, bodies, spread=2)
    evaluate = Evaluator(instance)
    env = next(environments((statement.of,), statement.over, evaluate))
    matrix = evaluate(statement.of, env).a
    found = np.linalg.eigvals(matrix.astype(float))
    shown = ", ".join(f"{complex(x):.4g}" if abs(complex(x).imag) > 1e-9 else f"{complex(x).real:.4g}" for x in found)
    return Counterexample(f"{statement.of} = {array_text(matrix)} has the eigenvalues {shown}")


@decide.register
def _(statement: Bounded, setting: Setting, bodies: Bodies) -> Finding:
    """Looks for two steps within the bound whose product, repeated, grows; exact rational numbers, and the trace or
    determinant tells."""
    how = "a search for two steps whose product has a spectral radius above 1"
    found = growing_pair(statement, setting, bodies, lambda k, q: True)
    vocabulary = (
        (f"{statement.left} = {statement.right}", lambda k, q: True, True),
        (f"|{statement.left}| <= 1 and |{statement.right}| <= 1", lambda k, q: k @ k <= 1 and q @ q <= 1, False),
    )
    conditions = []
    for text, test, same in vocabulary:
        grows = growing_pair(statement, setting, bodies, test, same) is not None
        if not grows and norms_bounded(statement, setting, bodies, test, same):
            conditions.append(Condition(f"{text} (each step's norm is then at most 1)", True, "condition"))
    if found is None:
        return Finding(None, how + ": none was found", tuple(conditions))
    return Finding(Failure("property", found.message), how, tuple(conditions), mixed=False, counterexample=found)


def step_at(statement: Bounded, setting: Setting, bodies: Bodies, k: list, q: list, seed: int) -> np.ndarray:
    size = len(k)
    names = [statement.left.attrs[0], statement.right.attrs[0]]
    columns = [np.array([[Fraction(x)] for x in v], dtype=object) for v in (k, q)]
    assigned: dict[tuple[str, tuple[int, ...]], np.ndarray] = dict(zip(((name, ()) for name in names), columns))
    instance = Instance(setting, {setting.sizes[0]: size}, FRACTION, seed, bodies, assigned=assigned)
    return Evaluator(instance)(statement.of, {}).a


def sampled_vectors(bound: int, rng: random.Random, test: object, same: bool, small: bool) -> tuple[list, list] | None:
    values = [Fraction(x, 4) for x in range(-4, 5)] if small else [Fraction(x) for x in range(-4, 5)]
    k = [rng.choice(values) for _ in range(2)]
    q = k if same else [rng.choice(values) for _ in range(2)]
    if abs(sum((a * b for a, b in zip(k, q)), Fraction(0))) > bound:
        return None
    ok = test(np.array(k, dtype=object), np.array(q, dtype=object))  # type: ignore[operator]
    return (k, q) if ok else None


def growing_pair(
    statement: Bounded, setting: Setting, bodies: Bodies, test: object, same: bool = False
) -> Counterexample | None:
    rng = random.Random(1)
    pool: list[tuple] = []
    for _ in range(240):
        pair = sampled_vectors(statement.bound, rng, test, same, small=len(pool) % 2 == 1)
        if pair is not None:
            seed = rng.randrange(4)
            pool.append((*pair, step_at(statement, setting, bodies, *pair, seed)))
    best: tuple | None = None
    for (k1, q1, a), (k2, q2, b) in itertools.combinations(pool[:60], 2):
        radius = max(abs(np.linalg.eigvals((a @ b).astype(float))))
        plain = sum(abs(x) for x in (*k1, *q1, *k2, *q2))
        if radius > 1.01 and (best is None or plain < best[0]):
            best = (plain, radius, (k1, q1, a), (k2, q2, b))
    if best is None:
        return None
    _, radius, (k1, q1, a), (k2, q2, b) = best
    shown = "; ".join(
        f"{statement.left} = {tuple(map(str, k))}, {statement.right} = {tuple(map(str, q))}, step = {array_text(m)}"
        for k, q, m in ((k1, q1, a), (k2, q2, b))
    )
    return Counterexample(f"these two steps in turn grow by {radius:.3g} each time: {shown}".replace("'", ""))


def norms_bounded(statement: Bounded, setting: Setting, bodies: Bodies, test: object, same: bool) -> bool:
    rng = random.Random(2)
    tried = 0
    for _ in range(400):
        pair = sampled_vectors(statement.bound, rng, test, same, small=True)
        if pair is not None:
            tried += 1
            step = step_at(statement, setting, bodies, *pair, rng.randrange(4)).astype(float)
            if np.linalg.norm(step, 2) > 1 + 1e-12:
                return False
        if tried >= 40:
            break
    return tried > 0


@decide.register
def _(statement: OnlyIf, setting: Setting, bodies: Bodies) -> Finding:
    """The premise is proved or refuted, exactly, at many values of the quantity that the conclusion is about."""
    name = statement.left.attrs[0]
    target = statement.right.attrs[0]
    grid = sorted({Fraction(k, 8) for k in range(1, 33)} | {Fraction(99, 100), Fraction(101, 100)})
    premise = {x: premise_holds(statement.premise, setting, name, x) for x in grid}
    how = f"the premise was decided at {len(grid)} values of {name} from {grid[0]} to {grid[-1]}"
    wrong = [x for x in grid if premise[x] and not RELATIONS[statement.relation](x, target)]
    if not wrong:
        return Finding(None, how)
    simplest = min(wrong, key=lambda x: (x.denominator, x))
    counter = Counterexample(
        f"the premise is true for {name} = {simplest}, where {statement.left} {statement.relation} {statement.right} is false",
        given=((name, str(simplest)),),
    )
    repairs = []
    for relation, test in RELATIONS.items():
        if relation != statement.relation and all(test(x, target) for x in grid if premise[x]):
            exact = all(premise[x] for x in grid if test(x, target))
            shown = Formula("compare", (statement.left, statement.right), (relation,))
            what = f"{relation} for {statement.relation}" + (", and then it is also sufficient" if exact else "")
            repairs.append(Repair(shown, (what,), 1 if exact else 2))
    repairs.sort(key=lambda r: r.cost)
    return Finding(Failure("property", counter.message), how, counterexample=counter, repairs=tuple(repairs))


def premise_holds(premise: Statement, setting: Setting, name: str, value: Fraction) -> bool:
    parts = premise.parts if isinstance(premise, Together) else (premise,)
    return all(
        premise_holds(p, setting, name, value) if isinstance(p, Together) else at_most_holds(p, setting, name, value)
        for p in parts
    )


def at_most_holds(part: Statement, setting: Setting, name: str, value: Fraction) -> bool:
    assert isinstance(part, AtMost)
    try:
        return decide_bound(part, setting, {name: value}).proved
    except (NotRational, sympy.PolynomialError) as why:
        raise Undecided(f"has a premise that isn't decided: {why}") from None


@decide.register
def _(statement: Factors, setting: Setting, bodies: Bodies) -> Finding:
    """V K^T with T columns each is any matrix of rank at most T, and no other."""
    instance = Instance(setting, proof_sizes(setting)[0], FRACTION, 0, bodies)
    matrix = Evaluator(instance)(statement.of, {}).a
    found = rank(FRACTION, matrix)
    how = f"the rank, exactly: {found}"
    if found <= statement.terms:
        witness = (
            f"with V = W, K = I, and {statement.terms - matrix.shape[1]} zero columns"
            if statement.terms >= matrix.shape[1]
            else ""
        )
        return Finding(None, f"{how}, at most {statement.terms} {witness}".rstrip())
    message = f"{array_text(matrix)} has the rank {found}; a product of {statement.terms} columns has at most {statement.terms}"
    shown = Formula("compare", (Formula("index", (), ("T",)), Formula("number", (), (Fraction(found),))), (">=",))
    repair = Repair(shown, (f"at least {found} key-value pairs",), 1)
    return Finding(Failure("property", message), how, counterexample=Counterexample(message), repairs=(repair,))
