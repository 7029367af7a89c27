"""A step of several corrections as steps of one each: which are, and that the gate finds what is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from shared.triton_errors import compiled

from chunkform.codegen.ir.expr import add, mul, walk
from chunkform.codegen.recurrence.backends import triton_section
from chunkform.codegen.recurrence.chunkwise.cost import Sizes
from chunkform.codegen.recurrence.compiled_cost import backward_cost, forward_cost
from chunkform.codegen.recurrence.explain import explanation
from chunkform.codegen.recurrence.gates.gates import gate_substeps
from chunkform.codegen.recurrence.normal_form.substeps import stream_name
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.predict import predict
from chunkform.errors import GateError
from chunkform.runtime.launch.varlen import interval_count
from chunkform.runtime.op.traced import saved_size
from chunkform.spec.language import Recurrence, diag, normalize


def product(
    count: int, later: bool = False, decay: str = "", coefficient: bool = False, state: str = "S", fade: bool = False
) -> Recurrence:
    """A delta rule of so many corrections a step: the last one reads what was before the step if it is `later`; with a decay over
    a dim; reads with a `coefficient` of their own; an output that reads the state before it comes to `fade`."""
    r = Recurrence("some_product")
    d, e = r.dims("d e")
    q, c = r.inputs("q", d), r.inputs("c") if coefficient else 1
    g = r.decay("g", *([{"d": d, "e": e}[decay]] if decay else []))
    h = r.decay("h") if fade else 1
    S = r.state(state, d, e)
    now = diag(g) * S.prev if decay == "d" else S.prev * diag(g) if decay == "e" else g * S.prev
    for n in range(1, count + 1):
        k, v, b = r.inputs(f"k{n}", d), r.inputs(f"v{n}", e), r.inputs(f"b{n}")
        x = r.let(f"x{n}", normalize(k))
        read = S.prev if later and n == count else now
        now = r.let(f"s{n}", now + b * x * (v - c * read.T * x).T)
    r.update(S, h * now if fade else now)
    r.output("o", (now if fade else S.next).T * q)
    return r


@pytest.mark.parametrize(
    ("name", "count", "variables"),
    [
        ("delta_product", 2, "k v b q1"),
        ("three_corrections", 3, "k v g q1"),
        ("channel_delta_product", 2, "k v b g q1"),
        *(
            pytest.param(name, 2, names, marks=pytest.mark.long)
            for name, names in (("gated_delta_product", "k v b g q1"), ("product_of_other_keys", "k v l g q1"))
        ),
    ],
)
def test_several_corrections_are_substeps(name: str, count: int, variables: str) -> None:
    c = compiled(name)
    assert c.substeps is not None and c.substeps.count == count
    assert [v.name for v in c.substeps.step.variables] == variables.split()
    assert "substeps" in [g.name for g in c.gates]
    assert c.substep is not None and len(c.substep.forward.form.write_leaves()) == 1
    section = triton_section(c)
    assert section.stepwise is None and "\ndef substep_forward(" in section.text


def test_any_number_of_them() -> None:
    for count, decay in ((2, "d"), (4, "")):
        c = compile_spec(product(count, decay=decay))
        assert c.substeps is not None and c.substeps.count == count
        saved = triton_section(c).saved
        assert saved and all({f"{count} T", f"{count} T intervals"} & set(dims) for dims, _ in saved.values())


def test_corrections_may_share_what_is_made_of_one_input(recwarn: pytest.WarningsRecorder) -> None:
    """Their products are large numbers in the gate's field, beyond what a machine integer holds."""
    r = Recurrence("shared_rate")
    d, e = r.dims("d e")
    q, g, b = r.inputs("q", d), r.decay("g"), r.inputs("b")
    S = r.state("S", d, e)
    now = g * S.prev
    for n in range(1, 4):
        k, v = r.inputs(f"k{n}", d), r.inputs(f"v{n}", e)
        now = r.let(f"s{n}", now + 2 * b * k * (v - now.T * k).T)
    r.update(S, now)
    r.output("o", S.next.T * q)
    found = compile_spec(r)
    assert found.substeps is not None and found.substeps.count == 3
    assert not recwarn.list


@pytest.mark.parametrize(
    "name", ["gated_delta_rule", "kimi_delta_attention", "rwkv7", "stacked", "mlstm", "late_decay"]
)
def test_one_correction_or_several_states_are_none(name: str) -> None:
    assert compiled(name).substeps is None


@pytest.mark.parametrize("other", [{"later": True}, {"decay": "e"}, {"fade": True}], ids=lambda x: next(iter(x)))
def test_what_comes_apart_in_no_substeps_or_only_by_a_quotient_has_none(other: dict[str, Any]) -> None:
    """Corrections of the same state; a triangular system for each column; the state before a decay, which may be zero."""
    c = compile_spec(product(2, **other))
    assert c.substeps is None and len(c.forward.form.write_leaves()) == 2
    assert explanation(c)["substeps"] == 1


def test_nothing_is_divided_by_what_may_be_zero() -> None:
    parts = compile_spec(product(2, coefficient=True)).substeps
    assert parts is not None and [v.name for v in parts.step.variables] == "k v l g q1".split()
    powers = {x for y in parts.streams.outputs.values() for x in walk(y) if x.op == "pow" and x.attrs[0] < 0}
    assert powers and all(x.args[0].op == "add" for x in powers)  # of the norms of keys, to which something was added


def test_a_state_may_be_called_as_a_stream_is() -> None:
    c = compile_spec(product(2, state="k"))
    assert c.substeps is not None and "k" not in [v.name for v in c.substeps.step.variables]


@pytest.mark.parametrize("wrong", ["stream", "output", "gradient"])
def test_the_gate_finds_what_is_wrong(wrong: str) -> None:
    c = compiled("gated_delta_product")
    p = c.substeps
    if wrong == "stream":
        outputs = dict(p.streams.outputs)
        outputs[stream_name("v", 0)], outputs[stream_name("v", 1)] = (outputs[stream_name("v", n)] for n in (1, 0))
        p = replace(p, streams=replace(p.streams, outputs=outputs))
    elif wrong == "output":
        outputs = {n: mul(2, x) for n, x in p.step.outputs.items()}
        p = replace(p, step=replace(p.step, outputs=outputs))
    else:
        p = replace(p)
        p.__dict__["gradients"] = {n: add(x, x) if n == "da" else x for n, x in p.gradients.items()}
    with pytest.raises(GateError, match="substeps"):
        gate_substeps(c.adjoint, p)


def test_costs_count_all_substeps() -> None:
    sizes = Sizes({"d": 64, "e": 64}, 64)
    c = compile_spec(product(2))
    one, both = forward_cost(c.substep, sizes), forward_cost(c, sizes)
    assert both.flops == 2 * one.flops and both.bytes > 2 * one.bytes and both.lower_bound < 2 * one.lower_bound
    assert backward_cost(c, sizes).bytes > 2 * backward_cost(c.substep, sizes).bytes
    assert predict(c).forward.computing == pytest.approx(2 * predict(c.substep).forward.computing, rel=0.01)


def test_sizes_of_what_substeps_save() -> None:
    sizes = {"B": 1, "T": 100, "d": 7}
    assert [saved_size(x, sizes, None) for x in ("d", "T", "2 T", "T intervals")] == [7, 100, 200, interval_count(100)]
    assert saved_size("3 T intervals", sizes, 4) == interval_count(300, 4)
