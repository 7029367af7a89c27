"""Head groups: an argument with fewer heads serves several, and its gradient is their sum."""

import pytest
import torch
from shared.forked import code
from shared.op_cases import SPECS, compiled, misses, problem, run

from chunkform.codegen.recurrence.samples import Case
from chunkform.errors import ArgumentError
from chunkform.generated.lightning_attention import lightning_attention

CASE = Case(steps=11, heads=4, width=6)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("few", [0, 1], ids=["first", "others"])
def test_any_argument_may_have_fewer_heads(name, few):
    """The first argument has 2 heads of 4; or all others have 1."""
    variables = [v.name for v in compiled(name).step.variables if v.kind != "constant"]
    groups = {variables[0]: 2} if few == 0 else dict.fromkeys(variables[1:], 1)
    p = problem(name, CASE, groups=groups)
    assert misses(p, run(p)) == {}


def test_groups_and_packed_sequences():
    p = problem("gated_delta_rule", CASE, lengths=(3, 0, 8), groups={"q": 2, "k": 2, "alpha": 1})
    assert misses(p, run(p)) == {}


def test_gradients_of_a_group_are_summed_in_float32():
    """16 heads' gradients in bfloat16: one rounding of each, and one of their sum."""
    p = problem(
        "lightning_attention", Case(batch=1, steps=20, heads=16, width=8, dtype=torch.bfloat16), groups={"q": 1}
    )
    got = run(p)
    assert got["dq"].dtype == torch.bfloat16
    assert misses(p, got, 4e-3) == {}


def test_heads_that_do_not_divide_are_refused():
    q, k, v = torch.randn(3, 1, 5, 6, 4)
    with pytest.raises(ArgumentError, match=r"k has H = 4, but q has H = 6, which isn't a multiple of it"):
        lightning_attention(q, k[:, :, :4], v, -torch.rand(1, 5, 6))


def test_the_state_has_all_heads():
    q, k, v = torch.randn(3, 1, 5, 6, 4)
    with pytest.raises(ArgumentError, match=r"initial_state must be \[B, H, d, e\] = \[1, 6, 4, 4\]"):
        lightning_attention(q, k[:, :, :2], v, -torch.rand(1, 5, 6), initial_state=torch.zeros(1, 2, 4, 4))


KERNEL = """
import torch
from chunkform.runtime.chunk_kernels.reductions import head_sums

for shape, axis, heads in ((2, 5, 6, 20), 2, 3), ((2, 5, 6, 20), 2, 1), ((1, 3, 8, 300), 2, 2), ((6, 40), 0, 3):
    x = torch.randn(shape).bfloat16()
    want = x.unflatten(axis, (heads, -1)).sum(axis + 1, dtype=torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        got = head_sums(x, axis, heads, dtype)
        assert got.dtype == dtype and got.shape == want.shape
        assert ((got.float() - want).norm() / want.norm()) < (1e-6 if dtype == torch.float32 else 4e-3)
"""


def test_the_kernel_for_large_shared_heads_sums_as_torch_does():
    done = code(KERNEL, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
