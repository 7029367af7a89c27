"""How far ahead programs of a step bring states into the cache, on a GPU that isn't here."""

from types import SimpleNamespace

import pytest
import torch

from chunkform.runtime.op.look_ahead import AHEAD, heads_ahead


def pool(*shape, dtype=torch.bfloat16, layout=None, shift=0):
    """A pool as if it lay on a GPU: what is asked of one."""
    x = torch.empty(*shape, dtype=dtype, device="meta")
    x = x if layout is None else layout(x)
    return SimpleNamespace(
        shape=x.shape, dim=x.dim, stride=x.stride, element_size=x.element_size, data_ptr=lambda: 4096 + shift,
        device=torch.device("cuda", 0),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))


def test_the_bytes_that_are_asked_for_are_as_many_for_any_states():
    one = heads_ahead([pool(50, 16, 128, 128)], 2)
    assert one == AHEAD * 132 // (128 * 128 * 2) > 132
    assert heads_ahead([pool(50, 16, 128, 128, dtype=torch.float32)], 2) == one // 2
    assert heads_ahead([pool(50, 16, 128, 128), pool(50, 16, 128)], 2) == one  # vectors take no time to come
    assert heads_ahead([pool(50, 16, 128, 128)] * 2, 2) == one // 2
    assert heads_ahead([pool(50, 16, 128, 128, layout=lambda x: x.mT)], 2) == one
    assert heads_ahead([pool(50, 32, 128, 128, layout=lambda x: x[:, ::2])], 2) == one


def test_nothing_is_asked_for_where_it_does_not_lie_side_by_side(monkeypatch):
    assert heads_ahead([pool(50, 16, 128)], 1) == 0
    assert heads_ahead([pool(50, 16, 128, 128, shift=8)], 2) == 0
    assert heads_ahead([pool(50, 16, 128, 128, layout=lambda x: x[..., :64])], 1) == 0
    assert heads_ahead([pool(50, 16, 5, 4)], 1) == 0 == heads_ahead([pool(50, 16, 4, 8)], 8)
    assert heads_ahead([torch.empty(50, 16, 128, 128)], 2) == 0
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 9))
    assert heads_ahead([pool(50, 16, 128, 128)], 2) == 0
