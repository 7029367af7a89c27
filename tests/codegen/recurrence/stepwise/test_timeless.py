"""What parameters alone make for each entry of a state: kernels of the recurrent form take it, as it is the same at each step."""

from dataclasses import replace

import pytest
from shared.recurrent_programs import compiled, moving_averages, specs

from chunkform.codegen.ir.code import Name, call
from chunkform.codegen.ir.expr import add, leaf_names, mul
from chunkform.codegen.ir.kernel_ir import Let, Store, added, let
from chunkform.codegen.ir.words import text_of
from chunkform.codegen.recurrence.gates.timeless_gate import gate_timeless
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.stepwise import sequential_triton
from chunkform.codegen.recurrence.stepwise.shared_products import with_shared_products
from chunkform.codegen.recurrence.stepwise.timeless import timeless
from chunkform.errors import GateError
from chunkform.spec.language import Recurrence, diag, exp, hadamard, ones, sigmoid, tanh


def test_steps_are_over_what_parameters_alone_make() -> None:
    found = timeless(compile_spec(moving_averages()))
    assert found is not None
    own = {name: {n for _, n in leaf_names(x)} for name, x in found.made.items()}
    assert sorted(map(sorted, own.values())) == [["a", "b", "c"], ["a", "b", "w"], ["a", "rho"]]
    kinds = {v.name: v.kind for v in found.over.step.variables}
    assert kinds.keys() - own.keys() == {"x", "a", "c"}  # each step reads the parameter a as it is, too
    assert {kinds[n] for n in own} == {"parameter"}
    assert found.gradients.keys() == {"a", "b", "rho", "w"}


def test_kernels_compute_no_function_of_parameters_for_each_entry() -> None:
    text = text_of(sequential_triton(compile_spec(moving_averages())))
    kernels, launchers = text.split("def triton_coefficients(")
    assert "sigmoid(a)" not in kernels and "torch.sigmoid(a)" in launchers
    assert "2.0 * (w)" not in kernels and "drho" not in kernels  # whose gradient follows from what is made of it


def test_one_number_for_each_row_stays_in_the_steps() -> None:
    """Such as a layer's vectors; nor is anything made of sums and products alone."""
    r = Recurrence("rows")
    d, e = r.dims("d e")
    x = r.inputs("x", d)
    a, b = r.parameters("a b", d)
    w = r.parameters("w", d, e)
    h = r.state("h", d, e)
    r.update(h, diag(hadamard(sigmoid(a), exp(-(b**2)))) * tanh(h.prev) + diag(x) * (w + hadamard(w, w)))
    r.output("y", h.next * ones(e))
    assert timeless(compile_spec(r)) is None
    assert timeless(compiled("tanh_layer")) is None  # a state begins with parameters


def test_names_meet_none_of_the_specs() -> None:
    r = Recurrence("named")
    d, e = r.dims("d e")
    x = r.inputs("coefficient", d)
    a = r.parameters("dcoefficient2", d, e)
    h = r.state("coefficient3", d, e)
    r.update(h, hadamard(exp(-hadamard(a, a)), tanh(h.prev)) + diag(x) * sigmoid(a))
    r.output("y", h.next * ones(e))
    found = timeless(compile_spec(r))
    assert found is not None and list(found.made) == ["coefficient4", "coefficient5"]


@pytest.mark.parametrize("what", ["a value", "a gradient", "a step"])
def test_what_is_made_wrongly_is_refused(what: str) -> None:
    c = compile_spec(moving_averages())
    found = timeless(c)
    assert found is not None
    made, gradients, over = dict(found.made), dict(found.gradients), found.over.adjoint
    some = next(iter(made))
    if what == "a value":
        made[some] = mul(2, made[some])
    elif what == "a gradient":
        gradients["b"] = mul(2, gradients["b"])
    else:
        step = over.forward
        over = replace(over, forward=replace(step, updates={n: add(x, x) for n, x in step.updates.items()}))
    with pytest.raises(GateError, match="timeless"):
        gate_timeless(c.adjoint, over, made, gradients)


def test_all_that_there_is_is_gated(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("chunkform.codegen.recurrence.stepwise.timeless.gate_timeless", lambda *x: seen.append(x))
    assert [n for n in specs() if timeless(compiled(n))] == ["moving_averages"] and len(seen) == 1


def test_what_products_have_in_common_is_made_once() -> None:
    a, b, c, x = (Name(n) for n in "abcx")
    body = (
        let("p", a * b * c * 2.0),
        added("s", call("tl.sum", c * a * x, axis=0) - b),
        Store(Name("q") * a * b, x + b * a),
    )
    names = iter(("shared", "shared_2"))
    found = with_shared_products(body, lambda wanted: next(names))
    assert [x.names[0] for x in found if isinstance(x, Let)] == ["shared", "p", "s"]
    assert found[0] == let("shared", a * c)
    assert [x.value.text for x in found[1:]] == ["b * 2.0 * shared", "tl.sum(x * shared, axis=0) - b", "x + b * a"]
    assert found[-1] == body[-1]  # where values are stored is no matter of products
    assert with_shared_products(body[:1], lambda wanted: "") == body[:1]
    squared = with_shared_products((let("p", a * a * b), let("q", a * b * c)), lambda wanted: wanted)
    assert [x.value.text for x in squared if isinstance(x, Let)] == ["a * b", "a * shared", "c * shared"]
