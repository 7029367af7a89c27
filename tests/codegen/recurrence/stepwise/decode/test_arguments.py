"""What a step takes and refuses: states in place or new, in several dtypes and layouts, outputs put where they are wanted."""

import pytest
import torch
from shared.step_calls import SIZES, arguments, at, grouped, op

import chunkform
from chunkform.errors import ArgumentError, BackendError

B, H, D = 2, 4, 6


def inputs(dtype=torch.float32, batch: int = B) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, batch, H, D, dtype=dtype)
    return {"q": q, "k": k, "v": v, "log_lam": -torch.rand(batch, H)}


@pytest.fixture
def step():
    return op("lightning_attention").step


def test_a_new_state_leaves_the_old_one_alone(step):
    state = torch.randn(B, H, D, D)
    before = state.clone()
    o, new = step(state, **inputs())
    assert torch.equal(state, before) and new.data_ptr() != state.data_ptr()
    same, inplace = step(state, **inputs(), inplace=True)
    assert inplace is state and torch.equal(state, new) and torch.equal(o, same)


def test_several_states_are_a_tuple():
    tensors, constants = arguments("ttt_linear", B, 1, H, SIZES)
    now = at("ttt_linear", tensors, 0)
    _, state = op("ttt_linear").step(None, **now, **constants)
    assert isinstance(state, tuple) and [x.shape[2:] for x in state] == [(5, 3), (3,)]
    _, kept = op("ttt_linear").step(list(state), **now, **constants, inplace=True)
    assert isinstance(kept, tuple) and all(x is y for x, y in zip(kept, state, strict=True))
    _, half = op("ttt_linear").step((None, state[1]), **now, **constants)
    assert half[0].shape == state[0].shape
    with pytest.raises(ArgumentError, match=r"ttt_linear.step: state must hold 2 states \(W, b\), got 1"):
        op("ttt_linear").step(state[0], **now, **constants)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_short_state_is_rounded_once_a_step(step, dtype):
    wide = torch.randn(B, H, D, D)
    short = wide.to(dtype)
    o, new = step(short, **inputs())
    right, exact = step(short.float(), **inputs())
    assert new.dtype == dtype and torch.equal(new, exact.to(dtype))
    assert o.dtype == torch.float32 and torch.equal(o, right)  # from the state before it is rounded
    assert step(None, **inputs(), state_dtype=dtype)[1].dtype == dtype


def test_outputs_have_the_inputs_dtype_and_go_where_they_are_wanted(step):
    now = inputs(torch.bfloat16)
    state = torch.randn(B, H, D, D)
    o, _ = step(state, **now)
    assert o.dtype == torch.bfloat16
    cache = torch.zeros(B, 3, H, D, dtype=torch.bfloat16)
    out, _ = step(state, **now, out=cache[:, 1])
    assert torch.equal(cache[:, 1], o) and not cache[:, 0].any() and out.data_ptr() == cache[:, 1].data_ptr()


def test_arguments_with_fewer_heads_are_read_by_groups():
    name = "kimi_delta_attention"
    tensors, _ = arguments(name, B, 1, H, SIZES)
    few = grouped(name, tensors, H)
    full = {n: x.repeat_interleave(H // x.shape[2], 2) for n, x in few.items()}
    state = torch.randn(B, H, SIZES["d"], SIZES["e"])
    for x, y in zip(op(name).step(state, **at(name, few, 0)), op(name).step(state, **at(name, full, 0)), strict=True):
        torch.testing.assert_close(x, y)


def test_plans_are_kept_by_shape_and_dtype(step):
    inner = op("lightning_attention").__globals__["OP"].step
    inner.plans.clear()
    state = torch.zeros(B, H, D, D)
    for _ in range(3):
        step(state, **inputs())
    assert len(inner.plans) == 1
    step(torch.zeros(3, H, D, D), **inputs(batch=3))
    step(state.bfloat16(), **inputs())
    assert len(inner.plans) == 3


def test_no_batch_and_strided_inputs(step):
    o, state = step(None, **inputs(batch=0))
    assert o.shape == (0, H, D) and state.shape == (0, H, D, D)
    now = inputs()
    turned = {n: x.transpose(0, -1).contiguous().transpose(0, -1) for n, x in now.items()}
    assert torch.equal(step(None, **turned)[0], step(None, **now)[0])


def test_float64_stays_in_float64(step):
    now = {n: x.double() for n, x in inputs().items()}
    o, state = step(None, **now)
    assert o.dtype == state.dtype == torch.float64


def test_a_step_inside_a_compiled_function_gives_the_same(step):
    now, state = inputs(), torch.randn(B, H, D, D)
    compiled = torch.compile(lambda s, x: step(s, **x)[0] * 2, backend="eager")
    assert torch.equal(compiled(state, now), step(state, **now)[0] * 2)


def test_a_recurrence_of_ones_own_decodes(tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKFORM_CACHE", str(tmp_path))
    r = chunkform.Recurrence("leaky_count")
    d = r.dims("d")
    x = r.inputs("x", d)
    keep = r.decay("keep")
    rate = r.constant("rate", 2.0)
    start = r.parameter("start", d)
    m = r.state("m", d, initial=start)
    r.update(m, keep * m.prev + rate * x)
    r.output("y", m.next)
    step = chunkform.compile(r).step
    now = {"x": torch.ones(1, 1, 3), "log_keep": torch.full((1, 1), 0.5).log(), "start": torch.full((1, 3), 4.0)}
    y, m = step(None, **now)
    assert torch.allclose(y, torch.tensor(4.0)) and torch.equal(y, m)
    y, m = step(m, **now, rate=1.0)
    assert torch.allclose(y, torch.tensor(3.0))


MISTAKES = {
    "a time axis": (
        lambda: {"q": torch.randn(B, 1, H, D)},
        r"lightning_attention.step: q must have 3 axes \[B, H, d\]",
    ),
    "another batch": (lambda: {"k": torch.randn(3, H, D)}, r"k has B = 3, but q has B = 2"),
    "heads that do not divide": (lambda: {"k": torch.randn(B, 3, D)}, r"k has H = 3, but q has H = 4"),
    "not a tensor": (lambda: {"log_lam": 0.5}, r"log_lam must be a tensor \[B, H\], got float"),
    "an integer tensor": (lambda: {"v": torch.ones(B, H, D, dtype=torch.int64)}, r"v must be float32.*got int64"),
    "a state's shape": (
        lambda: {"state": torch.zeros(B, H, D, D + 1)},
        r"state must be \[B, H, d, e\] = \[2, 4, 6, 6\]",
    ),
    "a state's dtype": (
        lambda: {"state": torch.zeros(B, H, D, D, dtype=torch.int32)},
        r"state must be in float32, bfloat16, float16 or float64, got torch.int32",
    ),
    "out's shape": (
        lambda: {"out": torch.zeros(B, H, D + 1)},
        r"out must be \[B, H, e\] = \[2, 4, 6\] in torch.float32",
    ),
    "out's dtype": (lambda: {"out": torch.zeros(B, H, D).half()}, r"got \[2, 4, 6\] in torch.float16"),
    "too many outs": (lambda: {"out": (torch.zeros(B, H, D),) * 2}, r"out must hold 1 tensors \(o\), got 2"),
    "a state_dtype": (
        lambda: {"state": None, "state_dtype": torch.int8},
        r"state_dtype must be a floating-point dtype",
    ),
    "an expanded out": (
        lambda: {"out": torch.zeros(B, 1, D).expand(B, H, D)},
        r"out is written to, and must have memory",
    ),
    "an expanded state": (
        lambda: {"state": torch.zeros(B, 1, D, D).expand(B, H, D, D), "inplace": True},
        r"state is written to, .* strides \[36, 0, 6, 1\]: pass its .contiguous",
    ),
    "a sparse tensor": (lambda: {"q": torch.randn(B, H, D).to_sparse()}, r"q must be a dense tensor"),
    "a gradient": (lambda: {"q": torch.randn(B, H, D, requires_grad=True)}, r"has no gradient.*torch.no_grad"),
    "a backend": (lambda: {"backend": "cuda"}, r"backend must be 'torch', 'triton' or None, got 'cuda'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(step, mistake):
    change, message = MISTAKES[mistake]
    state = torch.zeros(B, H, D, D)
    with pytest.raises(ArgumentError, match=message):
        step(**({"state": state} | inputs() | change()))
    step(state, **inputs())  # and does no harm to what follows


def test_the_triton_kernel_wants_a_gpu(step, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendError, match="needs CUDA tensors, got cpu"):
        step(None, **inputs(), backend="triton")
