"""RWKV-7's layer of flash-linear-attention on our op `dplr`: parameters by the same names, and the same call.

It also takes and returns the values of the first layer: (output, None, past_key_values, v_first).
"""

from __future__ import annotations

import importlib
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chunkform.errors import ArgumentError

from ..nn.convolution import last_inputs
from ..nn.convolve import convolve, packed_by
from .fla_layers import Cache, Kept, Layer, heads

SLOWEST = -0.6065306597126334  # -exp(-1/2), the log decay of a channel that forgets fastest


class LowRank(nn.Module):
    """A map of low rank with an activation between."""

    def __init__(self, inner: int, outer: int, rank: int, between: nn.Module, bias: bool = True) -> None:
        super().__init__()
        self.lora = nn.Sequential(nn.Linear(inner, rank, bias=False), between, nn.Linear(rank, outer, bias=bias))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.lora(x)
        return y


RANKS = {"decay": "w", "gate": "g", "a": "a", "v": "v"}


class RWKV7Attention(Layer):
    """RWKV-7 (arXiv 2503.14456): S_t = S_{t-1} (diag(w_t) - kk_t (a_t . kk_t)^T) + v_t k_t^T, and a bonus for the step itself."""

    theirs: ClassVar[dict[str, str]] = {"hidden_size": "r_proj.in_features", "value_dim": "v_proj.out_features"} | {
        f"{n}_low_rank_dim": f"{x}_lora.lora.0.out_features" for n, x in RANKS.items()
    }
    fixed: ClassVar[dict[str, object]] = {"elementwise_affine": True}

    def __init__(
        self,
        hidden_size: int = 1024,
        head_dim: int | None = 64,
        decay_low_rank_dim: int | None = None,
        gate_low_rank_dim: int | None = None,
        a_low_rank_dim: int | None = None,
        v_low_rank_dim: int | None = None,
        norm_eps: float = 1e-5,
        layer_idx: int | None = None,
        value_dim: int | None = None,
        num_heads: int | None = None,
        **others: object,
    ) -> None:
        super().__init__(layer_idx, others)
        values = hidden_size if value_dim is None else value_dim
        if head_dim is None:  # else the number of heads follows from it
            if not num_heads:
                raise ArgumentError("RWKV7Attention: give head_dim or num_heads, got None for both")
            head_dim = hidden_size // num_heads
        count = hidden_size // head_dim
        if hidden_size % head_dim or values % count:
            raise ArgumentError(f"RWKV7Attention: {hidden_size} and {values} must be multiples of {count} heads")
        for name in "rwkvag":
            setattr(self, f"x_{name}", nn.Parameter(torch.zeros(1, 1, hidden_size)))
        self.k_k, self.k_a = nn.Parameter(torch.ones(hidden_size)), nn.Parameter(torch.ones(hidden_size))
        self.r_k = nn.Parameter(torch.zeros(count, head_dim))
        self.r_proj, self.k_proj = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(2))
        self.v_proj, self.o_proj = (
            nn.Linear(hidden_size, values, bias=False),
            nn.Linear(values, hidden_size, bias=False),
        )

        def rank(given: int | None, factor: float) -> int:
            return max(32, round(factor * hidden_size**0.5 / 32) * 32) if given is None else given

        wider = head_dim / 64
        self.w_lora = LowRank(hidden_size, hidden_size, rank(decay_low_rank_dim, 2.5 * wider), nn.Tanh())
        if layer_idx != 0:
            self.v_lora = LowRank(hidden_size, values, rank(v_low_rank_dim, 1.7 * wider), nn.Identity())
        self.a_lora = LowRank(hidden_size, hidden_size, rank(a_low_rank_dim, 2.5 * wider), nn.Identity())
        self.g_lora = LowRank(hidden_size, values, rank(gate_low_rank_dim, 5), nn.Sigmoid(), bias=False)
        self.g_norm = nn.GroupNorm(count, values, eps=head_dim * norm_eps)

    @property
    def head_dim(self) -> int:
        return self.r_k.shape[1]

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = False,
        output_attentions: bool | None = False,
        v_first: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, None, Cache | None, Tensor]:
        """`v_first` [B, T, value_dim]: what the layer 0 returned, which the others need. Padding isn't taken: pack sequences."""
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ArgumentError("RWKV7Attention takes no padding: pack sequences with cu_seqlens")
        if self.layer_idx != 0 and v_first is None:
            raise ArgumentError(f"RWKV7Attention: the layer {self.layer_idx} needs v_first, which the layer 0 returns")
        if past_key_values is None and use_cache:
            past_key_values = Cache()
        kept = self.kept(past_key_values)
        y, v_first, (state, tails) = self._computed(
            hidden_states, kept, cu_seqlens, v_first, past_key_values is not None
        )
        if past_key_values is not None:
            past_key_values.keep(self, state, tails)
        return y, None, past_key_values, v_first

    def _computed(
        self, x: Tensor, kept: Kept, starts: Tensor | None, v_first: Tensor | None, final: bool
    ) -> tuple[Tensor, Tensor, Kept]:
        count = x.shape[0] if starts is None else starts.shape[0] - 1
        tail = kept[1][0]
        tail = x.new_zeros(count, 1, x.shape[-1]) if tail is None else tail.to(x.dtype)
        filters = torch.stack([-x.new_ones(x.shape[-1]), x.new_ones(x.shape[-1])])  # the step before, less this one
        change = convolve(x, filters, None, False, tail, None if starts is None else packed_by(starts, x.shape[1]))
        xr, xw, xk, xv, xa, xg = (x + change * getattr(self, f"x_{n}") for n in "rwkvag")
        r, k, v, a = self.r_proj(xr), self.k_proj(xk), self.v_proj(xv), self.a_lora(xa).sigmoid()
        log_w = SLOWEST * self.w_lora(xw).to(torch.promote_types(x.dtype, torch.float32)).sigmoid()
        if self.layer_idx == 0:
            v_first = v
        else:
            assert v_first is not None
            v = torch.lerp(v, v_first, self.v_lora(xv).sigmoid())
        width = self.head_dim
        kk = F.normalize(heads(k * self.k_k, width), dim=-1)
        k = k + k * (a - 1) * self.k_a
        r, k, a, log_w = (heads(y, width) for y in (r, k, a, log_w))
        v_heads = heads(v, v.shape[-1] // self.r_k.shape[0])
        o, state = run({"q": r, "k": k, "a": -kk, "b": kk * a, "v": v_heads, "log_w": log_w}, kept[0], starts, final)
        o = o.flatten(2)
        o = self.g_norm(o.flatten(0, 1)).view(o.shape)
        bonus = (r * k * self.r_k).sum(-1, keepdim=True) * v_heads
        y = self.o_proj((o + bonus.flatten(2)) * self.g_lora(xg))
        return y, v_first, (state, (last_inputs(x, tail, starts), None, None))


def run(
    given: dict[str, Tensor], state: Tensor | None, starts: Tensor | None, final: bool
) -> tuple[Tensor, Tensor | None]:
    """The op, or its decoding step for one token without gradients."""
    dplr = importlib.import_module("chunkform.generated").dplr
    given = {n: x if n == "log_w" else x.to(given["v"].dtype) for n, x in given.items()}
    if (
        given["v"].shape[1] == 1
        and starts is None
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    ):
        o, state = dplr.step(state, **{n: x.squeeze(1) for n, x in given.items()})
        return o.unsqueeze(1), state
    o, state = dplr(**given, initial_state=state, output_final_state=final, cu_seqlens=starts)
    return o, state
