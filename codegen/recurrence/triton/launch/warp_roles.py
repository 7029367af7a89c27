"""Where a function that launches kernels chooses between those with roles and those without."""

from __future__ import annotations

from collections.abc import Iterable

from ....ir.expr import dim_of
from ....ir.launch_ir import Define, Statement, ref
from ....ir.python_code import made_by
from ..kernels.chunk_kernel import Kernel
from ..print.axis_names import size_name


def with_roles_chosen(body: list[Statement], kernels: Iterable[object]) -> list[Statement]:
    """The function's body, where a call's configuration says whether it has kernels with roles, if there are any."""
    sweeps = [k for k in kernels if isinstance(k, Kernel) and k.roles is not None and not k.whole]
    if not sweeps:
        return body
    whole = dict.fromkeys(size_name(dim_of(a)) for k in sweeps for a in k.axes if a != k.tiled)
    most = next(iter(whole)) if len(whole) == 1 else made_by("max", *whole)
    given = {a.source: a.base for k in sweeps for a in k.arguments if a.layout == "step"}
    tiles = [ref(n) for x, n in given.items() if x is not None and x.attrs[0] == "input" and x.axes]
    at = next(n for n, x in enumerate(body) if isinstance(x, Define) and x.names == ("config",))
    chosen = Define(("config",), made_by("with_roles", "config", most, *tiles))
    return [*body[: at + 1], chosen, *body[at + 1 :]]
