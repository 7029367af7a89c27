"""The fused backward whose warps have roles, on a GPU of compute capability 9.0: gradients of each head against float64, beside
those of the kernel without roles, wherever a call may have it. `python -m benchmarks.fused_roles` times it as well."""

import pytest
import torch

import chunkform.generated as ops
from benchmarks import fused_roles
from chunkform.runtime.chunk_kernels import warp_roles
from chunkform.runtime.launch import replay

from .test_roles import HEADS, LENGTHS, SHAPES, problem, reference, with_gradients, worst_head

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
WIDE = [what for what, shape in SHAPES.items() if shape[3] == shape[4] == 128 and what != "parts"]


@pytest.fixture
def launched(monkeypatch):
    """The kernels that are launched."""
    torch.cuda.init()
    if not warp_roles.available():
        pytest.skip("no kernels with roles on this GPU with this Triton")
    found = []
    real = warp_roles.launch
    monkeypatch.setattr(
        warp_roles, "launch", lambda k, *args, **options: (found.append(k), real(k, *args, **options))[1]
    )
    monkeypatch.setattr(replay, "ON", False)
    return found


@pytest.mark.parametrize("name", fused_roles.NAMES)
@pytest.mark.parametrize("what", [*WIDE, "packed"])
def test_gradients_are_as_without_roles(name, what, launched, monkeypatch):
    packed = what == "packed"
    given, decays, start = problem(name, *((1, 700, 4, 128, 128, 4, "bfloat16", False) if packed else SHAPES[what]))
    do = torch.randn(*given[2].shape, device="cuda").to(given[2].dtype)
    options = {"cu_seqlens": torch.tensor(LENGTHS, device="cuda", dtype=torch.int32)} if packed else {}
    monkeypatch.setattr(ops, name, fused_roles.op(name), raising=False)
    found = {}
    for there in (False, True):
        monkeypatch.setattr(warp_roles, "FUSED", there)
        launched.clear()
        found[there] = with_gradients(name, given, decays, start, do, **options)
        assert any(k.fn.__name__ == fused_roles.KERNEL for k in launched) == there
    wide = [x.double().requires_grad_() for x in (*given, *decays.values(), *([] if start is None else [start]))]
    named = dict(zip(decays, wide[3:], strict=False))
    out, _ = reference(wide[:3], named, None if start is None else wide[-1], LENGTHS if packed else ())
    exact = (out, *torch.autograd.grad(out, wide, do.double()))
    for n, (x, y, z) in enumerate(zip(found[True], found[False], exact, strict=True)):
        axis = 1 if start is not None and n == len(exact) - 1 else HEADS[z.ndim]
        assert worst_head(x, z, axis) < 1.15 * worst_head(y, z, axis) + 1e-4, n
