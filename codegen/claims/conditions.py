"""Side conditions under which a false formula becomes true, from a general vocabulary.

Some are what an author could mean without saying so: no initial state, no loss on the last state, a symmetric matrix. The rest
are points at which much is true by chance, such as a decay of 1, a vector that is 0, a matrix that is the identity, or two
quantities that are the same; they are told, and excuse nothing."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace

from chunkform.spec.language.claims import Quantity, Setting
from chunkform.spec.language.formula import Formula, formula, walk
from chunkform.spec.language.statements import Equal, Statement

from .check import check, environments
from .counterexample import held
from .coverage import is_run
from .effort import Effort
from .evaluate import Evaluator
from .fingerprint import Faults
from .indices import is_decay
from .instance import Special
from .prover import INSTANCES, Prover
from .scope import formulas_of, used_names
from .trial_sizes import Point, beyond

PAIRS = 60  # of conditions, that are tried together
MEANT, SYMMETRIC, TRIVIAL = "meant", "symmetric", "trivial"


def rescues(
    statement: Statement,
    setting: Setting,
    bodies: Mapping[str, Formula],
    pairs: bool,
    failing: Point | None,
    effort: Effort,
) -> list[Special]:
    """The conditions under which the statement, which is false at the point `failing`, is true. What could be meant, two at
    once as well, is tried whatever the effort, as the verdict turns on it; of the rest as many as the effort is for, and two at
    once only if `pairs`."""

    def true(s: Special) -> bool:
        return (s.kind != TRIVIAL or not effort.spent()) and true_under(s, statement, setting, bodies, failing)

    vocabulary = sorted(specials(statement, setting), key=lambda s: s.kind == TRIVIAL)
    found = [s for s in vocabulary if true(s)]
    rest = [s for s in vocabulary if s not in found and not s.empties and not s.identity]
    both = [a | b for a, b in itertools.combinations(rest, 2)]
    both = [s for s in both if s.kind != TRIVIAL] + [s for s in both if s.kind == TRIVIAL and pairs]
    found += [s for s in both[:PAIRS] if true(s)]
    meant = [s for s in vocabulary if s.kind == MEANT]
    return found if any(s.kind == MEANT for s in found) else found + needed_of(meant, true)


def needed_of(meant: list[Special], true: Callable[[Special], bool]) -> list[Special]:
    """More than two conditions that could be meant, if the statement is true under all of them together: those that it takes."""

    def together(some: list[Special]) -> Special:
        return functools.reduce(operator.or_, some)

    if len(meant) < 3 or not true(together(meant)):
        return []
    kept = meant
    for s in meant:
        rest = [x for x in kept if x is not s]
        kept = rest if rest and true(together(rest)) else kept
    return [together(kept)]


def specials(statement: Statement, setting: Setting) -> list[Special]:
    """The vocabulary: conditions on what the statement speaks of."""
    used = [setting.quantities[name] for name in used_names(statement, setting)]
    used = [q for q in used if not held(setting, q.name)]
    found = at_the_ends(statement, setting, used)
    kinds: dict[tuple, list[str]] = {}
    for q in used:
        decay = is_decay(setting, q.name)
        if not is_given(q, setting):
            continue
        if decay or q.dims == ("1", "1"):
            found.append(Special(value=((q.name, 1),), text=f"{q.name} = 1"))
        if q.dims[0] == q.dims[1] != "1":
            found.append(Special(symmetric=(q.name,), text=f"{q.name} symmetric", kind=SYMMETRIC))
            found.append(Special(identity=(q.name,), text=f"{q.name} = I"))
        if not decay and q.domain == "real":
            found.append(Special(value=((q.name, 0),), text=f"{q.name} = 0", empties=True))
        kinds.setdefault((q.dims, q.parameters, decay), []).append(q.name)
    for group in kinds.values():
        for a, b in itertools.combinations(group, 2):
            found.append(Special(same=((b, a),), text=f"{a} = {b}"))
    return found


def is_given(q: Quantity, setting: Setting) -> bool:
    """Whether a quantity is drawn at random, and not computed."""
    r = setting.recurrence
    return q.kind == "given" or (q.kind == "spec" and r is not None and any(v.name == q.name for v in r.variables))


def at_the_ends(statement: Statement, setting: Setting, used: list[Quantity]) -> list[Special]:
    """No initial state, and no loss on the last one: what an author could mean, unless the formula has a term for it."""
    r = setting.recurrence
    if r is None or not any(is_run(q, r) for q in used):
        return []
    found = []
    backwards = any("gradient" in q.kind for q in used)
    for s in r.states:
        if s.initial is None and s.name not in setting.initial:
            kind = TRIVIAL if mentions(statement, setting, s.name, first) else MEANT
            found.append(Special(value=((s.name, 0),), text=f"{s.name}(0) = 0", kind=kind))
    for s in r.states if backwards and setting.final_loss else ():
        kind = TRIVIAL if mentions(statement, setting, f"d{s.name}", last) else MEANT
        found.append(Special(value=((f"d{s.name}", 0),), text=f"there is no loss on {s.name}(n)", kind=kind))
    return found


def without_ends(statement: Statement, setting: Setting) -> Setting | None:
    """The setting where states start at 0 and no loss is taken of the last ones, as far as an author could mean that without
    saying so; None where nothing of it is open."""
    used = [setting.quantities[name] for name in used_names(statement, setting)]
    meant = [name for s in at_the_ends(statement, setting, used) if s.kind == MEANT for name, _ in s.value]
    if not meant:
        return None
    losses = {f"d{s.name}" for s in setting.recurrence.states} if setting.recurrence is not None else set()
    initial = {name: formula(0) for name in meant if name not in losses}
    return setting.under(setting.premises, initial, not losses & set(meant))


def first(index: Formula) -> bool:
    return index.op == "number" and index.attrs[0] == 0


def last(index: Formula) -> bool:
    return index.op == "size" and index.attrs[0] == "n"


def mentions(statement: Statement, setting: Setting, name: str, where: Callable[[Formula], bool]) -> bool:
    """Whether a statement, or a definition that it uses, has a quantity at such an index, other than as what it is for."""
    sides = [x for x in formulas_of(statement) if x.op not in ("at", "transpose")]
    bodies = [setting.quantities[x].body for x in used_names(statement, setting)]
    everything = (y for x in (*sides, *bodies) if x is not None for y in walk(x))
    return any(y.op == "at" and y.attrs[0] == name and any(where(i) for i in y.args) for y in everything)


def true_under(
    special: Special,
    statement: Statement,
    setting: Setting,
    bodies: Mapping[str, Formula],
    failing: Point | None = None,
) -> bool:
    """Whether the statement is true in all instances that satisfy the condition, in the one in which it was false as well, and
    these take every branch."""
    failing = failing or Point()
    prover = Prover()
    try:
        found = prover.tried(statement, setting, bodies, failing.reach, special)
        left_open = set(found.untried) - {beyond(setting, failing.reach)}
        if found.failure is not None or left_open:
            return False
        points = [replace(failing, variant=variant, around=()) for variant in range(INSTANCES)]
        there = [prover.evaluator(setting, point, bodies, found.real, special) for point in points]
        if special.empties and any(nothing_is_left(statement, evaluate) for evaluate in there):
            return False
        return check(statement, prover.evaluator(setting, failing, bodies, found.real, special)) is None
    except Faults:
        return False


def nothing_is_left(statement: Statement, evaluate: Evaluator) -> bool:
    """Whether an equation says no more than 0 = 0."""
    if not isinstance(statement, Equal):
        return True
    side = statement.sides[0]
    for env in environments(statement.sides, statement.over, evaluate):
        try:
            if any(evaluate.algebra.settled(evaluate(side, env)).a.flat):
                return False
        except Faults:
            continue
    return True
