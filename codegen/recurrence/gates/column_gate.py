"""The gate of steps that are affine column by column: what several steps make of the states is one matrix times each column."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from ...exact.random_points import Compared, GateResult, Point, compare
from ...ir.step_program import StepProgram
from ..step.column_maps import ColumnMaps
from ..step.entries import EntryMaps
from .entries_gate import gate_entries
from .run_steps import random_sequences, run_steps


def gate_segment_maps(step: StepProgram, found: EntryMaps | ColumnMaps) -> GateResult:
    """The gate of either kind of map."""
    return gate_entries(step, found) if isinstance(found, EntryMaps) else gate_columns(step, found)


def gate_columns(step: StepProgram, found: ColumnMaps) -> GateResult:
    """The last states are A S_0 + b, with b from zeros and A from states of ones in one row, as a run over segments has them."""

    def check(point: Point) -> Compared:
        m, sizes = point.arithmetic, point.sizes
        given, initial = random_sequences(step, m, sizes, point.steps, point.rng)
        zero, one = m.const(Fraction(0)), m.const(Fraction(1))

        def last(states: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return run_steps(step, given, states, m, sizes, point.steps)[1]

        def lines(name: str, x: np.ndarray) -> np.ndarray:
            """[rows, columns]"""
            place, _ = found.columns[name]
            if place is None:
                return np.asarray(x, dtype=object).reshape(-1, 1)
            return np.moveaxis(np.asarray(x, dtype=object), place, -1).reshape(-1, x.shape[place])

        nothing = {n: m.mul(x, zero) for n, x in initial.items()}
        added = last(nothing)
        made = {n: lines(n, x) for n, x in added.items()}
        for name in found.columns:
            rows = lines(name, initial[name])
            for r in range(len(rows)):
                own = lines(name, nothing[name]).copy()
                own[r] = one
                place, axes = found.columns[name]
                basis = (own if place else own.T) if axes > 1 else own.reshape(initial[name].shape)
                for to, x in last({**nothing, name: basis}).items():
                    factor = m.add(lines(to, x), m.mul(m.const(Fraction(-1)), lines(to, added[to])))
                    yield f"one number for all columns of {to}", factor, np.broadcast_to(factor[:, :1], factor.shape)
                    if any(name in g and to in g for g in found.groups):
                        made[to] = m.add(made[to], m.mul(factor[:, :1], rows[r : r + 1]))
        yield from _each(made, {n: lines(n, x) for n, x in last(initial).items()})

    return compare("columns", "the steps put each column of the states through one matrix, and add to it", step, check)


def _each(made: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    for name, x in expected.items():
        yield f"the last state {name}", made[name], x
