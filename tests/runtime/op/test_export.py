"""A decoding step as a graph of torch's own operations: torch.export, with any batch, and AOTInductor."""

import importlib

import pytest
import torch
from torch import nn

from chunkform.runtime.nn import Mixer
from chunkform.runtime.nn.mixer import Cache


class Step(nn.Module):
    def __init__(self, name, pool=False):
        super().__init__()
        self.step, self.pool = getattr(importlib.import_module("chunkform.generated"), name).step, pool

    def forward(self, states, given, rows=None):
        more = {"state_indices": rows} if self.pool else {}
        *outputs, after = self.step(states if len(states) > 1 else states[0], **given, **more)
        return tuple(outputs), after


def inputs(step, batch):
    op = importlib.import_module(step.__module__).OP
    given = {}
    for a in op.signature.arguments:
        x = torch.randn(*((batch, 2) if a.per_step else (2,)), *(4 for _ in a.dims))
        given[a.key] = -x.abs() if a.kind.startswith("decay") else x
    return tuple(0.1 * torch.randn(batch, 2, *(4 for _ in d)) for _, d in op.signature.states), given


@pytest.mark.parametrize("name", ["gated_delta_rule", "gradient_descent_squared_momentum", "mlstm"])
def test_a_step_is_exported_for_any_batch(name):
    m = Step(name)
    first = inputs(m.step, 3)
    batch = torch.export.Dim("batch", min=1, max=64)
    shapes = torch.utils._pytree.tree_map(lambda x: {0: batch} if x.shape[0] == 3 else None, first)
    with torch.no_grad():
        exported = torch.export.export(m, first, dynamic_shapes=shapes).module()
        for given in (first, inputs(m.step, 7)):
            expected, found = m(*given), exported(*given)
            assert all(torch.equal(a, b) for a, b in zip(flat(expected), flat(found), strict=True))


def flat(x):
    return torch.utils._pytree.tree_leaves(x)


def test_rows_of_a_pool_are_written_where_they_are():
    m = Step("lightning_attention", pool=True)
    (pool,), given = inputs(m.step, 3)
    pool, rows = torch.randn(9, *pool.shape[1:]), torch.tensor([7, -1, 2])
    with torch.no_grad():
        exported = torch.export.export(m, ((pool.clone(),), given, rows)).module()
        one, other = pool.clone(), pool.clone()
        for call, x in ((m, one), (exported, other)):
            (o,), _ = call((x,), given, rows)
            assert not o[1].any()
    assert torch.equal(one, other) and not torch.equal(one, pool)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mixer = Mixer("gated_delta_rule", width=8, heads=2)

    def forward(self, x, state, tail):
        y, cache = self.mixer.step(x, Cache(state, tail))
        return y, cache.state, cache.tail


@pytest.mark.long
def test_a_layers_step_runs_without_python(tmp_path):
    layer, x = Layer(), torch.randn(3, 5, 8)
    with torch.no_grad():
        _, cache = layer.mixer(x[:, :4], output_cache=True)
        given = x[:, 4], cache.state, cache.tail
        exported = torch.export.export(layer, given)
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "step.pt2"))
        found, expected = torch._inductor.aoti_load_package(package)(*given), layer(*given)
        assert torch.allclose(expected[0], layer.mixer(x)[:, 4], atol=1e-5)
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
