"""The recurrent form: step programs that have no form over chunks, printed as loops over time.

The states are kept every `segment` steps; the backward pass recomputes a segment's states from there, then goes through the
adjoint's steps backwards. Both forms are printed from the step program and its derived adjoint alone.
"""

from .torch_form import maps_torch, sequential_torch, starts
from .triton_form import maps_triton, sequential_triton

__all__ = [
    "maps_torch",
    "maps_triton",
    "sequential_torch",
    "sequential_triton",
    "starts",
]
