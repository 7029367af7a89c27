"""Sequences that the processes of a group share: each holds a segment, and segments are joined by the maps of segments.

An op's `context_parallel` argument is in `runtime/op/context_parallel.py`, its passes in `segment_passes.py` there, pairwise
attention in `runtime/attention/ring.py`; `halo` is the last steps of the segment before, for what looks a few steps back, such
as a short convolution.
"""

from .halo import halo, tails

__all__ = ["halo", "tails"]
