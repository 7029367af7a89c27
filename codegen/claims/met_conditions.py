"""The numbers that a claim is meant under: conditions that are so at one step of it, and conditions that a number is 0, such as
`if k_t^\\top v_t = 0`, by which one quantity of each is moved until it is so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from chunkform.spec.language.claims import LENGTH
from chunkform.spec.language.formula import Formula, free_indices

from .arithmetic import Undefined
from .evaluate import Evaluator
from .instance import Instance, OutOfRange, integer


def where_meant(evaluate: Evaluator, env: Mapping[str, int]) -> Evaluator:
    """The evaluator of the numbers that a claim is meant under at these indices; each step of a condition has its own."""
    so, only = evaluate.instance.setting.premises, evaluate.instance.special.only
    k = env.get(so.step) if so.step else None
    if not so.zero and (not so.step or k in (None, only)):
        return evaluate
    if so.step and k is None:
        return evaluate
    if k not in evaluate.meant:
        instance = evaluate.instance
        other = k is not None and k != only
        own = Evaluator(replace(instance, special=replace(instance.special, only=k), sampled={})) if other else evaluate
        evaluate.meant[k] = with_conditions_met(own, so.step, k)
    return evaluate.meant[k]


def with_conditions_met(evaluate: Evaluator, step: str, k: int | None) -> Evaluator:
    """An evaluator of the same numbers, but for those that conditions are met by: at step k, or at every step."""
    instance = evaluate.instance
    pairs = instance.setting.premises.zero
    if not pairs:
        return evaluate
    moved = dict(instance.assigned)
    for at in range(1, instance.sizes.get(LENGTH, 1) + 1) if k is None else (k,):
        for x, unknown in pairs:
            letters = free_indices(x) | ({step} if step else set())
            _meet(replace(instance, assigned=moved, sampled={}), x, unknown, dict.fromkeys(letters, at))
    instance.restart(moved)
    return Evaluator(instance)


def _meet(instance: Instance, x: Formula, unknown: Formula, env: Mapping[str, int]) -> None:
    """Move the unknown along one axis until x is 0; x is linear in it."""
    key = key_of(instance, unknown, env)
    start = np.array(Evaluator(instance)(unknown, dict(env)).a, dtype=object)
    arithmetic = instance.arithmetic
    try:
        before = value(instance, x, env)
    except OutOfRange:  # such as k_{t-1} at the first step
        return
    if arithmetic.equal(before, np.full_like(before, arithmetic.number(0))):
        return
    for at in np.ndindex(start.shape):
        there = start.copy()
        there[at] = arithmetic.reduce(there[at] + arithmetic.number(1))
        instance.assigned[key] = there
        slope = arithmetic.reduce(value(replace(instance, sampled={}), x, env) - before)
        if arithmetic.equal(slope, np.full_like(slope, arithmetic.number(0))):
            continue
        there = start.copy()
        there[at] = arithmetic.reduce(start[at] - before[0, 0] * arithmetic.invert(slope[0, 0]))
        instance.assigned[key] = there
        return
    instance.assigned[key] = start
    raise Undefined(f"no {unknown} meets {x} = 0")


def value(instance: Instance, x: Formula, env: Mapping[str, int]) -> np.ndarray:
    return np.array(Evaluator(instance)(x, dict(env)).a, dtype=object)


def key_of(instance: Instance, unknown: Formula, env: Mapping[str, int]) -> tuple[str, tuple[int, ...]]:
    """What the unknown is sampled as."""
    (name,) = unknown.attrs
    index = tuple(integer(a, env, instance.sizes) for a in unknown.args)
    if name in instance.fixed:
        index = (0,)
    name = instance.like(name, index).name_of(name)
    return name, () if name in instance.setting.premises.constant else index
