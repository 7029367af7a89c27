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

from .arithmetic import FIELD, FRACTION, PRIME, Transcendental, Undefined
from .bounds import NotRational, Undecided, decide_bound
from .check import Failure, environments
from .counterexample import smallest
from .effort import Effort
from .evaluate import Evaluator
from .instance import Instance, integer
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
        return Finding(None, "proved for all values, by the signs of Bernstein coefficients")
    if bound.sides is None:
        raise Undecided("is neither proved nor refuted: no point was found at which it is false, and no proof")
    counter = Counterexample(
        "the left side is larger",
        given=tuple((n, str(v)) for n, v in bound.point),
        sides=((str(statement.left), str(bound.sides[0])), (str(statement.right), str(bound.sides[1]))),
    )
    return Finding(Failure("value", "the left side is larger"), "a point where it is false", counterexample=counter)


def entry_by_entry(statement: AtMost, setting: Setting, bodies: Bodies) -> Finding:
    """An inequality of what isn't a function of given scalars: refuted by an instance where an entry of the left side is larger,
    proved where it says that a sum of squares is not negative, else not judged."""
    how = "exact arithmetic, entry by entry"
    evaluate = Evaluator(Instance(setting, proof_sizes(setting)[0], FIELD, 0, bodies))
    for env in environments((statement.left, statement.right), statement.over, evaluate):
        try:
            values = [evaluate(f, env) for f in (statement.left, statement.right)]
        except Undefined:
            continue
        except Transcendental:
            break
        except ShapeFault as fault:
            return Finding(Failure("shape", str(fault)), how)
        if values[0].shape != values[1].shape and not any(f.op == "number" for f in (statement.left, statement.right)):
            message = f"{statement.left} is {values[0].shown}, but {statement.right} is {values[1].shown}"
            return Finding(Failure("shape", message), how)
        numbers = all(v.is_scalar for v in values)
        if numbers and statement.left == formula(0) and is_square(statement.right):
            return Finding(None, "proved for all values: a sum of squares is not negative")
        break
    found = smallest(statement, setting, bodies, effort=Effort(1.0))
    if found is None:
        raise Undecided("is neither proved nor refuted: no instance was found at which it is false, and no proof")
    return Finding(Failure("value", found.message), "numbers at which it is false", counterexample=found)


def is_square(x: Formula) -> bool:
    """Whether a number is a sum of squares by its form, such as k.T * k or x^2."""
    match x.op:
        case "number":
            return bool(x.attrs[0] >= 0)
        case "add":
            return all(is_square(a) for a in x.args)
        case "power":
            return x.args[1].op == "number" and x.args[1].attrs[0] % 2 == 0
        case "product":
            return len(x.args) == 2 and x.args[0] == x.args[1].T
    return False


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
