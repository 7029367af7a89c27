"""A second form of the step of a state, by what is written: S_t = a S_{t-1} + u_t k_t^T, beside one without such a u_t.

Where a document takes the gradient by such a u_t, the loss is a function of it through the form that it stands in. That form may
be a mistake: it is taken where it makes the same states as the first one, in exact arithmetic at random points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from chunkform.codegen.claims.arithmetic import FIELD, REAL, Arithmetic, Transcendental, Undefined
from chunkform.codegen.claims.instance import Instance
from chunkform.codegen.claims.trial_sizes import proof_sizes
from chunkform.spec.language.claims import Setting
from chunkform.spec.language.formula import Formula, walk

from .document import Equation
from .steps import Steps, at_step, core, derivative_by_symbol, flipped, letter_of, read_names, reads_now, stepwise

VARIANTS = 2  # random points at which two forms are compared


def second_forms(steps: Steps, equations: Sequence[Equation]) -> Iterator[Steps]:
    """The steps with another displayed form of a state's, in which something stands that gradients are taken by."""
    nodes = [y for e in equations for x in (e.head, e.side) for y in walk(x)]
    by = {y.attrs[0][1:] for y in nodes if y.op == "at" and y.attrs[0][:1] == "d"}
    by |= {core(y.args[1]).attrs[0] for y in nodes if derivative_by_symbol(y)}
    made = {*steps.states, *steps.lets, *steps.outputs}
    written: dict[str, tuple[Formula, Equation]] = {}
    for e in equations:
        name, body = stepped(e)
        if name and body is not None and name in by - made and read_names(body) <= made | set(steps.given):
            written.setdefault(name, (body, e))
    for e in equations:
        name, body = stepped(e)
        used = read_names(body) & written.keys() if body is not None else set()
        if name not in steps.states or body is None or len(used) != 1 or reads_now(body, name):
            continue
        (new,) = used
        yield replace(
            steps,
            states={**steps.states, name: body},
            lets={**steps.lets, new: written[new][0]},
            equations=[*steps.equations, written[new][1]],
        )


def stepped(e: Equation) -> tuple:
    """(name, what it is at step t), of an equation that says a symbol at a step by what there is at one."""
    head = core(e.head)
    place = letter_of(head.args[0]) if head.op == "at" and len(head.args) == 1 and e.relation in ("=", ":=") else None
    body = at_step(flipped(e), *place) if place is not None and e.first else None
    return (head.attrs[0], body) if body is not None and stepwise(body) else ("", None)


def same_states(one: Setting, other: Setting) -> bool:
    """Whether two recurrences with the same inputs have the same states."""
    kinds = [{v.name: (v.kind, str(v.dims)) for v in s.recurrence.variables} for s in (one, other)]
    if kinds[0] != kinds[1]:
        return False
    try:
        return _same(one, other, FIELD)
    except Transcendental:
        try:
            return _same(one, other, REAL)
        except (Transcendental, Undefined):
            return False
    except Undefined:
        return False


def _same(one: Setting, other: Setting, arithmetic: Arithmetic) -> bool:
    for variant in range(VARIANTS):
        sizes = proof_sizes(one)[variant]
        a, b = (Instance(s, dict(sizes), arithmetic, variant).trajectory.values for s in (one, other))
        for state in one.recurrence.states:
            for t, value in a[state.name].items():
                if not arithmetic.equal(np.asarray(value), np.asarray(b[state.name][t])):
                    return False
    return True
