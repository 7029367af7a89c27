"""A step of several corrections as steps of one each: which are, and that the gate finds what is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chunkform.codegen.backends import triton_section
from chunkform.codegen.cost import Sizes, backward_cost, forward_cost
from chunkform.codegen.gates import gate_substeps
from chunkform.codegen.ir import add, mul
from chunkform.codegen.pipeline import compile_spec
from chunkform.codegen.predict import predict
from chunkform.codegen.substeps import stream_name
from chunkform.errors import GateError
from chunkform.runtime.library import _saved_size
from chunkform.runtime.packed import block_count
from chunkform.spec.language import Recurrence, diag, find, load, normalize

SPECS = Path(__file__).parent / "specs"


def spec(name: str) -> Recurrence:
    for path in SPECS.glob("*.py"):
        for r in load(path) if f'"{name}"' in path.read_text() else ():
            if r.name == name:
                return r
    return find(name)[0]


def product(count: int, later: bool = False, channels: bool = False) -> Recurrence:
    """A delta rule of so many corrections a step, the last of which reads what was before the step if it is `later`."""
    r = Recurrence("some_product")
    d, e = r.dims("d e")
    q = r.inputs("q", d)
    g = r.decay("g", d) if channels else r.decay("g")
    S = r.state("S", d, e)
    now = r.let("s0", diag(g) * S.prev if channels else g * S.prev)
    for n in range(1, count + 1):
        k, v, b = r.inputs(f"k{n}", d), r.inputs(f"v{n}", e), r.inputs(f"b{n}")
        x = r.let(f"x{n}", normalize(k))
        read = S.prev if later and n == count else now
        now = r.let(f"s{n}", now + b * x * (v - read.T * x).T)
    r.update(S, now)
    r.output("o", S.next.T * q)
    return r


@pytest.mark.parametrize(
    ("name", "count", "variables"),
    [
        ("delta_product", 2, "k v b q1"),
        ("gated_delta_product", 2, "k v b g q1"),
        ("three_corrections", 3, "k v g q1"),
        ("product_of_other_keys", 2, "k v l g q1"),
    ],
)
def test_several_corrections_are_substeps(name: str, count: int, variables: str) -> None:
    c = compile_spec(spec(name))
    assert c.substeps is not None and c.substeps.count == count
    assert [v.name for v in c.substeps.step.variables] == variables.split()
    assert "substeps" in [g.name for g in c.gates]
    assert c.substep is not None and len(c.substep.forward.form.write_leaves()) == 1
    section = triton_section(c)
    assert section.stepwise is None and "\ndef substep_forward(" in section.text


def test_any_number_of_them() -> None:
    for count, channels in ((2, True), (4, False)):
        c = compile_spec(product(count, channels=channels))
        assert c.substeps is not None and c.substeps.count == count
        saved = triton_section(c).saved
        assert saved and all({f"{count} T", f"{count} T blocks"} & set(dims) for dims, _ in saved.values())


@pytest.mark.parametrize(
    "name", ["gated_delta_rule", "kimi_delta_attention", "rwkv7", "stacked", "mlstm", "late_decay"]
)
def test_one_correction_or_several_states_are_none(name: str) -> None:
    assert compile_spec(spec(name)).substeps is None


def test_corrections_of_the_same_state_are_none() -> None:
    c = compile_spec(product(2, later=True))
    assert c.substeps is None and len(c.forward.form.write_leaves()) == 2


@pytest.mark.parametrize("wrong", ["stream", "output", "gradient"])
def test_the_gate_finds_what_is_wrong(wrong: str) -> None:
    c = compile_spec(spec("gated_delta_product"))
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
    assert both.flops == 2 * one.flops and both.bytes > 2 * one.bytes and both.floor < 2 * one.floor
    assert backward_cost(c, sizes).bytes > 2 * backward_cost(c.substep, sizes).bytes
    assert predict(c).forward.computing == pytest.approx(2 * predict(c.substep).forward.computing, rel=0.01)


def test_sizes_of_what_substeps_save() -> None:
    sizes = {"B": 1, "T": 100, "d": 7}
    assert [_saved_size(x, sizes, None) for x in ("d", "T", "2 T", "T blocks")] == [7, 100, 200, block_count(100)]
    assert _saved_size("3 T blocks", sizes, 4) == block_count(300, 4)
