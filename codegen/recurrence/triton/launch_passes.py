"""What is done to a function that launches kernels, between building it and printing it: functions IR -> IR, listed in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...ir.expr import plain_name
from ...ir.launch_ir import (
    Alloc,
    Body,
    Call,
    Expr,
    For,
    Free,
    Function,
    If,
    Statement,
    Wanted,
    assigned,
    reads,
    statements,
)

LARGE = frozenset("cumulate cumulate_beside spread by_matrix".split())  # functions that make a tensor of all steps


def guarded(f: Function) -> Function:
    """What is for some results alone stands under the condition that one of them is wanted; what is for all, under none."""
    return _over(f, lambda body: _guarded(body, f.results))


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
    return _over(f, lambda _: tuple(body))


PASSES: tuple[Callable[[Function], Function], ...] = (guarded, freed)


def finished(f: Function) -> Function:
    """A function as it is printed."""
    for each in PASSES:
        f = each(f)
    return f


def any_wanted(wanted: frozenset[str] | set[str]) -> Expr:
    """The condition that one of these results is wanted."""
    return Expr("needs & {" + ", ".join(f'"{n}"' for n in sorted(wanted, key=plain_name)) + "}")


def _over(f: Function, change: Callable[[Body], Body]) -> Function:
    return replace(f, body=change(f.body))


def _guarded(body: Body, results: frozenset[str]) -> Body:
    found: list[Statement] = []
    for x in body:
        match x:
            case Wanted(wanted, inside):
                under = _guarded(inside, results)
                if wanted == results or not under:
                    found += under
                else:
                    found.append(If(any_wanted(wanted), under, wanted=wanted))
            case If():
                found.append(replace(x, body=_guarded(x.body, results), otherwise=_guarded(x.otherwise, results)))
            case For():
                found.append(replace(x, body=_guarded(x.body, results)))
            case _:
                found.append(x)
    return tuple(found)


def _large(x: Statement) -> tuple[str, ...]:
    if isinstance(x, Alloc):
        return () if x.unless is not None or x.instead is not None else (x.name,)  # in another's place, it may be
    return x.names if isinstance(x, Call) and x.function in LARGE else ()
