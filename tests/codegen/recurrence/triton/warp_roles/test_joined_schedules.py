"""Schedules of sweeps that are joined with their prologues, and of those beside them that have none: their gates hold them, in
any order of roles, and refuse whatever is left out, comes too early, or forgets that a stage may have chunks beyond the end."""

import functools
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from shared.passed import instead
from shared.triton_errors import compiled

from chunkform.codegen.ir.code import Call, names_in
from chunkform.codegen.ir.warp_schedule import (
    Arrive,
    Await,
    Drain,
    Fence,
    Held,
    Invert,
    Make,
    Pass,
    Plain,
    Product,
    Put,
    Role,
    Schedule,
    Send,
    Settle,
    Shared,
    Step,
)
from chunkform.codegen.performance import compile_report
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.triton import section, triton_form
from chunkform.codegen.recurrence.triton.kernels.chunk_kernel import Kernel
from chunkform.codegen.recurrence.triton.warp_roles import shared_memory
from chunkform.codegen.recurrence.triton.warp_roles.gate import gate_joined_schedule, gate_loaded_schedule
from chunkform.errors import GateError
from chunkform.runtime.chunk_kernels import warp_roles
from chunkform.spec.language import Recurrence, normalize

HAVE = ["gated_delta_rule", "delta_rule", "comba", "longhorn", "gradient_descent_squared"]
HAVE_NONE = ["lightning_attention", "gated_linear_attention", "kimi_delta_attention"]
Made = tuple[Kernel, Schedule]
NUMBERS = [
    0,
    *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2)),
]  # of the forward pass, and of the backward one
LOADED = 3  # the last sweep of the backward pass, which loads all matrices


@functools.cache
def all_made(name: str) -> list[Made]:
    """The kernels with roles of passes in which sweeps are joined with their prologues, and their schedules: first that of the
    forward pass."""
    found: list[Made] = []
    schedules = dict.fromkeys(("gate_joined_schedule", "gate_loaded_schedule"), lambda k, s: found.append((k, s)))
    with instead(section, gate_over_chunks=lambda k, f: None, **schedules):
        section.made_form(compiled(name))
    return found


def joined(name: str, number: int = 0) -> Made:
    return all_made(name)[number]


def refused(k: Kernel, s: Schedule) -> bool:
    gate = gate_joined_schedule if s.prepares else gate_loaded_schedule
    try:
        gate(k, s, orders=1)
    except GateError as why:
        assert k.name in str(why)
        return True
    return False


def edited(s: Schedule, role: Role, **parts: tuple[Step, ...]) -> Schedule:
    return replace(s, roles=tuple(replace(r, **parts) if r is role else r for r in s.roles))


def with_one_step_less(s: Schedule) -> Iterator[tuple[str, Schedule]]:
    for role in s.roles:
        for part in ("before", "each", "after"):
            steps = getattr(role, part)
            for n, x in enumerate(steps):
                if part == "each" or not isinstance(x, Make | Pass | Plain):
                    yield f"{role.name}: {x}", edited(s, role, **{part: (*steps[:n], *steps[n + 1 :])})


def role_of(s: Schedule, name: str) -> Role:
    return next(r for r in s.roles if r.name == name)


@pytest.mark.parametrize("name", [*HAVE[:2], *(pytest.param(n, marks=pytest.mark.long) for n in HAVE[2:])])
def test_roles_leave_what_the_program_says_in_many_orders(name: str) -> None:
    found = all_made(name)
    names = ["forward_joined", "backward_joined_1", "backward_joined_2", "backward_sweep_3"]
    assert [k.name for k, _ in found] == names
    for k, s in found[:LOADED]:
        assert [r.name for r in s.roles] == ["consumer", "preparer", "loader"]
        gate_joined_schedule(k, s, orders=4)
    for k, s in found[LOADED:]:
        assert [r.name for r in s.roles] == ["consumer", "loader"]
        gate_loaded_schedule(k, s, orders=4)


def test_a_backward_pass_has_roles_where_the_forward_pass_saves_too_little_for_them() -> None:
    names = ["backward_joined_1", "backward_joined_2", "backward_sweep_3"]
    assert [k.name for k, _ in all_made("inverse_attention")] == names
    assert [k.name for k, _ in all_made("oja")] == ["backward_joined_2", "backward_joined_3"]


@pytest.mark.parametrize("name", HAVE_NONE)
def test_others_have_no_such_kernel(name: str) -> None:
    assert all_made(name) == []


@pytest.mark.parametrize("number", [*NUMBERS, LOADED])
def test_each_step_is_needed(number: int) -> None:
    k, s = joined("gated_delta_rule", number)
    needless = [what for what, less in with_one_step_less(s) if not refused(k, less)]
    consumer = role_of(s, "consumer").each
    waits = [f"consumer: {x}" for x, y in pairwise(consumer) if isinstance(x, Settle) and isinstance(y, Settle)]
    assert set(needless) <= set(waits)  # the one right behind is for all


@pytest.mark.parametrize("number", NUMBERS)
def test_barriers_take_as_many_arrivals_as_there_are(number: int) -> None:
    k, s = joined("gated_delta_rule", number)
    for n, b in enumerate(s.barriers):
        for other in (replace(b, arrivals=b.arrivals + 1), replace(b, readers=b.readers + 1)):
            assert refused(k, replace(s, barriers=(*s.barriers[:n], other, *s.barriers[n + 1 :]))), b.name
    chunk, prepared = s.barriers
    assert (chunk.arrivals, chunk.readers, prepared.arrivals, prepared.readers) == (2, 2, 1, 1)
    assert refused(k, replace(s, barriers=(replace(chunk, readers=1), prepared)))


def waits_for_readers(s: Schedule, steps: tuple[Step, ...], barriers: str) -> list[int]:
    """Where products are waited for that read rings of these barriers."""
    rings = next(b.rings for b in s.barriers if b.name == barriers)
    under_way: list[Product] = []
    found = []
    for n, x in enumerate(steps):
        if isinstance(x, Product):
            under_way.append(x)
        elif isinstance(x, Settle):
            done, under_way = under_way[: len(under_way) - x.outstanding], under_way[len(under_way) - x.outstanding :]
            if any(isinstance(y, Shared) and y.place in rings for p in done for y in (p.left, p.right)):
                found.append(n)
    return found


@pytest.mark.parametrize("number", NUMBERS)
def test_nobody_is_done_with_a_stage_too_early(number: int) -> None:
    """Neither is it handed on, nor given back, before the last step that fills it or reads it."""
    k, s = joined("gated_delta_rule", number)
    for role in s.roles:
        for n, x in enumerate(role.each):
            if isinstance(x, Arrive):
                puts = [m for m in range(n) if x.ready and isinstance(role.each[m], Put)]
                waits = [] if x.ready else waits_for_readers(s, role.each[:n], x.barriers)
                last = max(puts or waits, default=n - 1)
                moved = (*role.each[:last], x, *role.each[last:n], *role.each[n + 1 :])
                assert refused(k, edited(s, role, each=moved)), (role.name, x)


def test_what_is_prepared_is_waited_for_at_its_first_product_alone() -> None:
    """The products of states with what was loaded begin before it."""
    _, s = joined("gated_delta_rule")
    each = role_of(s, "consumer").each
    (at,) = (n for n, x in enumerate(each) if x == Await("prepared", True))
    assert sum(isinstance(x, Product) for x in each[:at]) == 2
    following = each[at + 1]
    assert isinstance(following, Product) and following.right.place in s.barriers[1].rings


def test_a_stage_may_have_chunks_beyond_the_end() -> None:
    """Nothing decays in them: a loader that takes the last sum there again is refused."""
    k, s = joined("gated_delta_rule")
    loader = role_of(s, "loader")
    for n, x in enumerate(loader.each):
        if isinstance(x, Make) and isinstance(x.value, Call) and x.value.function == "tl.where":
            bare = replace(x, value=x.value.arguments[1])
            changed = edited(s, loader, each=(*loader.each[:n], bare, *loader.each[n + 1 :]))
            if x.name == "alpha_a_end":
                assert refused(k, changed)
                return
    raise AssertionError("no sum is made")


def test_the_preparer_gives_tiles_back_before_it_inverts() -> None:
    _, s = joined("gated_delta_rule")
    each = role_of(s, "preparer").each
    (inverse,) = (n for n, x in enumerate(each) if isinstance(x, Invert))
    assert Arrive("chunk", False) in each[:inverse]
    assert [type(x) for x in each[-2:]] == [Fence, Arrive]


def test_an_operand_is_made_anew_once_no_product_takes_it() -> None:
    """Also where an output is the last thing that is read of a state."""
    _, s = joined("gradient_descent_squared")
    each = role_of(s, "consumer").each
    passes = next(n for n, x in enumerate(each) if isinstance(x, Pass))
    states = [n for n, x in enumerate(each) if isinstance(x, Product) and "_operand" in str(x.left)]
    last = each[states[-1]]
    assert isinstance(last, Product)
    settled = next(n for n, x in enumerate(each) if isinstance(x, Settle) and x.name == last.name)
    assert settled < passes < next(n for n, x in enumerate(each) if isinstance(x, Send))


def test_a_program_that_makes_what_others_store_has_its_axis_whole() -> None:
    """Else two of them would store to one place."""
    assert not joined("gated_delta_rule")[0].one_tile
    assert all(k.one_tile for n in ("gated_delta_rule", "delta_rule") for k, _ in all_made(n)[1:LOADED])
    assert not joined("gated_delta_rule", LOADED)[0].one_tile


def test_backwards_stages_come_last_first() -> None:
    """With as many chunks as fill stages; and what isn't backwards is as it was."""
    assert [s.backwards for _, s in all_made("gated_delta_rule")] == [False, True, True, False]
    k, s = joined("gated_delta_rule", 1)
    assert refused(k, replace(s, setup=joined("gated_delta_rule")[1].setup))


def test_a_product_is_added_to_one_that_is_under_way() -> None:
    """What states leave when they are rounded is a second product, onto the first, which nobody waits for."""
    _, s = joined("gated_delta_rule", 2)
    each = role_of(s, "consumer").each
    products = {x.name: x for x in each if isinstance(x, Product)}
    onto = [x.onto for x in products.values() if x.onto in products]
    assert len(onto) == 3 and not {x.name for x in each if isinstance(x, Settle)} & set(onto)


def test_a_sweep_without_a_prologue_makes_operands_of_its_state_before_any_product() -> None:
    """The assembler waits for all products before what one has just made is read."""
    k, s = joined("gated_delta_rule", LOADED)
    each = role_of(s, "consumer").each
    first = next(n for n, x in enumerate(each) if isinstance(x, Product))
    (state,) = (x.name for x in each if isinstance(x, Pass))
    made = [x for x in each[:first] if isinstance(x, Make)]
    of_state: set[str] = {state}
    for x in made:
        of_state |= {x.name} if names_in(x.value) & of_state else set()
    lefts = [
        x.left.name for x in each if isinstance(x, Product) and isinstance(x.left, Held) and x.left.name in of_state
    ]
    assert len(lefts) == 4 and len(set(lefts)) == 2
    assert not [x for x in s.barriers if x.name == "prepared"] and s.barriers[0].readers == 1
    assert refused(k, replace(s, barriers=(replace(s.barriers[0], readers=2),)))


def test_a_launch_of_one_read_alone_is_without_roles() -> None:
    text = triton_form(compiled("gated_delta_rule")).text
    assert "launch_loaded_with_roles(" in text.split("for read, keeps, sweep in config.by_read(")[-1]
    options = {"READ": 2}
    launched = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warp_roles, "launch", lambda kernel, grid, *args, **more: launched.append((kernel, more)))
        warp_roles.launch_loaded_with_roles(None, "plain", "roles", ("E", "block_e", "D", "block_d"), (8,), **options)
    assert launched == [("plain", options)]


def test_outputs_leave_through_one_buffer_where_shared_memory_has_no_room_for_more() -> None:
    """And each waits until the one before it has been read."""
    k, s = joined("comba", LOADED)
    assert [b.name for b in s.buffers] == ["out_tile"]
    assert len(joined("gated_delta_rule", LOADED)[1].buffers) == 2  # which has room
    assert shared_memory.bytes_of(s) + shared_memory.TRITON <= shared_memory.PROGRAM
    gate_loaded_schedule(k, s, orders=2)
    (consumer,) = (r for r in s.roles if any(isinstance(x, Send) for x in r.each))
    sends = [x.target for x in consumer.each if isinstance(x, Send)]
    assert sends == ["dq_out", "dk_out"]
    drains = [n for n, x in enumerate(consumer.each) if isinstance(x, Drain)]
    early = tuple(replace(x, under_way=("out_tile",)) if n in drains else x for n, x in enumerate(consumer.each))
    assert refused(k, edited(s, consumer, each=early))


def test_shared_memory_is_counted_for_what_a_launch_gives() -> None:
    assert (shared_memory.STEPS, shared_memory.WIDEST) == (warp_roles.JOINED_STEPS, warp_roles.WIDEST)
    assert (shared_memory.CHUNKS, shared_memory.STAGES) == (warp_roles.LOADED_CHUNKS, warp_roles.LOADED_STAGES)
    assert compile_report.shared_limit("sm_90") == shared_memory.PROGRAM


def test_a_launch_may_not_want_what_a_backward_pass_uses() -> None:
    _, s = joined("gated_delta_rule")
    assert [b.target for b in s.buffers if b.maybe] == ["write1_out"]


def test_it_is_printed_beside_the_one_without() -> None:
    """A call may launch either."""
    text = triton_form(compiled("delta_rule")).text
    assert "def forward_joined_roles(" in text and "def forward_sweep_1(" in text
    asked = "segments == 1 and exchange is None and may_join(config, {}, q, k, v)"
    assert handed(text, asked.format("D")) == "triton_forward_joined("
    assert handed(text, asked.format("max(D, E)")) == "triton_backward_joined("
    assert "write1_out is not None" in text and "def backward_sweep_2(" in text


def handed(text: str, asked: str) -> str:
    """The function that a pass hands over to, if a condition holds."""
    orders = ("q, k, v", "q, v, k", "k, q, v", "k, v, q", "v, q, k", "v, k, q")
    found = [y for x in orders if (y := text.partition(f"if {asked.replace(orders[0], x)}:")[2])]
    return found[0].split("return ")[1].partition("(")[0] + "(" if found else ""


def test_a_refused_schedule_is_the_compilers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(k: Kernel, s: Schedule) -> None:
        raise GateError(f"{k.name}: roles wait for each other")

    monkeypatch.setattr(section, "gate_joined_schedule", refuse)
    with pytest.raises(GateError, match="wait for each other"):
        triton_form(replace(compiled("gated_delta_rule")))  # anew, as a form is kept


def test_a_sweep_whose_reads_are_sums_over_an_axis_has_no_roles() -> None:
    """Those by a head's own vector, of a state that no output reads."""
    r = Recurrence("unlike")
    d, e = r.dims("d e")
    k, v, g, b, u = r.inputs("k", d), r.inputs("v", e), r.decay("g"), r.inputs("b"), normalize(r.parameter("u", d))
    S, n = r.state("S", d, e), r.state("n")
    r.update(S, S.prev - g * u * (S.prev.T * u).T + normalize(k) * v.T)
    r.update(n, n.prev * b**2 / (1 + b**2) + b)
    r.output("o", n.next)
    assert "def backward_sweep" in triton_form(compile_spec(r)).text


def test_a_sweep_with_numbers_of_whole_chunks_has_no_roles() -> None:
    """Weights of a coefficient that may be 0 are of the steps of a chunk, and a chunk beyond the end has none."""
    r = Recurrence("weighed")
    d, e = r.dims("d e")
    (q, k, u), v, g, b = r.inputs("q k u", d), r.inputs("v", e), r.decay("g"), r.inputs("b", domain=(0, 1))
    S = r.state("S", d, e)
    r.update(S, (1 - b) * (S.prev - g * normalize(u) * (S.prev.T * normalize(u)).T) + k * v.T)
    r.output("o", S.next.T * q)
    assert "def forward_sweep" in triton_form(compile_spec(r)).text
