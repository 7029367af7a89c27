"""What leaves of a plan are to a kernel: by step, by head, states; and which axes are steps of a chunk."""

from __future__ import annotations

from ....ir.expr import (
    COL,
    ROW,
    Node,
    leaf,
    replace,
    walk,
)

INNER = "%ik"


STEPS = (ROW, INNER, COL)


PER_STEP = ("input", "decay", "cotangent", "read", "write", "stored", "prologue", "scaled", "intra")
PROLOGUE_LEAVES = ("matrix", "scaled", "intra", "own")  # what the prologue makes for sweeps


TRANSITION = "transition"  # of each step, how much of one state is in another (see `coupling_weights.py`)


def is_state(x: Node) -> bool:
    """Is x the state at the chunk's start?"""
    return x.op == "leaf" and x.attrs[0] == "state in"


def at_row(x: Node) -> Node:
    """A step-level node over the rows of a chunk."""
    return replace(
        x,
        {
            y: leaf(y.attrs[0], y.attrs[1], (ROW, *y.attrs[2]))
            for y in walk(x)
            if y.op == "leaf" and y.attrs[0] in PER_STEP and ROW not in y.axes
        },
    )
