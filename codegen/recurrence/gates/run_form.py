"""One step of a read-write form, by its definition: what the gate after normalizing compares with the step program."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.evaluate import Arithmetic, Env, evaluate
from ...ir.expr import Node, add, expand, leaf, mul, total, walk
from ..normal_form.form import NormalForm, StateForm


def run_form(
    form: NormalForm, env: Env, arithmetic: Arithmetic, sizes: dict[str, int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(values, states after the step), axes sorted as in `node.axes`. `env` holds the step's leaves and each state."""
    step = _Step(form, env, arithmetic, sizes)
    values = {n: step.value(x) for n, x in form.values.items()}
    states = {s.name: step.value(expand(step.snapshot(s, "next"), s.axes)) for group in form.groups for s in group}
    return values, states


def state_adjoint_defects(
    form: NormalForm, env: Env, arithmetic: Arithmetic, sizes: dict[str, int]
) -> dict[str, tuple[Any, Any]]:
    """For each state-adjoint product (D <S_{t-1}, dS_t> + early, <S_{t-1}, dS_{t-1}>): equal where `late` and `early` are
    right."""
    step = _Step(form, env, arithmetic, sizes)
    out = {}
    for p in form.state_adjoints:
        s, ds = form.state(p.state), form.state(f"d{p.state}")
        inner = mul(state_leaf(s), step.snapshot(ds, "next"))
        inner = total(inner, *(set(inner.axes) - set(p.leaf.axes)))
        out[p.state] = step.value(add(p.leaf, p.early)), step.value(inner)
    return out


def state_leaf(s: StateForm) -> Node:
    return leaf("state in", s.name, s.axes)


class _Step:
    def __init__(self, form: NormalForm, env: Env, m: Arithmetic, sizes: dict[str, int]) -> None:
        self.form, self.env, self.m, self.sizes = form, dict(env), m, sizes
        self.writes = {x: w.right for x, (_, w) in form.write_leaves().items()}
        self.state_adjoints = {p.leaf: p for p in form.state_adjoints}
        self.crosses = {c.leaf: c for c in form.crosses}

    def value(self, x: Node) -> np.ndarray:
        """The value of a node; the reads, writes and state-adjoint products in it are computed first."""
        for y in walk(x):
            if y.op == "leaf" and y.attrs[:2] not in self.env:
                (named,) = set(self.form.parts(y))
                meaning = self.meaning(named)
                self.env[y.attrs[0], y.attrs[1]] = self.value(meaning)
        return evaluate(x, self.env, self.m, self.sizes)

    def meaning(self, x: Node) -> Node:
        if x in self.writes:
            return self.writes[x]
        if x in self.form.reads:
            r = self.form.reads[x]
            s = self.form.state(r.state)
            along = s.row if r.side == "row" else s.col
            body = mul(r.vector, self.snapshot(s, r.snapshot))
            return total(body, along) if along is not None else body
        if x in self.crosses:
            cross = self.crosses[x]
            inner = mul(*(self.snapshot(self.form.state(n), "mid") for n in (cross.state, cross.gradient)))
            return total(inner, *(set(inner.axes) - set(x.axes)))
        p = self.state_adjoints[x]
        s, ds = self.form.state(p.state), self.form.state(f"d{p.state}")
        inner = mul(self.snapshot(s, "next"), state_leaf(ds))
        return add(total(inner, *(set(inner.axes) - set(x.axes))), p.late)

    def snapshot(self, s: StateForm, which: str) -> Node:
        """The state as a read sees it."""
        early = [mul(w.left, w.value) for w in s.writes if not w.late]
        late = [mul(w.left, w.value) for w in s.writes if w.late]
        if which == "prev":
            return state_leaf(s)
        before = add(state_leaf(s), *early)
        if which == "mid":
            return before
        mixed = [mul(c, state_leaf(self.form.state(n))) for n, c in s.coupling]
        return add(before if s.decay is None else mul(s.decay, before), *mixed, *late)
