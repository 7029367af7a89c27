"""Kernels whose warps have roles printed: the functions of their roles, and the kernel that begins these."""

from __future__ import annotations

from functools import reduce

from ..ir.code import Code, Literal, call, code, names_in, shape
from ..ir.kernel_ir import Body, Do, KernelFunction, Let, Statement, let
from ..ir.warp_schedule import (
    Invert,
    Role,
    Schedule,
    WithRoles,
)
from ..ir.words import (
    Bound,
    Defined,
    Definition,
    Definitions,
    Read,
    Said,
    Words,
    apart,
    definition,
    inset,
    listed,
    path,
    text_of,
)
from .formatting import AS_LAID, in_lines
from .gluon_names import (
    SEVERAL,
    TOGETHER,
    dtype_of,
    ring_name,
    scalar,
    size,
    stages_of,
)
from .gluon_role import RoleFunction, registers_word, role_name, where_given
from .kernel_text import GLUON, signature, word_lines

CONSTANT = f"{GLUON}.constexpr"


def gluon_text(x: WithRoles) -> str:
    """The text of these."""
    return text_of(gluon_definitions(x))


def gluon_definitions(x: WithRoles) -> Definitions:
    """The functions of a kernel whose warps have roles: one for each role, and the kernel, which is given the registers of each
    role but the first beside what the one without roles is given."""
    k, s = x.function, x.schedule
    return apart([*(RoleFunction(k, s, role).definition() for role in s.roles), _kernel(x)])


# --- the kernel -----------------------------------------------------------------------------------------------------


def _kernel(x: WithRoles) -> Definition:
    k, s = x.function, x.schedule
    unspecialised = listed((Said(f'"{x}"'),) for x in k.unspecialised)
    others = s.roles[1:]
    more = [*([TOGETHER] if s.several else []), *map(registers_word, others)]
    warps, registers = (
        listed(y) for y in ([(str(r.warps),) for r in others], [(Read(registers_word(r)),) for r in others])
    )
    lines: list[Words] = [
        ("@", *path("gluon.jit"), "(do_not_specialize=[", *unspecialised, "])"),
        ("def ", Defined(x.name), "("),
        *inset(signature(k, CONSTANT)),
        ("    ", *listed((Bound(n), ": ", *path(CONSTANT)) for n in more), ","),
        ("):", AS_LAID),
        ("    ", Said(f'"""{k.doc} Its warps have roles: {", ".join(r.name for r in s.roles)}."""')),
        *inset(word_lines(_setup(k, s), GLUON)),
        ("    ", *path("gl.warp_specialize"), "("),
        ("        [",),
        *inset((y for r in s.roles for y in _partition(k, s, r)), " " * 12),
        ("        ], [", *warps, "], [", *registers, "],"),
        ("    )", AS_LAID),
    ]
    return definition(lines)


def _partition(k: KernelFunction, s: Schedule, role: Role) -> list[Words]:
    """A role's function, and what it is given."""
    given = in_lines([(Read(x),)] for x in RoleFunction(k, s, role).parameters)
    return [("(", Read(role_name(s, role)), ", ("), *inset(given), (")),",)]


def _needed(k: KernelFunction, s: Schedule) -> list[Let]:
    """What the kernel makes before its roles, if one of these is given it, or what is made of it."""
    found = [x for x in s.setup if isinstance(x, Let)]
    used = {n for r in s.roles for n in RoleFunction(k, s, r).parameters}
    for x in reversed(found):
        if x.names[0] in used:
            used |= names_in(x.value)
    return [x for x in found if x.names[0] in used]


def _setup(k: KernelFunction, s: Schedule) -> Body:
    body: list[Statement] = [let(x.names[0], scalar(x.value)) for x in _needed(k, s)]
    if s.alike[1:]:
        first, *others = map(code, s.alike)
        alike: Code = reduce(lambda a, b: a.equals(b), others, first)
        body.append(Do(call("gl.static_assert", alike)))
    for r in s.rings:
        stages = stages_of(s.barriers_of(r.name))
        sizes = (SEVERAL if s.several else size(r.shape[0]), *map(size, r.shape[1:]))
        made, own = ("ring_of_tiles", ("DT",)) if r.is_operand else ("ring_of_numbers", ())
        body.append(let(ring_name(r), call(made, *own, stages, *sizes)))
    for b in s.buffers:
        room = let(b.name, call("room", dtype_of(b), *map(size, b.shape)))
        none = Let((b.name,), Literal(None), constant=True)
        body.append(where_given(b.target, (room,), (none,)) if b.maybe else room)
    for y in (y for r in s.roles for y in r.steps):
        if isinstance(y, Invert):
            tiles = shape(2, TOGETHER, size(y.layout.rows), size(y.layout.columns))
            layout = call("small_tiles", size(y.layout.columns))
            body.append(let(f"{y.name}_places", call("gl.allocate_shared_memory", "DT", tiles, layout)))
    for x in s.barriers:
        both = call("barriers", stages_of(x), x.arrivals, x.readers)
        body.append(Let((f"{x.name}_ready", f"{x.name}_empty"), both))
    return (*body, Do(call("fence_async_shared")))
