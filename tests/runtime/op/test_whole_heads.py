"""Which steps' programs have a head whole, instead of a tile of it: what is launched on a GPU that isn't here."""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

from chunkform.generated import gsa, hgrn2, mamba2, mlstm, rwkv6, rwkv7
from chunkform.spec.language import Recurrence, catalogue

D = 128


def cut(name, batch=64, heads=16, dtype=torch.bfloat16, inplace=True, deterministic=False, width=D):
    step = importlib.import_module(f"chunkform.generated.{name}").OP.step
    kernel = step.kernel
    sizes = {"B": batch, "H": heads, **dict.fromkeys(kernel.dims, width)}
    shape = batch, heads, width, width
    x = torch.empty(shape, dtype=dtype, device="meta")
    state = SimpleNamespace(
        shape=x.shape, dim=x.dim, stride=x.stride, element_size=x.element_size, data_ptr=lambda: 4096,
        device=torch.device("cuda", 0),
    )  # fmt: skip
    found = kernel.cut(sizes, inplace, deterministic, [state], step.entrywise)
    blocks = dict(zip(kernel.dims, found.constexprs[1 : 2 * len(kernel.dims) : 2], strict=True))
    *_, ahead = found.constexprs
    return found.grid, found.warps, blocks, ahead


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132))


@pytest.mark.parametrize(
    "name", ["lightning_attention", "retention", "gated_linear_attention", "value_decay_attention"]
)
def test_a_step_without_sums_before_its_update_takes_a_head_whole(name):
    for inplace in (True, False):  # of the same bits
        grid, warps, blocks, ahead = cut(name, inplace=inplace)
        assert grid == (16, 64, 1) and warps == 4 and set(blocks.values()) == {D} and ahead == 0


@pytest.mark.parametrize("name", ["gated_delta_rule", "kimi_delta_attention", "delta_rule"])
def test_a_step_with_a_correction_takes_tiles(name):
    grid, warps, blocks, ahead = cut(name)
    assert grid == (32, 64, 1) and warps == 2 and sorted(blocks.values()) == [D // 2, D] and ahead > 0


@pytest.mark.parametrize(
    "other", [{"batch": 32}, {"dtype": torch.float32}, {"deterministic": True}, {"width": 2 * D}], ids=str
)
def test_few_or_large_heads_are_cut(other):
    """So are those of a step whose bits are those of any other batch."""
    blocks = cut("lightning_attention", **other)[2]
    assert min(blocks.values()) < other.get("width", D)


def test_which_steps_leave_each_entry_to_itself():
    """Of the whole catalogue, beside what each update says."""
    found = {}
    for r in catalogue():
        if isinstance(r, Recurrence):
            found[r.name] = importlib.import_module(f"chunkform.generated.{r.name}").OP.step.entrywise()
    assert {n for n, x in found.items() if x} == {
        "gated_linear_attention", "lightning_attention", "linear_attention", "retention", "value_decay_attention"
    }  # fmt: skip
    others = {op: sys.modules[op.__module__].OP.step.entrywise() for op in (rwkv6, hgrn2, mamba2, rwkv7, mlstm, gsa)}
    assert others == {rwkv6: True, hgrn2: True, mamba2: True, rwkv7: False, mlstm: False, gsa: True}
