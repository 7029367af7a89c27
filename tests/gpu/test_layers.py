"""Layers on a GPU: against themselves in float64, step by step, packed, compiled; and flash-linear-attention's names.

Run alone: `python3 -m pytest tests/gpu/test_layers.py -q`, about a minute.
"""

import copy

import pytest
import torch

from chunkform.runtime.compat import fla
from chunkform.runtime.nn import Mixer
from chunkform.runtime.nn import dual_form as dual

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
NAMES = ["linear_attention", "retention", "gated_linear_attention", "gated_delta_rule", "kimi_delta_attention"]
NAMES += ["gradient_descent_squared_momentum", "gradient_descent_logistic"]
BOUND = {torch.float32: 5e-3, torch.bfloat16: 4e-2}  # tensor cores round products of float32 to 10 bits


def error(x, reference):
    x, reference = x.detach().double().cpu(), reference.detach().double().cpu()
    return float((x - reference).norm() / reference.norm())


def made(name, width=256, heads=4, **options):
    torch.manual_seed(0)
    return Mixer(name, width, heads, **options)


@pytest.mark.parametrize("dtype", BOUND, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_gradients_are_those_in_float64(name, dtype):
    layer = made(name)
    exact = copy.deepcopy(layer).double()
    x = torch.randn(2, 150, 256)
    z = exact(x.double())
    z.square().sum().backward()
    layer = layer.cuda()
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
        y = layer(x.cuda())
    assert error(y, z) < BOUND[dtype]
    y.float().square().sum().backward()
    for (n, p), q in zip(layer.named_parameters(), exact.parameters(), strict=True):
        decay = n.startswith(("arguments.values", "arguments.narrow", "arguments.widen", "arguments.gate"))
        assert p.grad.isfinite().all(), n
        assert error(p.grad, q.grad) < BOUND[dtype] * (8 if decay else 2), n  # sums over all steps of differences


@pytest.mark.parametrize("name", NAMES)
def test_prefill_and_steps_are_the_whole(name):
    layer = made(name).cuda()
    x = torch.randn(2, 80, 256, device="cuda")
    with torch.no_grad():
        whole = layer(x)
        _, cache = layer(x[:, :70], output_cache=True)
        for t in range(70, 80):
            y, cache = layer.step(x[:, t], cache)
            assert error(y, whole[:, t]) < BOUND[torch.float32], t


def test_packed_sequences():
    layer = made("gated_delta_rule").cuda()
    lengths = [70, 0, 1, 129]
    starts = torch.tensor([0, 70, 70, 71, 200], device="cuda", dtype=torch.int32)
    x = torch.randn(1, 200, 256, device="cuda")
    y, begin = layer(x, cu_seqlens=starts), 0
    for length in lengths:
        if length:
            assert error(y[:, begin : begin + length], layer(x[:, begin : begin + length])) < BOUND[torch.float32]
        begin += length


def test_compiled_in_one_graph():
    """As near to float64 as uncompiled: what a compiler joins stays in float32, so that autocast rounds in other places."""
    layer = made("gated_delta_rule")
    exact = copy.deepcopy(layer).double()
    x = torch.randn(2, 128, 256)
    wanted = output_and_gradients(exact, exact, x.double())
    layer, x = layer.cuda(), x.cuda()
    with torch.autocast("cuda", torch.bfloat16):
        plain = output_and_gradients(layer, layer, x)
        compiled = output_and_gradients(layer, torch.compile(layer, fullgraph=True), x)
    assert error(compiled["y"], wanted["y"]) < min(1.25 * error(plain["y"], wanted["y"]), BOUND[torch.bfloat16])
    for n, w in wanted.items():  # some have a few numbers only, which may be right by chance
        assert error(compiled[n], w) < max(1.25 * error(plain[n], w), BOUND[torch.bfloat16]), n


def output_and_gradients(layer, run, x):
    y = run(x)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    return {"y": y} | dict(zip(names, torch.autograd.grad(y.float().square().sum(), parameters), strict=True))


@pytest.mark.parametrize("dtype", BOUND, ids=lambda d: str(d).removeprefix("torch."))
def test_the_names_of_flash_linear_attention(dtype):
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, 200, 2, 64)
    v = torch.randn(2, 200, 4, 64)  # grouped values
    g, beta = torch.nn.functional.logsigmoid(torch.randn(2, 200, 4) + 2), torch.rand(2, 200, 4)
    exact = fla.chunk_gated_delta_rule(
        *(x.double() for x in (q, k, v, g, beta)), output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    q, k, v = (x.to("cuda", dtype) for x in (q, k, v))
    found = fla.chunk_gated_delta_rule(
        q, k, v, g.cuda(), beta.cuda(), output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    assert found[0].dtype == dtype and found[1].dtype == torch.float32
    assert max(error(a, b) for a, b in zip(found, exact, strict=True)) < BOUND[dtype]


def test_the_dual_form():
    torch.manual_seed(0)
    points, targets, W = torch.randn(4, 300, 32), torch.randn(4, 300, 16), torch.randn(16, 32)
    schedule = dual.Schedule.minibatches([20] * 15, 0.3, 0.9, 0.99, mean=True)
    exact = dual.train(points.double(), targets.double(), schedule.to(torch.float64), initial=W.double())
    run = dual.train(points.cuda(), targets.cuda(), schedule.to("cuda"), initial=W.cuda())
    assert error(run.errors, exact.errors) < BOUND[torch.float32]
    assert error(run.dual_form().weight, exact.dual_form().weight) < BOUND[torch.float32]
