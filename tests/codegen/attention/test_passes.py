"""The compiler of attentions: what it finds, what its gates refuse, and what it says of an energy that doesn't split."""

import dataclasses

import pytest
from shared.attentions import CATALOGUE, compiled, everything, qkv

from chunkform.codegen.attention import gates, pipeline, split
from chunkform.codegen.attention import nonnegative_squares as squares
from chunkform.codegen.attention.derivation import formulas, text
from chunkform.codegen.attention.features_kernel import made_by_kernels
from chunkform.codegen.attention.gates import gate_gradients, gate_lower, gate_split
from chunkform.codegen.attention.lower import lower
from chunkform.codegen.attention.pairs import product_of_averages
from chunkform.codegen.attention.pipeline import compile_attention
from chunkform.codegen.attention.print_maps import print_gradients, print_map
from chunkform.codegen.commands.compile import compile_module
from chunkform.codegen.ir.code import Cast
from chunkform.codegen.ir.code_parts import walk_code
from chunkform.codegen.ir.expr import ONE, ZERO, add, const, mul, walk
from chunkform.errors import GateError, SpecError
from chunkform.runtime.attention.arguments import After
from chunkform.spec.language import Attention, absolute, dot, exp, find, hadamard, log, norm, tanh, total


@pytest.mark.parametrize("name", [a.name for a in everything()])
def test_every_attention_passes_its_gates(name):
    c = compiled(name)
    again = ["split", "gradients"] if c.moved is not None else []
    assert [g.name for g in c.gates] == ["lower", "split", "gradients", *again]
    assert all(g.error_bound < 1e-20 for g in c.gates)


def test_the_split_of_kattention_is_one_score_and_a_column():
    s = compiled("kattention").split
    assert [len(blocks) for blocks in s.scores.values()] == [1] and len(s.columns) == 1 and not s.rows
    assert s.row is ZERO and text(s.tile) == "scalar1 score1_ij + column1_j"


def test_row_terms_stay_out_of_a_softmax_and_in_what_has_none():
    assert text(compiled("kattention_f6").split.row) != "0"
    a, _, _, q, k, v = qkv("rows")
    r = a.queries("r")
    a.exponential(dot(q, k) + r)
    a.output("o", a.average(v))
    assert list(compile_attention(a).split.rows) == ["row1"]


def test_a_product_in_several_terms_is_one_score():
    a, _, _, q, k, v = qkv("series")
    a.linear(1 + dot(q, k) / 3 + dot(q, k) ** 2 / 2)
    a.output("o", a.average(v))
    assert list(compile_attention(a).split.scores) == ["score1"]


def test_factors_between_query_and_key_meet_on_the_dim_of_the_parameters():
    assert compiled("self_attention").split.scores["score1"][0].axes == ("D",)


def test_siblings_differ_by_their_energy_alone():
    first = {n: formulas(compiled(n)) for n in ("kattention_f4", "kattention_f5", "kattention_f6")}
    assert len({x[0] for x in first.values()}) == 3 and len({tuple(x[1:]) for x in first.values()}) == 1


def test_the_matrix_of_keys_that_are_averaged_may_be_on_the_querys_side():
    found = {n: compiled(n).moved for n in CATALOGUE}
    assert {n for n, c in found.items() if c is not None} == {"self_attention"}
    c = found["self_attention"]
    (((part,),),) = (c.split.scores.values(),)
    assert (text(part.query), text(part.key)) == ("K^T Q x_i", "x_j")
    (made,) = made_by_kernels(c.lowered, c.features)
    assert list(made.results) == ["query1_1"] and list(made.matrices) == ["matrix1"]


def test_what_kernels_make_of_features():
    made = {n: made_by_kernels(c.lowered, c.features) for n in CATALOGUE for c in [compiled(n)]}
    found = {n: [(m.side, *m.results) for m in ms] for n, ms in made.items() if ms}
    assert found == {
        "self_attention": [("0j", "query1_1", "key1_1")],
        "kattention": [("0j", "query1_1", "key1_1", "column1")],
        "kattention_f4": [("0j", "query1_1", "key1_1", "column1")],
        "kattention_f5": [("0j", "query1_1", "column1")],
        "kattention_f6": [("0j", "query1_1", "key1_1", "column1", "row")],
    }
    assert made["kattention_f5"][0].same == {"key1_1": "query1_1"}
    more = {a.name: compiled(a.name) for a in everything()}
    names = ("rbf", "two_blocks", "forgetting")
    sides = {n: [m.side for m in made_by_kernels(more[n].lowered, more[n].features)] for n in names}
    assert sides == {"rbf": ["0i", "0j"], "two_blocks": ["0i"], "forgetting": ["0i", "0j"]}


def test_a_vector_that_is_scored_as_it_is_and_by_a_matrix_is_read_once():
    a = Attention("both")
    d = a.dims("D")
    x, y = a.stream("x", d)
    W, b = a.parameters("W", d, d), a.parameters("b", d)
    a.softmax(dot(W * x, y) + dot(x, W * y) + dot(b, y))
    a.output("o", a.average(y))
    c = compile_attention(a)
    (made,) = made_by_kernels(c.lowered, c.features)
    assert [[y.attrs[1] for y in leaves] for leaves in (made.positions, made.parameters)] == [["x_j"], ["W", "b"]]
    compile_module(a)


def test_sums_of_squares_inside_of_functions_are_at_least_zero():
    def split_of(energy):
        a, d, _, q, k, v = qkv("squares")
        a.softmax(energy(q, k, a.parameters("w", d)))
        a.output("o", a.average(v))
        return [x.op for x in walk(compile_attention(a).split.tile) if x.op == "clamped"]

    assert split_of(lambda q, k, w: -norm(q - k)) == ["clamped"]
    assert split_of(lambda q, k, w: -log(1 + dot(hadamard(exp(w), q - k), q - k) / 3)) == ["clamped"]
    assert split_of(lambda q, k, w: -dot(q - k, q - k) / 2) == []  # a softmax doesn't mind an energy just above 0
    assert split_of(lambda q, k, w: log(1 + dot(q, k) ** 2)) == []  # which is not multiplied out
    assert split_of(lambda q, k, w: tanh(dot(hadamard(w, q - k), q - k))) == []  # which may be negative


def test_what_is_taken_for_a_sum_of_squares_and_is_none_is_refused(monkeypatch):
    monkeypatch.setattr(squares, "at_least_zero", lambda p, x: True)
    a, _, _, q, k, v = qkv("wrong")
    a.softmax(tanh(dot(q, k) + 1))
    a.output("o", a.average(v))
    with pytest.raises(GateError, match="split"):
        compile_attention(a)


def test_the_output_that_is_a_product_of_averages_by_a_matrix():
    found = {n: product_of_averages(c.split, c.outputs) for n in CATALOGUE for c in [compiled(n)]}
    assert {n: x for n, x in found.items() if x} == {"self_attention": After("y", "V", True)}
    c = compiled("turned")
    assert product_of_averages(c.split, c.outputs) == After("o", "W", False)


@pytest.mark.parametrize("name", ["o", "values", "key_1", "queried"])
def test_an_output_is_no_feature_whatever_it_is_called(name):
    """Only features that products on tensor cores take, and their cotangents, are in 16 bits."""
    a, _, _, q, k, v = qkv("outputs")
    a.softmax(dot(q, k))
    a.output(name, tanh(a.average(v)) * 2)
    c = compile_attention(a)
    for printed in (print_map(c.lowered, c.outputs), print_gradients(c.lowered, c.outputs, {})):
        casts = [y.dtype for x in printed.lines for y in walk_code(x.value) if isinstance(y, Cast)]
        casts += [y.dtype for x in printed.results.values() for y in walk_code(x) if isinstance(y, Cast)]
        assert "low" not in casts


def test_an_energy_that_does_not_split_names_the_term_and_the_line():
    a, _, _, q, k, v = qkv("manhattan")
    a.softmax(-total(absolute(q - k)))
    a.output("o", a.average(v))
    with pytest.raises(
        SpecError, match=r"test_passes.py:\d+ .*a.softmax.*doesn't split.*the term abs\(.*inside of a sum"
    ):
        compile_attention(a)


def test_an_average_that_does_not_split_is_refused():
    a, _, _, q, k, v = qkv("mixed")
    a.softmax(dot(q, k))
    a.output("o", a.average(exp(dot(q, k)) * v))
    with pytest.raises(SpecError, match="the averaged term doesn't split"):
        compile_attention(a)


# --- corrupted passes are refused ---------------------------------------------------------------------------------------


def test_a_corrupted_lowering_is_refused():
    p = lower(find("kattention")[0])
    with pytest.raises(GateError, match="lower"):
        gate_lower(dataclasses.replace(p, energy=add(p.energy, ONE)))


@pytest.mark.parametrize("what", ["tile", "row", "column", "query", "value"])
def test_a_corrupted_split_is_refused(what):
    s = split.split(lower(find("kattention_f6")[0]))
    if what == "tile":
        s.tile = mul(2, s.tile)
    elif what == "row":
        s.row = ZERO
    elif what == "column":
        s.columns["column1"] = mul(const(3), s.columns["column1"])
    elif what == "query":
        part = s.scores["score1"][0]
        s.scores["score1"] = (dataclasses.replace(part, query=mul(-1, part.query)),)
    else:
        node, axes = s.values["value1"]
        s.values["value1"] = (mul(2, node), axes)
    with pytest.raises(GateError, match="split"):
        gate_split(s)


@pytest.mark.parametrize("what", ["derivative", "feature gradient", "output gradient", "normaliser"])
def test_a_corrupted_gradient_is_refused(what):
    c = compiled("self_attention")
    if what == "derivative":
        x, d = next(iter(c.derivatives.items()))
        c = dataclasses.replace(c, derivatives={**c.derivatives, x: dataclasses.replace(d, factor=mul(2, d.factor))})
    elif what == "feature gradient":
        wrong = {**c.features.gradients, "K": mul(2, c.features.gradients["K"])}
        c = dataclasses.replace(c, features=dataclasses.replace(c.features, gradients=wrong))
    elif what == "output gradient":
        wrong = {**c.outputs.gradients, "V": mul(-1, c.outputs.gradients["V"])}
        c = dataclasses.replace(c, outputs=dataclasses.replace(c.outputs, gradients=wrong))
    else:
        n = c.normaliser
        c = dataclasses.replace(c, normaliser=dataclasses.replace(n, gradient=mul(2, n.gradient)))
    with pytest.raises(GateError, match="gradients"):
        gate_gradients(c)


def test_the_pipeline_runs_each_gate(monkeypatch):
    for name in ("gate_lower", "gate_split", "gate_gradients"):
        called = []
        monkeypatch.setattr(
            pipeline, name, lambda x, called=called, name=name: called.append(x) or getattr(gates, name)(x)
        )
        compile_attention(find("softmax_attention")[0])
        assert called


def test_a_catalogue_file_is_a_dozen_lines():
    from pathlib import Path

    for name in CATALOGUE:
        lines = [x for x in Path(find(name)[0].where.file).read_text().splitlines() if x.strip()]
        assert len(lines) <= 18, name
