"""The Triton kernels on a GPU: outputs, last states and every gradient against the float64 oracle.

`rounding` is the error that rounding the inputs, the incoming gradients and the result alone makes. Beyond it lie:

- products on tensor cores, whose operands (weights within a chunk, the state, what is scaled by a decay of each channel) are
  rounded once more: PLAIN times `rounding`;
- writes that a triangular system yields, reads that are read from again, quotients: rounded before they are used: SOLVED times,
  or LAST units in the last place;
- gradients of decays, sums over all later steps: DECAYS times, or half a unit in the last place.

In float32 the bound is 1e-5, or DEFINITION times the error that the definition, step by step in float32, makes of an
ill-conditioned problem.
"""

from __future__ import annotations

import pytest
import torch
from shared.triton_errors import compiled, errors, every_name, module, poisoned, printable

from chunkform.codegen.recurrence.samples import Case
from chunkform.spec.language import catalogue

FLOAT32 = 1e-5
PLAIN, SOLVED, LAST, DECAYS, DEFINITION = 1.75, 2.5, 6.0, 6.0, 4.0
ULP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
CATALOGUE = {r.name for r in catalogue()}
CASES = {  # shapes are varied over the catalogue
    "usual": Case(batch=2, steps=200, heads=3, width=64, device="cuda"),
    "extreme": Case(batch=1, steps=150, heads=2, width=64, device="cuda", seed=3, decay="extreme"),
    "wide": Case(batch=1, steps=150, heads=2, width=120, device="cuda", seed=1),
    "odd": Case(batch=1, steps=129, heads=2, width=37, device="cuda", seed=2),
    "narrow": Case(batch=1, steps=150, heads=2, width=32, device="cuda", seed=6),
    "widest": Case(batch=1, steps=100, heads=2, width=200, device="cuda", seed=4),
    "parts": Case(
        batch=1, steps=1100, heads=1, width=64, device="cuda", seed=5
    ),  # cut, so that programs share a sequence
}


def bound(r, c, dtype):
    """The error that is allowed."""
    if dtype == torch.float32:
        return max(FLOAT32, DEFINITION * (r.definition or 0.0))
    if r.quantity in {f"d{n}" for n in decay_inputs(c)}:
        return max(DECAYS * r.rounding, 0.5 * ULP[dtype])
    solved = (
        bool(c.form.write_leaves()) or len(c.step.states) > 1 or any(x.op == "pow" for x in c.step.outputs.values())
    )
    return max((SOLVED if solved else PLAIN) * r.rounding, (LAST if solved else 0.5) * ULP[dtype])


def decay_inputs(c):
    """Decays, and inputs that a decay is made of."""
    states = [s for group in c.form.groups for s in group if s.decay is not None]
    found = {x.attrs[1] for s in states for x in _leaves(s.decay)}
    return found | {v.name for v in c.step.variables if v.is_decay}


def _leaves(node):
    from chunkform.codegen.ir.expr import leaves

    return leaves(node)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=lambda x: str(x)[6:])
@pytest.mark.parametrize(
    ("name", "case"), [(n, c) for n in every_name() for c in CASES if n in CATALOGUE or c in ("usual", "extreme")]
)
def test_errors_are_little_more_than_those_of_rounding(name, case, dtype, record):
    if not printable(name):
        pytest.skip("it has no kernels over chunks")
    rows = errors(name, CASES[case], dtype)
    record(rows)
    bad = [r for r in rows if not r.error <= bound(r, compiled(name), dtype)]
    assert not bad, [(r.quantity, f"{r.error:.1e}", f"rounding alone {r.rounding:.1e}") for r in bad]


def test_more_than_65535_heads(record):
    rows = errors("lightning_attention", Case(batch=7, steps=5, heads=10001, width=16, device="cuda"), torch.float32)
    record(rows)
    assert all(r.error <= FLOAT32 for r in rows)


@pytest.mark.alone
def test_offsets_beyond_31_bits():
    """Strided inputs whose last element lies more than 2^31 elements after the first."""
    steps, width, stride = 200, 64, 2**24
    g = {n: torch.randn(1, steps, 1, width, device="cuda", dtype=torch.bfloat16) for n in "qkv"}
    lam = torch.nn.functional.logsigmoid(torch.randn(1, steps, 1, device="cuda"))
    storage = torch.empty(steps * stride, device="cuda", dtype=torch.bfloat16)
    far = {}
    for n, (name, x) in enumerate(g.items()):
        view = storage.as_strided((1, steps, 1, width), (steps * stride, stride, width, 1), n * width)
        far[name] = view.copy_(x)
    m = module("lightning_attention")
    with poisoned():
        near_out, near_last, _ = m.triton_forward(g | {"lam": lam}, {"S": None}, {})
        far_out, far_last, _ = m.triton_forward(far | {"lam": lam}, {"S": None}, {})
    assert torch.equal(near_out["o"], far_out["o"])
    assert torch.equal(near_last["S"], far_last["S"])
