"""The functions that SGLang's backends call: `sglang.srt.layers.attention.fla`.

States lie in slots [P, HV, V, K]; `state_v_first=False` where they are [P, HV, K, V]. A slot below 0 is padding: of it nothing is
read or written, and its output is zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError
from chunkform.runtime.op.rows import read_rows, write_rows

from . import vllm
from .pools import Rows, checked_packing, decays, packed_decode, refuse_others, scaled, take_steps, whole


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
) -> Tensor | None:
    """Steps from slots, in place unless `disable_state_update`. The state after step t of sequence n goes to
    `intermediate_states_buffer[intermediate_state_indices[n], t]`, where there is such a buffer [S, cache_steps, HV, V, K]."""
    return _steps(
        "gated_delta_rule", q, k, v, g, beta, scale, initial_state_source, initial_state_indices, cu_seqlens,
        use_qk_l2norm_in_kernel, disable_state_update, disable_output_calculation, intermediate_states_buffer,
        intermediate_state_indices, cache_steps, retrieve_parent_token, state_v_first,
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
) -> Tensor | None:
    """The same from what a layer projects: log decays -exp(A_log) softplus(a + dt_bias), and strengths sigmoid(b)."""
    g = decays(A_log, a, dt_bias, q, is_kda, (softplus_beta, softplus_threshold))
    strength = b.float().sigmoid().reshape(*v.shape[:3])
    return _steps(
        "kimi_delta_attention" if is_kda else "gated_delta_rule", q, k, v, g, strength, scale, initial_state_source,
        initial_state_indices, cu_seqlens, use_qk_l2norm_in_kernel, disable_state_update, False,
        intermediate_states_buffer, intermediate_state_indices, cache_steps, retrieve_parent_token, state_v_first,
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
    *,
    state_v_first: bool = True,
    **others: object,
) -> tuple[Tensor, Tensor]:
    """The same for Kimi delta attention: a [B, HV K], dt_bias [HV K]."""
    return _packed_decode(
        "kimi_delta_attention", mixed_qkv, a, b, A_log, dt_bias, scale, initial_state, out, ssm_state_indices,
        use_qk_l2norm_in_kernel, state_v_first, others,
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
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    head_first: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    *,
    state_v_first: bool = True,
    **others: object,
) -> tuple[Tensor, Tensor | None, None]:
    """(o, last states or None, None) of a prefill. With `initial_state_indices` the states are slots, and are updated in place.

    The states at chunk boundaries, which come third there, are what `op.prefixes` gives."""
    refuse_others("gated_delta_rule", others)
    if head_first:
        raise ArgumentError("gated_delta_rule: head_first isn't supported: pass [B, T, H, ..]")
    o, last = _prefill(
        "gated_delta_rule", q, k, v, g, beta, scale, initial_state, initial_state_indices, output_final_state,
        cu_seqlens, use_qk_l2norm_in_kernel, state_v_first,
    )  # fmt: skip
    return o, last, None


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
    *,
    state_v_first: bool = True,
    **others: object,
) -> Tensor:
    """o of a prefill of Kimi delta attention; slots are updated in place. With `A_log` g is what a layer projects, of which log
    decays are made: -exp(A_log) softplus(g + dt_bias), or lower_bound sigmoid(exp(A_log) (g + dt_bias))."""
    refuse_others("kimi_delta_attention", others)
    if A_log is not None:
        g = decays(A_log, g, dt_bias, k, True, lower_bound=lower_bound)
    elif dt_bias is not None or lower_bound is not None:
        raise ArgumentError("kimi_delta_attention: log decays are made of g in here where A_log is given, got None")
    return _prefill(
        "kimi_delta_attention", q, k, v, g, beta, scale, initial_state, initial_state_indices, False, cu_seqlens,
        use_qk_l2norm_in_kernel, state_v_first,
    )[0]  # fmt: skip


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
) -> tuple[Tensor, Tensor | None]:
    checked_packing(q, starts)
    kind = q.dtype
    q, k = (x.to(kind) for x in scaled(q, k, scale, normalise))
    given = {"q": q, "k": k, "v": v, "beta": beta, "alpha": g}
    if slots is None or state is None:
        return whole(name, given, state, starts, v_first, final)
    found = read_rows(state, slots)
    o, last = whole(name, given, found, starts, v_first, True)
    assert last is not None
    write_rows([state], [last], slots)
    return o, last if final else None


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
) -> tuple[Tensor, Tensor]:
    plain = {
        n: x for n, x in others.items() if n not in ("rand_seed", "philox_rounds")
    }  # of no use without rounding at random
    refuse_others(name, plain)
    return packed_decode(name, mixed, a, b, A_log, dt_bias, scale, state, out, slots, normalise, v_first, None)


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
    cache_steps: int | None,
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
    steps = buffer.shape[1] if cache_steps is None else cache_steps
    if steps != buffer.shape[1] or buffer.stride(0) != steps * buffer.stride(1):
        raise ArgumentError(
            f"{name}: intermediate_states_buffer must be [slots, cache_steps, ..] with cache_steps = {steps}, one behind the "
            f"other, got {list(buffer.shape)} with strides {list(buffer.stride())}"
        )
    at = slots.long()[:, None] * steps + torch.arange(steps, device=slots.device)
    each = torch.where(slots[:, None] >= 0, at, -1)
    take_steps(name, given, source, Rows(indices, each, starts), kept=buffer.view(-1, *buffer.shape[2:]), **options)
    return out
