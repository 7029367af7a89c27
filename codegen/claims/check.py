"""Checks a statement in one instance: nothing is wrong there, or this is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import numpy as np

from chunkform.spec.language.claims import LENGTH, Setting
from chunkform.spec.language.formula import RANGED, Formula, formula, free_indices, walk
from chunkform.spec.language.statements import Approximates, AtMost, Differs, Equal, Number, Statement, Together

from .arithmetic import Undefined
from .conditioned import compares
from .evaluate import Env, Evaluator
from .instance import LONGEST, Beyond, OutOfRange, TooMany, integer
from .met_conditions import where_meant
from .trial_sizes import Point
from .values import ShapeFault, Value


@dataclass(frozen=True)
class Failure:
    """Where a statement is false. kind: value, shape, nowhere (no index at which every quantity exists), undefined (no
    index at which both sides have a value), or property. `point`: the instance in which that was found."""

    kind: str
    message: str
    env: tuple[tuple[str, int], ...] = ()
    left: Value | None = None
    right: Value | None = None
    sides: tuple[Formula, ...] = ()
    point: Point | None = None


def check(statement: Statement, evaluate: Evaluator) -> Failure | None:
    """What is wrong with the statement in the evaluator's instance, or None. Where premises are so at one step of the claim
    only, each step has numbers of its own."""
    instance = evaluate.instance
    step = instance.setting.premises.step
    if not step:
        return check_there(statement, where_meant(evaluate, {}))
    nowhere: Failure | None = Failure("nowhere", "there is no such index")
    now = instance.special.only
    for k in range(1, instance.sizes[LENGTH] + 1) if now is None else (now,):
        failure = check_there(at_step(statement, step, k), where_meant(evaluate, {step: k}))
        if failure is not None and failure.kind not in ("undefined", "nowhere"):
            return replace(failure, env=tuple({**dict(failure.env), step: k}.items()))
        nowhere = nowhere and failure
    return nowhere


def at_step(statement: Statement, step: str, k: int) -> Statement:
    """The statement at one step."""
    if isinstance(statement, Together):
        return replace(statement, parts=tuple(at_step(p, step, k) for p in statement.parts))
    others = tuple(x for x in statement.over if x[0] != step)
    return replace(statement, over=((step, formula(k), formula(k)), *others))


@singledispatch
def check_there(statement: Statement, evaluate: Evaluator) -> Failure | None:
    """What is wrong with the statement in the evaluator's instance, or None."""
    raise TypeError(f"no check for {type(statement).__name__}")


@check_there.register
def _(statement: Equal, evaluate: Evaluator) -> Failure | None:
    kind, reason = "nowhere", "there is no such index"
    beyond: list[tuple[Failure, Formula]] = []
    there: list[Env] = []  # the indices at which the sides were compared
    for env in environments(statement.sides, statement.over, evaluate):
        try:
            values, past = [], None
            for side in statement.sides:
                try:
                    values.append(evaluate(side, env))
                except Beyond as fault:
                    past = past or fault
            if past is not None:
                beyond.append((Failure("shape", str(past), tuple(env.items()), sides=statement.sides), past.node))
                continue
        except OutOfRange as fault:
            reason = str(fault) if kind == "nowhere" else reason
            continue
        except Undefined as fault:
            kind, reason = "undefined", str(fault)
            continue
        except ShapeFault as fault:
            return Failure("shape", str(fault), tuple(env.items()), sides=statement.sides)
        for k, (a, b) in enumerate(itertools.pairwise(values)):
            sides = statement.sides[k : k + 2]
            if a.shape != b.shape:
                message = f"{sides[0]} is {a.shown}, but {sides[1]} is {b.shown}"
                return Failure("shape", message, tuple(env.items()), sides=sides)
            a, b = evaluate.algebra.settled(a), evaluate.algebra.settled(b)
            if not evaluate.instance.arithmetic.equal(a.a, b.a):
                return Failure("value", "the sides differ", tuple(env.items()), a, b, sides)
        there.append(env)
    for failure, node in beyond:  # nothing is said of these indices, if the sum was tried at others
        lengths = [k for env in there for side in statement.sides for k in spans(side, node, env, evaluate)]
        if max(lengths, default=0 if any(contains(s, node) for s in statement.sides) else 2) < 2:
            return failure
    return None if there else Failure(kind, reason, sides=statement.sides)


def spans(x: Formula, node: Formula, env: Env, evaluate: Evaluator) -> Iterator[int]:
    """The numbers of terms that `node`, a sum or a product in x, takes, over all that the sums around it run over."""
    if not contains(x, node):
        return
    if x.op not in RANGED:
        for a in x.args:
            yield from spans(a, node, env, evaluate)
        return
    low, high, body = x.args
    if high.op != "infinity":
        first, last = (integer(bound, env, evaluate.instance.sizes) for bound in (low, high))
        if x == node:
            yield max(0, last + 1 - first)
        for i in range(first, last + 1):
            yield from spans(body, node, {**env, x.attrs[0]: i}, evaluate)


def contains(x: Formula, part: Formula) -> bool:
    return any(y == part for y in walk(x))


@check_there.register
def _(statement: Differs, evaluate: Evaluator) -> Failure | None:
    for env in environments((statement.left, statement.right), statement.over, evaluate):
        try:
            a, b = evaluate(statement.left, env), evaluate(statement.right, env)
        except Undefined:
            continue
        except ShapeFault as fault:
            return Failure("shape", str(fault), tuple(env.items()))
        if a.shape != b.shape or not evaluate.instance.arithmetic.equal(a.a, b.a):
            return None
    return Failure("property", "the sides are equal everywhere", sides=(statement.left, statement.right))


@check_there.register
def _(statement: AtMost, evaluate: Evaluator) -> Failure | None:
    for env in environments((statement.left, statement.right), statement.over, evaluate):
        try:
            a, b = evaluate(statement.left, env), evaluate(statement.right, env)
        except Undefined:
            continue
        except ShapeFault as fault:
            return Failure("shape", str(fault), tuple(env.items()))
        sides = (statement.left, statement.right)
        if a.shape != b.shape and not any(f.op == "number" for f in sides):
            return Failure(
                "shape", f"{statement.left} is {a.shown}, but {statement.right} is {b.shown}", tuple(env.items())
            )
        large, small = np.broadcast_arrays(a.a, b.a)
        equal = evaluate.instance.arithmetic.equal
        for x, y in zip(large.flat, small.flat, strict=True):
            same = equal(np.array([[x]]), np.array([[y]]))
            if (statement.strict and same) or (x > y and not same):
                what = "the sides are equal" if same else "the left side is larger"
                entry = "" if a.is_scalar and b.is_scalar else " in an entry"
                return Failure("value", f"{what}{entry}", tuple(env.items()), a, b, sides)
    return None


@check_there.register
def _(statement: Number, evaluate: Evaluator) -> Failure | None:
    for env in environments((statement.of,), statement.over, evaluate):
        try:
            value = evaluate(statement.of, env)
        except ShapeFault as fault:
            return Failure("shape", str(fault), tuple(env.items()))
        if not value.is_scalar:
            return Failure("shape", f"{statement.of} is {value.shown}, not a number", tuple(env.items()))
    return None


@check_there.register
def _(statement: Together, evaluate: Evaluator) -> Failure | None:
    for part in statement.parts:
        failure = check_there(part, evaluate)
        if failure is not None:
            return failure
    return None


@check_there.register
def _(statement: Approximates, evaluate: Evaluator) -> Failure | None:
    """The error shrinks as the number of steps grows: from 4 to 8 to 16 to 32 steps, towards zero."""
    errors: list[Any] = []
    for steps in (4, 8, 16, 32):
        evaluate.instance.sizes = {**evaluate.instance.sizes, statement.steps: steps}
        evaluate.memo.clear()
        worst: Any = 0
        for env in environments((statement.exact, statement.approximation), statement.over, evaluate):
            try:
                a, b = evaluate(statement.exact, env), evaluate(statement.approximation, env)
            except ShapeFault as fault:
                return Failure("shape", str(fault), tuple(env.items()))
            if a.shape != b.shape:
                return Failure("shape", f"{statement.exact} is {a.shown}, {statement.approximation} is {b.shown}")
            scale = 1 + max(abs(x) for x in a.a.flat)
            worst = max(worst, *(abs(x) / scale for x in (a.a - b.a).flat))
        errors.append(worst)
    if errors[-1] < 1e-30 or (errors[3] < errors[1] / 5 and errors[3] <= errors[2]):
        return None
    shown = ", ".join(f"{float(x):.1e}" for x in errors)
    return Failure("property", f"the error at {statement.steps} = 4, 8, 16, 32 is {shown}")


def environments(sides: tuple[Formula, ...], over: tuple, evaluate: Evaluator) -> Iterator[Env]:
    """Values for the free indices of a statement; a range may depend on an index whose range stands before it."""
    stated = [name for name, _, _ in over]
    free = stated + sorted({n for side in sides for n in free_indices(side)} - set(stated))

    def extend(env: dict[str, int], rest: list[str]) -> Iterator[Env]:
        if not rest:
            if meets(evaluate, env):
                yield env
            return
        for value in index_range(rest[0], over, evaluate.instance.setting, evaluate.instance.sizes, env):
            yield from extend({**env, rest[0]: value}, rest[1:])

    return extend({}, free)


def meets(evaluate: Evaluator, env: Env) -> bool:
    """Whether the inequalities are so that the claim is meant under: at its own indices, or at every step. In a prime field,
    which has no order, an equation that is so under an inequality is so everywhere."""
    conditions = evaluate.instance.setting.premises.where
    if not conditions or evaluate.instance.arithmetic.kind in ("field", "symbolic"):
        return True
    steps = range(1, evaluate.instance.sizes.get(LENGTH, 1) + 1)
    for left, relation, right in conditions:
        others = sorted((free_indices(left) | free_indices(right)) - set(env))
        for values in itertools.product(steps, repeat=len(others)):
            there = {**env, **dict(zip(others, values))}
            try:
                if not compares(evaluate(left, there), relation, evaluate(right, there), evaluate.instance.arithmetic):
                    return False
            except OutOfRange:
                continue
            except Undefined:
                return False
    return True


def index_range(name: str, over: tuple, setting: Setting, sizes: dict[str, int], env: Env) -> range:
    stated = {other: (low, high) for other, low, high in reversed(over)}
    low, high = stated.get(name) or setting.index_ranges.get(name) or (None, None)
    if low is None or high is None:
        return range(1, sizes[LENGTH] + 1)
    known = env if name in stated else {}
    found = range(integer(low, known, sizes), integer(high, known, sizes) + 1)
    if len(found) > LONGEST:
        raise TooMany(f"takes {name} from {found[0]} to {found[-1]}")
    return found
