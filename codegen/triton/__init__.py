"""The Triton backend: a plan's sweeps as kernels, and the functions that launch them."""

from .blocks import Blocks
from .reserved import IMPORTS
from .scaled import simplified
from .scan_host import scanned
from .section import cuttable, in_substeps, roles, scan_source, triton_source, walked, whole_walk
from .tile import CannotPrint, Fine
from .together import Together

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
