"""Sequences that the processes of a group share: each holds a part, and parts are joined by the maps of segments.

run             an op whose arguments are parts of a sequence (`context_parallel` of every op)
halo            the last steps of the part before, for what looks a few steps back, such as a short convolution
ring_attention  pairwise attention over all parts, keys and values travelling round the group
"""

from ..attention.ring import ring_attention
from ..op.context_parallel import run
from .halo import halo, tails

__all__ = ["halo", "ring_attention", "run", "tails"]
