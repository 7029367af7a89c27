"""Decoding: one step of a recurrence at a time, printed from its step program.

Both forms, a Triton kernel and torch, are the body of the recurrent forms one room up, without the loop over time.
"""

from .public import public_step, step_parameters
from .source import MODULES, Decoding, decoding

__all__ = ["MODULES", "Decoding", "decoding", "public_step", "step_parameters"]
