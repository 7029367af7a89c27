"""Passes over kernels, and over functions that launch these: from what was built to what is printed, each in a file of its own.

`passes.py` lists them in order.
"""

from .passes import (
    CODE_PASSES,
    CodePass,
    after,
    collected,
    finished_function,
    finished_kernel,
    part_of,
    tell_made,
    told,
)

__all__ = [
    "CODE_PASSES",
    "CodePass",
    "after",
    "collected",
    "finished_function",
    "finished_kernel",
    "part_of",
    "tell_made",
    "told",
]
