"""Conjugate gradients in one Triton kernel."""

from __future__ import annotations

from .graph import Operation


class CannotSolve(Exception):
    """Why no kernel here solves with this matrix."""


def solve_source(op: Operation) -> tuple[str, dict[str, str]]:
    raise CannotSolve("there is no kernel yet")
