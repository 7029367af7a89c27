"""The smallest counterexample: the smallest sizes at which a statement fails, and there the plainest numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from chunkform.spec.language.claims import LENGTH, Quantity, Setting
from chunkform.spec.language.formula import Formula
from chunkform.spec.language.statements import Statement

from .arithmetic import FRACTION, REAL, Arithmetic, Transcendental, Undefined
from .check import Failure, check
from .effort import Effort
from .evaluate import Evaluator
from .indices import is_decay
from .instance import GENERIC, Instance, Special, dims_of
from .required_steps import NEAR
from .trial_sizes import Point, small_sizes
from .verdict import Counterexample, array_text

TRIES = 6  # instances at each set of sizes
PLAIN = (0, 1, 2, -1)
PLAIN_POSITIVE = (1, Fraction(1, 2), Fraction(1, 4))


def smallest(
    statement: Statement,
    setting: Setting,
    bodies: Mapping[str, Formula],
    failure: Failure | None = None,
    special: Special = GENERIC,
    tries: int = 60,
    effort: Effort | None = None,
) -> Counterexample | None:
    """A counterexample in small numbers to what was found false, or None when none is found."""
    arithmetic: Arithmetic = FRACTION
    point = (failure and failure.point) or Point()
    step = setting.premises.step
    if failure is not None and step:
        special = replace(special, only=dict(failure.env).get(step))
    at = dict(failure.env) if failure is not None and (point.reach is not NEAR or step) else {}
    candidates = list(small_sizes(setting, point.reach))
    if LENGTH in setting.sizes and at:
        candidates = [sizes for sizes in candidates if sizes[LENGTH] >= max(at.values())]
    if point.reach is not NEAR or point.around:
        tries = 2 * TRIES * len(candidates)
    for sizes in candidates:
        for seed in range(4 * TRIES if point.around else TRIES):
            tries -= 1
            if tries < 0 or (effort is not None and effort.spent()):
                return None
            instance = Instance(
                setting, dict(sizes), arithmetic, seed, bodies, special, 1 + seed // 2, around=point.around
            )
            try:
                failure = failing(statement, instance)
            except Transcendental:
                arithmetic = REAL
                instance = replace(instance, arithmetic=REAL, spread=3, sampled={}, taken={})
                failure = failing(statement, instance)
            if failure is not None and failure.kind == "value":
                if point.reach is not NEAR:
                    instance, failure = emptier(statement, instance, failure, effort or Effort())
                instance, failure = plainer(statement, instance, failure, effort or Effort())
                return described(failure, instance)
    return None


def failing(statement: Statement, instance: Instance) -> Failure | None:
    try:
        return check(statement, Evaluator(instance))
    except Undefined:
        return None


def emptier(statement: Statement, instance: Instance, failure: Failure, effort: Effort) -> tuple[Instance, Failure]:
    """The same failure with whole quantities 0, or else 1, at all steps, at half of them, and so on: for many steps."""
    by_name: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for key in (k for k in instance.sampled if not held(instance.setting, k[0])):
        by_name.setdefault(key[0], []).append(key)
    waiting = list(by_name.values())
    while waiting and not effort.spent():
        keys = waiting.pop(0)
        value = 1 if is_positive(instance, keys[0][0]) else 0
        plain = {key: np.full_like(instance.sampled[key], instance.arithmetic.number(value)) for key in keys}
        trial = replace(instance, assigned={**instance.sampled, **plain}, sampled={}, taken={})
        found = failing(statement, trial)
        if found is not None and found.kind == "value":
            instance, failure = trial, found
        elif len(keys) > 1:
            half = len(keys) // 2
            waiting += [keys[:half], keys[half:]]
    return instance, failure


def plainer(
    statement: Statement, instance: Instance, failure: Failure, effort: Effort, budget: int = 120
) -> tuple[Instance, Failure]:
    """The same failure with as many numbers as possible made 0, or else 1, 2, -1."""
    for key in [k for k in instance.sampled if not held(instance.setting, k[0])]:
        decay = is_positive(instance, key[0])
        for position in np.ndindex(instance.sampled[key].shape):
            for value in PLAIN_POSITIVE if decay else PLAIN:
                old = instance.sampled[key][position]
                if old == value or budget <= 0 or effort.spent():
                    break
                budget -= 1
                assigned = {k: v.copy() for k, v in instance.sampled.items()}
                assigned[key][position] = instance.arithmetic.number(value)
                trial = Instance(
                    instance.setting,
                    dict(instance.sizes),
                    instance.arithmetic,
                    instance.seed,
                    instance.bodies,
                    instance.special,
                    instance.spread,
                    assigned,
                )
                found = failing(statement, trial)
                if found is not None and found.kind == "value":
                    instance, failure = trial, found
                    break
    return instance, failure


def held(setting: Setting, name: str) -> bool:
    """Whether a premise says what a quantity is like."""
    so = setting.premises
    return name in {*dict(so.value), *so.unit, *so.symmetric, *so.identity}


def is_positive(instance: Instance, name: str) -> bool:
    """Whether a quantity must stay positive, or otherwise as it was sampled."""
    q = instance.setting.quantities.get(name)
    return is_decay(instance.setting, name) or (q is not None and q.domain in ("positive", "symmetric"))


def described(failure: Failure, instance: Instance) -> Counterexample:
    if failure.left is None or failure.right is None:
        return Counterexample(failure.message)
    given = []
    for (name, index), sampled in instance.sampled.items():
        a = whole(instance, name, index, sampled)
        shown = f"{name}({','.join(map(str, index))})" if index and indexed(instance, name) else name
        given.append((shown, array_text(a)))
    sides = tuple((str(f), array_text(v.a)) for f, v in zip(failure.sides, (failure.left, failure.right)))
    sizes = tuple((k, v) for k, v in instance.sizes.items() if k in instance.setting.sizes or k == "n")
    return Counterexample(failure.message, sizes, tuple(given), failure.env, sides)


def whole(instance: Instance, name: str, index: tuple[int, ...], sampled: np.ndarray) -> np.ndarray:
    """What is shown of something given: of the loss's gradient by the last state all of it, as formulas mean it, and not
    only what doesn't come through the outputs."""
    r = instance.setting.recurrence
    state = next((s for s in r.states if f"d{s.name}" == name), None) if r is not None else None
    if state is None:
        return sampled
    return instance.gradient(Quantity(name, "gradient", dims_of(state.dims), ("t",), source=state.name), *index)


def indexed(instance: Instance, name: str) -> bool:
    q: Any = instance.setting.quantities.get(name)
    if q is not None:
        return bool(q.parameters)
    r = instance.setting.recurrence
    fixed = {v.name for v in r.variables if v.is_timeless} if r else set()
    return name not in fixed
