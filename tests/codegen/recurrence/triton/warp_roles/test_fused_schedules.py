"""Schedules of a fused backward with roles: their gate holds them, in any order of roles, and refuses whatever is left out, comes
too early or goes elsewhere."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from shared.triton_errors import compiled

from chunkform.codegen.ir.warp_schedule import (
    Arrive,
    Await,
    Fence,
    Fetch,
    Leave,
    Pass,
    Product,
    Put,
    Role,
    Schedule,
    Send,
    Settle,
    Shared,
    Step,
    WithRoles,
)
from chunkform.codegen.printing.cannot_print import CannotPrint
from chunkform.codegen.printing.gluon_text import gluon_text
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.triton import section, triton_form
from chunkform.codegen.recurrence.triton.kernels.chunk_kernel import Kernel
from chunkform.codegen.recurrence.triton.launch.fused_backward import FusedBackwardHost
from chunkform.codegen.recurrence.triton.plan_passes.scale_reads import simplified
from chunkform.codegen.recurrence.triton.warp_roles.gate import gate_fused_schedule
from chunkform.codegen.recurrence.triton.warp_roles.whole import schedule_of_fused
from chunkform.errors import GateError
from chunkform.spec.language import Recurrence, exp

HAVE = ["lightning_attention", "retention", "linear_attention"]
Made = tuple[Kernel, Schedule]


def fused_kernel(c: Compiled) -> Kernel:
    """The kernel of an op's fused backward."""
    assert c.backward is not None
    t = section.fused_backward_of(c)
    assert t is not None
    host = FusedBackwardHost(c, simplified(c.backward), section.cuttable(c), True, t, "triton")
    host.function_ir()
    return next(k for k in host.kernels if isinstance(k, Kernel) and k.whole)


@pytest.fixture(scope="module")
def made() -> dict[str, Made]:
    kernels = {name: fused_kernel(compiled(name)) for name in HAVE}
    return {name: (k, schedule_of_fused(k)) for name, k in kernels.items()}


def refused(k: Kernel, s: Schedule) -> bool:
    try:
        gate_fused_schedule(k, s, orders=1)
    except (GateError, ValueError, IndexError):  # or shapes differ
        return True
    return False


def edited(s: Schedule, role: Role, each: tuple[Step, ...]) -> Schedule:
    return replace(s, roles=tuple(replace(r, each=each) if r is role else r for r in s.roles))


def with_one_step_less(s: Schedule) -> Iterator[tuple[str, Schedule]]:
    for role in s.roles:
        for n, x in enumerate(role.each):
            yield f"{role.name}: {x}", edited(s, role, (*role.each[:n], *role.each[n + 1 :]))
        for n, x in enumerate(role.after):
            less = replace(role, after=(*role.after[:n], *role.after[n + 1 :]))
            yield f"{role.name}: {x}", replace(s, roles=tuple(less if r is role else r for r in s.roles))


@pytest.mark.parametrize("name", HAVE)
def test_roles_leave_what_the_plan_says_in_many_orders(made: dict[str, Made], name: str) -> None:
    gate_fused_schedule(*made[name], orders=5)


def test_each_step_is_needed(made: dict[str, Made]) -> None:
    k, s = made["lightning_attention"]
    assert [what for what, less in with_one_step_less(s) if not refused(k, less)] == []


def test_a_fence_comes_right_behind_what_is_stored(made: dict[str, Made]) -> None:
    """A warp that waits for all others before its fence would leave them to read what no fence is behind."""
    k, s = made["lightning_attention"]
    consumer = s.roles[0]
    fences = [n for n, x in enumerate(consumer.each) if isinstance(x, Fence)]
    assert fences and all(isinstance(consumer.each[n - 1], Put) for n in fences)
    for n in fences:
        later = (*consumer.each[:n], consumer.each[n + 1], consumer.each[n], *consumer.each[n + 2 :])
        assert refused(k, edited(s, consumer, later)), consumer.each[n + 1]


def test_nobody_is_done_with_a_stage_too_early(made: dict[str, Made]) -> None:
    """Neither with what lies by steps, nor with the state, which has a stage of its own."""
    k, s = made["lightning_attention"]
    for role in s.roles:
        for n, x in enumerate(role.each):
            if isinstance(x, Arrive):
                before = [m for m in range(n) if not isinstance(role.each[m], Send)][-1]
                moved = (*role.each[:before], x, *role.each[before:n], *role.each[n + 1 :])
                assert refused(k, edited(s, role, moved)) or isinstance(role.each[before], Put | Fence), role.each[
                    before
                ]


def test_barriers_take_as_many_arrivals_as_there_are(made: dict[str, Made]) -> None:
    k, s = made["lightning_attention"]
    for b in s.barriers:
        for other in (replace(b, arrivals=b.arrivals + 1), replace(b, arrivals=b.arrivals - 1), replace(b, readers=2)):
            assert refused(k, replace(s, barriers=tuple(other if y is b else y for y in s.barriers)))


def test_rings_have_stages_of_their_own(made: dict[str, Made]) -> None:
    """With more stages than one for the state it is right as well; what it lies in is printed as they say."""
    k, s = made["lightning_attention"]
    steps, state = s.barriers
    assert steps.stages is None and state.stages == 1
    more = replace(s, barriers=(steps, replace(state, stages=None)))
    gate_fused_schedule(k, more)
    one, two = (gluon_text(WithRoles(k.function, x)) for x in (s, more))
    assert "state_ready.index(0), (n & 1)" in one and "S_ring.index(stage)" not in one
    assert "state_ready.index(stage), phase" in two and "S_ring.index(0)" not in two


def test_outputs_leave_through_one_buffer(made: dict[str, Made]) -> None:
    """Where the copy engine must have read one before the next is put there; each goes where it belongs."""
    k, s = made["lightning_attention"]
    consumer = s.roles[0]
    sends = [(n, x) for n, x in enumerate(consumer.each) if isinstance(x, Send)]
    assert len(sends) == 3 and len({x.buffer for _, x in sends}) == 1 and s.alike == ("block_d", "block_e")
    (n, first), (m, second) = sends[0], sends[2]
    for at, x in ((n, replace(first, tile=second.tile)), (m, replace(second, tile=first.tile))):
        assert refused(k, edited(s, consumer, (*consumer.each[:at], x, *consumer.each[at + 1 :])))


def test_one_buffer_is_an_operand_as_it_is_and_transposed(made: dict[str, Made]) -> None:
    """That of the state's gradient, and of a matrix over steps; with one of these views the other way round it is refused."""
    k, s = made["lightning_attention"]
    consumer = s.roles[0]
    views: dict[str, set[bool]] = {}
    for n, x in enumerate(consumer.each):
        if not isinstance(x, Product):
            continue
        for side in ("left", "right"):
            y = getattr(x, side)
            if isinstance(y, Shared):
                views.setdefault(y.place, set()).add(y.turned)
                other = replace(x, **{side: replace(y, turned=not y.turned)})
                assert refused(k, edited(s, consumer, (*consumer.each[:n], other, *consumer.each[n + 1 :])))
    assert [b.name for b in s.buffers if views.get(b.name) == {False, True}] == ["dS_2_buffer", "pairs_buffer"]


def test_sums_are_of_what_they_say(made: dict[str, Made]) -> None:
    """Functions of the runtime that leave them are run as they stand: with other tiles, places or bounds they are refused."""
    k, s = made["lightning_attention"]
    consumer = s.roles[0]
    found = [(n, x.call) for n, x in enumerate(consumer.each) if isinstance(x, Leave)]
    assert [x.function for _, x in found] == [
        "store_state_products",
        "store_pair_sums",
        "store_row_sums",
        "store_row_sums",
    ]
    (n, own), (_, other) = found[2:]
    for m in range(len(own.arguments)):
        if own.arguments[m] != other.arguments[m]:
            changed = replace(own, arguments=(*own.arguments[:m], other.arguments[m], *own.arguments[m + 1 :]))
            assert refused(k, edited(s, consumer, (*consumer.each[:n], Leave(changed), *consumer.each[n + 1 :])))


def test_chunks_are_fetched_from_the_last_to_the_first(made: dict[str, Made]) -> None:
    k, s = made["lightning_attention"]
    forwards = tuple(replace(x, value=x.value.right) if getattr(x, "names", ()) == ("c",) else x for x in s.scalars)
    assert forwards != s.scalars and refused(k, replace(s, scalars=forwards))


def test_products_are_waited_for(made: dict[str, Made]) -> None:
    k, s = made["linear_attention"]
    consumer = s.roles[0]
    for n, x in enumerate(consumer.each):
        if isinstance(x, Settle):
            later = replace(x, outstanding=x.outstanding + 1)
            assert refused(k, edited(s, consumer, (*consumer.each[:n], later, *consumer.each[n + 1 :])))


def test_few_products_have_their_results_in_registers_at_once(made: dict[str, Made]) -> None:
    """Beside the state's gradient no more than two of steps by channels are under way; what the state becomes begins last."""
    for k, s in made.values():
        under_way: list[str] = []
        begun: list[str] = []
        for x in s.roles[0].each:
            match x:
                case Product(name=name):
                    under_way.append(name)
                    begun.append(name)
                case Settle(outstanding=count):
                    under_way = under_way[len(under_way) - count :]
            assert len(under_way) <= 3, k.name
        passed = [x.value for x in s.roles[0].each if isinstance(x, Pass)]
        assert begun[-1:] == passed


def drawn(write: object = None, output: object = None) -> Compiled:
    r = Recurrence("drawn")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    b = r.inputs("b")
    lam, scale = r.decay("lam"), r.constant("scale")
    S = r.state("S", d, e)
    writes = {
        None: k * v.T,
        "twice": 2 * k * v.T,
        "scaled": scale * k * v.T,
        "a function": exp(k) * v.T,
        "b": b * k * v.T,
    }
    r.update(S, lam * S.prev + writes[write])
    r.output(
        "o", S.prev.T * q if output == "before" else scale * (S.next.T * q) if output == "scaled" else S.next.T * q
    )
    return compile_spec(r)


@pytest.mark.parametrize(
    ("write", "output"), [("twice", None), ("scaled", None), (None, "before"), (None, "scaled"), ("a function", None)]
)
def test_the_gate_refuses_no_schedule_that_is_made(write: str | None, output: str | None) -> None:
    k = fused_kernel(drawn(write, output))
    try:
        s = schedule_of_fused(k)
    except CannotPrint:
        pytest.skip("there are no roles for it")
    gate_fused_schedule(k, s)


def test_it_is_printed_beside_the_one_without() -> None:
    """A call may launch either."""
    text = triton_form(compiled("lightning_attention")).text
    assert text.count("def backward_whole_roles(") == text.count("def backward_whole(") == 1
    assert "launch_fused_with_roles(" in text


def test_a_refused_schedule_is_the_compilers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(k: Kernel, s: Schedule) -> None:
        raise GateError(f"{k.name}: roles wait for each other")

    monkeypatch.setattr(section, "gate_fused_schedule", refuse)
    with pytest.raises(GateError, match="wait for each other"):
        triton_form(replace(compiled("linear_attention")))  # anew, as a form is kept


def test_loader_and_consumer_agree_on_what_is_fetched(made: dict[str, Made]) -> None:
    k, s = made["retention"]
    loader = s.roles[1]
    for n, x in enumerate(loader.each):
        if isinstance(x, Fetch):
            for ring in x.rings:
                fewer = replace(x, rings=tuple(y for y in x.rings if y != ring))
                assert refused(k, edited(s, loader, (*loader.each[:n], fewer, *loader.each[n + 1 :]))), ring
        if isinstance(x, Await):
            other = replace(x, ready=not x.ready)
            assert refused(k, edited(s, loader, (*loader.each[:n], other, *loader.each[n + 1 :])))
