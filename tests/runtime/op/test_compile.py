"""torch.compile sees an op as one call: no graph break, the same numbers, and what `opcheck` asks of a custom op."""

import dataclasses

import pytest
import torch
import torch._dynamo
from shared.forked import code
from shared.op_cases import SPECS, op_of, problem, run
from shared.structures import sweep
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

import chunkform
import chunkform.generated
from chunkform.codegen.recurrence.samples import Case
from chunkform.errors import ArgumentError, DoubleBackwardError
from chunkform.generated.gated_delta_rule import OP, gated_delta_rule
from chunkform.generated.mesa_net import mesa_net
from chunkform.runtime.op.op import Op

SMALL = Case(steps=9, heads=2, width=4)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def whole(op, backend="aot_eager", **options):
    return torch.compile(op, fullgraph=True, backend=backend, **options)


@pytest.mark.parametrize("name", sweep(SPECS))
def test_every_op_compiles_whole_and_gives_the_same(name):
    p = problem(name, SMALL)
    eager, compiled = run(p), run(p, op=whole(op_of(name)))
    assert [n for n in eager if not torch.equal(eager[n], compiled[n])] == []


@pytest.mark.parametrize("name", ["gated_delta_rule", "kimi_delta_attention", "gradient_descent_squared_momentum"])
@pytest.mark.parametrize(
    ("lengths", "groups", "options"),
    [
        ((3, 0, 6), {}, {}),
        (None, {0: 1}, {}),
        (None, {}, {"recompute": "always"}),
        (None, {}, {"precision": "high", "state_dtype": torch.bfloat16}),
    ],
    ids=["packed", "groups", "recompute", "precision"],
)
def test_options_compile_too(name, lengths, groups, options):
    p = problem(name, SMALL, lengths=lengths)
    if groups:
        key = next(iter(p.given))
        p.given[key] = p.given[key][:, :, :1].clone()
    eager, compiled = run(p, **options), run(p, op=whole(op_of(name)), **options)
    assert [n for n in eager if not torch.equal(eager[n], compiled[n])] == []


def flat(op, p, grad=True, keep=True):
    """The arguments of an op in torch's library."""
    s = op.signature
    tensors = [p.given[a.name] for a in s.tensors] + [p.states[n] for n, _ in s.states]
    tensors = [None if x is None else x.clone().requires_grad_(grad) for x in tensors]
    constants = [p.constants[a.name] for a in s.constants]
    return (*tensors, p.cu_seqlens, *constants, p.heads, "torch", "default", keep, False)


@pytest.mark.parametrize(
    "name", ["gated_delta_rule", "retention", "sherman_morrison", "gradient_descent_squared_momentum"]
)
def test_opcheck_passes(name):
    op = op_of(name).__globals__["OP"]
    p = problem(name, SMALL)
    opcheck(op.registered.forward, flat(op, p))
    arguments = flat(op, p, grad=False)
    *results, saved = op.registered.forward(*arguments)
    wanted = [isinstance(x, torch.Tensor) for x in arguments[: len(op.signature.names)]]
    opcheck(op.registered.backward, (*arguments, saved, *map(torch.randn_like, results), wanted))


def test_opcheck_passes_packed():
    opcheck(OP.registered.forward, flat(OP, problem("gated_delta_rule", SMALL, lengths=(3, 0, 6))))


@pytest.mark.parametrize("name", SPECS)
def test_what_is_saved_is_what_the_backend_announces(name):
    op = op_of(name).__globals__["OP"]
    backend, p = op.backends["torch"], problem(name, Case(steps=70, heads=2, width=4))
    if backend.saved is None:
        pytest.skip("compiled code recomputes it")
    saved = backend.forward(p.given, p.states, p.constants)[2]
    sizes = {"B": 2, "H": 2, "T": 70}
    for a in op.signature.tensors:
        sizes |= dict(zip(a.layout, p.given[a.name].shape, strict=True))
    assert {n: (tuple(x.shape), x.dtype) for n, x in saved.items()} == {
        n: (tuple(sizes[d] for d in dims), torch.float32) for n, (dims, _) in backend.saved.items()
    }


def test_what_is_not_announced_is_computed_again():
    """A backend that saves more than it announces, as kernels do that cut a sequence."""
    torch_form, runs = OP.backends["torch"], []

    def forward(*arguments, **options):
        outputs, finals, saved = torch_form.forward(*arguments, **options)
        runs.append("forward")
        return outputs, finals, saved | {"more": finals["S"] + 1}

    def backward(given, states, constants, saved, *rest, **options):
        gradients, initial = torch_form.backward(given, states, constants, saved, *rest, **options)
        return gradients | {"beta": gradients["beta"] + saved["more"].sum()}, initial

    op = Op(
        OP.signature,
        {"torch": dataclasses.replace(torch_form, forward=forward, backward=backward)},
        None,
        "x.saves_more",
    )
    p = problem("gated_delta_rule", SMALL)
    given = {n: x.clone().requires_grad_() for n, x in p.given.items()}

    def gradients(f):
        return torch.autograd.grad(f(given)[0].sum(), list(given.values()))

    want, count = gradients(op), len(runs)
    got = gradients(whole(op.__call__))
    assert (count, len(runs)) == (1, 3)
    assert all(map(torch.equal, want, got))


def test_one_graph_serves_every_length():
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(gated_delta_rule, fullgraph=True, backend=counter, dynamic=True)
    for steps in (9, 70, 131):
        p = problem("gated_delta_rule", Case(steps=steps, heads=2, width=4))
        eager, found = run(p), run(p, op=compiled)
        assert all(torch.equal(eager[n], found[n]) for n in eager)
    assert counter.frame_count == 1


class Seen(TorchDispatchMode):
    """The calls of ops in torch's library, by the names of their arguments."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "chunkform":
            self.calls.append({a.name: x for a, x in zip(function._schema.arguments, args, strict=True)})
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["gated_delta_rule", "softmax_attention"])
def test_nothing_is_kept_where_nobody_will_ask_for_gradients(name):
    op = getattr(chunkform.generated, name)
    x = torch.randn(1, 9, 2, 4)
    more = [torch.rand(1, 9, 2), -torch.rand(1, 9, 2)] if name == "gated_delta_rule" else []
    kept = []
    for needs in (False, True):
        with Seen() as seen:
            op(x.clone().requires_grad_(needs), x, x, *more)
        (call,) = seen.calls
        kept.append(call["keep"])
    assert kept == [False, True]


def test_a_layer_around_an_op_compiles_whole():
    torch.manual_seed(0)
    project = torch.nn.Linear(8, 26)

    def layer(x):
        q, k, v, beta, g = project(x).split([8, 8, 8, 1, 1], -1)
        heads = [y.unflatten(-1, (2, 4)) for y in (q, torch.nn.functional.normalize(k, dim=-1), v)]
        scalars = [y.expand(-1, -1, 2) for y in (beta.sigmoid(), torch.nn.functional.logsigmoid(g))]
        return gated_delta_rule(*heads, *scalars)[0].flatten(-2).square().mean()

    x = torch.randn(2, 9, 8)
    losses, gradients = [], []
    for f in (layer, whole(layer)):
        project.zero_grad()
        loss = f(x)
        loss.backward()
        losses.append(loss.detach())
        gradients.append(project.weight.grad.clone())
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*gradients)


def test_an_op_from_a_recurrence_compiles_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKFORM_CACHE", str(tmp_path))
    r = chunkform.Recurrence("compiled_decayed_sum")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    scale = r.constant("scale", 0.5)
    lam = r.decay("lam")
    S = r.state("S", d, e)
    r.update(S, lam * S.prev + scale * k * v.T)
    r.output("o", S.next.T * q)
    op = chunkform.compile(r)
    registered = op.__globals__["OP"].registered
    assert registered.forward.name().startswith("chunkform::compiled_decayed_sum_")
    arguments = [*torch.randn(3, 1, 9, 2, 4), -torch.rand(1, 9, 2)]
    compiled = whole(op)
    for scale in (0.5, 2.0):
        assert torch.equal(op(*arguments, scale=scale)[0], compiled(*arguments, scale=scale)[0])


def test_a_program_of_ops_compiles_whole():
    p = problem("gated_delta_rule", SMALL)
    given = [
        x.clone().requires_grad_() for x in (*(p.given[n] for n in ("q", "k", "v", "beta", "alpha")), torch.ones(2, 4))
    ]

    def results(op):
        o, _ = op(*given)
        return o, *torch.autograd.grad(o.square().sum(), given)

    assert all(map(torch.equal, results(mesa_net), results(whole(mesa_net))))


def test_a_second_op_of_the_same_name_takes_its_place():
    again = Op(OP.signature, OP.backends, module="somewhere.twice")
    later = Op(OP.signature, OP.backends, module="elsewhere.twice")
    assert again.registered.forward.name() == later.registered.forward.name() == "chunkform::twice"
    p = problem("gated_delta_rule", SMALL)
    *results, _ = torch.ops.chunkform.twice(*flat(later, p, grad=False))
    assert torch.equal(results[0], run(p)["o"])


def test_wrong_starts_are_seen_while_compiled_code_runs():
    p = problem("gated_delta_rule", SMALL, lengths=(4, 5))
    arguments = {p.keys[n]: x for n, x in p.given.items()}
    compiled = whole(gated_delta_rule)
    compiled(**arguments, cu_seqlens=torch.tensor([0, 4, 9]))
    with pytest.raises(ArgumentError, match=r"cu_seqlens must not fall"):
        compiled(**arguments, cu_seqlens=torch.tensor([0, 10, 9]))


def test_a_second_derivative_through_the_library_is_refused():
    given = flat(OP, problem("gated_delta_rule", SMALL))
    o, *_ = OP.registered.forward(*given)
    (g,) = torch.autograd.grad(o.square().sum(), given[0], create_graph=True)
    with pytest.raises(DoubleBackwardError, match="gated_delta_rule has no second derivatives"):
        g.sum().backward()


def test_an_op_can_be_exported():
    class Layer(torch.nn.Module):
        def forward(self, *x):
            return gated_delta_rule(*x)[0]

    p = problem("gated_delta_rule", SMALL)
    exported = torch.export.export(Layer(), tuple(p.given.values()))
    assert torch.equal(exported.module()(*p.given.values()), Layer()(*p.given.values()))


def test_the_first_call_of_a_process_may_be_in_a_graph():
    """What is computed at a first look, and kept, is there when an op is imported."""
    done = code(
        "import torch\n"
        "from chunkform.generated import gated_delta_rule, softmax_attention\n"
        "q, k, v = torch.rand(3, 1, 5, 2, 8)\n"
        "gates = torch.rand(1, 5, 2), -torch.rand(1, 5, 2)\n"
        "for op, given in ((gated_delta_rule, (q, k, v, *gates)), (softmax_attention, (q, k, v))):\n"
        "    found = torch.compile(lambda *x: op(*x)[0], backend='eager', fullgraph=True)(*given)\n"
        "    assert torch.equal(found, op(*given)[0])\n"
        "print('compiled')\n"
    )
    assert done.stdout.strip() == "compiled", done.stderr
