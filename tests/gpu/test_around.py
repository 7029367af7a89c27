"""What surrounds an op on a GPU: the short convolution and row maps against float64, and models with these kernels.

Run alone: `python3 -m pytest tests/gpu/test_around.py -q`, about a minute.
"""

import importlib

import pytest
import torch

from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.runtime.nn import rows
from chunkform.runtime.nn.convolve import convolve, convolve_step, packed_by
from chunkform.spec.language.load import row_maps

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
BOUND = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}
MAPS = {m.name: m for m in row_maps()}
CASES = [  # taps, lengths of packed sequences or None, bias, tail, SiLU, where channels lie
    (4, None, False, False, True, "last"),
    (4, None, True, True, True, "last"),
    (4, [300, 0, 1, 700, 2, 90], True, True, True, "last"),
    (4, [120, 500], False, False, True, "first"),
    (3, [1, 40, 0, 900], True, True, False, "last"),
    (2, None, True, True, True, "first"),
    (1, [50, 60], True, False, False, "last"),
]


def far(exact, found):
    return float(((exact - found.double()).norm() / exact.norm()).detach())


@pytest.mark.parametrize("dtype", BOUND, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_convolution(case, dtype):
    taps, lengths, bias, tail, silu, channels = case
    torch.manual_seed(0)
    batch, steps = (2, 333) if lengths is None else (1, sum(lengths))
    shapes = [(batch, steps, 520), (taps, 520), (520,) if bias else None]
    shapes.append((batch if lengths is None else len(lengths), taps - 1, 520) if tail else None)
    given = [None if s is None else torch.randn(*s, device="cuda").to(dtype) for s in shapes]
    starts = None if lengths is None else torch.tensor([0, *lengths], device="cuda").cumsum(0)
    packed = None if starts is None else packed_by(starts, steps)
    grad = torch.randn(batch, steps, 520, device="cuda").to(dtype)

    def called(dtype, backend):
        x, weight, bias, tail = (None if v is None else v.to(dtype).clone() for v in given)
        x = x.mT.contiguous().mT if channels == "first" else x
        live = [v.requires_grad_() for v in (x, weight, bias, tail) if v is not None and v.numel()]
        y = convolve(x, weight, bias, silu, tail, packed, backend)
        return [y, *torch.autograd.grad(y, live, grad.to(dtype))]

    for exact, found in zip(called(torch.float64, "torch"), called(dtype, "triton"), strict=True):
        assert found.dtype == dtype
        assert far(exact, found) < BOUND[dtype]


@pytest.mark.parametrize("dtype", BOUND, ids=lambda d: str(d).removeprefix("torch."))
def test_a_step_of_the_convolution(dtype):
    torch.manual_seed(0)
    x, kept = torch.randn(3, 520, device="cuda").to(dtype), torch.randn(3, 520, 4, device="cuda").to(dtype)
    weight, whole = torch.randn(4, 520, device="cuda").to(dtype), torch.cat([kept, x.unsqueeze(2)], 2)
    y = convolve(whole.mT.double(), weight.double(), None, True, backend="torch")[:, -1]
    assert far(y, convolve_step(x, weight, None, True, kept)) < BOUND[dtype]
    assert torch.equal(kept, whole[:, :, 1:])


@pytest.mark.parametrize("dtype", BOUND, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("name", MAPS)
def test_row_maps_match_the_oracle(name, dtype):
    op = getattr(importlib.import_module("chunkform.generated.rows"), name)
    for case in (Case(seed=0, steps=500, width=128), Case(seed=1, steps=33, batch=1, heads=3, width=72)):
        given = Case(**{**vars(case), "dtype": dtype, "device": "cuda"})
        found = check_op(compile_spec(MAPS[name]), op, given, backend="triton")
        assert {r.quantity: r.error for r in found if not r.ok} == {}


def test_rows_of_a_layer_take_kernels():
    x = torch.randn(2, 5, 3, 64, device="cuda", dtype=torch.bfloat16)
    assert rows.in_kernels(x)
    z, weight = torch.randn_like(x), torch.randn(64, device="cuda")
    wide = [y.double() for y in (x, z, weight)]
    for activation in rows.GATES:
        exact = rows.gated_rms_norm(*(y.cpu() for y in wide), 1e-5, activation)
        assert far(exact, rows.gated_rms_norm(x, z, weight, 1e-5, activation).cpu()) < BOUND[torch.bfloat16]


@pytest.mark.parametrize("name", ["qwen3_5", "kimi_linear"])
def test_models_train_and_generate(name):
    pytest.importorskip("transformers", minversion="5.17")
    from shared.tiny_models import differences, tiny, tokens, trained

    from chunkform.integrations.transformers import enable

    model, ids = tiny(name), tokens(2, 200)
    with enable(model):  # on a CPU, where the library would take functions for GPUs from a package that is installed
        before = trained(model, ids)
    model, ids = model.cuda(), ids.cuda()
    with enable(model):
        after = trained(model, ids)
        apart = differences(before, {n: x.cpu() for n, x in after.items()})
        assert max(apart.values()) < 2e-2, max(apart, key=apart.get)  # tensor cores round products of float32
        with torch.no_grad():
            found = model(ids[:, :9], use_cache=True)
            for t in range(9, 14):
                found = model(ids[:, t : t + 1], past_key_values=found.past_key_values, use_cache=True)
                assert far(before["logits"][:, t].double(), found.logits[:, 0].cpu()) < 2e-2, t
