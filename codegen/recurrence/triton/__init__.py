"""The Triton backend: a plan's sweeps as kernels, and the functions that launch them."""

from .kernels.fused_backward import Together
from .kernels.tile_lowering import Fine
from .launch.elementwise_scan import scanned
from .plan_passes.checkpoint_schedule import Blocks
from .plan_passes.roles import CannotPrint
from .plan_passes.scale_reads import simplified
from .print.reserved import IMPORTS
from .section import cuttable, in_substeps, roles, scan_source, triton_source, walked, whole_walk

__all__ = [
    "IMPORTS",
    "Blocks",
    "CannotPrint",
    "Fine",
    "Together",
    "cuttable",
    "in_substeps",
    "roles",
    "scan_source",
    "scanned",
    "simplified",
    "triton_source",
    "walked",
    "whole_walk",
]
