"""Statements of calculus: integrals and densities of exponentials of quadratic forms, maxima, limits and series.

They are decided instance by instance: over sizes in which a matrix is wide, square or tall, and matrices of full and of
lower rank; where the answer differs from instance to instance, a condition is looked for that tells the instances apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import Formula, formula, inverse
from chunkform.spec.language.statements import Approximates, Density, Equal, Integral, Statement, Stationary

from .arithmetic import FRACTION, REAL, Arithmetic, Undefined
from .check import Failure, check
from .counterexample import described
from .evaluate import Evaluator
from .instance import Instance
from .properties import Finding, decide
from .scope import used_names
from .trial_sizes import proof_sizes
from .values import ShapeFault, rank, solve
from .verdict import Condition, Counterexample, array_text

Bodies = Mapping[str, Formula]
Predicate = tuple[str, Callable[[Instance], bool | None]]


@dataclass(frozen=True)
class Trial:
    """What happened in one instance."""

    instance: Instance
    truth: bool
    message: str = ""


# --- instances and conditions ------------------------------------------------------------------------------------------


def instances(setting: Setting, matrices: list[str], bodies: Bodies) -> Iterator[Instance]:
    """Instances in fractions, over all small sizes, generic and with each matrix of rank one."""
    choices = [
        sorted(set(setting.fixed_sizes[name])) if name in setting.fixed_sizes else [2, 3] for name in setting.sizes
    ]
    for seed, values in enumerate(itertools.product(*choices)):
        sizes = dict(zip(setting.sizes, values))
        yield Instance(setting, dict(sizes), FRACTION, seed, bodies)
        for name in matrices:
            instance = Instance(setting, dict(sizes), FRACTION, seed, bodies)
            q = setting.quantities[name]
            shape = instance.size(q.dims[0]), instance.size(q.dims[1])
            instance.assigned[name, ()] = np.array(
                [[FRACTION.number((i + 1) * (j + 2)) for j in range(shape[1])] for i in range(shape[0])], dtype=object
            )
            yield instance


def matrices_in(statement: Statement, setting: Setting) -> list[str]:
    found = []
    for name in used_names(statement, setting):
        q = setting.quantities[name]
        if q.kind == "given" and "1" not in q.dims and not q.parameters:
            found.append(name)
    return found


def value_of(instance: Instance, name: str) -> np.ndarray:
    q = instance.setting.quantities[name]
    return instance.given(q, ())


def predicates(setting: Setting, matrices: list[str], sequences: list[str] | None = None) -> list[Predicate]:
    """Conditions on matrices, by which instances may be told apart; `sequences` are defined square matrices, one for
    each step."""
    found: list[Predicate] = []
    for name in sequences or []:

        def largest(w: Instance, name: str = name) -> bool | None:
            values = [Evaluator(w)(Formula("at", (formula(t),), (name,))).a for t in range(1, w.sizes["n"] + 1)]
            radii = [max(abs(np.linalg.eigvals(np.eye(len(a)) - a.astype(float)))) for a in values]
            return below_one(float(max(radii)))

        found.append((f"|1 - eigenvalue| < 1 for every eigenvalue of every {name}(t)", largest))
    for name in matrices:
        found.append((f"kernel({name}) = 0", partial(full_rank, name, 1)))
        found.append((f"{name} is onto (its rank is its number of rows)", partial(full_rank, name, 0)))
        if setting.quantities[name].dims[0] == setting.quantities[name].dims[1]:
            found.append((f"|1 - eigenvalue| < 1 for every eigenvalue of {name}", partial(eigenvalues_below, name, 1)))
            found.append((f"|eigenvalue| < 1 for every eigenvalue of {name}", partial(eigenvalues_below, name, 0)))
            found.append((f"{name} symmetric", partial(symmetric, name)))
    return found


def full_rank(name: str, axis: int, instance: Instance) -> bool:
    a = value_of(instance, name)
    found = (
        rank(instance.arithmetic, a) if instance.arithmetic.kind != "real" else np.linalg.matrix_rank(a.astype(float))
    )
    return bool(found == a.shape[axis])


def eigenvalues_below(name: str, shift: int, instance: Instance) -> bool | None:
    return below_one(radius(instance, name, shift))


def symmetric(name: str, instance: Instance) -> bool:
    a = value_of(instance, name)
    return bool(np.all(a == a.T))


def below_one(x: float) -> bool | None:
    """Whether x < 1; None where it is too near to 1 for a limit to be told from few steps."""
    return None if 0.92 < x < 1.08 else x < 1


def radius(instance: Instance, name: str, shift: int = 1) -> float:
    a = value_of(instance, name).astype(float)
    return float(max(abs(np.linalg.eigvals(shift * np.eye(len(a)) - a))))


def concluded(trials: list[Trial], tests: list[Predicate], how: str) -> Finding:
    """One finding from many instances; where they disagree, the condition that separates them."""
    wrong = [t for t in trials if not t.truth]
    how = f"{how}, in {len(trials)} random instances"
    if not wrong:
        return Finding(None, how)
    counter = Counterexample(wrong[0].message)
    if len(wrong) == len(trials):
        return Finding(Failure("property", wrong[0].message), how, counterexample=counter)
    conditions: list[Condition] = []
    for text, test in tests:
        if all(test(t.instance) in (None, t.truth) for t in trials):
            conditions = [Condition(text, True, "condition"), Condition(f"not ({text})", False, "condition")]
            break
    if not conditions:
        for text, test in tests:
            true_there = [t.truth for t in trials if test(t.instance)]
            if true_there and all(true_there):
                conditions.append(Condition(text, True, "condition"))
                conditions.append(Condition(f"not ({text}), in some cases", False, "condition"))
    share = f"true in {len(trials) - len(wrong)} of {len(trials)} random instances"
    if not conditions:
        conditions = [Condition(f"{share}; no condition was found that tells them apart", True, "condition")]
    return Finding(Failure("property", wrong[0].message), how, tuple(conditions), True, counterexample=counter)


# --- quadratic exponents --------------------------------------------------------------------------------------------


def quadratic(of: Formula, by: Formula, instance: Instance) -> tuple[np.ndarray, np.ndarray] | None:
    """(H, g) with the gradient H y + g, or None where the gradient isn't affine in y."""
    name = by.attrs[0]
    size = instance.size(instance.setting.quantities[name].dims[0])

    def slope(y: list[int]) -> np.ndarray:
        there = replace(instance, sampled={}, assigned={**instance.assigned, **instance.sampled})
        there.assigned[name, ()] = np.array([[instance.arithmetic.number(v)] for v in y], dtype=object)
        return Evaluator(there)(Formula("gradient", (of, by)), {}).a

    Evaluator(instance)(of, {})  # samples what the exponent needs, so that all slopes are of one function
    base = slope([0] * size)
    columns = [slope([int(i == k) for i in range(size)]) - base for k in range(size)]
    h = np.concatenate(columns, axis=1)
    probe = [k + 2 for k in range(size)]
    expected = h @ np.array([[instance.arithmetic.number(v)] for v in probe], dtype=object) + base
    return (h, base) if instance.arithmetic.equal(slope(probe), expected) else None


def positive_definite(a: np.ndarray) -> bool:
    """By the pivots of an elimination, in fractions."""
    rows = [list(r) for r in a]
    for i in range(len(rows)):
        if rows[i][i] <= 0:
            return False
        for k in range(i + 1, len(rows)):
            f = rows[k][i] / rows[i][i]
            rows[k] = [x - f * y for x, y in zip(rows[k], rows[i])]
    return True


@decide.register
def _(statement: Integral, setting: Setting, bodies: Bodies) -> Finding:
    """Finite exactly when the quadratic form is negative definite: along any other direction the exponent doesn't
    fall for ever."""
    matrices = matrices_in(statement, setting)
    trials = []
    for instance in instances(setting, matrices, bodies):
        found = quadratic(statement.exponent, statement.by, instance)
        if found is None:
            return Finding(Failure("property", f"{statement.exponent} isn't quadratic in {statement.by}"), "undecided")
        finite = positive_definite(-found[0])
        shown = "finite" if finite else "infinite"
        message = (
            f"infinite for {values_text(instance, matrices)}"
            if not finite
            else f"{shown} for {values_text(instance, matrices)}"
        )
        trials.append(Trial(instance, finite == statement.finite, f"the integral is {message}"))
    return concluded(trials, predicates(setting, matrices), "exact: the sign of the quadratic form")


@decide.register
def _(statement: Density, setting: Setting, bodies: Bodies) -> Finding:
    """The exponents differ by a constant: their gradients by y agree everywhere, and the form is negative definite."""
    matrices = matrices_in(statement, setting)
    difference = statement.by - statement.mean
    normal = Formula("number", (), (-1,)) * difference.T * inverse(statement.covariance) * difference / 2
    trials = []
    for instance in instances(setting, matrices, bodies):
        try:
            mine, other = (
                quadratic(statement.exponent, statement.by, instance),
                quadratic(normal, statement.by, instance),
            )
        except ShapeFault as fault:
            return Finding(Failure("shape", str(fault)), "shapes")
        good = mine is not None and other is not None and positive_definite(-mine[0])
        good = good and all(instance.arithmetic.equal(a, b) for a, b in zip(mine or (), other or ()))
        trials.append(Trial(instance, bool(good), f"another density for {values_text(instance, matrices)}"))
    return concluded(trials, predicates(setting, matrices), "exact: gradient and form of the exponent")


@decide.register
def _(statement: Stationary, setting: Setting, bodies: Bodies) -> Finding:
    """Solves gradient = 0, and compares the sides at the solutions; a maximum needs a form that is nowhere positive."""
    matrices = matrices_in(statement, setting)
    trials = []
    name = statement.by.attrs[0]
    for instance in instances(setting, matrices, bodies):
        Evaluator(instance)(statement.left, {})
        Evaluator(instance)(statement.right, {})
        found = quadratic(statement.of, statement.by, instance)
        if found is None:
            return Finding(Failure("property", f"{statement.of} isn't quadratic in {statement.by}"), "undecided")
        y = stationary_point(*found)
        if y is None:
            trials.append(Trial(instance, False, f"there is no maximum for {values_text(instance, matrices)}"))
            continue
        there = replace(instance, sampled={}, assigned={**instance.assigned, **instance.sampled})
        there.assigned[name, ()] = y
        evaluate = Evaluator(there)
        try:
            left, right = evaluate(statement.left, {}), evaluate(statement.right, {})
        except ShapeFault as fault:
            return Finding(Failure("shape", str(fault)), "shapes")
        if left.shape != right.shape:
            return Finding(
                Failure("shape", f"{statement.left} is {left.shown}, {statement.right} is {right.shown}"), "shapes"
            )
        good = instance.arithmetic.equal(left.a, right.a)
        message = (
            f"at the maximum {statement.left} = {array_text(left.a)}, but {statement.right} = {array_text(right.a)}"
        )
        trials.append(Trial(instance, good, f"{message}, for {values_text(instance, matrices)}"))
    return concluded(trials, predicates(setting, matrices), "exact: the gradient's zero")


def stationary_point(h: np.ndarray, g: np.ndarray) -> np.ndarray | None:
    """A y with H y + g = 0 (the one in the range of H), or None."""
    try:
        return solve(FRACTION, h, -g)
    except Undefined:
        pass
    size = len(h)
    gram = h @ h.T
    for k in range(size, 0, -1):  # a least-squares solution on the largest independent set of rows
        for rows in itertools.combinations(range(size), k):
            block = gram[np.ix_(rows, rows)]
            if rank(FRACTION, block) == k:
                weights = solve(FRACTION, block, -g[list(rows)])
                y = h.T[:, list(rows)] @ weights
                return y if FRACTION.equal(h @ y, -g) else None
    return None


def values_text(instance: Instance, names: list[str]) -> str:
    return ", ".join(f"{n} = {array_text(value_of(instance, n))}" for n in names)


# --- limits ---------------------------------------------------------------------------------------------------------


@decide.register
def _(statement: Approximates, setting: Setting, bodies: Bodies) -> Finding:
    return over_real_instances(statement, setting, bodies, "50 digits, steps up to 32")


@decide.register
def _(statement: Equal, setting: Setting, bodies: Bodies) -> Finding:
    return over_real_instances(statement, setting, bodies, "50 digits, series summed until a term is below 1e-45")


def over_real_instances(statement: Statement, setting: Setting, bodies: Bodies, how: str, count: int = 12) -> Finding:
    matrices = matrices_in(statement, setting)
    trials = []
    sizes = proof_sizes(setting)
    for seed in range(count):
        arithmetic: Arithmetic = REAL
        instance = Instance(setting, dict(sizes[seed % 2]), arithmetic, seed, bodies)
        try:
            failure = check(statement, Evaluator(instance))
        except Undefined as fault:
            failure = Failure("undefined", str(fault))
        if failure is not None and failure.kind == "shape":
            return Finding(failure, how)
        message = ""
        if failure is not None:
            message = described(failure, instance).text() if failure.left is not None else failure.message
            message += f", for {values_text(instance, matrices)}" if matrices else ""
        trials.append(Trial(instance, failure is None, message))
    return concluded(trials, predicates(setting, matrices, square_sequences(statement, setting, bodies)), how)


def square_sequences(statement: Statement, setting: Setting, bodies: Bodies) -> list[str]:
    """The defined quantities of a statement that are a square matrix for each step."""
    found = []
    instance = Instance(setting, proof_sizes(setting)[0], REAL, 0, bodies)
    for name in used_names(statement, setting):
        q = setting.quantities[name]
        if q.kind == "defined" and len(q.parameters) == 1 and q.start is not None and "n" in instance.sizes:
            value = Evaluator(instance)(Formula("at", (formula(1),), (name,)))
            if value.rows == value.cols != "1":
                found.append(name)
    return found
