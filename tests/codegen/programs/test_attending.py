"""Attentions inside programs: what they are given, where they are found, and what no state can hold."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console
from shared.program_specs import built

from chunkform.codegen.programs.explain import show
from chunkform.codegen.programs.pipeline import compile_program
from chunkform.errors import ArgumentError, LoadError, NameError_, SpecError
from chunkform.spec.language import Attention, Program, dot, tanh
from chunkform.spec.language.load import load


class Parts:
    """A program's inputs."""

    def __init__(self):
        self.p = p = Program("tried")
        self.d, self.e = p.dims("d e")
        self.q, self.u = p.inputs("q u", self.d)
        self.v = p.inputs("v", self.e)
        self.b = p.inputs("b")


def attention():
    a = Attention("biased")
    d, e = a.dims("D E")
    q, k, v = a.queries("q", d), a.keys("k", d), a.keys("v", e)
    c_i, c_j = a.stream("c")
    beta = a.inverse_temperature("beta", default=1)
    a.softmax(dot(q, k) + c_i - c_j, beta)
    a.output("o", a.average(v))
    return a


def test_apply_checks_what_an_attention_is_given():
    t = Parts()
    with pytest.raises(NameError_, match="biased is given k, q, v; it takes c, k, q, v, and may be given beta"):
        t.p.apply(attention(), q=t.q, k=t.u, v=t.v)
    with pytest.raises(SpecError, match="biased: beta must be above 0, got -1"):
        t.p.apply(attention(), q=t.q, k=t.u, v=t.v, c=t.b, beta=-1)
    w = t.p.parameters("w")
    with pytest.raises(
        SpecError, match=r"biased: beta must be above 0: declare w with p.parameters\(.., sign=\"> 0\"\)"
    ):
        t.p.apply(attention(), q=t.q, k=t.u, v=t.v, c=t.b, beta=w)
    with pytest.raises(SpecError, match="ked has a fixed set of queries, and so no output at each step"):
        t.p.apply("ked", x=t.v)


def test_a_file_beside_the_program_is_found(tmp_path, monkeypatch):
    """Wherever the command runs."""
    (tmp_path / "beside.py").write_text(
        "from chunkform.spec.language import Attention, dot\n"
        "a = Attention('beside')\nd, e = a.dims('D E')\n"
        "q, k, v = a.queries('q', d), a.keys('k', d), a.keys('v', e)\n"
        "a.softmax(dot(q, k))\na.output('o', a.average(v))\n"
    )
    (tmp_path / "whole.py").write_text(
        "from chunkform.spec.language import Program\n"
        "p = Program('whole')\nd, e = p.dims('d e')\nq, k = p.inputs('q k', d)\nv = p.inputs('v', e)\n"
        "p.output('o', p.apply('beside', q=q, k=k, v=v))\n"
    )
    (program,) = load(tmp_path / "whole.py")
    assert [a.op.name for a in program.applied] == ["beside"]


def test_who_imports_a_file_beside_a_program_is_told_how_to_apply_it(tmp_path):
    (tmp_path / "pairs.py").write_text("")
    (tmp_path / "program.py").write_text("from pairs import a\n")
    with pytest.raises(LoadError, match=r"No module named 'pairs': .* p\.apply\(\"pairs\", \.\.\)"):
        load(tmp_path / "program.py")


def test_a_call_begins_with_its_first_key():
    """No state holds keys, so a call that would go on from one is refused."""
    _, op = built("forgetting")
    q, k, v = torch.randn(3, 1, 5, 2, 4)
    given = (q, k, v, -torch.rand(1, 5, 2), torch.ones(2))
    with pytest.raises(ArgumentError, match="forgetting: initial_state can't be given, since its attention"):
        op(*given, initial_state=torch.zeros(1, 2))
    with pytest.raises(ArgumentError, match="forgetting: output_final_state can't be given"):
        op(*given, output_final_state=True)


def test_sums_of_gates_keep_their_digits():
    """In bfloat16 a sum of 300 would be off by 1, and so would energies."""
    _, op = built("forgetting")
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 200, 1, 8, dtype=torch.bfloat16)
    given = (q, k, v, -2 * torch.rand(1, 200, 1), torch.ones(1))
    exact, _ = op(*(x.double() for x in given))
    torch.testing.assert_close(op(*given)[0].double(), exact, rtol=0.02, atol=0.02)


def direct(q, k, v, log_f, scale):
    """The same pair by pair, with sums of log gates."""
    c = log_f.cumsum(1).transpose(1, 2)
    score = torch.einsum("bihd,bjhd->bhij", q, k) * scale[:, None, None]
    energy = 20 * torch.tanh(score / 20) + (c[..., :, None] - c[..., None, :])
    energy = energy.masked_fill(torch.ones(q.shape[1], q.shape[1]).triu(1) > 0, -torch.inf)
    return torch.einsum("bhij,bjhe->bihe", energy.softmax(-1), torch.nn.functional.silu(v))


@pytest.mark.parametrize("forgets", [0.01, 2, 8])
def test_gradients_of_gates_are_as_good_as_those_pair_by_pair(forgets):
    """Where sums of log gates reach thousands, of which no more than differences count: they were off by one part in 500."""
    _, op = built("forgetting")
    torch.manual_seed(0)
    steps, draws = 400, []
    for _ in range(4):  # of one draw, the error of a number for each head is a matter of luck
        given = (*torch.randn(3, 1, steps, 2, 8), -forgets * torch.rand(1, steps, 2), torch.full((2,), 0.3))
        draws.append((given, torch.randn(1, steps, 2, 8)))

    def results(f, dtype):
        found = []
        for given, weights in draws:
            leaves = [x.to(dtype).clone().requires_grad_() for x in given]
            o = f(*leaves)
            (o * weights.to(dtype)).sum().backward()
            found.append([o.detach().double(), *(x.grad.double() for x in leaves)])
        return [torch.stack(x) for x in zip(*found, strict=True)]

    exact = results(direct, torch.float64)

    def errors(found):
        heads = [
            (x.movedim(3 if x.ndim > 3 else 1, 0).reshape(2, -1) for x in pair)
            for pair in zip(found, exact, strict=True)
        ]
        return torch.stack([((x - y).norm(dim=1) / y.norm(dim=1)).max() for x, y in heads])

    own, plain = errors(results(lambda *x: op(*x)[0], torch.float32)), errors(results(direct, torch.float32))
    assert (own <= (5 * plain).clamp(min=1e-5)).all(), (own, plain)


def test_a_gate_of_exactly_zero_forgets_all_before_it():
    """Its logarithm is infinite, and so would be all sums of logarithms from there on, whose differences are wanted."""
    _, op = built("forgetting")
    q, k, v = torch.randn(3, 1, 12, 1, 8, generator=torch.Generator().manual_seed(0))
    log_f = torch.full((1, 12, 1), -0.1)
    log_f[:, 5] = -torch.inf
    given = [x.clone().requires_grad_() for x in (q, k, v, log_f, torch.ones(1))]
    whole, _ = op(*given)
    late = [x.detach()[:, 5:].clone().requires_grad_() for x in given[:4]] + [torch.ones(1)]
    alone, _ = op(*late)
    torch.testing.assert_close(whole[:, 5:], alone, rtol=2e-5, atol=2e-6)
    (whole[:, 5:] ** 2).sum().backward()
    (alone**2).sum().backward()
    for x, y in zip(given[:4], late[:4], strict=True):
        torch.testing.assert_close(x.grad[:, 5:], y.grad, rtol=1e-4, atol=1e-5)
        assert x.grad[:, :5].abs().max() < 1e-5


def test_the_reason_of_a_recurrence_is_printed():
    p = Program("slow")
    d = p.dims("d")
    x, q = p.inputs("x q", d)
    W = p.parameters("W", d, d)
    h = p.state("h", d)
    p.update(h, tanh(W * h.prev + x))
    p.output("o", p.apply("softmax_attention", q=q, k=h.next, v=x, scale=1.0))
    console = Console(width=200, file=io.StringIO())
    show(compile_program(p), console)
    shown = console.file.getvalue()
    assert "not chunk-parallel: " in shown
    assert "p.update(h, tanh(W * h.prev + x))" in shown
