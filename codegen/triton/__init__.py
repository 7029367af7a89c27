"""The Triton backend: a plan's sweeps as kernels, and the functions that launch them."""

from .section import IMPORTS, cuttable, roles, triton_source
from .tile import CannotPrint, Fine

__all__ = ["IMPORTS", "CannotPrint", "Fine", "cuttable", "roles", "triton_source"]
