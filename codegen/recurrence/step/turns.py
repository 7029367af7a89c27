"""States that are sums of angles: of which cos and sin alone are taken, so that whole turns don't count.

    s' = s + x        read as cos(n s + ..) and sin(n s + ..), n whole numbers

In float32 a sum of 10^6 angles is off by a large part of a turn. Such a state is scanned in float64, whatever else has a form
over chunks, and handed on less whole turns.
"""

from __future__ import annotations

from dataclasses import replace

from ...ir.expr import Node, leaf_names, terms_of
from ...ir.step_program import StateVar, StepProgram

PERIODIC = ("cos", "sin")


def with_turns(p: StepProgram) -> StepProgram:
    """The same step, with the states marked that are sums of angles."""
    states = tuple(replace(s, turns=True) if _turns(p, s) else s for s in p.states)
    return replace(p, states=states) if any(s.turns for s in states) else p


def _turns(p: StepProgram, s: StateVar) -> bool:
    if len(s.axes) > 1 or s.domain is not None or s.initial is not None:
        return False
    terms = terms_of(p.updates[s.name])
    if sum(x is s.leaf for x in terms) != 1 or any(_holds(x, s) for x in terms if x is not s.leaf):
        return False
    readers = [*p.outputs.values(), *(x for n, x in p.updates.items() if n != s.name)]
    return any(_holds(x, s) for x in readers) and all(_periodic(x, s) for x in readers)


def _holds(x: Node, s: StateVar) -> bool:
    return ("state", s.name) in leaf_names(x)


def _periodic(x: Node, s: StateVar) -> bool:
    """Is x the same for a state that differs by whole turns?"""
    if not _holds(x, s):
        return True
    if x.op == "fn" and x.attrs[0] in PERIODIC and _whole_times(x.args[0], s):
        return True
    return bool(x.args) and all(_periodic(a, s) for a in x.args)


def _whole_times(x: Node, s: StateVar) -> bool:
    """Is x a whole number times the state, and something without it?"""
    if x is s.leaf or not _holds(x, s):
        return True
    if x.op in ("add", "expand"):
        return all(_whole_times(a, s) for a in x.args)
    if x.op == "mul":
        others = [a for a in x.args if not _holds(a, s)]
        whole = all(a.op == "const" and a.attrs[0].denominator == 1 for a in others)
        return whole and len(others) == len(x.args) - 1 and all(_whole_times(a, s) for a in x.args)
    return False
