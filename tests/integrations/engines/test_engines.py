"""The functions of vLLM's and SGLang's names against float64 loops of what they do there, written without any of our code."""

import pytest
import torch
from shared.engine_loops import HV, H, K, P, V, blocks, loop, of, put, tokens

import chunkform
from chunkform.errors import ArgumentError
from chunkform.integrations.engines import sglang, vllm

layouts = pytest.mark.parametrize("v_first", [True, False], ids=["V first", "K first"])
kinds = pytest.mark.parametrize("kda", [False, True], ids=["gated delta rule", "kda"])


def function_of(kda):
    return vllm.fused_recurrent_kda if kda else vllm.fused_recurrent_gated_delta_rule


@layouts
@kinds
def test_vllm_decodes_in_blocks(v_first, kda):
    given, indices = tokens(4, 1, kda=kda), torch.tensor([3, -1, 0, 7], dtype=torch.int32)
    pool, wanted = blocks(v_first), blocks(v_first).double()
    o, same = function_of(kda)(
        **given, initial_state=pool, ssm_state_indices=indices, use_qk_l2norm_in_kernel=True, state_v_first=v_first
    )
    real = [3, None, None, 7]
    expected = loop(
        **given, scale=K**-0.5, normalise=True,
        read=lambda n: None if real[n] is None else of(wanted, real[n], v_first),
        written=lambda n, t, s: put(wanted, real[n], s, v_first),
    )  # fmt: skip
    assert same is pool and torch.allclose(o.double(), expected, atol=1e-5)
    assert torch.allclose(pool.double(), wanted, atol=1e-5)
    assert torch.equal(pool[[0, 1, 2]], blocks(v_first)[[0, 1, 2]])


@layouts
@kinds
def test_vllm_verifies_drafts_from_the_last_accepted_token(v_first, kda):
    """Packed tokens, [N, K] blocks, of which the one of the last accepted token is read and each token's is written."""
    starts = torch.tensor([0, 3, 4, 4, 7], dtype=torch.int32)
    given = tokens(1, 7, kda=kda)
    indices = torch.tensor([[3, 4, 5], [6, 7, 8], [9, 10, 11], [2, 1, -1]], dtype=torch.int32)
    accepted = torch.tensor([2, 1, 3, 1], dtype=torch.int32)
    pool, wanted = blocks(v_first), blocks(v_first).double()
    o, _ = function_of(kda)(
        **given, scale=0.5, initial_state=pool, cu_seqlens=starts, ssm_state_indices=indices,
        num_accepted_tokens=accepted, state_v_first=v_first, use_qk_l2norm_in_kernel=False,
    )  # fmt: skip

    def written(n, t, state):
        if indices[n, t] >= 0:
            put(wanted, int(indices[n, t]), state, v_first)

    before = wanted.clone()
    expected = loop(
        **given, scale=0.5, normalise=False, starts=starts, written=written,
        read=lambda n: of(before, int(indices[n, accepted[n] - 1]), v_first),
    )  # fmt: skip
    assert torch.allclose(o.double(), expected, atol=1e-5) and torch.allclose(pool.double(), wanted, atol=1e-5)


@layouts
@pytest.mark.parametrize("packed", [False, True])
def test_vllm_returns_the_states_after_all_tokens(v_first, packed):
    given = tokens(1, 6) if packed else tokens(2, 3)
    starts = torch.tensor([0, 2, 6]) if packed else None
    pool, after = blocks(v_first, 2), torch.zeros(6, HV, K, V, dtype=torch.float64)
    first = [0, 2] if packed else [0, 3]
    o, found = vllm.fused_recurrent_gated_delta_rule(
        **given, initial_state=pool, inplace_final_state=False, cu_seqlens=starts, state_v_first=v_first
    )
    expected = loop(
        **given, scale=K**-0.5, normalise=False, starts=starts, read=lambda n: of(pool, n, v_first),
        written=lambda n, t, s: after.__setitem__(first[n] + t, s),
    )  # fmt: skip
    assert torch.allclose(o.double(), expected, atol=1e-5)
    assert torch.allclose((found.mT if v_first else found).double(), after, atol=1e-5)
    assert torch.equal(pool, blocks(v_first, 2))


@kinds
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_gates_are_made_of_what_a_layer_projects(engine, kda):
    given = tokens(3, 1)
    torch.manual_seed(2)
    A_log, a, b = torch.rand(HV), torch.randn(3, HV * (K if kda else 1)), torch.randn(3, HV)
    dt_bias = torch.randn(HV * (K if kda else 1))
    indices, pool, wanted = torch.tensor([5, -1, 2]), blocks(True), blocks(True).double()
    common = {n: given[n] for n in "qkv"} | {"A_log": A_log, "a": a, "b": b, "dt_bias": dt_bias, "is_kda": kda}
    if engine == "vllm":
        o, _ = vllm.fused_sigmoid_gating_delta_rule_update(
            **common, initial_state=pool, ssm_state_indices=indices, use_qk_l2norm_in_kernel=True
        )
    else:
        o = sglang.fused_sigmoid_gating_delta_rule_update(
            **common, softplus_beta=1.0, softplus_threshold=20.0, initial_state_source=pool,
            initial_state_indices=indices, use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
    own = (HV, K) if kda else (HV,)
    x = (a + dt_bias).double().reshape(3, 1, *own)
    g = -A_log.double().exp().reshape(HV, *([1] if kda else [])) * torch.log1p(x.exp())
    expected = loop(
        **{n: given[n] for n in "qkv"}, g=g, beta=1 / (1 + (-b.double()).exp()).reshape(3, 1, HV), scale=K**-0.5,
        normalise=True, read=lambda n: None if n == 1 else of(wanted, int(indices[n]), True),
        written=lambda n, t, s: put(wanted, int(indices[n]), s, True),
    )  # fmt: skip
    assert torch.allclose(o.double(), expected, atol=1e-5) and torch.allclose(pool.double(), wanted, atol=1e-5)


@layouts
@pytest.mark.parametrize("stays", [False, True], ids=["in place", "verified only"])
def test_sglang_keeps_the_states_between(v_first, stays):
    starts = torch.tensor([0, 3, 6, 9])
    given, indices = tokens(1, 9), torch.tensor([4, -1, 2])
    pool, wanted = blocks(v_first), blocks(v_first).double()
    buffer = torch.zeros(5, 3, *pool.shape[1:])
    between = buffer.double()
    slots = torch.tensor([1, 3, -1])
    o = sglang.fused_recurrent_gated_delta_rule_update(
        **given, initial_state_source=pool, initial_state_indices=indices, cu_seqlens=starts,
        disable_state_update=stays, intermediate_states_buffer=buffer, intermediate_state_indices=slots, cache_steps=3,
        state_v_first=v_first,
    )  # fmt: skip

    def written(n, t, state):
        if slots[n] >= 0:
            put(between[slots[n]], t, state, v_first)
        if t == 2 and not stays:
            put(wanted, int(indices[n]), state, v_first)

    expected = loop(
        **given, scale=K**-0.5, normalise=False, starts=starts, written=written,
        read=lambda n: None if indices[n] < 0 else of(wanted, int(indices[n]), v_first),
    )  # fmt: skip
    assert torch.allclose(o.double(), expected, atol=1e-5) and torch.allclose(pool.double(), wanted, atol=1e-5)
    assert torch.allclose(buffer.double(), between, atol=1e-5)


def test_sglang_can_leave_outputs_out():
    given, pool, other = tokens(2, 1), blocks(True), blocks(True)
    indices = torch.tensor([4, 2])
    state = {"initial_state_source": pool, "initial_state_indices": indices}
    assert sglang.fused_recurrent_gated_delta_rule_update(**given, **state, disable_output_calculation=True) is None
    sglang.fused_recurrent_gated_delta_rule_update(**given, **(state | {"initial_state_source": other}))
    assert torch.equal(pool, other) and not torch.equal(pool, blocks(True))


@layouts
@pytest.mark.parametrize("function", ["vllm", "vllm kda", "sglang", "sglang pool", "sglang recurrent"])
def test_prefills(function, v_first):
    kda = "kda" in function
    starts = torch.tensor([0, 5, 12])
    given = tokens(1, 12, kda=kda)
    pool, wanted = blocks(v_first, 3), blocks(v_first, 3).double()
    rows = torch.tensor([2, 0])
    options = {"cu_seqlens": starts, "use_qk_l2norm_in_kernel": True, "state_v_first": v_first}
    first = pool[rows].clone()
    if function == "sglang pool":
        o, last, _ = sglang.chunk_gated_delta_rule(**given, initial_state=pool, initial_state_indices=rows, **options)
        assert last is None
        last = pool[rows]
    else:
        call = {
            "vllm": vllm.chunk_gated_delta_rule, "vllm kda": vllm.chunk_kda, "sglang": sglang.chunk_gated_delta_rule,
            "sglang recurrent": sglang.fused_recurrent_gated_delta_rule,
        }[function]  # fmt: skip
        o, last, *_ = call(**given, initial_state=first, output_final_state=True, **options)
        assert torch.equal(first, blocks(v_first, 3)[rows])
    expected = loop(
        **given, scale=K**-0.5, normalise=True, starts=starts, read=lambda n: of(wanted, int(rows[n]), v_first),
        written=lambda n, t, s: put(wanted, int(rows[n]), s, v_first),
    )  # fmt: skip
    assert torch.allclose(o.double(), expected, atol=1e-5) and torch.allclose(last.double(), wanted[rows], atol=1e-5)


@layouts
@kinds
@pytest.mark.parametrize("engine", [vllm, sglang], ids=["vllm", "sglang"])
def test_a_step_from_what_a_layer_projects(engine, kda, v_first):
    """Queries, keys and values as one tensor, a slice of a wider one; what `out` held is gone, also of padding."""
    if kda and engine is vllm:
        pytest.skip("vLLM's takes other arguments: test_engine_calls.py")
    torch.manual_seed(3)
    wide = torch.randn(3, 2 * H * K + HV * V + 5)
    A_log, b, indices = torch.rand(HV), torch.randn(3, HV), torch.tensor([5, -1, 2], dtype=torch.int32)
    a, dt_bias = torch.randn(3, HV * (K if kda else 1)), torch.randn(HV * (K if kda else 1))
    pool, wanted, out = blocks(v_first), blocks(v_first).double(), torch.full((3, 1, HV, V), 7.0)
    call = engine.fused_recurrent_kda_packed_decode if kda else engine.fused_recurrent_gated_delta_rule_packed_decode
    mixed = wide[:, :-5]
    found, same = call(
        mixed, a, b, A_log, dt_bias, 0.3, pool, out, indices, use_qk_l2norm_in_kernel=True, state_v_first=v_first
    )
    q, k, v = mixed[:, None].split([H * K, H * K, HV * V], -1)
    own = (HV, K) if kda else (HV,)
    g = -A_log.double().exp().reshape(HV, *([1] if kda else [])) * torch.log1p((a + dt_bias).double().exp()).reshape(
        3, 1, *own
    )
    expected = loop(
        q.reshape(3, 1, H, K), k.reshape(3, 1, H, K), v.reshape(3, 1, HV, V), g, b.double().sigmoid().reshape(3, 1, HV),
        0.3, True, lambda n: None if n == 1 else of(wanted, int(indices[n]), v_first),
        lambda n, t, s: put(wanted, int(indices[n]), s, v_first),
    )  # fmt: skip
    assert found is out and same is pool
    assert torch.allclose(out.double(), expected, atol=1e-5) and torch.allclose(pool.double(), wanted, atol=1e-5)


@pytest.mark.parametrize("lowest", [None, -5.0])
@pytest.mark.parametrize("engine", [vllm, sglang], ids=["vllm", "sglang"])
def test_a_prefill_makes_its_own_decays(engine, lowest):
    starts, rows = torch.tensor([0, 5, 12]), torch.tensor([2, 0])
    given, A_log, dt_bias = tokens(1, 12, kda=True), torch.rand(HV), torch.randn(HV * K)
    pool, wanted = blocks(True, 3), blocks(True, 3).double()
    x = (given["g"] + dt_bias.reshape(HV, K)).double()
    rate = A_log.double().exp()[:, None]
    g = -rate * torch.log1p(x.exp()) if lowest is None else lowest / (1 + (-rate * x).exp())
    more = {"cu_seqlens": starts, "A_log": A_log, "dt_bias": dt_bias, "lower_bound": lowest}
    if engine is vllm:
        o, last = engine.chunk_kda(**given, initial_state=pool[rows], output_final_state=True, **more)
    else:
        o = engine.chunk_kda(**given, initial_state=pool, initial_state_indices=rows, **more)
        last = pool[rows]
    expected = loop(
        **(given | {"g": g}), scale=K**-0.5, normalise=False, starts=starts,
        read=lambda n: of(wanted, int(rows[n]), True), written=lambda n, t, s: put(wanted, int(rows[n]), s, True),
    )  # fmt: skip
    assert torch.allclose(o.double(), expected, atol=1e-5) and torch.allclose(last.double(), wanted[rows], atol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_a_captured_graph_has_more_rows_than_sequences_and_room_for_more_tokens(packed):
    """Indices, counts and buffers of the largest batch and of the most drafts."""
    given, starts = (tokens(1, 5), torch.tensor([0, 3, 5])) if packed else (tokens(2, 3), None)
    indices = torch.tensor([[3, 4, 5, 1], [6, 7, 8, 2], [9, 10, 11, -1], [0, 0, 0, 0]])
    accepted = torch.tensor([2, 1, 1, 1])
    pools, outs = [blocks(True), blocks(True)], []
    for pool, n, k in zip(pools, (4, 2), (4, 3), strict=True):
        o, _ = vllm.fused_recurrent_gated_delta_rule(
            **given, initial_state=pool, cu_seqlens=starts, ssm_state_indices=indices[:n, :k],
            num_accepted_tokens=accepted[:n],
        )  # fmt: skip
        outs.append(o)
    assert torch.equal(*outs) and torch.equal(*pools) and not torch.equal(pools[0], blocks(True))
    pool, buffer = blocks(True), torch.zeros(5, 6, HV, V, K)
    o = sglang.fused_recurrent_gated_delta_rule_update(
        **given, initial_state_source=pool, initial_state_indices=indices[:, 1], cu_seqlens=starts,
        intermediate_states_buffer=buffer, intermediate_state_indices=torch.tensor([4, 0, 2, 2]),
    )  # fmt: skip
    assert o.abs().amin((-1, -2)).gt(0).all()
    assert torch.equal(buffer[4, 2], pool[4]) and torch.equal(buffer[0, 1 if packed else 2], pool[7])
    assert not buffer[4, 3:].any() and not buffer[2].any()


def test_sequences_without_tokens_leave_the_pool_as_it_is():
    """As where all requests of a batch were cancelled: there are rows, and nothing to do."""
    starts, rows = torch.tensor([0, 0, 0]), torch.tensor([4, 2])
    gates = {"A_log": torch.zeros(HV), "b": torch.zeros(0, HV), "softplus_beta": 1.0, "softplus_threshold": 20.0}
    pool, buffer = blocks(True), torch.zeros(2, 3, HV, V, K)
    for kda in (False, True):
        given = tokens(1, 0, kda=kda)
        packed = {n: given[n] for n in "qkv"} | {"cu_seqlens": starts}
        wide = {"a": torch.zeros(0, HV * (K if kda else 1)), "dt_bias": torch.zeros(HV * (K if kda else 1))}
        outs = [
            function_of(kda)(**given, initial_state=pool, cu_seqlens=starts, ssm_state_indices=rows[:, None])[0],
            vllm.fused_sigmoid_gating_delta_rule_update(
                **packed, **wide, A_log=gates["A_log"], b=gates["b"], initial_state=pool, ssm_state_indices=rows, is_kda=kda
            )[0],
            sglang.fused_sigmoid_gating_delta_rule_update(
                **packed, **wide, **gates, initial_state_source=pool, initial_state_indices=rows, is_kda=kda,
                intermediate_states_buffer=buffer, intermediate_state_indices=torch.tensor([0, 1]),
            ),
        ]  # fmt: skip
        prefill = vllm.chunk_kda if kda else vllm.chunk_gated_delta_rule
        o, last = prefill(**given, initial_state=pool[rows], output_final_state=True, cu_seqlens=starts)
        assert all(x.shape == (1, 0, HV, V) for x in (*outs, o)) and torch.equal(last, pool[rows])
    assert torch.equal(pool, blocks(True)) and not buffer.any()


@kinds
def test_a_batch_without_sequences_is_empty(kda):
    none, rows, given = torch.tensor([0], dtype=torch.int32), torch.zeros(0, dtype=torch.int32), tokens(1, 0, kda=kda)
    pool = blocks(True)
    o, _ = function_of(kda)(**given, initial_state=pool, cu_seqlens=none, ssm_state_indices=rows)
    prefill = vllm.chunk_kda if kda else vllm.chunk_gated_delta_rule
    for first in (None, pool[:0]):
        whole, last = prefill(**given, initial_state=first, output_final_state=True, cu_seqlens=none)
        assert whole.shape == o.shape == (1, 0, HV, V) and last.shape == (0, HV, V, K)
    slots = {"initial_state": pool, "initial_state_indices": rows, "cu_seqlens": none}
    if kda:
        o, between = sglang.chunk_kda(**given, **slots, output_intermediate_states=True)
    else:
        o, _, between = sglang.chunk_gated_delta_rule(**given, **slots)
    assert o.shape == (1, 0, HV, V) and between.tensor().numel() == 0 and torch.equal(pool, blocks(True))


def test_in_debug_mode_a_row_that_is_written_stands_once():
    given, twice = tokens(2, 1), torch.tensor([3, 3])
    with chunkform.debug(), pytest.raises(ArgumentError, match="has the row 3 twice, at 0 and at 1"):
        vllm.fused_recurrent_gated_delta_rule(**given, initial_state=blocks(True), ssm_state_indices=twice)
    with chunkform.debug(), pytest.raises(ArgumentError, match="has the row 3 twice, at 0 and at 1"):
        vllm.fused_recurrent_gated_delta_rule(
            **given, initial_state=blocks(True), ssm_state_indices=torch.tensor([[3, 4], [3, 5]]),
            num_accepted_tokens=torch.tensor([2, 2]),
        )  # fmt: skip
    with chunkform.debug():  # of rows that are only read, two sequences may have one
        sglang.fused_recurrent_gated_delta_rule_update(
            **given, initial_state_source=blocks(True), initial_state_indices=twice, disable_state_update=True
        )


def test_mistakes_are_named():
    given, pool = tokens(2, 1), blocks(True)
    call = vllm.fused_recurrent_gated_delta_rule
    state = {"initial_state": pool, "ssm_state_indices": torch.tensor([0, 1])}
    with pytest.raises(
        ArgumentError, match=r"states must be \[rows, heads, K, V\] = \[.., 4, 8, 6\], got \[12, 4, 6, 8\]"
    ):
        call(**given, **state, state_v_first=False)
    with pytest.raises(ArgumentError, match="batch size must be 1, got 2"):
        call(**given, **state, cu_seqlens=torch.tensor([0, 1]))
    with pytest.raises(ArgumentError, match="trees of drafts"):
        call(**given, **state, retrieve_parent_token=torch.zeros(2, 1))
    with pytest.raises(ArgumentError, match=r"beta must be \[B, T, HV\]"):
        call(**(given | {"beta": given["v"]}), **state)
    with pytest.raises(ArgumentError, match="scale must be above 0"):
        call(**given, **state, scale=0.0)
    with pytest.raises(ArgumentError, match=r"ssm_state_indices must be \[N, K\]"):
        call(**given, **state, num_accepted_tokens=torch.tensor([1, 1]))
    with pytest.raises(ArgumentError, match="needs intermediate_state_indices"):
        sglang.fused_recurrent_gated_delta_rule_update(
            **given,
            initial_state_source=pool,
            initial_state_indices=torch.tensor([0, 1]),
            intermediate_states_buffer=pool,
        )
    with pytest.raises(ArgumentError, match="rows for 2 tokens of a sequence, which has 3"):
        call(**tokens(2, 3), initial_state=pool, ssm_state_indices=torch.tensor([[0, 1], [2, 3]]))
    starts, three = torch.tensor([0, 3, 4]), torch.tensor([[0, 1], [2, 3]])
    with pytest.raises(ArgumentError, match="rows for 2 tokens of a sequence, but one has 3"):
        call(**tokens(1, 4), initial_state=pool, ssm_state_indices=three, cu_seqlens=starts)
    with pytest.raises(ArgumentError, match="must rise from 0 to 3 tokens at most"):
        call(**tokens(1, 3), initial_state=pool, ssm_state_indices=torch.tensor([0, 1]), cu_seqlens=starts)
    with pytest.raises(ArgumentError, match="got 99 at 1"):
        call(**given, initial_state=pool, ssm_state_indices=torch.tensor([0, 99]))
    with pytest.raises(ArgumentError, match="for 2 sequences, got"):
        call(**given, initial_state=pool, ssm_state_indices=torch.tensor([0]))
    with pytest.raises(ArgumentError, match="num_accepted_tokens must be 2 at most"):
        call(**given, initial_state=pool, ssm_state_indices=three, num_accepted_tokens=torch.tensor([1, 3]))
    with pytest.raises(ArgumentError, match="H = 2, but v has H = 3"):
        call(
            **(given | {n: given[n][:, :, :3] for n in ("v", "g", "beta")}), **(state | {"initial_state": pool[:, :3]})
        )
    with pytest.raises(ArgumentError, match="allow_neg_eigval isn't supported"):
        vllm.chunk_kda(**tokens(1, 4, kda=True), allow_neg_eigval=True, chunk_indices=starts, safe_gate=False)
    with pytest.raises(ArgumentError, match="where A_log is given"):
        vllm.chunk_kda(**tokens(1, 4, kda=True), use_gate_in_kernel=True)
    with pytest.raises(ArgumentError, match=r"one behind the other, got \[5, 2, 4, 6, 8\]"):
        sglang.fused_recurrent_gated_delta_rule_update(
            **given, initial_state_source=pool, initial_state_indices=torch.tensor([0, 1]),
            intermediate_states_buffer=torch.zeros(5, 4, HV, V, K)[:, :2],
            intermediate_state_indices=torch.tensor([0, 1]),
        )  # fmt: skip


def test_states_and_numbers_that_no_step_takes_are_named():
    given, indices = tokens(4, 1), torch.tensor([3, 1, 0, 7])
    call = vllm.fused_recurrent_gated_delta_rule
    state = {"initial_state": blocks(True), "ssm_state_indices": indices}
    for changed, told in (
        (
            {"initial_state": blocks(True).to(torch.float8_e4m3fn)},
            "states must be in float32, bfloat16 or float16, got torch.float8",
        ),
        ({"initial_state": blocks(True)[:1].expand(P, HV, V, K)}, "must have memory for each entry"),
        ({"ssm_state_indices": [3, 1, 0, 7]}, "ssm_state_indices must be a tensor of int32 or int64, got"),
        ({"ssm_state_indices": indices.float()}, "ssm_state_indices must be a tensor of int32 or int64, got"),
        ({"cu_seqlens": [0, 1]}, "cu_seqlens must be a tensor"),
        ({"scale": torch.tensor(0.5)}, "scale must be above 0, a number, got"),
        ({"q": given["q"].clone().requires_grad_()}, "steps have no gradient, but an argument requires one"),
    ):
        with pytest.raises(ArgumentError, match=told):
            call(**(given | state | changed))
    with torch.no_grad():
        call(**(given | state | {"q": given["q"].clone().requires_grad_()}))
    with pytest.raises(ArgumentError, match="rows must be int32 or int64, for 2 sequences, got"):
        sglang.fused_recurrent_gated_delta_rule_update(
            **tokens(2, 1), initial_state_source=blocks(True), initial_state_indices=[0, 1]
        )
