"""The functions that vLLM's layers call: `vllm.third_party.flash_linear_attention.ops`, which was
`vllm.model_executor.layers.fla.ops`, those of Kimi's layers, and of lightning attention `lightning_attn`.

States lie in blocks [P, HV, V, K]; `state_v_first=False` where they are [P, HV, K, V], as in earlier versions. A block below 0
is padding (PAD_SLOT_ID), and so is `null_block_id`, 0 as vLLM has it (NULL_BLOCK_ID): of it nothing is read or written, and its
output is zero. `null_block_id=None` is for a pool whose block 0 is one like others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError
from chunkform.runtime.op.rows import told

from . import lightning
from .lightning import LinearKernel as MiniMaxText01LinearKernel
from .lightning import lightning_attention
from .pools import INTEGERS, Rows, checked_packing, decays, packed_decode, refuse_others, scaled, take_steps, whole

__all__ = [
    "MiniMaxText01LinearKernel",
    "chunk_gated_delta_rule",
    "chunk_kda",
    "chunk_kda_with_fused_gate",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_gated_delta_rule_packed_decode",
    "fused_recurrent_kda",
    "fused_recurrent_kda_packed_decode",
    "fused_sigmoid_gating_delta_rule_update",
    "lightning_attention",
    "linear_decode_forward_triton",
]

NULL_BLOCK_ID = 0  # of vLLM's pools: the block that padding has


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    inplace_final_state: bool = True,
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    retrieve_parent_token: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    *,
    state_v_first: bool = True,
    null_block_id: int | None = NULL_BLOCK_ID,
) -> tuple[Tensor, Tensor]:
    """(o, states). The state of sequence n is read from block `ssm_state_indices[n]`; or, where these are [N, K], from
    `[n, num_accepted_tokens[n] - 1]`, and the state after token t goes to `[n, t]`.

    inplace_final_state=False: the states after all tokens are returned, one for each token, and blocks stay as they are.
    """
    return _steps(
        "gated_delta_rule", q, k, v, g, beta, scale, initial_state, inplace_final_state, cu_seqlens, ssm_state_indices,
        num_accepted_tokens, retrieve_parent_token, use_qk_l2norm_in_kernel, state_v_first, null_block_id,
    )  # fmt: skip


def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    inplace_final_state: bool = True,
    use_qk_l2norm_in_kernel: bool = True,
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    *,
    raw_g: Tensor | None = None,
    raw_beta: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    out: Tensor | None = None,
    state_v_first: bool = True,
    null_block_id: int | None = NULL_BLOCK_ID,
    **others: object,
) -> tuple[Tensor, Tensor]:
    """The same for Kimi delta attention, whose log decays `g` are of channels, [B, T, HV, K].

    In the place of `g` and `beta`, as Kimi's layers call it: `raw_g` and `raw_beta`, what a layer projects, with `A_log`.
    out: what outputs go to, [B, T, HV, V]."""
    name = "kimi_delta_attention"
    refuse_others(name, others)
    g, beta = _gates(g, beta, raw_g, raw_beta, A_log, dt_bias, k, lower_bound)
    return _steps(
        name, q, k, v, g, beta, scale, initial_state, inplace_final_state, cu_seqlens, ssm_state_indices,
        num_accepted_tokens, None, use_qk_l2norm_in_kernel, state_v_first, null_block_id, out,
    )  # fmt: skip


def fused_recurrent_kda_packed_decode(
    mixed_qkv: Tensor,
    raw_g: Tensor,
    raw_beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    lower_bound: float | None,
    initial_state: Tensor,
    state_indices: Tensor,
    scale: float | None = None,
    *,
    state_v_first: bool = True,
    null_block_id: int | None = NULL_BLOCK_ID,
) -> tuple[Tensor, Tensor]:
    """(o [1, B, H, V], states): a token of each sequence from what a layer projects; raw_g [1, B, H, K], raw_beta [1, B, H]."""
    values = initial_state.shape[-2] if state_v_first else initial_state.shape[-1]
    out = mixed_qkv.new_zeros(mixed_qkv.shape[0], 1, initial_state.shape[1], values)
    packed_decode(
        "kimi_delta_attention", mixed_qkv, raw_g, raw_beta, A_log, dt_bias, scale, initial_state, out, state_indices,
        True, state_v_first, null_block_id, lower_bound,
    )  # fmt: skip
    return out.transpose(0, 1), initial_state


def fused_sigmoid_gating_delta_rule_update(
    A_log: Tensor,
    a: Tensor,
    b: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    inplace_final_state: bool = True,
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    is_kda: bool = False,
    *,
    state_v_first: bool = True,
    null_block_id: int | None = NULL_BLOCK_ID,
) -> tuple[Tensor, Tensor]:
    """The same from what a layer projects: log decays -exp(A_log) softplus(a + dt_bias), and strengths sigmoid(b)."""
    g = decays(A_log, a, dt_bias, q, is_kda, (beta, threshold))
    strength = b.float().sigmoid().reshape(*v.shape[:3])
    return _steps(
        "kimi_delta_attention" if is_kda else "gated_delta_rule", q, k, v, g, strength, scale, initial_state,
        inplace_final_state, cu_seqlens, ssm_state_indices, num_accepted_tokens, None, use_qk_l2norm_in_kernel,
        state_v_first, null_block_id,
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
    null_block_id: int | None = NULL_BLOCK_ID,
) -> tuple[Tensor, Tensor]:
    """(out, states): a token of each sequence, from what a layer projects, [B, 2 H K + HV V], into `out` [B, 1, HV, V]."""
    return packed_decode(
        "gated_delta_rule", mixed_qkv, a, b, A_log, dt_bias, scale, initial_state, out, ssm_state_indices,
        use_qk_l2norm_in_kernel, state_v_first, null_block_id,
    )  # fmt: skip


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    head_first: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    core_attn_out: Tensor | None = None,
    *,
    state_v_first: bool = True,
    **others: object,
) -> tuple[Tensor, Tensor | None]:
    """(o, last states [N, HV, V, K]) of a prefill, from the states that are given, one for each sequence.

    core_attn_out: a buffer whose first B T HV V entries o is put into."""
    refuse_others("gated_delta_rule", others)
    o, last = _prefill(
        "gated_delta_rule", q, k, v, g, beta, scale, initial_state, output_final_state, cu_seqlens, head_first,
        use_qk_l2norm_in_kernel, state_v_first,
    )  # fmt: skip
    if core_attn_out is None:
        return o, last
    if not core_attn_out.is_contiguous() or core_attn_out.numel() < v.numel() or core_attn_out.dtype != o.dtype:
        raise ArgumentError(
            f"gated_delta_rule: core_attn_out must be contiguous, in {o.dtype}, with {v.numel()} entries or more, got "
            f"{told(core_attn_out)}"
        )
    return core_attn_out.view(-1)[: v.numel()].view(v.shape).copy_(o), last


def chunk_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    use_gate_in_kernel: bool = False,
    state_v_first: bool = True,
    **others: object,
) -> tuple[Tensor, Tensor | None]:
    """The same for Kimi delta attention. With `A_log` g is what a layer projects, of which log decays are made:
    -exp(A_log) softplus(g + dt_bias), or lower_bound sigmoid(exp(A_log) (g + dt_bias))."""
    refuse_others("kimi_delta_attention", others)
    if A_log is not None:
        g = decays(A_log, g, dt_bias, k, True, lower_bound=lower_bound)
    elif use_gate_in_kernel or dt_bias is not None or lower_bound is not None:
        raise ArgumentError("kimi_delta_attention: log decays are made of g in here where A_log is given, got None")
    return _prefill(
        "kimi_delta_attention", q, k, v, g, beta, scale, initial_state, output_final_state, cu_seqlens, False,
        use_qk_l2norm_in_kernel, state_v_first,
    )  # fmt: skip


def chunk_kda_with_fused_gate(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    raw_g: Tensor,
    beta: Tensor | None = None,
    A_log: Tensor | None = None,
    g_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    safe_gate: bool | None = None,
    lower_bound: float | None = None,
    *,
    raw_beta: Tensor | None = None,
    state_v_first: bool = True,
    **others: object,
) -> tuple[Tensor, Tensor | None]:
    """The same from what a layer projects. With `raw_beta` strengths are its sigmoid, and decays have the `lower_bound` that is
    given; else they have one, -5 by default, where `safe_gate`."""
    refuse_others("kimi_delta_attention", others)
    if raw_beta is None and safe_gate is not None:
        lower_bound = (-5.0 if lower_bound is None else lower_bound) if safe_gate else None
    g, strength = _gates(None, beta, raw_g, raw_beta, A_log, g_bias, k, lower_bound)
    if strength is None:
        raise ArgumentError("kimi_delta_attention: give beta, or raw_beta of which strengths are made, got neither")
    return _prefill(
        "kimi_delta_attention", q, k, v, g, strength, scale, initial_state, output_final_state, cu_seqlens, False,
        use_qk_l2norm_in_kernel, state_v_first,
    )  # fmt: skip


def linear_decode_forward_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_caches: Tensor,
    slope_rate: Tensor,
    slot_idx: Tensor,
    BLOCK_SIZE: int = 32,
    *,
    null_block_id: int | None = NULL_BLOCK_ID,
) -> Tensor:
    """A step of lightning attention, [B, H D]: of q, k, v [B, H, 1, D] and blocks [P, H, D, D] in place."""
    return lightning.linear_decode_forward_triton(
        q, k, v, kv_caches, slope_rate, slot_idx, BLOCK_SIZE, null_block_id=null_block_id
    )


def _steps(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor | None,
    scale: float | None,
    state: Tensor | None,
    inplace: bool,
    starts: Tensor | None,
    indices: Tensor | None,
    accepted: Tensor | None,
    parents: Tensor | None,
    normalise: bool,
    v_first: bool,
    null: int | None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    checked_packing(q, starts)
    if parents is not None:
        raise ArgumentError(f"{name}: trees of drafts (retrieve_parent_token) aren't supported: pass chains of drafts")
    if beta is not None and beta.dim() == v.dim():
        raise ArgumentError(f"{name}: beta must be [B, T, HV], got {list(beta.shape)}")
    count = q.shape[0] if starts is None else starts.shape[0] - 1
    if state is None:
        own = (v.shape[-1], k.shape[-1]) if v_first else (k.shape[-1], v.shape[-1])
        state = torch.zeros(count, v.shape[2], *own, dtype=torch.float32, device=q.device)
    rows, each = _rows(name, indices, accepted, count)
    q, k = scaled(q, k, scale, normalise)
    beta = torch.ones_like(v[..., 0]) if beta is None else beta
    given = {"q": q, "k": k, "v": v, "beta": beta, "alpha": g}
    if out is not None and (out.shape != v.shape or (out.shape[-1] > 1 and out.stride(-1) != 1)):
        raise ArgumentError(f"{name}: out must be {list(v.shape)}, its last axis without gaps, got {told(out)}")
    out = torch.zeros_like(v) if out is None else out.zero_()
    options: dict[str, Any] = {"v_first": v_first, "out": out}
    if not inplace:
        after = state.new_empty(v.shape[0] * v.shape[1], *state.shape[1:])
        if null is not None and rows is not None:  # which is a block, and may be a token's number
            rows = torch.where(rows == null, -1, rows)
        where = Rows(rows, _after_each(starts, v.shape[1]), starts)
        take_steps(name, given, state, where, last=False, kept=after, **options)
        return out, after
    where = Rows(rows, each, starts, null)
    take_steps(name, given, state, where, last=each is None, kept=None if each is None else state, **options)
    return out, state


def _rows(
    name: str, indices: Tensor | None, accepted: Tensor | None, count: int
) -> tuple[Tensor | None, Tensor | None]:
    """The blocks that states are read from, and those that the states after each token go to, of so many sequences."""
    if indices is None:
        return None, None
    for key, x in (("ssm_state_indices", indices), ("num_accepted_tokens", accepted)):
        if x is not None and (not isinstance(x, Tensor) or x.dtype not in INTEGERS):
            raise ArgumentError(f"{name}: {key} must be a tensor of int32 or int64, got {told(x)}")
    if indices.dim() == 1:
        if accepted is not None:
            raise ArgumentError(
                f"{name}: with num_accepted_tokens, ssm_state_indices must be [N, K], got {list(indices.shape)}"
            )
        return indices, None
    if accepted is None:
        return indices[:, 0], indices
    if min(indices.shape[0], accepted.shape[0]) < count:
        raise ArgumentError(
            f"{name}: ssm_state_indices and num_accepted_tokens must be of {count} sequences, got "
            f"{list(indices.shape)} and {list(accepted.shape)}"
        )
    most, indices, accepted = indices.shape[1], indices[:count], accepted[:count].long()
    if accepted.device.type == "cpu" and count and int(accepted.max()) > most:
        raise ArgumentError(
            f"{name}: num_accepted_tokens must be {most} at most, the blocks of a sequence, got {accepted}"
        )
    there = (accepted > 0) & (accepted <= most)  # of others nothing is read or written, as vLLM has it
    rows = indices.gather(1, (accepted - 1).clamp(0, most - 1).unsqueeze(1)).squeeze(1)
    return torch.where(there, rows, -1), indices


def _gates(
    g: Tensor | None,
    beta: Tensor | None,
    raw_g: Tensor | None,
    raw_beta: Tensor | None,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    keys: Tensor,
    lower_bound: float | None,
) -> tuple[Tensor, Tensor | None]:
    """Log decays and strengths of Kimi delta attention, made in here where what a layer projects is given."""
    name = "kimi_delta_attention"
    if (g is None) == (raw_g is None) or (beta is not None and raw_beta is not None):
        raise ArgumentError(f"{name}: give g and beta, or raw_g and raw_beta, of which they are made")
    if raw_g is not None:
        if A_log is None:
            raise ArgumentError(f"{name}: log decays are made of raw_g in here where A_log is given, got None")
        g = decays(A_log, raw_g, dt_bias, keys, True, lower_bound=lower_bound)
    elif A_log is not None or dt_bias is not None or lower_bound is not None:
        raise ArgumentError(f"{name}: A_log, dt_bias and lower_bound are for raw_g, but g was given")
    assert g is not None
    return g, beta if raw_beta is None else raw_beta.float().sigmoid()


def _after_each(starts: Tensor | None, tokens: int) -> Tensor | None:
    """The number of each token, [N, K], -1 beyond a sequence's end; None where that is its place."""
    if starts is None:
        return None
    at = starts[:-1, None] + torch.arange(tokens, device=starts.device)
    return torch.where(at < starts[1:, None], at, -1)


def _prefill(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None,
    state: Tensor | None,
    final: bool,
    starts: Tensor | None,
    head_first: bool,
    normalise: bool,
    v_first: bool,
) -> tuple[Tensor, Tensor | None]:
    if head_first:
        raise ArgumentError(f"{name}: head_first isn't supported: pass [B, T, H, ..]")
    checked_packing(q, starts)
    kind = q.dtype
    q, k = (x.to(kind) for x in scaled(q, k, scale, normalise))
    given = {"q": q, "k": k, "v": v, "beta": beta, "alpha": g}
    return whole(name, given, state, starts, v_first, final)
