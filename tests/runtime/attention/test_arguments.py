"""Bad declarations and bad arguments get one clear error."""

import ast
import builtins
import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from shared.attentions import everything

from chunkform.codegen.attention.emit import emit
from chunkform.codegen.attention.pipeline import compile_attention
from chunkform.codegen.commands.compile import compile_module
from chunkform.errors import ArgumentError, BackendError, DimensionError, NameError_, SpecError
from chunkform.generated import kattention, ked, rotary_attention, softmax_attention
from chunkform.spec.language import Attention, Program, dot

X = torch.randn(1, 5, 2, 4)
Q = torch.randn(2, 3, 4)


def test_the_plain_call_works():
    assert softmax_attention(X, X, X).shape == X.shape
    assert kattention(X, Q, Q, torch.zeros(2, 3)).shape == X.shape


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: softmax_attention(X[0], X, X), r"q must have 4 axes \[B, T, H, D\], got the shape \[5, 2, 4\]"),
        (lambda: softmax_attention(X, X[..., :3], X), r"k has D = 3, but q has D = 4"),
        (lambda: softmax_attention(X, X, X[:, :4]), r"v has S = 4, but k has S = 5"),
        (lambda: softmax_attention(X.int(), X, X), "q must be float32, bfloat16, float16 or float64, got int32"),
        (lambda: softmax_attention(X.to_sparse(), X, X), "q must be a dense tensor, got the layout torch.sparse_coo"),
        (lambda: softmax_attention(X, X, None), r"v must be a tensor \[B, S, H, E\], got NoneType"),
        (
            lambda: softmax_attention(X[:, :, :1].expand(1, 5, 3, 4), X, X),
            "k has H = 2, but q has H = 3, which isn't a multiple of it",
        ),
        (
            lambda: softmax_attention(X, X[:, :, :0], X),
            "k has H = 0, but q has H = 2, which isn't a multiple of it",
        ),
        (lambda: softmax_attention(X, X, X, output_lse="yes"), "output_lse must be True or False, got 'yes'"),
        (lambda: softmax_attention(X, X, X, deterministic=1), "deterministic must be True or False, got 1"),
        (lambda: softmax_attention(X, X, X, scale=0.0), "scale must be above 0, got 0.0"),
        (lambda: softmax_attention(X, X, X, scale=torch.tensor([1.0, -1.0])), "scale must be above 0 in every head"),
        (lambda: softmax_attention(X, X, X, scale="2"), r"scale must be a tensor \[H\] or a number, got '2'"),
        (lambda: softmax_attention(X, X, X, causal=1), "causal must be True or False, got 1"),
        (
            lambda: kattention(X[:, :, :1].expand(1, 5, 3, 4), Q, Q, torch.zeros(3, 3)),
            "Q has H = 2, but x has H = 3, which isn't a multiple of it",
        ),
        (lambda: kattention(X, Q, Q, torch.zeros(2, 3), beta=-1), "beta must be above 0, got -1"),
        (lambda: kattention(X, Q, Q, torch.zeros(2, 3), backend="cuda"), "backend must be 'torch', 'triton' or None"),
        (
            lambda: rotary_attention(X[..., :3], X[..., :3], X),
            r"q has D = 3, but must have an even D, whose halves are turned; q must be \[B, T, H, D\], got \[1, 5, 2, 3\]",
        ),
        (lambda: ked(X, torch.zeros(2, 3, 5), Q, Q), r"mu has E = 5, but x has E = 4; mu must be \[H, M, E\]"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


@pytest.mark.parametrize("torch_knows", [True, False])
def test_a_temperature_that_became_negative_is_seen(torch_knows):
    array = np.ones(2, np.float32)
    beta = torch.from_numpy(array)
    kattention(X, Q, Q, torch.zeros(2, 3), beta)
    (beta if torch_knows else array)[0] = -1.0
    with pytest.raises(ArgumentError, match="beta must be above 0"):
        kattention(X, Q, Q, torch.zeros(2, 3), beta)


def test_parameters_may_have_fewer_heads():
    """As those of a recurrence may; the heads of a group share one, and their gradients are summed."""
    x = torch.randn(2, 5, 4, 4, dtype=torch.float64)
    few = [torch.randn(n, *shape, dtype=torch.float64) for n, shape in ((1, (3, 4)), (2, (3, 4)), (4, (3,)))]
    beta = torch.rand(2, dtype=torch.float64) + 0.5

    def gradients(spread, **options):
        given = [y.clone().requires_grad_() for y in (x, *few, beta)]
        q, *rest = given
        y = kattention(q, *(y.repeat_interleave(4 // len(y), 0) if spread else y for y in rest), **options)
        return y, *torch.autograd.grad(y.sin().sum(), given)

    for options in ({}, {"deterministic": True}):
        torch.testing.assert_close(gradients(False, **options), gradients(True, **options))
    f = torch.func.grad(lambda *given: kattention(*given).sin().sum(), (1, 2, 4))
    torch.testing.assert_close(f(x, *few, beta), gradients(True)[2:4] + gradients(True)[5:])
    stacked = [torch.stack((y, 2 * y)) for y in (x, *few, beta)]
    torch.testing.assert_close(torch.vmap(kattention)(*stacked)[1], kattention(*(y[1] for y in stacked)))


def test_a_parameter_may_have_the_most_heads():
    y = kattention(X[:, :, :1], Q, Q, torch.zeros(2, 3))
    torch.testing.assert_close(y, kattention(X[:, :, :1].expand(1, 5, 2, 4), Q, Q, torch.zeros(2, 3)))


def test_a_number_of_each_position_may_be_wider():
    """As an input of a recurrence may: the mask of a sequence in bfloat16 doesn't make products of float32."""
    a, _, q, k = attention()
    m = a.keys("m")
    a.softmax(dot(q, k) + m)
    a.output("o", a.average(k))
    op = compile_module(a).mine
    q, k = torch.randn(2, 1, 9, 2, 4)
    m = -torch.rand(1, 9, 2) / 3
    low = [x.bfloat16().requires_grad_() for x in (q, k)]
    mask = m.clone().requires_grad_()
    o = op(*low, mask)
    assert o.dtype == torch.bfloat16
    dq, dk, dm = torch.autograd.grad(o.float().sin().sum(), (*low, mask))
    assert [x.dtype for x in (dq, dk, dm)] == [torch.bfloat16, torch.bfloat16, torch.float32]
    exact = op(*(x.detach().double() for x in low), m.double())
    assert (o.double() - exact).norm() < 5e-3 * exact.norm()


def test_numbers_of_numpy_are_numbers():
    for kind in (np.float32, np.float64, np.int64, Fraction):
        assert torch.equal(softmax_attention(X, X, X, scale=kind(2)), softmax_attention(X, X, X, scale=2.0))
    a, _, q, k = attention()
    a.softmax(a.constant("c", 1) * dot(q, k))
    a.output("o", a.average(k))
    op = compile_module(a).mine
    assert torch.equal(op(X, X, c=np.float32(0.5)), op(X, X, c=0.5))
    with pytest.raises(ArgumentError, match="c must be a finite number, got True"):
        op(X, X, c=True)


def test_the_triton_backend_is_refused_where_it_cannot_run(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendError, match="needs CUDA tensors"):
        softmax_attention(X, X, X, backend="triton")
    with pytest.raises(BackendError, match="float64 needs backend='torch'"):
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        softmax_attention(X.double(), X, X, backend="triton")


def attention():
    a = Attention("mine")
    d = a.dims("D")
    return a, d, a.queries("q", d), a.keys("k", d)


def test_bad_declarations():
    a, d, q, k = attention()
    with pytest.raises(DimensionError, match=r"the energy must be a scalar, got q_i \(D x 1\)"):
        a.softmax(q)
    with pytest.raises(SpecError, match="beta must be above 0, got -1"):
        a.softmax(dot(q, k), -1)
    with pytest.raises(NameError_, match="'q' is used twice in mine"):
        a.keys("q", d)
    with pytest.raises(NameError_, match="'B' is an axis of every op"):
        a.dims("B")
    with pytest.raises(SpecError, match="mine has no energy"):
        a.validate()
    a.softmax(dot(q, k))
    with pytest.raises(SpecError, match=r"the energy of mine is declared twice, first at test_arguments.py:\d+"):
        a.softmax(dot(q, k))
    with pytest.raises(SpecError, match="mine has no output"):
        a.validate()
    with pytest.raises(SpecError, match=r"the output o uses k_j, which has no value there: average it"):
        a.output("o", k)
    with pytest.raises(SpecError, match="uses an average, which is known after the energy only"):
        a.average(a.average(k))


@pytest.mark.parametrize(
    ("energy", "averaged", "said"),
    [
        (lambda q, k: 0, lambda q, k: k, "the energy of mine is the same for all keys"),
        (lambda q, k: dot(q, q), lambda q, k: k, "the energy of mine is the same for all keys"),
        (lambda q, k: dot(q, k), lambda q, k: 3, "mine averages nothing of its keys"),
        (lambda q, k: dot(q, k), lambda q, k: q, "mine averages nothing of its keys"),
    ],
)
def test_what_is_the_same_for_all_keys_is_told(energy, averaged, said):
    a, _, q, k = attention()
    a.softmax(energy(q, k))
    a.output("o", a.average(averaged(q, k)))
    with pytest.raises(SpecError, match=said):
        compile_attention(a)


def test_outputs_without_averages_are_told():
    a, _, q, k = attention()
    a.softmax(dot(q, k))
    a.output("o", 3 * q)
    with pytest.raises(SpecError, match="mine averages nothing of its keys"):
        compile_attention(a)


@pytest.mark.parametrize("name", "mass value1 t_0 i low needs combine torch OP causal".split())
def test_names_of_generated_code_are_reserved(name):
    a, *_ = attention()
    with pytest.raises(NameError_, match=f"the name '{name}' is reserved"):
        a.parameters(name)


def test_names_that_would_be_one_in_generated_code():
    a, _, q, k = attention()
    a.parameters("do BD2")
    a.softmax(dot(q, k))
    with pytest.raises(NameError_, match=r"the output 'o' and the parameter 'do' of mine would both be called do"):
        a.output("o", a.average(k))
    with pytest.raises(NameError_, match=r"the parameter 'q_i' and the query 'q' of mine would both be called q_i"):
        a.parameters("q_i")
    with pytest.raises(NameError_, match=r"the dim 'D2' and the parameter 'BD2' of mine would both be called BD2"):
        a.dims("D2")


@pytest.mark.parametrize("name", ["combine", "OP", "triton", "energy"])
def test_an_op_does_not_take_the_place_of_what_its_file_calls(name):
    with pytest.raises(NameError_, match=rf"test_arguments.py:\d+.*the name '{name}' is reserved"):
        emit(compile_attention(declared(name)), tidy=False)


def declared(name):
    a = Attention(name)
    d = a.dims("D")
    q, k, x = a.queries("q", d), a.keys("k", d), a.queries("x", d)
    a.softmax(dot(q, k))
    a.output("o", a.average(k) - x)
    return a


def test_every_name_in_functions_that_read_arguments_is_reserved():
    a = next(a for a in everything() if a.name == "kattention_f6")
    c = compile_attention(a)
    users = {v.name for v in (*a.variables, *c.lowered.variables)} | {d.name for d in a.dim_list}
    derived = re.compile(rf"(B|size_)?({'|'.join(users)})(_[pbth12])?|dy")
    made = re.compile(r"(row|\w+\d)_[pbth]")  # by a kernel, of a result
    plain = Attention("plain")
    for f in ast.parse(emit(c, tidy=False)).body:
        names = names_in(f) if isinstance(f, ast.FunctionDef) else set()
        for name in (names if names & {"given", "EACH"} else set()) - {"op", a.name, *dir(builtins)}:
            if not derived.fullmatch(name) and not made.fullmatch(name):
                with pytest.raises(NameError_, match="is reserved"):
                    plain.parameters(name)


def names_in(f):
    return {x.id for x in ast.walk(f) if isinstance(x, ast.Name)} | {
        x.arg for x in ast.walk(f) if isinstance(x, ast.arg)
    }


def test_what_recurrences_have_and_attentions_do_not():
    with pytest.raises(SpecError, match=r"an attention has no inputs: write a\.queries and a\.keys"):
        Attention("mine").inputs("q")
    with pytest.raises(SpecError, match="softmax_attention is given nothing; it takes k, q, v"):
        Program("two").apply("softmax_attention")
    with pytest.raises(SpecError, match="got 'mesa', which is of the kind program"):
        Program("two").apply("mesa")


def test_an_energy_without_a_value_is_refused_with_its_line():
    a, _, q, k = attention()
    i, j = a.positions()
    a.softmax(dot(q, k) + 1 / (i - j))
    a.output("o", a.average(k))
    with pytest.raises(SpecError, match=r"test_arguments.py:\d+.*mine has no value .* \(a quotient by 0\)"):
        compile_attention(a)


def test_beta_belongs_to_a_head():
    a, _, q, k = attention()
    with pytest.raises(SpecError, match="beta is one number a head, but r_i belongs to a position"):
        a.softmax(dot(q, k), a.queries("r"))


def test_fixed_queries_are_the_only_queries():
    a, d, _, k = attention()
    mu = a.fixed_queries("mu", a.dims("M"), d)
    a.softmax(dot(mu, k))
    a.output("o", a.average(k))
    with pytest.raises(SpecError, match="mine has fixed queries, and so no others"):
        a.validate()


def test_a_symbol_of_another_attention_is_unknown():
    a, _, q, k = attention()
    other = Attention("other").parameters("gain")
    with pytest.raises(NameError_, match="uses gain, which is not declared in mine"):
        a.softmax(other * dot(q, k))
