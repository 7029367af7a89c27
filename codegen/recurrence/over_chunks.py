"""Why the kernels of a recurrence don't go over chunks, as their form says; nothing is printed to learn it."""

from __future__ import annotations

from .chunkwise.compiled import Compiled, once
from .triton import CannotPrint, Fine, scanned, triton_form


@once
def why_stepwise(
    c: Compiled, exchanges: bool = True, fine: Fine | None = None, unwanted: str | None = None
) -> str | None:
    """The reason for which a chunk-parallel recurrence runs in recurrent form on a GPU, or that of some of its strata; None where
    there is none, and where no form over chunks is known. `fine` and `unwanted` are those of `triton_form`."""
    if c.strata:
        reasons = [(p.compiled.name, why_stepwise(p.compiled, False)) for p in c.strata]
        return "; ".join(f"{name}: {why}" for name, why in reasons if why) or None
    if scanned(c) or c.forward is None:
        return None
    try:
        triton_form(c, exchanges, fine, unwanted)
    except CannotPrint as why:
        return str(why)
    return None
