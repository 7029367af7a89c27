"""The sequential fallback: step programs that have no chunk-parallel form, printed as loops over time.

The states are kept every `segment` steps; the backward pass recomputes a segment's states from there, then goes through the
adjoint's steps backwards. Both forms are printed from the step program and its derived adjoint alone.
"""

from .torch_form import maps_torch_source, sequential_torch_source, start_source
from .triton_form import maps_triton_source, sequential_triton_source

__all__ = [
    "maps_torch_source",
    "maps_triton_source",
    "sequential_torch_source",
    "sequential_triton_source",
    "start_source",
]
