"""The Triton backend: a plan's sweeps as kernels, and the functions that launch them."""

from .section import IMPORTS, triton_source
from .tile import CannotPrint

__all__ = ["IMPORTS", "CannotPrint", "triton_source"]
