"""A pass: what a loop loads ahead is loaded a round before it is needed."""

from __future__ import annotations

from dataclasses import replace

from ...ir.code import Code, Load, Name, loads_in
from ...ir.code_parts import rebuilt, substituted
from ...ir.kernel_ir import Body, For, If, KernelFunction, Let, Prefetch, Statement, assigned, let, reads


def prefetched(k: KernelFunction) -> KernelFunction:
    """What a loop loads ahead is loaded a round before it is needed, as nothing else would fill the time that memory takes; for
    the first round before the loop."""
    return replace(k, body=_prefetched(k.body))


def _prefetched(body: Body) -> Body:
    found: list[Statement] = []
    for x in body:
        if isinstance(x, If):
            x = replace(x, body=_prefetched(x.body), otherwise=_prefetched(x.otherwise))
        elif isinstance(x, For):
            held = [y for y in x.body if isinstance(y, Let) and y.prefetch]
            if held and x.prefetch is not None:
                first = [*x.prefetch.before, *(_load(y, x.prefetch.first) for y in held)]
                place = _earliest(found, first)
                found[place:place] = first
                x = replace(x, body=_rounds(x.body, x.prefetch))
            x = replace(x, body=_prefetched(x.body), prefetch=None)
        found.append(x)
    return tuple(found)


def _load(x: Let, where: tuple[tuple[str, Code], ...]) -> Let:
    """The statement that loads what another one holds, with these in the place of names."""
    (load,) = loads_in(x.value)
    return let(x.prefetch, substituted(load, dict(where)))


def _earliest(body: list[Statement], first: list[Statement]) -> int:
    """Where statements may stand that load: after what assigns what they read, what stores, and barriers."""
    read = frozenset[str]().union(*map(reads, first))
    late = [n for n, x in enumerate(body) if not isinstance(x, Let) or assigned(x) & read]
    return late[-1] + 1 if late else 0


def _rounds(body: Body, prefetch: Prefetch) -> Body:
    """A loop's body: each statement takes what is held, and holds what the next round takes."""
    moved = {name for name, _ in prefetch.next}
    start = max((n + 1 for n, x in enumerate(body) if assigned(x) & moved), default=0)
    found: list[Statement] = [*body[:start], *prefetch.each]
    for x in body[start:]:
        if isinstance(x, Let) and x.prefetch:
            found += [replace(x, value=_taken(x.value, Name(x.prefetch)), prefetch=""), _load(x, prefetch.next)]
        else:
            found.append(x)
    return tuple(found)


def _taken(x: Code, held: Name) -> Code:
    """An expression with what is held in the place of what it loads."""
    return held if isinstance(x, Load) else rebuilt(x, lambda y: _taken(y, held))
