"""A pass over functions that launch kernels: what is for some results stands under the condition that one of them is wanted."""

from __future__ import annotations

from dataclasses import replace

from ...ir.launch_ir import Body, For, Function, If, Statement, Wanted, any_wanted


def wanted(f: Function) -> Function:
    """What is for some results alone stands under the condition that one of them is wanted; what is for all, under none."""
    return replace(f, body=_under(f.body, f.results))


def _under(body: Body, results: frozenset[str]) -> Body:
    found: list[Statement] = []
    for x in body:
        match x:
            case Wanted(names, inside):
                under = _under(inside, results)
                if names == results or not under:
                    found += under
                else:
                    found.append(If(any_wanted(names), under, wanted=names))
            case If():
                found.append(replace(x, body=_under(x.body, results), otherwise=_under(x.otherwise, results)))
            case For():
                found.append(replace(x, body=_under(x.body, results)))
            case _:
                found.append(x)
    return tuple(found)
