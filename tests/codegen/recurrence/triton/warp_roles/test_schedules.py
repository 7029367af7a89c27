"""Schedules with roles: their gate holds them, in any order of roles, and refuses whatever is left out or comes too early."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from shared.passed import instead
from shared.triton_errors import compiled

from chunkform.codegen.ir.code import Literal, names_in
from chunkform.codegen.ir.warp_schedule import (
    Arrive,
    Drain,
    Fetch,
    Make,
    Pass,
    Plain,
    Product,
    Role,
    Schedule,
    Settle,
    Shared,
    WhereGiven,
)
from chunkform.codegen.printing.cannot_print import CannotPrint
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.triton import section, triton_form
from chunkform.codegen.recurrence.triton.kernels.chunk_kernel import Kernel
from chunkform.codegen.recurrence.triton.warp_roles.derive import schedule_of_sweep
from chunkform.codegen.recurrence.triton.warp_roles.gate import gate_schedule
from chunkform.errors import GateError
from chunkform.spec.language import Recurrence, exp, hadamard, sigmoid

HAVE = ["lightning_attention", "retention", "linear_attention"]
HAVE_NONE = ["gated_linear_attention", "gated_delta_rule"]
Made = tuple[Kernel, Schedule]


def forward_sweep(c: Compiled) -> Kernel:
    """The first sweep of an op's forward pass."""
    found: list[Kernel] = []
    with instead(section, gate_sweep=lambda k, f: found.append(k), gate_schedule=lambda k, s: None):
        section.made_form(c)
    return found[0]


@pytest.fixture(scope="module")
def made() -> dict[str, Made]:
    kernels = {name: forward_sweep(compiled(name)) for name in HAVE}
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
                for m in range(len(x.steps) if isinstance(x, WhereGiven) else 0):
                    less = replace(x, steps=(*x.steps[:m], *x.steps[m + 1 :]))
                    yield f"{role.name}: {x.steps[m]}", edited(s, role, **{part: (*steps[:n], less, *steps[n + 1 :])})


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


def test_no_buffer_is_filled_while_the_copy_engine_reads_it(made: dict[str, Made]) -> None:
    """That of an output, and that of states that are left for a backward pass."""
    k, s = made["lightning_attention"]
    role = s.roles[0]
    places = [(n, x) for n, x in enumerate(role.each) if isinstance(x, Drain | WhereGiven)]
    assert len(places) == 2
    for n, x in places:
        drain = x.steps[0] if isinstance(x, WhereGiven) else x
        assert isinstance(drain, Drain) and len(drain.under_way) == 1
        one_more = replace(drain, under_way=(*drain.under_way, "o_out_tile"))
        changed = replace(x, steps=(one_more, *x.steps[1:])) if isinstance(x, WhereGiven) else one_more
        assert refused(k, edited(s, role, each=(*role.each[:n], changed, *role.each[n + 1 :])))


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
        schedule_of_sweep(forward_sweep(compiled(name)))


class Drawn:
    """A spec of one state, whose next is `decay` S + `write`, and of one output."""

    def __init__(self) -> None:
        self.r = Recurrence("drawn")
        d, e = self.r.dims("d e")
        self.q, self.k, self.x = self.r.inputs("q k x", d)
        self.v, self.u = self.r.inputs("v u", e)
        self.b = self.r.inputs("b")
        self.lam, self.scale = self.r.decay("lam"), self.r.constant("scale")
        self.each, self.weight = self.r.parameter("each"), self.r.parameter("weight", d)
        self.S = self.r.state("S", d, e)

    def compiled(self, write: Any, decay: Any, output: Any) -> Compiled:
        self.r.update(self.S, decay * self.S.prev + write)
        self.r.output("o", output)
        return compile_spec(self.r)


def read(x: Drawn, query: Any = None) -> Any:
    return x.S.next.T * (x.q if query is None else query)


# What is written, how the state decays, what is read; and whether there are roles for it.
SPECS: dict[str, tuple[Callable[[Drawn], tuple[Any, Any, Any]], bool]] = {
    "twice the key": (lambda x: (2 * x.k * x.v.T, x.lam, read(x)), True),
    "twice the key, no decay": (lambda x: (2 * x.k * x.v.T, 1, read(x)), True),
    "a constant": (lambda x: (x.scale * x.k * x.v.T, x.lam, x.scale * read(x)), True),
    "a number of each head": (lambda x: (x.each * x.k * x.v.T, x.lam, read(x)), True),
    "a number of each step": (lambda x: (x.b * x.k * x.v.T, x.lam, x.b * read(x)), True),
    "all scaled": (lambda x: ((2 * x.k) * (3 * x.v).T, x.lam, read(x, 5 * x.q)), True),
    "a sum as key": (lambda x: ((x.k - 2 * x.x) * x.v.T, x.lam, read(x, x.q + x.x)), True),
    "a sum as value": (lambda x: (2 * x.k * (x.v + x.u).T, x.lam, read(x)), True),
    "a function as key": (lambda x: (exp(x.k) * x.v.T, x.lam, read(x)), True),
    "a function that Gluon hasn't": (lambda x: (sigmoid(x.k) * x.v.T, x.lam, read(x)), False),
    "weights": (lambda x: (2 * hadamard(x.k, x.weight) * x.v.T, x.lam, read(x)), True),
    "gated": (lambda x: (2 * x.k * x.v.T, x.lam, hadamard(exp(x.u), read(x))), True),
    "the value read twice": (lambda x: (2 * x.k * x.v.T, x.lam, hadamard(x.v, read(x)) + x.v), True),
    "the state before": (lambda x: (2 * x.k * x.v.T, x.lam, x.S.prev.T * x.q), True),
    "along the other axis": (lambda x: (2 * x.k * x.v.T, x.lam, x.S.next * x.u), True),
    "a decay of a number": (lambda x: (2 * x.k * x.v.T, exp(-exp(x.b)), read(x)), True),
    "two writes": (lambda x: (2 * x.k * x.v.T + x.x * x.u.T, x.lam, read(x)), False),
    "a correction": (lambda x: (2 * x.k * (x.v - x.S.prev.T * x.k).T, x.lam, read(x)), False),
}


LONG = (
    "twice the key, no decay",
    "a constant",
    "a number of each head",
    "all scaled",
    "a sum as value",
    "weights",
    "gated",
)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] if n in LONG else []) for n in SPECS])
def test_the_gate_refuses_no_schedule_that_is_made(name: str) -> None:
    parts, there = SPECS[name]
    x = Drawn()
    k = forward_sweep(x.compiled(*parts(x)))
    if not there:
        with pytest.raises(CannotPrint):
            schedule_of_sweep(k)
        return
    gate_schedule(k, schedule_of_sweep(k))


def test_a_refused_schedule_is_the_compilers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(k: Kernel, s: Schedule) -> None:
        raise GateError(f"{k.name}: roles wait for each other")

    monkeypatch.setattr(section, "gate_schedule", refused)
    x = Drawn()
    with pytest.raises(GateError, match="wait for each other"):
        triton_form(x.compiled(x.k * x.v.T, x.lam, read(x)))


def test_a_stage_is_released_behind_the_last_step_that_reads_it() -> None:
    """Also where the next state is made of numbers of the chunk once all products are there, or an output of a tile."""
    x = Drawn()
    s = schedule_of_sweep(forward_sweep(x.compiled(2 * x.k * x.v.T, x.lam, read(x))))
    each = s.roles[0].each
    (release,) = (n for n, y in enumerate(each) if isinstance(y, Arrive))
    last = each[release - 1]
    assert isinstance(last, Make) and "kept" in names_in(last.value)
