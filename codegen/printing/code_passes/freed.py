"""A pass over functions that launch kernels: large tensors are let go of after their last use."""

from __future__ import annotations

from dataclasses import replace

from ...ir.expr import plain_name
from ...ir.launch_ir import Alloc, Call, Free, Function, Statement, assigned, reads, statements

LARGE = frozenset("cumulate cumulate_beside spread by_matrix".split())  # functions that make a tensor of all steps


def freed(f: Function) -> Function:
    """Large tensors are let go of after the statement of the function's own body that uses them last."""
    if not f.frees:
        return f
    large = {n for x in statements(f.body) for n in _large(x)}
    last = {n: k for k, x in enumerate(f.body) for n in large & (reads(x) | assigned(x))}
    body: list[Statement] = []
    for k, x in enumerate(f.body):
        body.append(x)
        done = sorted((n for n, at in last.items() if at == k < len(f.body) - 1), key=plain_name)
        if done:
            body.append(Free(tuple(done)))
    return replace(f, body=tuple(body))


def _large(x: Statement) -> tuple[str, ...]:
    if isinstance(x, Alloc):
        return () if x.unless is not None or x.instead is not None else (x.name,)  # in another's place, it may be
    return x.names if isinstance(x, Call) and x.function in LARGE else ()
