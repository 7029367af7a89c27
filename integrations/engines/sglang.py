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
from .pools import Rows, checked_packing, decays, scaled, take_steps, whole


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
    g = decays(A_log, a, dt_bias, softplus_beta, softplus_threshold, q, is_kda)
    strength = b.float().sigmoid().reshape(*v.shape[:3])
    return _steps(
        "kimi_delta_attention" if is_kda else "gated_delta_rule", q, k, v, g, strength, scale, initial_state_source,
        initial_state_indices, cu_seqlens, use_qk_l2norm_in_kernel, disable_state_update, False,
        intermediate_states_buffer, intermediate_state_indices, cache_steps, retrieve_parent_token, state_v_first,
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
    **_: object,
) -> tuple[Tensor, Tensor | None, None]:
    """(o, last states or None, None) of a prefill. With `initial_state_indices` the states are slots, and are updated in place.

    The states at chunk boundaries, which come third there, are what `op.prefixes` gives."""
    if head_first:
        raise ArgumentError("gated_delta_rule: head_first isn't supported: pass [B, T, H, ..]")
    checked_packing(q, cu_seqlens)
    kind = q.dtype
    q, k = (x.to(kind) for x in scaled(q, k, scale, use_qk_l2norm_in_kernel))
    given = {"q": q, "k": k, "v": v, "beta": beta, "alpha": g}
    if initial_state_indices is None or initial_state is None:
        o, last = whole("gated_delta_rule", given, initial_state, cu_seqlens, state_v_first, output_final_state)
        return o, last, None
    found = read_rows(initial_state, initial_state_indices)
    o, last = whole("gated_delta_rule", given, found, cu_seqlens, state_v_first, True)
    assert last is not None
    write_rows([initial_state], [last], initial_state_indices)
    return o, last if output_final_state else None, None


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
        source, stays = q.new_zeros(count, v.shape[2], *own, dtype=torch.float32), True
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
    at = slots.long()[:, None] * steps + torch.arange(steps, device=slots.device)
    each = torch.where(slots[:, None] >= 0, at, -1)
    take_steps(name, given, source, Rows(indices, each, starts), kept=buffer.flatten(0, 1), **options)
    return out
