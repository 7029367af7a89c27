"""Kernels whose warps have roles printed: the functions of their roles, and the kernel that begins these."""

from __future__ import annotations

from ..ir.code import (
    names_in,
)
from ..ir.kernel_ir import KernelFunction, Let
from ..ir.warp_schedule import (
    Invert,
    Schedule,
    WithRoles,
)
from .formatting import AS_LAID, in_lines
from .gluon_names import (
    SEVERAL,
    TOGETHER,
    dtype_of,
    ring_name,
    scalar,
    stages_of,
)
from .gluon_role import RolePrinter, registers_word, role_name, where_given
from .kernel_text import indented, signature


def gluon_text(x: WithRoles) -> str:
    """The functions of a kernel whose warps have roles: one for each role, and the kernel, which is given the registers of each
    role but the first beside what the one without roles is given."""
    k, s = x.function, x.schedule
    return "\n\n\n".join([*(RolePrinter(k, s, role).function() for role in s.roles), _kernel(x)])


# --- the kernel -----------------------------------------------------------------------------------------------------


def _kernel(x: WithRoles) -> str:
    k, s = x.function, x.schedule
    unspecialised = ", ".join(f'"{x}"' for x in k.unspecialised)
    others = s.roles[1:]
    more = [*([TOGETHER] if s.several else []), *map(registers_word, others)]
    words = ", ".join(f"{n}: gl.constexpr" for n in more)
    lines = [
        f"@gluon.jit(do_not_specialize=[{unspecialised}])",
        f"def {x.name}(",
        *(f"    {''.join(line)}" for line in signature(k, "gl.constexpr")),
        f"    {words},",
        f"):{AS_LAID}",
        f'    """{k.doc} Its warps have roles: {", ".join(r.name for r in s.roles)}."""',
        *indented(_setup(k, s)),
        "    gl.warp_specialize(",
        "        [",
        *(
            f"            {line}"
            for r in s.roles
            for line in _partition(role_name(s, r), RolePrinter(k, s, r).parameters)
        ),
        f"        ], [{', '.join(str(r.warps) for r in others)}], [{', '.join(registers_word(r) for r in others)}],",
        f"    ){AS_LAID}",
    ]
    return "\n".join(lines)


def _partition(name: str, given: list[str]) -> list[str]:
    """A role's function, and what it is given."""
    return [f"({name}, (", *(f"    {''.join(line)}" for line in in_lines([(x,)] for x in given)), ")),"]


def _needed(k: KernelFunction, s: Schedule) -> list[Let]:
    """What the kernel makes before its roles, if one of these is given it, or what is made of it."""
    found = [x for x in s.setup if isinstance(x, Let)]
    used = {n for r in s.roles for n in RolePrinter(k, s, r).parameters}
    for x in reversed(found):
        if x.names[0] in used:
            used |= names_in(x.value)
    return [x for x in found if x.names[0] in used]


def _setup(k: KernelFunction, s: Schedule) -> list[str]:
    lines = [f"{x.names[0]} = {scalar(x.value).text}" for x in _needed(k, s)]
    if s.alike[1:]:
        lines.append(f"gl.static_assert({' == '.join(s.alike)})")
    for r in s.rings:
        stages = stages_of(s.barriers_of(r.name))
        shape = (SEVERAL, *r.shape[1:]) if s.several else r.shape
        made = "ring_of_tiles(DT, " if r.is_operand else "ring_of_numbers("
        lines.append(f"{ring_name(r)} = {made}{stages}, {', '.join(shape)})")
    for b in s.buffers:
        made = f"{b.name} = room({dtype_of(b)}, {', '.join(b.shape)})"
        none = ["else:", *indented([f"{b.name}: gl.constexpr = None"])]
        lines += [*where_given(b.target, [made]), *none] if b.maybe else [made]
    for y in (y for r in s.roles for y in r.steps):
        if isinstance(y, Invert):
            sizes = f"[2, {TOGETHER}, {y.layout.rows}, {y.layout.columns}]"
            lines.append(f"{y.name}_places = gl.allocate_shared_memory(DT, {sizes}, small_tiles({y.layout.columns}))")
    for x in s.barriers:
        lines.append(f"{x.name}_ready, {x.name}_empty = barriers({stages_of(x)}, {x.arrivals}, {x.readers})")
    return [*lines, "fence_async_shared()"]
