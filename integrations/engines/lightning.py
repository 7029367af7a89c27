"""Lightning attention as both engines call it: steps from slots and prefills, and the packed batches of SGLang's `seg_la`.

States lie in slots [P, H, D, E]. A step is `S = exp(-slope) S + k v^T`, `o = S^T q`.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from chunkform.errors import ArgumentError
from chunkform.runtime.op.pools import kept_steps
from chunkform.runtime.op.rows import checked_rows, column, read_rows, told, write_rows

from .pools import Rows, refuse_others, take_steps, whole

NAME = "lightning_attention"


class Segments(Protocol):
    """What `seg_la_fwd` reads of SGLang's SegLaMeta.

    q_offsets: [B + 1], where sequences start. s_offsets: [B], their slots, -1 for padding. s_scales: [B], 0 where a prefill
    begins from zeros. mask: None, as trees of drafts aren't supported."""

    batch_size: int
    q_offsets: Tensor
    s_offsets: Tensor
    s_scales: Tensor
    mask: Tensor | None


def linear_decode_forward_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_caches: Tensor,
    slope_rate: Tensor,
    slot_idx: Tensor,
    BLOCK_SIZE: int = 32,
    *,
    null_block_id: int | None = None,
) -> Tensor:
    """A step, [B, H D]: of q, k, v [B, H, 1, D] and slots [P, H, D, D] in place; below 0, and `null_block_id`, is padding."""
    if v.dim() != 4 or v.shape[2] != 1:
        raise ArgumentError(f"{NAME}: q, k and v of a step must be [B, H, 1, D], got {told(v)} for v")
    batch, heads, _, width = v.shape
    out = v.new_zeros(batch, 1, heads, width)
    given = _by_steps(q, k, v, slope_rate, 1)
    rows = Rows(slot_idx, null=null_block_id)
    take_steps(NAME, given, kv_caches, rows, v_first=False, last=True, out=out)
    return out.reshape(batch, heads * width)


def lightning_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ed: Tensor,
    block_size: int = 256,
    kv_history: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A prefill, heads first: (o [B, H, T, E], states [B, H, 1, D, E], whose last is that after T)."""
    o, last = whole(NAME, _by_steps(q, k, v, ed, q.shape[2]), kv_history, None, v_first=False, final=True)
    assert last is not None
    return o.transpose(1, 2), last.unsqueeze(2)


class LinearKernel:
    """What SGLang calls BailingLinearKernel, and vLLM MiniMaxText01LinearKernel."""

    @staticmethod
    def jit_linear_forward_prefix(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv_caches: Tensor,
        slope_rate: Tensor,
        block_size: int,
        layer_idx: int | None = None,
        **others: object,
    ) -> Tensor:
        """A prefill of one sequence, [T, H D]: of q, k, v [H, T, D], with its slot [H, D, D] in place."""
        refuse_others(NAME, others)
        if q.dim() == 4 and q.shape[0] != 1:
            raise ArgumentError(f"{NAME}: a prefill of one sequence was expected, got {q.shape[0]} of them")
        q, k, v = (x.unsqueeze(0) if x.dim() == 3 else x for x in (q, k, v))
        o, states = lightning_attention(q, k, v, slope_rate, block_size, kv_caches.unsqueeze(0))
        kv_caches.copy_(states[0, :, -1])
        return o[0].transpose(0, 1).reshape(o.shape[2], -1)


def seg_la_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    s: Tensor,
    decay_scales: Tensor,
    meta: Segments,
    caches: Tensor | None = None,
    cache_indices: Tensor | None = None,
    track_lens: Tensor | None = None,
    track_state_indices: Tensor | None = None,
    softmax_scale: float | None = None,
    decouple: bool = False,
    state_layout: str = "kv",
) -> Tensor:
    """o [T, H, D] of packed tokens, with the slots `s` in place. Of at most one token a sequence it is a step of each.

    caches: [slots, steps, H, D, D], where the state after token t of sequence n goes, to `[cache_indices[n], t]`; `s` stays then.
    track_lens, track_state_indices: a prefill's state after so many tokens goes to another slot too, where that isn't -1.
    """
    if q.dim() != 3 or q.shape != k.shape or q.shape[:2] != v.shape[:2]:
        raise ArgumentError(f"{NAME}: q, k and v must be [T, H, D], got {told(q)}, {told(k)} and {told(v)}")
    if meta.mask is not None:
        raise ArgumentError(f"{NAME}: trees of drafts (mask) aren't supported: pass chains of drafts")
    if state_layout not in ("kv", "vk"):
        raise ArgumentError(f'{NAME}: state_layout must be "kv" or "vk", got {state_layout!r}')
    v_first, (tokens, heads, width), count = state_layout == "vk", q.shape, meta.batch_size
    out = v.new_zeros(tokens, heads, v.shape[2])
    if tokens == 0 or count == 0:
        return out
    scale = width**-0.5 if softmax_scale is None else softmax_scale
    given = {
        "q": q.float() * scale, "k": k, "v": v,
        "lam": -decay_scales.float().reshape(1, heads).expand(tokens, heads),
    }  # fmt: skip
    if caches is None and tokens > count:
        packed = {n: x.unsqueeze(0) for n, x in given.items()}
        _prefill_slots(packed, s, meta, track_lens, track_state_indices, v_first, out)
        return out
    steps = tokens // count
    if tokens != steps * count:
        raise ArgumentError(f"{NAME}: each of {count} sequences must have as many tokens, got {tokens} in all")
    given = {n: x.unflatten(0, (count, steps)) for n, x in given.items()}
    each = None
    if caches is not None:
        if cache_indices is None or caches.dim() != 5 or caches.shape[1] < steps or not caches.is_contiguous():
            raise ArgumentError(
                f"{NAME}: caches must be [slots, {steps} steps or more, H, D, D] without gaps, with cache_indices, got "
                f"{told(caches)}"
            )
        at = cache_indices.long()[:, None] * caches.shape[1] + torch.arange(steps, device=q.device)
        each = torch.where(cache_indices[:, None] >= 0, at, -1)
    take_steps(
        NAME, given, s, Rows(meta.s_offsets, each), v_first=v_first, last=caches is None,
        kept=None if caches is None else caches.flatten(0, 1), out=out.unflatten(0, (count, steps)),
    )  # fmt: skip
    return out


def _prefill_slots(
    given: dict[str, Tensor],
    s: Tensor,
    meta: Segments,
    track_lens: Tensor | None,
    track_slots: Tensor | None,
    v_first: bool,
    out: Tensor,
) -> None:
    """Packed prefills from slots, or from zeros, and back; and states on the way to other slots."""
    slots = checked_rows(NAME, "s_offsets", meta.s_offsets, [s])
    first = read_rows(s, slots)
    first = torch.where(column(meta.s_scales > 0, first), first, torch.zeros((), dtype=s.dtype, device=s.device))
    starts = meta.q_offsets
    o, last = whole(NAME, given, first, starts, v_first, True)
    assert last is not None
    out.copy_(kept_steps(o, slots, starts)[0])
    if track_lens is not None and track_slots is not None:
        lengths = starts.diff()
        wanted = (track_slots >= 0) & (slots >= 0) & (track_lens > 0) & (track_lens <= lengths)
        cut = torch.where(wanted, track_lens, 0).long()
        ends = torch.nn.functional.pad(cut.cumsum(0), (1, 0))
        at = torch.arange(int(ends[-1]), device=s.device)
        at = at + (starts[:-1] - ends[:-1]).repeat_interleave(cut)
        _, between = whole(NAME, {n: x[:, at] for n, x in given.items()}, first, ends, v_first, True)
        assert between is not None
        write_rows([s], [between], torch.where(wanted, track_slots, -1))
    write_rows([s], [last], slots)


def _by_steps(q: Tensor, k: Tensor, v: Tensor, slope: Tensor, steps: int) -> dict[str, Tensor]:
    """Arguments by declared names, of tensors with heads first."""
    batch, heads = q.shape[:2]
    decay = -slope.float().reshape(1, 1, heads).expand(batch, steps, heads)
    return {"q": q.transpose(1, 2), "k": k.transpose(1, 2), "v": v.transpose(1, 2), "lam": decay}
