"""Specs as a notebook shows them: their equations in LaTeX, in the order in which they were written."""

from __future__ import annotations

from typing import Any

from .expression import Matrix, latex, name_latex


def equations(spec: Any) -> list[str]:
    """`left &= right` for each equation of a spec of any kind."""
    return _of_pairs(spec) if hasattr(spec, "energy") else _of_steps(spec)


def _of_steps(spec: Any) -> list[str]:
    """Of a recurrence, or a program, which declares its step as a recurrence does, and solves besides."""
    r = getattr(spec, "step", spec)
    found = [(x.order, _symbol(x.name, "input", x.term), latex(x.term)) for x in (*r.lets, *r.outputs)]
    found += [(x.order, _symbol(f"{x.name}.next", "state", x.term), latex(x.term)) for x in r.updates]
    lines = [f"{left} &= {right}" for _, left, right in sorted(found)]
    solved = [
        rf"{_symbol(s.name, 'input', s.right)} &= \left({latex(s.matrix)}\right)^{{-1}} {latex(s.right)}"
        for s in getattr(spec, "solves", ())
    ]
    return [*lines[: len(lines) - len(r.outputs)], *solved, *lines[len(lines) - len(r.outputs) :]]


def _of_pairs(a: Any) -> list[str]:
    """Of an attention: the energy, the averages, the outputs."""
    query = "i" if a.nodes is None else "k"
    lines = [] if a.energy is None else [rf"E_{{{query}j}} &= {latex(a.energy.term)}"]
    for x in a.averages:
        lines.append(rf"{_symbol(x.name, 'average', x.term)} &= \textstyle\sum_j A_{{{query}j}} {latex(x.term)}")
    for x in a.outputs:
        name = f"{x.name}_i" if a.nodes is None else x.name
        lines.append(f"{_symbol(name, 'query', x.term)} &= {latex(x.term)}")
    return lines


def _symbol(name: str, kind: str, term: object) -> str:
    return name_latex(name, kind if isinstance(term, Matrix) else f"scalar {kind}")
