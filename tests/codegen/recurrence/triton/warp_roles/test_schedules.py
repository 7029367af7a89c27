"""Schedules with roles: their gate holds them, in any order of roles, and refuses whatever is left out or comes too early."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from shared.triton_errors import compiled

from chunkform.codegen.ir.code import Literal
from chunkform.codegen.ir.warp_schedule import (
    Arrive,
    Fetch,
    Make,
    Pass,
    Plain,
    Product,
    Role,
    Schedule,
    Settle,
    Shared,
)
from chunkform.codegen.recurrence.triton import section
from chunkform.codegen.recurrence.triton.kernels.chunk_kernel import Kernel
from chunkform.codegen.recurrence.triton.plan_passes.roles import CannotPrint
from chunkform.codegen.recurrence.triton.warp_roles.derive import schedule_of_sweep
from chunkform.codegen.recurrence.triton.warp_roles.gate import gate_schedule
from chunkform.errors import GateError

HAVE = ["lightning_attention", "retention", "linear_attention"]
HAVE_NONE = ["gated_linear_attention", "gated_delta_rule"]
Made = tuple[Kernel, Schedule]


def forward_sweep(name: str) -> Kernel:
    """The first sweep of an op's forward pass."""
    found: list[Kernel] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(section, "gate_sweep", lambda k, f: found.append(k))
        patch.setattr(section, "gate_schedule", lambda k, s: None)
        section._form.__wrapped__(compiled(name), True, None, None)
    return found[0]


@pytest.fixture(scope="module")
def made() -> dict[str, Made]:
    kernels = {name: forward_sweep(name) for name in HAVE}
    return {name: (k, schedule_of_sweep(k)) for name, k in kernels.items()}


def refused(k: Kernel, s: Schedule) -> bool:
    try:
        gate_schedule(k, s, orders=1)
    except GateError as why:
        assert k.name in str(why)
        return True
    return False


def edited(s: Schedule, role: Role, **parts: tuple[object, ...]) -> Schedule:
    return replace(s, roles=tuple(replace(r, **parts) if r is role else r for r in s.roles))


def with_one_step_less(s: Schedule) -> Iterator[tuple[str, Schedule]]:
    for role in s.roles:
        for part in ("before", "each", "after"):
            steps = getattr(role, part)
            for n, x in enumerate(steps):
                if part == "each" or not isinstance(x, Make | Pass | Plain):
                    yield f"{role.name}: {x}", edited(s, role, **{part: (*steps[:n], *steps[n + 1 :])})


@pytest.mark.parametrize("name", HAVE)
def test_roles_leave_what_the_program_says_in_many_orders(made: dict[str, Made], name: str) -> None:
    gate_schedule(*made[name], orders=5)


def test_each_step_is_needed(made: dict[str, Made]) -> None:
    k, s = made["lightning_attention"]
    kept = [what for what, less in with_one_step_less(s) if not refused(k, less)]
    assert kept == []


def test_barriers_take_as_many_arrivals_as_there_are(made: dict[str, Made]) -> None:
    k, s = made["lightning_attention"]
    (b,) = s.barriers
    for other in (replace(b, arrivals=b.arrivals + 1), replace(b, arrivals=b.arrivals - 1), replace(b, readers=2)):
        assert refused(k, replace(s, barriers=(other,)))


def test_nobody_is_done_with_a_stage_too_early(made: dict[str, Made]) -> None:
    k, s = made["lightning_attention"]
    for role in s.roles:
        (n,) = (n for n, x in enumerate(role.each) if isinstance(x, Arrive))
        for m in range(n):
            moved = (*role.each[:m], role.each[n], *role.each[m:n], *role.each[n + 1 :])
            assert refused(k, edited(s, role, each=moved)), (role.name, role.each[m])


def test_products_are_waited_for_and_not_transposed(made: dict[str, Made]) -> None:
    k, s = made["retention"]
    role = s.roles[0]
    for n, x in enumerate(role.each):
        if isinstance(x, Settle):
            changed = replace(x, outstanding=x.outstanding + 1)
        elif isinstance(x, Product) and isinstance(x.right, Shared):
            changed = replace(x, right=replace(x.right, turned=not x.right.turned))
        else:
            continue
        with pytest.raises((GateError, ValueError)):  # or shapes differ
            gate_schedule(k, edited(s, role, each=(*role.each[:n], changed, *role.each[n + 1 :])), orders=1)


def test_the_copy_engine_brings_what_is_read(made: dict[str, Made]) -> None:
    k, s = made["linear_attention"]
    (loader,) = (r for r in s.roles if any(isinstance(x, Fetch) for x in r.each))
    (n,) = (n for n, x in enumerate(loader.each) if isinstance(x, Fetch))
    fetch = loader.each[n]
    assert isinstance(fetch, Fetch)
    for ring in fetch.rings:
        fewer = replace(fetch, rings=tuple(x for x in fetch.rings if x != ring))
        assert refused(k, edited(s, loader, each=(*loader.each[:n], fewer, *loader.each[n + 1 :]))), ring
    for ring in s.rings:
        assert ring.tile is not None
        wrong = replace(ring, tile=replace(ring.tile, offset=Literal(1)))
        assert refused(k, replace(s, rings=tuple(wrong if r is ring else r for r in s.rings))), ring.name


@pytest.mark.parametrize("name", HAVE_NONE)
def test_what_has_no_roles_says_why(name: str) -> None:
    with pytest.raises(CannotPrint):
        schedule_of_sweep(forward_sweep(name))
