"""The functions that vLLM's layers call: `vllm.model_executor.layers.fla.ops`, and of lightning attention `lightning_attn`.

States lie in blocks [P, HV, V, K]; `state_v_first=False` where they are [P, HV, K, V], as in earlier versions. A block below 0
is padding (PAD_SLOT_ID), and so is `null_block_id`, if given (NULL_BLOCK_ID, 0): of it nothing is read or written, and its output
is zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from chunkform.errors import ArgumentError
from chunkform.runtime.op.rows import told

from .pools import INTEGERS, Rows, checked_packing, decays, packed_decode, refuse_others, scaled, take_steps, whole


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
    null_block_id: int | None = None,
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
    g: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    inplace_final_state: bool = True,
    use_qk_l2norm_in_kernel: bool = True,
    cu_seqlens: Tensor | None = None,
    ssm_state_indices: Tensor | None = None,
    num_accepted_tokens: Tensor | None = None,
    *,
    state_v_first: bool = True,
    null_block_id: int | None = None,
    **others: object,
) -> tuple[Tensor, Tensor]:
    """The same for Kimi delta attention, whose log decays `g` are of channels, [B, T, HV, K]."""
    refuse_others("kimi_delta_attention", others)
    return _steps(
        "kimi_delta_attention", q, k, v, g, beta, scale, initial_state, inplace_final_state, cu_seqlens,
        ssm_state_indices, num_accepted_tokens, None, use_qk_l2norm_in_kernel, state_v_first, null_block_id,
    )  # fmt: skip


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
    null_block_id: int | None = None,
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
    null_block_id: int | None = None,
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
    *,
    state_v_first: bool = True,
    **others: object,
) -> tuple[Tensor, Tensor | None]:
    """(o, last states [N, HV, V, K]) of a prefill, from the states that are given, one for each sequence."""
    refuse_others("gated_delta_rule", others)
    return _prefill(
        "gated_delta_rule", q, k, v, g, beta, scale, initial_state, output_final_state, cu_seqlens, head_first,
        use_qk_l2norm_in_kernel, state_v_first,
    )  # fmt: skip


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


def linear_decode_forward_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_caches: Tensor,
    slope_rate: Tensor,
    slot_idx: Tensor,
    BLOCK_SIZE: int = 32,
) -> Tensor:
    """A step of lightning attention, [B, H D]: of q, k, v [B, H, 1, D] and slots [P, H, D, D] in place; slot -1 is padding."""
    batch, heads, _, width = v.shape
    out = v.new_zeros(batch, 1, heads, width)
    decay = -slope_rate.float().reshape(1, 1, heads).expand(batch, 1, heads)
    given = {"q": q.transpose(1, 2), "k": k.transpose(1, 2), "v": v.transpose(1, 2), "lam": decay}
    take_steps("lightning_attention", given, kv_caches, Rows(slot_idx), v_first=False, last=True, out=out)
    return out.reshape(batch, heads * width)


def lightning_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ed: Tensor,
    block_size: int = 256,
    kv_history: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A prefill of lightning attention, heads first: (o [B, H, T, E], states [B, H, 1, D, E], whose last is that after T)."""
    batch, heads, steps, _ = q.shape
    decay = -ed.float().reshape(1, 1, heads).expand(batch, steps, heads)
    given = {"q": q.transpose(1, 2), "k": k.transpose(1, 2), "v": v.transpose(1, 2), "lam": decay}
    o, last = whole("lightning_attention", given, kv_history, None, v_first=False, final=True)
    assert last is not None
    return o.transpose(1, 2), last.unsqueeze(2)


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
    out = torch.zeros_like(v)
    options: dict[str, Any] = {"v_first": v_first, "out": out}
    if not inplace:
        after = state.new_empty(v.shape[0] * v.shape[1], *state.shape[1:])
        where = Rows(rows, _after_each(starts, v.shape[1]), starts, null=null)
        if null is not None and rows is not None:  # which is no block here, but may be a token's number
            where = Rows(torch.where(rows == null, -1, rows), where.each, starts)
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
    at = (accepted - 1).clamp(min=0).unsqueeze(1)
    return indices.gather(1, at).squeeze(1), indices


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
