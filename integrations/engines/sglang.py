"""The functions that SGLang's backends call: `sglang.kernels.ops.attention.fla` and `.linear`, which were
`sglang.srt.layers.attention.fla` and `.linear`.

States lie in slots [P, HV, V, K]; `state_v_first=False` where they are [P, HV, K, V]. A slot below 0 is padding: of it nothing is
read or written, and its output is zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError
from chunkform.runtime.op.pools import kept_steps
from chunkform.runtime.op.rows import checked_rows, read_rows, write_rows

from . import vllm
from .chunk_states import ChunkStates
from .lightning import LinearKernel as BailingLinearKernel
from .lightning import lightning_attention, linear_decode_forward_triton, seg_la_fwd
from .pools import Rows, checked_packing, decays, packed_decode, refuse_others, scaled, take_steps, whole

__all__ = [
    "BailingLinearKernel",
    "chunk_gated_delta_rule",
    "chunk_kda",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_gated_delta_rule_packed_decode",
    "fused_recurrent_gated_delta_rule_update",
    "fused_recurrent_kda_packed_decode",
    "fused_sigmoid_gating_delta_rule_update",
    "lightning_attention",
    "linear_decode_forward_triton",
    "seg_la_fwd",
]


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    *,
    state_v_first: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """(o, last states [N, HV, V, K] in float32 or None); nothing is in place."""
    count = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    own = (v.shape[-1], k.shape[-1]) if state_v_first else (k.shape[-1], v.shape[-1])
    state = q.new_zeros(count, v.shape[2], *own, dtype=torch.float32)
    if initial_state is not None:
        state.copy_(initial_state)
    o, last = vllm.fused_recurrent_gated_delta_rule(
        q, k, v, g, beta, scale, state, True, cu_seqlens,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, state_v_first=state_v_first,
    )  # fmt: skip
    return o, last if output_final_state else None


def fused_recurrent_gated_delta_rule_update(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state_source: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    disable_state_update: bool = False,
    disable_output_calculation: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: Tensor | None = None,
    *,
    state_v_first: bool = True,
    **others: object,
) -> Tensor | None:
    """Steps from slots, in place unless `disable_state_update`.

    The state after step t of sequence n goes to `intermediate_states_buffer[intermediate_state_indices[n], t]`, where there is
    such a buffer [S, steps, HV, V, K]. `cache_steps` isn't looked at: there may be fewer drafts than the buffer has room for."""
    refuse_others("gated_delta_rule", others)
    return _steps(
        "gated_delta_rule", q, k, v, g, beta, scale, initial_state_source, initial_state_indices, cu_seqlens,
        use_qk_l2norm_in_kernel, disable_state_update, disable_output_calculation, intermediate_states_buffer,
        intermediate_state_indices, retrieve_parent_token, state_v_first,
    )  # fmt: skip


def fused_sigmoid_gating_delta_rule_update(
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    softplus_beta: float,
    softplus_threshold: float,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    scale: float | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    is_kda: bool = False,
    disable_state_update: bool = False,
    intermediate_states_buffer: Tensor | None = None,
    intermediate_state_indices: Tensor | None = None,
    cache_steps: int | None = None,
    retrieve_parent_token: Tensor | None = None,
    *,
    state_v_first: bool = True,
    lower_bound: float | None = None,
    **others: object,
) -> Tensor | None:
    """The same from what a layer projects: log decays -exp(A_log) softplus(a + dt_bias), and strengths sigmoid(b).

    lower_bound: log decays are lower_bound sigmoid(exp(A_log) (a + dt_bias)) then."""
    name = "kimi_delta_attention" if is_kda else "gated_delta_rule"
    refuse_others(name, others)
    g = decays(A_log, a, dt_bias, q, is_kda, (softplus_beta, softplus_threshold), lower_bound)
    strength = b.float().sigmoid().reshape(*v.shape[:3])
    return _steps(
        name, q, k, v, g, strength, scale, initial_state_source, initial_state_indices, cu_seqlens,
        use_qk_l2norm_in_kernel, disable_state_update, False, intermediate_states_buffer, intermediate_state_indices,
        retrieve_parent_token, state_v_first,
    )  # fmt: skip


def fused_recurrent_gated_delta_rule_packed_decode(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    initial_state: Tensor,
    out: Tensor,
    ssm_state_indices: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    *,
    state_v_first: bool = True,
    **others: object,
) -> tuple[Tensor, Tensor]:
    """(out, slots): a token of each sequence, from what a layer projects, [B, 2 H K + HV V], into `out` [B, 1, HV, V]."""
    return _packed_decode(
        "gated_delta_rule", mixed_qkv, a, b, A_log, dt_bias, scale, initial_state, out, ssm_state_indices,
        use_qk_l2norm_in_kernel, state_v_first, others,
    )  # fmt: skip


def fused_recurrent_kda_packed_decode(
    mixed_qkv: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    initial_state: Tensor,
    out: Tensor,
    ssm_state_indices: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    lower_bound: float | None = None,
    *,
    state_v_first: bool = True,
    **others: object,
) -> tuple[Tensor, Tensor]:
    """The same for Kimi delta attention: a [B, HV K], dt_bias [HV K]; decays with a `lower_bound`, if given."""
    return _packed_decode(
        "kimi_delta_attention", mixed_qkv, a, b, A_log, dt_bias, scale, initial_state, out, ssm_state_indices,
        use_qk_l2norm_in_kernel, state_v_first, others, lower_bound,
    )  # fmt: skip


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    head_first: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    inplace_update: bool = True,
    *,
    output_final_state: bool = False,
    track_state: Tensor | None = None,
    track_chunk_idx: Tensor | None = None,
    state_v_first: bool = True,
    **others: object,
) -> tuple[Tensor, Tensor | None, ChunkStates]:
    """(o, last states or None, states at chunk boundaries) of a prefill. With `initial_state_indices` the states are slots, and
    are updated in place, unless `inplace_update=False`.

    track_state [N, HV, V, K]: the state before chunk `track_chunk_idx[n]` of each sequence, where that isn't below 0."""
    name = "gated_delta_rule"
    refuse_others(name, others)
    if head_first:
        raise ArgumentError(f"{name}: head_first isn't supported: pass [B, T, H, ..]")
    if (track_state is None) != (track_chunk_idx is None):
        raise ArgumentError(f"{name}: track_state and track_chunk_idx are given together, got one of them")
    o, last, between = _prefill(
        name, q, k, v, g, beta, scale, initial_state, initial_state_indices, output_final_state, cu_seqlens,
        use_qk_l2norm_in_kernel, state_v_first, inplace_update,
    )  # fmt: skip
    if track_state is not None and track_chunk_idx is not None:
        between.track(track_state, track_chunk_idx)
    return o, last, between


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    initial_state_indices: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    output_intermediate_states: bool = False,
    *,
    state_v_first: bool = True,
    **others: object,
) -> Tensor | tuple[Tensor, ChunkStates]:
    """o of a prefill of Kimi delta attention; slots are updated in place. With `A_log` g is what a layer projects, of which log
    decays are made: -exp(A_log) softplus(g + dt_bias), or lower_bound sigmoid(exp(A_log) (g + dt_bias)).

    output_intermediate_states: (o, states at chunk boundaries)."""
    refuse_others("kimi_delta_attention", others)
    if A_log is not None:
        g = decays(A_log, g, dt_bias, k, True, lower_bound=lower_bound)
    elif dt_bias is not None or lower_bound is not None:
        raise ArgumentError("kimi_delta_attention: log decays are made of g in here where A_log is given, got None")
    o, _, between = _prefill(
        "kimi_delta_attention", q, k, v, g, beta, scale, initial_state, initial_state_indices, False, cu_seqlens,
        use_qk_l2norm_in_kernel, state_v_first, True,
    )  # fmt: skip
    return (o, between) if output_intermediate_states else o


def _prefill(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None,
    state: Tensor | None,
    slots: Tensor | None,
    final: bool,
    starts: Tensor | None,
    normalise: bool,
    v_first: bool,
    writes: bool,
) -> tuple[Tensor, Tensor | None, ChunkStates]:
    checked_packing(q, starts)
    kind = q.dtype
    q, k = (x.to(kind) for x in scaled(q, k, scale, normalise))
    given = {"q": q, "k": k, "v": v, "beta": beta, "alpha": g}
    if slots is None or state is None:
        return *whole(name, given, state, starts, v_first, final), ChunkStates(name, given, state, starts, v_first)
    slots = checked_rows(name, "initial_state_indices", slots, [state])
    found = read_rows(state, slots)
    o, last = whole(name, given, found, starts, v_first, True)
    assert last is not None
    if writes:
        write_rows([state], [last], slots)
    o = kept_steps(o, slots, starts)
    return o, last if final else None, ChunkStates(name, given, found, starts, v_first)


def _packed_decode(
    name: str,
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float,
    state: Tensor,
    out: Tensor,
    slots: Tensor,
    normalise: bool,
    v_first: bool,
    others: dict[str, object],
    lower_bound: float | None = None,
) -> tuple[Tensor, Tensor]:
    plain = {
        n: x for n, x in others.items() if n not in ("rand_seed", "philox_rounds")
    }  # of no use without rounding at random
    refuse_others(name, plain)
    return packed_decode(
        name, mixed, a, b, A_log, dt_bias, scale, state, out, slots, normalise, v_first, None, lower_bound
    )


def _steps(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor | None,
    scale: float | None,
    source: Tensor | None,
    indices: Tensor | None,
    starts: Tensor | None,
    normalise: bool,
    stays: bool,
    silent: bool,
    buffer: Tensor | None,
    slots: Tensor | None,
    parents: Tensor | None,
    v_first: bool,
) -> Tensor | None:
    checked_packing(q, starts)
    if parents is not None:
        raise ArgumentError(f"{name}: trees of drafts (retrieve_parent_token) aren't supported: pass chains of drafts")
    count = q.shape[0] if starts is None else starts.shape[0] - 1
    if source is None:
        own = (v.shape[-1], k.shape[-1]) if v_first else (k.shape[-1], v.shape[-1])
        source, stays, indices = q.new_zeros(count, v.shape[2], *own, dtype=torch.float32), True, None
    q, k = scaled(q, k, scale, normalise)
    given = {"q": q, "k": k, "v": v, "beta": torch.ones_like(v[..., 0]) if beta is None else beta, "alpha": g}
    out = None if silent else torch.zeros_like(v)
    options: dict[str, Any] = {"v_first": v_first, "last": not stays, "out": out}
    if buffer is None:
        take_steps(name, given, source, Rows(indices, starts=starts), **options)
        return out
    if slots is None:
        raise ArgumentError(f"{name}: intermediate_states_buffer needs intermediate_state_indices")
    steps = buffer.shape[1]
    if buffer.stride(0) != steps * buffer.stride(1):
        raise ArgumentError(
            f"{name}: intermediate_states_buffer must be [slots, steps, ..], one behind the other, got {list(buffer.shape)} "
            f"with strides {list(buffer.stride())}"
        )
    at = slots.long()[:, None] * steps + torch.arange(steps, device=slots.device)
    each = torch.where(slots[:, None] >= 0, at, -1)
    take_steps(name, given, source, Rows(indices, each, starts), kept=buffer.view(-1, *buffer.shape[2:]), **options)
    return out
