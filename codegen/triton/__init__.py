"""The Triton backend: a plan's sweeps as kernels, and the functions that launch them."""

from .blocks import Blocks
from .names import IMPORTS
from .section import cuttable, roles, triton_source, walked
from .tile import CannotPrint, Fine

__all__ = ["IMPORTS", "Blocks", "CannotPrint", "Fine", "cuttable", "roles", "triton_source", "walked"]
