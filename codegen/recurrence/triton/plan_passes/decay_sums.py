"""What kernels sum for the gradient of a state's decay: leaves, each of a state and a part of the sum."""

from __future__ import annotations

from ....ir.expr import Node, leaf

ENDS = "ends"  # what is left at the end of a block, for each channel
SPANS = "spans"  # the decay of a block times the state and its gradient at the block's sides
STATE_ADJOINT = "state_adjoint"  # products of the state and its gradient, at each step
OWN = "own"  # of pairs of steps inside a block


def decay_sum(state: str, *part: str, axes: tuple[str, ...] = (), kind: str = "sums") -> Node:
    """The leaf of a part, or of one of its slots (`OWN, "late"`)."""
    return leaf(kind, ".".join((state, *part)), axes)


def state_of(x: Node) -> str:
    return str(x.attrs[1].partition(".")[0])


def part_of(x: Node) -> tuple[str, ...]:
    """Which part a leaf is, and which slot of it; nothing where it is the whole."""
    return tuple(x.attrs[1].split(".")[1:])


def whole_of(x: Node) -> str:
    """What a leaf of pairs inside a block alone is a part of, by name; other leaves are whole."""
    *path, last = x.attrs[1].split(".")
    return ".".join(path if last == OWN else [*path, last])
