"""The Triton backend: a plan's sweeps as kernels, and the functions that launch them.

`section.py` puts kernels and functions together and chooses each kernel's gate. Recurrent form and decoding: `stepwise/`.
"""

from ...printing.cannot_print import CannotPrint
from .kernel_plan import PLAN_PASSES, cuttable, kernel_plan, why_uncut
from .kernels.fused_backward import FusedBackward
from .kernels.tile_values import Fine
from .launch.elementwise_scan import scanned
from .plan_passes.checkpoint_schedule import CheckpointSchedule
from .plan_passes.scale_reads import simplified
from .print.reserved import IMPORTS
from .section import (
    TritonForm,
    fused_backward_of,
    in_substeps,
    kernels_after,
    schedule_of,
    triton_form,
    triton_source,
)

__all__ = [
    "IMPORTS",
    "PLAN_PASSES",
    "CannotPrint",
    "CheckpointSchedule",
    "Fine",
    "FusedBackward",
    "TritonForm",
    "cuttable",
    "fused_backward_of",
    "in_substeps",
    "kernel_plan",
    "kernels_after",
    "scanned",
    "schedule_of",
    "simplified",
    "triton_form",
    "triton_source",
    "why_uncut",
]
