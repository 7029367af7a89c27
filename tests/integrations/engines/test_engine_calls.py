"""Calls as vLLM's and SGLang's backends make them, argument by argument, against float64 loops of what they do there."""

import itertools
from types import SimpleNamespace

import pytest
import torch
from shared.engine_loops import HV, H, K, V, blocks, loop, of, put, tokens

import chunkform
from chunkform.errors import ArgumentError
from chunkform.integrations.engines import sglang, vllm

kinds = pytest.mark.parametrize("kda", [False, True], ids=["gated delta rule", "kda"])


def gates(kda, *lead, lowest=None):
    """What a layer projects, its parameters, and the log decays and strengths that follow, [*lead, ..]."""
    torch.manual_seed(2)
    own = (HV, K) if kda else (HV,)
    A_log, a, b, bias = torch.rand(HV), torch.randn(*lead, *own), torch.randn(*lead, HV), torch.randn(own)
    rate, x = A_log.double().exp().reshape(HV, *([1] if kda else [])), (a + bias).double()
    g = -rate * torch.log1p(x.exp()) if lowest is None else lowest / (1 + (-rate * x).exp())
    return A_log, a, b, bias.flatten(), g, 1 / (1 + (-b.double()).exp())


# --- SGLang ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inplace", [True, False])
def test_sglang_extends(inplace):
    """As its backend of the gated delta rule prefills, with a row of padding; without `inplace_update` slots stay."""
    starts, rows = torch.tensor([0, 70, 70 + 130, 203], dtype=torch.int32), torch.tensor([2, 5, -1], dtype=torch.int32)
    given, pool, wanted = tokens(1, 203), blocks(True), blocks(True).double()
    o, last, h = sglang.chunk_gated_delta_rule(
        **given, initial_state=pool, initial_state_indices=rows, cu_seqlens=starts, head_first=False,
        use_qk_l2norm_in_kernel=True, inplace_update=inplace,
    )  # fmt: skip
    before, chunks = wanted.clone(), {}

    def written(n, t, state):
        if inplace:
            put(wanted, int(rows[n]), state, True)
        if (t + 1) % 64 == 0:
            chunks[n, t + 1] = state.clone()

    expected = loop(
        **given, scale=K**-0.5, normalise=True, starts=starts, written=written,
        read=lambda n: None if rows[n] < 0 else of(before, int(rows[n]), True),
    )  # fmt: skip
    assert last is None and torch.allclose(o.double(), expected, atol=1e-5) and not o[:, 200:].any()
    assert torch.allclose(pool.double(), wanted, atol=1e-5)
    order = [before[2].mT, chunks[0, 64], before[5].mT, chunks[1, 64], chunks[1, 128]]
    every = torch.stack([x.mT for x in order])
    assert h.shape == (1, 6, HV, V, K) and len(h.squeeze(0)) == 6
    assert torch.allclose(h.tensor()[0, :5].double(), every, atol=1e-5) and not h.tensor()[0, 5].any()
    some = torch.tensor([4, 0, 1])  # as the cache of prefixes takes them
    assert torch.allclose(h.squeeze(0)[some].double(), every[some], atol=1e-5)
    assert torch.allclose(h[0].index_select(0, some).double(), every[some], atol=1e-5)
    assert torch.allclose(h[0][torch.tensor([1, 4])].double(), every[[1, 4]], atol=1e-5)
    assert h[0][torch.tensor([], dtype=torch.long)].shape == (0, HV, V, K)


@kinds
def test_sglang_extends_padding_by_nothing_in_a_batch_that_is_not_packed(kda):
    given, pool = tokens(3, 9, kda=kda), blocks(True)
    before, rows = pool.clone(), torch.tensor([4, -1, 0])
    function = sglang.chunk_kda if kda else sglang.chunk_gated_delta_rule
    found = function(**given, initial_state=pool, initial_state_indices=rows)
    o = found if kda else found[0]
    assert not o[1].any() and o[[0, 2]].any(-1).all() and not torch.equal(pool[[4, 0]], before[[4, 0]])
    assert torch.equal(pool[[1, 2, 3]], before[[1, 2, 3]])


def test_sglang_tracks_the_state_before_a_chunk():
    starts, rows, chunk = torch.tensor([0, 70, 140, 150]), torch.tensor([2, 5, 1]), torch.tensor([1, -1, 0])
    given, pool = tokens(1, 150), blocks(True)
    kept, first, found = torch.full((3, HV, V, K), 7.0), pool.clone(), {}
    sglang.chunk_gated_delta_rule(
        **given,
        initial_state=pool,
        initial_state_indices=rows,
        cu_seqlens=starts,
        track_state=kept,
        track_chunk_idx=chunk,
    )
    loop(
        **given, scale=K**-0.5, normalise=False, starts=starts, read=lambda n: of(first, int(rows[n]), True),
        written=lambda n, t, s: found.setdefault((n, t), s.clone()),
    )  # fmt: skip
    assert torch.allclose(kept[0].double(), found[0, 63].mT, atol=1e-5)
    assert (kept[1] == 7).all() and torch.allclose(kept[2], first[1], atol=1e-6)


def test_mistakes_in_tracking_are_named():
    starts, given, kept = torch.tensor([0, 70, 80]), tokens(1, 80), torch.zeros(2, HV, V, K)
    with pytest.raises(ArgumentError, match="track_state and track_chunk_idx are given together"):
        sglang.chunk_gated_delta_rule(**given, cu_seqlens=starts, track_state=kept)
    for more in (
        {"track_state": kept, "track_chunk_idx": torch.tensor([1, 1])},
        {"track_state": kept[:1], "track_chunk_idx": torch.tensor([1, 0])},
    ):
        with pytest.raises(ArgumentError, match=r"track_state must be \[2, 4, 6, 8\], got .*\(sequence, chunk\): \["):
            sglang.chunk_gated_delta_rule(**given, cu_seqlens=starts, **more)


def test_sglang_extends_kimi_delta_attention():
    starts, rows = torch.tensor([0, 70, 75]), torch.tensor([2, 0])
    A_log, a, _, bias, g, beta = gates(True, 1, 75, lowest=-5.0)
    given, pool, wanted = tokens(1, 75, kda=True), blocks(True), blocks(True).double()
    given |= {"g": a, "beta": beta.float()}
    o, h = sglang.chunk_kda(
        **given, initial_state=pool, initial_state_indices=rows, use_qk_l2norm_in_kernel=True, cu_seqlens=starts,
        A_log=A_log, dt_bias=bias, lower_bound=-5.0, output_intermediate_states=True,
    )  # fmt: skip
    before, found = wanted.clone(), {}

    def written(n, t, state):
        put(wanted, int(rows[n]), state, True)
        found[n, t] = state.clone()

    expected = loop(
        **(given | {"g": g}), scale=K**-0.5, normalise=True, starts=starts, written=written,
        read=lambda n: of(before, int(rows[n]), True),
    )  # fmt: skip
    assert torch.allclose(o.double(), expected, atol=1e-5) and torch.allclose(pool.double(), wanted, atol=1e-5)
    assert torch.allclose(h[0].tensor()[1].double(), found[0, 63].mT, atol=1e-5)


@kinds
@pytest.mark.parametrize("lowest", [None, -5.0])
def test_sglang_verifies_drafts(kda, lowest):
    """With other steps than the buffer has room for, as its adaptive drafts are."""
    starts, rows, slots = torch.tensor([0, 2, 4]), torch.tensor([4, 7]), torch.tensor([1, 0], dtype=torch.int32)
    A_log, a, b, bias, g, beta = gates(kda, 4, lowest=lowest)
    given, pool, buffer = tokens(1, 4), blocks(True), torch.zeros(3, 5, HV, V, K)
    before, between = pool.clone(), buffer.double()
    o = sglang.fused_sigmoid_gating_delta_rule_update(
        A_log=A_log, dt_bias=bias, q=given["q"], k=given["k"], v=given["v"], a=a.flatten(1), b=b,
        initial_state_source=pool, initial_state_indices=rows, cu_seqlens=starts, use_qk_l2norm_in_kernel=True,
        softplus_beta=1.0, softplus_threshold=20.0, is_kda=kda, lower_bound=lowest, disable_state_update=True,
        intermediate_states_buffer=buffer, intermediate_state_indices=slots, cache_steps=2, retrieve_parent_token=None,
        cache_ring=False, replayssm_rawv=None, replayssm_rawk=None, replayssm_g=None, replayssm_beta=None,
    )  # fmt: skip
    expected = loop(
        given["q"], given["k"], given["v"], g[None], beta[None], K**-0.5, True, lambda n: of(before, int(rows[n]), True),
        lambda n, t, s: put(between[slots[n]], t, s, True), starts,
    )  # fmt: skip
    assert torch.allclose(o.double(), expected, atol=1e-5) and torch.equal(pool, before)
    assert torch.allclose(buffer.double(), between, atol=1e-5)
    with pytest.raises(ArgumentError, match="cache_ring isn't supported, got True"):
        sglang.fused_sigmoid_gating_delta_rule_update(
            A_log, a, bias, 1.0, 20.0, given["q"], given["k"], given["v"], b, pool, rows, is_kda=kda, cache_ring=True
        )


def test_sglang_decodes_with_a_lower_bound():
    A_log, a, b, bias, g, beta = gates(True, 3, lowest=-5.0)
    torch.manual_seed(3)
    mixed, rows = torch.randn(3, 2 * H * K + HV * V), torch.tensor([5, -1, 2], dtype=torch.int32)
    pool, wanted, out = blocks(True), blocks(True).double(), torch.full((3, 1, HV, V), 7.0)
    sglang.fused_recurrent_kda_packed_decode(
        mixed_qkv=mixed, a=a.flatten(1), b=b, A_log=A_log, dt_bias=bias, scale=0.3, initial_state=pool, out=out,
        ssm_state_indices=rows, use_qk_l2norm_in_kernel=True, lower_bound=-5.0,
    )  # fmt: skip
    _same_step(mixed, g, beta, rows.tolist(), 0.3, out, pool, wanted)


def _same_step(mixed, g, beta, rows, scale, out, pool, wanted):
    """A step of each sequence from `mixed`; out: [B, 1, HV, V]."""
    q, k, v = mixed[:, None].split([H * K, H * K, HV * V], -1)
    expected = loop(
        q.unflatten(-1, (H, K)), k.unflatten(-1, (H, K)), v.unflatten(-1, (HV, V)), g[:, None], beta[:, None], scale, True,
        lambda n: None if rows[n] < 0 else of(wanted, rows[n], True), lambda n, t, s: put(wanted, rows[n], s, True),
    )  # fmt: skip
    assert torch.allclose(out.double(), expected, atol=1e-5) and torch.allclose(pool.double(), wanted, atol=1e-5)


# --- lightning attention ---------------------------------------------------------------------------------------------

D = 8


def lightning(q, k, v, slope, spans, scale, state_of, written):
    """q, k, v [T, H, D]; spans: the tokens of each sequence. state_of(n): [H, D, D], or None for padding."""
    q, k, v = (x.double() for x in (q, k, v))
    decay, out = (-slope.double().flatten()).exp()[:, None, None], torch.zeros(v.shape, dtype=torch.float64)
    for n, (begin, end) in enumerate(spans):
        state = state_of(n)
        if state is None:
            continue
        state = state.double().clone()
        for t in range(begin, end):
            state = decay * state + k[t, :, :, None] * v[t, :, None]
            out[t] = scale * (state * q[t, :, :, None]).sum(-2)
            written(n, t - begin, state)
    return out


def slots(rows=6, dtype=torch.float32):
    torch.manual_seed(1)
    return torch.randn(rows, H, D, D).to(dtype)


@pytest.mark.parametrize("engine", [vllm, sglang], ids=["vllm", "sglang"])
def test_lightning_attention_decodes(engine):
    """Block 0 is vLLM's padding, and a slot of SGLang's."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4, H, 1, D) / 2
    slope, rows = torch.rand(H, 1, 1), [4, -1, 0, 2]
    pool, wanted = slots(), slots().double()
    o = engine.linear_decode_forward_triton(q, k, v, pool, slope, torch.tensor(rows), 32)
    real = [None if row < 0 or (row == 0 and engine is vllm) else row for row in rows]
    expected = lightning(
        q[:, :, 0], k[:, :, 0], v[:, :, 0], slope, [(n, n + 1) for n in range(4)], 1.0,
        lambda n: None if real[n] is None else wanted[real[n]], lambda n, t, s: wanted.__setitem__(real[n], s),
    )  # fmt: skip
    assert torch.allclose(o.double(), expected.flatten(1), atol=1e-5)
    assert torch.allclose(pool.double(), wanted, atol=1e-5)


def test_lightning_attention_prefills():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, H, 9, D) / 2
    history, ed = torch.randn(2, H, D, D), torch.rand(H)
    before, last = history.clone(), {}
    o, kv = vllm.lightning_attention(q, k, v, ed, 256, history)
    flat = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
    expected = lightning(
        *flat, ed, [(0, 9), (9, 18)], 1.0, lambda n: history[n], lambda n, t, s: last.__setitem__(n, s)
    )
    assert torch.allclose(o.transpose(1, 2).flatten(0, 1).double(), expected, atol=1e-5)
    assert torch.allclose(kv[:, :, -1].double(), torch.stack([last[0], last[1]]), atol=1e-5)
    assert torch.equal(history, before)
    out = sglang.BailingLinearKernel.jit_linear_forward_prefix(
        q[0], k[0], v[0], history[0], ed.reshape(H, 1, 1), 256, layer_idx=3
    )
    assert torch.allclose(out.double(), expected[:9].flatten(1), atol=1e-5)
    assert torch.allclose(history[0].double(), last[0], atol=1e-5) and torch.equal(history[1], before[1])


def meta(starts, rows, fresh, mask=None):
    starts = torch.tensor(starts, dtype=torch.int32)
    return SimpleNamespace(
        batch_size=len(rows), max_q_length=None, q_offsets=starts, s_offsets=torch.tensor(rows), q_lengths=starts.diff(),
        s_scales=torch.tensor([not x for x in fresh]), mask=mask,
    )  # fmt: skip


@pytest.mark.parametrize("layout", ["kv", "vk"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sglang_prefills_segments(layout, dtype):
    """A prompt that begins, padding, and one that goes on; the second half of it is tracked."""
    starts, rows, fresh, tracked = [0, 40, 45, 141], [3, -1, 1], [True, False, False], [-1, 4, 5]
    torch.manual_seed(0)
    q, k, v, slope = *(torch.randn(3, 141, H, D) / 2).to(dtype), torch.rand(H, 1, 1)
    pool, wanted = slots(dtype=dtype), slots(dtype=dtype).double()
    given = pool.mT.contiguous() if layout == "vk" else pool
    o = sglang.seg_la_fwd(
        q, k, v, given, slope, meta(starts, rows, fresh), track_lens=torch.tensor([32, 2, 64], dtype=torch.int32),
        track_state_indices=torch.tensor(tracked), softmax_scale=0.5, decouple=True, state_layout=layout,
    )  # fmt: skip

    def written(n, t, state):
        if (n, t) == (2, 63):
            wanted[5] = state
        if t == starts[n + 1] - starts[n] - 1:
            wanted[rows[n]] = state

    expected = lightning(
        q, k, v, slope, list(itertools.pairwise(starts)), 0.5,
        lambda n: None if rows[n] < 0 else torch.zeros(H, D, D) if fresh[n] else wanted[rows[n]].clone(), written,
    )  # fmt: skip
    far = 1e-5 if dtype == torch.float32 else 3e-2
    assert o.dtype == dtype and torch.allclose(o.double(), expected, atol=far, rtol=far)
    assert torch.allclose((given.mT if layout == "vk" else given).double(), wanted, atol=far, rtol=far)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sglang_steps_segments(dtype):
    torch.manual_seed(0)
    q, k, v, slope = *(torch.randn(3, 3, H, D) / 2).to(dtype), torch.rand(H, 1, 1)
    rows, pool, wanted = [2, -1, 0], slots(), slots().double()
    o = sglang.seg_la_fwd(q, k, v, pool, slope, meta([0, 1, 2, 3], rows, [True] * 3))
    expected = lightning(
        q, k, v, slope, [(0, 1), (1, 2), (2, 3)], D**-0.5, lambda n: None if rows[n] < 0 else wanted[rows[n]],
        lambda n, t, s: wanted.__setitem__(rows[n], s),
    )  # fmt: skip
    far = 1e-5 if dtype == torch.float32 else 2e-2
    assert torch.allclose(o.double(), expected, atol=far) and torch.allclose(pool.double(), wanted, atol=1e-5)


def test_sglang_verifies_drafts_of_segments():
    torch.manual_seed(0)
    q, k, v, slope = *torch.randn(3, 6, H, D) / 2, torch.rand(H, 1, 1)
    rows, pool, caches = [2, 0], slots(), torch.zeros(4, 5, H, D, D)
    kept = caches.double()
    at = torch.tensor([3, 1], dtype=torch.int32)
    o = sglang.seg_la_fwd(q, k, v, pool, slope, meta([0, 3, 6], rows, [False] * 2), caches=caches, cache_indices=at)
    expected = lightning(
        q, k, v, slope, [(0, 3), (3, 6)], D**-0.5, lambda n: slots()[rows[n]],
        lambda n, t, s: kept[at[n]].__setitem__(t, s),
    )  # fmt: skip
    assert torch.allclose(o.double(), expected, atol=1e-5) and torch.equal(pool, slots())
    assert torch.allclose(caches.double(), kept, atol=1e-5)


def test_mistakes_in_segments_are_named():
    q, pool, slope = torch.randn(6, H, D), slots(), torch.rand(H, 1, 1)
    call = sglang.seg_la_fwd
    with pytest.raises(ArgumentError, match=r"trees of drafts \(mask\)"):
        call(q, q, q, pool, slope, meta([0, 6], [1], [True], mask=torch.ones(1, 6, 6)))
    with pytest.raises(ArgumentError, match="rows of the pool, 0 to 5, or -1; got 9 at 0"):
        call(q, q, q, pool, slope, meta([0, 6], [9], [True]))
    with pytest.raises(ArgumentError, match=r"caches must be \[slots, 3 steps or more"):
        call(q, q, q, pool, slope, meta([0, 3, 6], [1, 2], [True] * 2), caches=torch.zeros(2, 2, H, D, D))
    with pytest.raises(ArgumentError, match=r"q, k and v must be \[T, H, D\]"):
        call(q[0], q[0], q[0], pool, slope, meta([0, 6], [1], [True]))
    with pytest.raises(ArgumentError, match='must be "kv" or "vk"'):
        call(q, q, q, pool, slope, meta([0, 6], [1], [True]), state_layout="dd")
    with pytest.raises(ArgumentError, match="states must be"):
        call(q[:1], q[:1], q[:1], pool[..., :4], slope, meta([0, 1], [1], [True]))
    assert call(q[:0], q[:0], q[:0], pool, slope, meta([0, 0], [1], [True])).shape == (0, H, D)
    with chunkform.debug(), pytest.raises(ArgumentError, match="has the row 3 twice"):
        call(q, q, q, pool, slope, meta([0, 3, 6], [3, 3], [True] * 2))
    assert torch.equal(pool, slots())


# --- vLLM ------------------------------------------------------------------------------------------------------------


@kinds
def test_vllm_accepts_nothing_of_a_request(kda):
    """Of a count of accepted tokens below 1 nothing is read or written; nor beyond the blocks, which a CPU says."""
    given, pool = tokens(2, 2, kda=kda), blocks(True)
    call = vllm.fused_recurrent_kda if kda else vllm.fused_recurrent_gated_delta_rule
    rows, accepted = torch.tensor([[3, 4], [5, 6]]), torch.tensor([0, 2])
    o, _ = call(**given, initial_state=pool, ssm_state_indices=rows, num_accepted_tokens=accepted)
    assert not o[0].any() and o[1].any() and torch.equal(pool[[3, 4]], blocks(True)[[3, 4]])
    assert not torch.equal(pool[5], blocks(True)[5])


def test_vllm_decodes_kimi_delta_attention_from_what_a_layer_projects():
    starts, rows = torch.tensor([0, 2, 4], dtype=torch.int32), torch.tensor([[3, 4], [0, 5]], dtype=torch.int32)
    A_log, a, b, bias, g, beta = gates(True, 1, 4, lowest=-5.0)
    given, pool, wanted = tokens(1, 4, kda=True), blocks(True), blocks(True).double()
    buffer = torch.full((1, 6, HV, V), 7.0)
    o, same = vllm.fused_recurrent_kda(
        q=given["q"], k=given["k"], v=given["v"], raw_g=a, raw_beta=b, A_log=A_log, dt_bias=bias, lower_bound=-5.0,
        initial_state=pool, cu_seqlens=starts, ssm_state_indices=rows,
        num_accepted_tokens=torch.tensor([2, 1], dtype=torch.int32), out=buffer[:, :4], fuse_gate=True,
    )  # fmt: skip
    before = wanted.clone()
    expected = loop(
        given["q"], given["k"], given["v"], g, beta, K**-0.5, True, lambda n: of(before, 4, True) if n == 0 else None,
        lambda n, t, s: put(wanted, int(rows[n, t]), s, True), starts,
    )  # fmt: skip
    assert same is pool and o.data_ptr() == buffer.data_ptr() and (buffer[:, 4:] == 7).all()
    assert torch.allclose(o.double(), expected, atol=1e-5) and torch.allclose(pool.double(), wanted, atol=1e-5)

    A_log, a, b, bias, g, beta = gates(True, 3)
    mixed, pool, wanted = torch.randn(3, 2 * H * K + HV * V), blocks(True), blocks(True).double()
    o, same = vllm.fused_recurrent_kda_packed_decode(
        mixed_qkv=mixed, raw_g=a[None], raw_beta=b[None], A_log=A_log, dt_bias=bias, lower_bound=None, initial_state=pool,
        state_indices=torch.tensor([5, 0, 2], dtype=torch.int32),
    )  # fmt: skip
    assert same is pool and o.shape == (1, 3, HV, V)
    _same_step(mixed, g, beta, [5, -1, 2], K**-0.5, o.transpose(0, 1), pool, wanted)


@pytest.mark.parametrize("raw", [True, False])
def test_vllm_prefills_kimi_delta_attention_from_what_a_layer_projects(raw):
    starts, lowest = torch.tensor([0, 5, 12]), -5.0
    A_log, a, b, bias, g, beta = gates(True, 1, 12, lowest=lowest)
    given, first = tokens(1, 12, kda=True), blocks(True, 2)
    strength = {"raw_beta": b, "lower_bound": lowest} if raw else {"beta": beta.float(), "safe_gate": True}
    o, last = vllm.chunk_kda_with_fused_gate(
        q=given["q"], k=given["k"], v=given["v"], raw_g=a, A_log=A_log, g_bias=bias, initial_state=first, **strength,
        output_final_state=True, use_qk_l2norm_in_kernel=True, cu_seqlens=starts, chunk_indices=None,
    )  # fmt: skip
    wanted = first.double()
    expected = loop(
        given["q"], given["k"], given["v"], g, beta, K**-0.5, True, lambda n: of(first, n, True),
        lambda n, t, s: put(wanted, n, s, True), starts,
    )  # fmt: skip
    assert torch.allclose(o.double(), expected, atol=1e-5) and torch.allclose(last.double(), wanted, atol=1e-5)


def test_vllm_prefills_into_a_buffer():
    given, buffer = tokens(1, 5), torch.full((7, HV, V), 7.0)
    alone, _ = vllm.chunk_gated_delta_rule(**given)
    o, _ = vllm.chunk_gated_delta_rule(**given, core_attn_out=buffer, chunk_indices=None, chunk_offsets=None)
    assert torch.equal(o, alone) and torch.equal(buffer[:5], alone[0]) and (buffer[5:] == 7).all()
    with pytest.raises(ArgumentError, match=r"core_attn_out must be contiguous, in torch\.float32, with 120 entries"):
        vllm.chunk_gated_delta_rule(**given, core_attn_out=buffer[:4])


def test_gates_are_given_once():
    given, rows, pool = tokens(2, 1, kda=True), torch.tensor([3, 4]), blocks(True)
    A_log, a, b, bias, *_ = gates(True, 2, 1)
    qkv = {n: given[n] for n in "qkv"} | {"initial_state": pool, "ssm_state_indices": rows}
    for more, told in (
        ({}, "give g and beta, or raw_g and raw_beta"),
        ({"g": given["g"], "raw_g": a}, "give g and beta, or raw_g and raw_beta"),
        ({"raw_g": a, "raw_beta": b}, "where A_log is given, got None"),
        ({"g": given["g"], "A_log": A_log}, "are for raw_g, but g was given"),
        ({"g": given["g"], "out": torch.zeros(2, 1, HV, 1)}, "out must be"),
    ):
        with pytest.raises(ArgumentError, match=told):
            vllm.fused_recurrent_kda(**qkv, **more)
    with pytest.raises(ArgumentError, match="give beta, or raw_beta"):
        vllm.chunk_kda_with_fused_gate(*(given[n] for n in "qkv"), a, A_log=A_log, g_bias=bias)
