"""The Triton backend: a plan's sweeps as kernels, and the functions that launch them."""

from .section import IMPORTS, cuttable, triton_source
from .tile import CannotPrint, Fine

__all__ = ["IMPORTS", "CannotPrint", "Fine", "cuttable", "triton_source"]
