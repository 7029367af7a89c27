"""The Triton backend: a plan's sweeps as kernels, and the functions that launch them."""

from .section import IMPORTS, cuttable, triton_source
from .tile import CannotPrint

__all__ = ["IMPORTS", "CannotPrint", "cuttable", "triton_source"]
