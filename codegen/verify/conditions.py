"""Side conditions under which a false formula becomes true, from a general vocabulary: a decay of 1, no initial
state, two quantities of one shape equal, a symmetric matrix."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import Formula
from chunkform.spec.language.statements import Statement

from .arithmetic import FIELD, REAL, Transcendental
from .check import check
from .edits import is_decay
from .evaluate import Evaluator
from .fingerprint import Faults
from .names import used_names
from .plans import Point
from .world import Special, World


def rescues(
    statement: Statement, setting: Setting, bodies: Mapping[str, Formula], pairs: bool, failing: Point | None = None
) -> list[str]:
    """The conditions under which the statement, which is false at the point `failing`, is true; of two at once only if
    `pairs`, and none alone suffices."""
    deciding = dict(failing.around) if failing is not None else {}  # at one value of it, a branch is never taken
    vocabulary = [s for s in specials(statement, setting) if not any(name in deciding for name, _ in s.value)]
    found = [s.text for s in vocabulary if true_under(s, statement, setting, bodies, failing)]
    if not pairs:
        return found
    rest = [s for s in vocabulary if s.text not in found]
    both = [a | b for a, b in itertools.combinations(rest, 2)]
    return found + [s.text for s in both[:200] if true_under(s, statement, setting, bodies, failing)]


def specials(statement: Statement, setting: Setting) -> list[Special]:
    used = used_names(statement, setting)
    found: list[Special] = []
    kinds: dict[tuple, list[str]] = {}
    r = setting.recurrence
    for name in used:
        q = setting.quantities[name]
        decay = is_decay(setting, name)
        if q.kind == "spec" and r is not None and any(s.name == name and s.initial is None for s in r.states):
            found.append(Special(value=((name, 0),), text=f"{name}(0) = 0"))
        if not (q.kind == "given" or (q.kind == "spec" and r is not None and any(v.name == name for v in r.variables))):
            continue
        if decay or q.dims == ("1", "1"):
            found.append(Special(value=((name, 1),), text=f"{name} = 1"))
        if q.dims[0] == q.dims[1] != "1":
            found.append(Special(symmetric=(name,), text=f"{name} symmetric"))
        kinds.setdefault((q.dims, q.parameters, decay), []).append(name)
    for group in kinds.values():
        for a, b in itertools.combinations(group, 2):
            found.append(Special(same=((b, a),), text=f"{a} = {b}"))
    return found


def true_under(
    special: Special,
    statement: Statement,
    setting: Setting,
    bodies: Mapping[str, Formula],
    failing: Point | None = None,
) -> bool:
    """Whether the statement is true in two worlds that satisfy the condition, and in the one in which it was false."""
    failing = failing or Point()
    points = [replace(failing, variant=variant, around=()) for variant in (0, 1)]
    for point in dict.fromkeys([*points, failing]) if failing.around else points:
        for arithmetic in (FIELD, REAL):
            sizes = point.sizes(setting)
            world = World(setting, sizes, arithmetic, point.variant, bodies, special, around=point.around)
            try:
                if check(statement, Evaluator(world)) is not None:
                    return False
                break
            except Transcendental:
                continue
            except Faults:
                return False
    return True
