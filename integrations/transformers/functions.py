"""The functions that models of transformers call for a recurrence, by their names, arguments and results, on generated ops.

Each does what the library's own function of plain torch does, and also takes packed sequences: `cu_seqlens` (or
`cu_seq_lens_q`, as data collators call it) [N + 1], or `seq_idx` [B, T], which numbers the sequence of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from chunkform.generated import gated_delta_rule, kimi_delta_attention, lightning_attention, retention
from chunkform.runtime.nn.convolve import Packed, convolve, convolve_step, on_kernels
from chunkform.runtime.nn.rows import unit

from .packed import convolution, forgetting, places


class RecurrentOp(Protocol):
    """An op with one output and one state."""

    def __call__(self, **given: object) -> tuple[Tensor, Tensor | None]: ...

    def step(self, state: Tensor | None, **given: Tensor) -> tuple[Tensor, Tensor]: ...


# --- delta rules ------------------------------------------------------------------------------------------------------


def chunk_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: object,
) -> tuple[Tensor, Tensor | None]:
    """query, key [B, T, H, K], value [B, T, HV, V], g and beta [B, T, HV], states [B, HV, K, V]: `gated_delta_rule`."""
    return _delta(
        gated_delta_rule, query, key, value, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel, kwargs
    )


def recurrent_gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: object,
) -> tuple[Tensor, Tensor | None]:
    """As `chunk_gated_delta_rule`; one step without gradients is the op's decoding step."""
    return chunk_gated_delta_rule(
        query, key, value, g, beta, 64, initial_state, output_final_state, use_qk_l2norm_in_kernel, **kwargs
    )


def chunk_kda(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: object,
) -> tuple[Tensor, Tensor | None]:
    """As `chunk_gated_delta_rule`, with a decay for each key channel, g [B, T, H, K]: `kimi_delta_attention`."""
    return _delta(
        kimi_delta_attention,
        query,
        key,
        value,
        g,
        beta,
        initial_state,
        output_final_state,
        use_qk_l2norm_in_kernel,
        kwargs,
    )


def recurrent_kda(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: object,
) -> tuple[Tensor, Tensor | None]:
    """As `chunk_kda`; one step without gradients is the op's decoding step."""
    return chunk_kda(
        query, key, value, g, beta, 64, initial_state, output_final_state, use_qk_l2norm_in_kernel, **kwargs
    )


def _delta(
    op: RecurrentOp,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor | None,
    keep: bool,
    normalised: bool,
    packed: Mapping[str, object],
) -> tuple[Tensor, Tensor | None]:
    scale = query.shape[-1] ** -0.5
    query, key = (unit(query, scale), unit(key, 1.0)) if normalised else (query * scale, key)
    given = {"q": query, "k": key, "v": value, "beta": beta.to(value.dtype), "log_alpha": g}
    return _one_or_many(op, given, state, keep, packed)


# --- state space duality: Mamba-2 -------------------------------------------------------------------------------------


def chunk_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    z: Tensor | None = None,
    **kwargs: object,
) -> Tensor | tuple[Tensor, Tensor]:
    """h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T, y_t = h_t C_t + D x_t: `lightning_attention`, with queries C and keys B.

    hidden_states x [B, T, H, P], dt [B, T, H], A and D [H], B and C [B, T, groups, N], states [B, H, P, N].
    """
    dt = _step_sizes(dt, dt_bias, dt_softplus, dt_limit)
    x = (hidden_states * dt.unsqueeze(-1)).to(hidden_states.dtype)
    given = {"q": C, "k": B, "v": x, "log_lam": A.to(dt.dtype) * dt}
    first = None if initial_states is None else initial_states.mT.contiguous()  # as a step's kernel reads it
    y, last = _one_or_many(lightning_attention, given, first, return_final_states, kwargs)
    if D is not None:
        y = y + (D.unsqueeze(-1) if D.dim() == 1 else D) * hidden_states
    y = (y if z is None else y * F.silu(z)).to(hidden_states.dtype)
    return (y, last.mT) if last is not None else y


def selective_state_update(
    state: Tensor,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    z: Tensor | None = None,
    **kwargs: object,
) -> Tensor:
    """One step of `chunk_scan`, which writes to state [B, H, P, N]: x and dt [B, H, P], A [H, P, N], B and C [B, groups, N].

    A head has one A, one dt and one bias, which the models expand over its channels.
    """
    one = slice(0, 1)
    y, last = chunk_scan(
        hidden_states.unsqueeze(1),
        dt[..., 0].unsqueeze(1),
        A[:, 0, 0],
        B.unsqueeze(1),
        C.unsqueeze(1),
        chunk_size=1,
        D=None if D is None else D[:, one],
        dt_bias=None if dt_bias is None else dt_bias[:, 0],
        initial_states=state,
        dt_softplus=dt_softplus,
        return_final_states=True,
        z=None if z is None else z.unsqueeze(1),
    )
    state.copy_(last)
    return y.squeeze(1)


def split_conv1d_scan_combined(*args: object, **kwargs: object) -> None:
    """No layer in one kernel: with None the models go on with `causal_conv1d_fn` and `chunk_scan`."""
    return None


def _step_sizes(dt: Tensor, bias: Tensor | None, softplus: bool, limit: tuple[float, float]) -> Tensor:
    """In float32 at least: a log decay is A dt, and its sums over steps need the digits."""
    dt = dt.to(torch.promote_types(dt.dtype, torch.float32))
    dt = dt if bias is None else dt + bias.to(dt.dtype)
    dt = F.softplus(dt) if softplus else dt
    return dt.clamp(*limit) if tuple(limit) != (0.0, float("inf")) or not softplus else dt


# --- decays of a head, and the mLSTM ----------------------------------------------------------------------------------


def decaying_attention(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor | None, packed: Mapping[str, object]
) -> tuple[Tensor, Tensor]:
    """S_t = exp(log_decay_h) S_{t-1} + k_t v_t^T, o_t = S_t^T q_t, all [B, T, H, ..], log_decay [H]: `retention`."""
    op, given = retention, {"q": query, "k": key, "v": value, "log_gamma": log_decay}
    if packed.get("seq_idx") is not None:  # a decay that forgets differs from step to step
        steps = log_decay.expand(*query.shape[:3])
        op, given = lightning_attention, {"q": query, "k": key, "v": value, "log_lam": steps}
    o, last = _one_or_many(op, given, state, True, packed)
    assert last is not None
    return o, last


WIDEST = 256  # channels of a head that an op takes; values of more are as many columns of the same recurrence


def mlstm(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    igate: Tensor,
    fgate: Tensor,
    states: tuple[Tensor, Tensor, Tensor] | None,
    keep: bool,
    eps: float,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor] | None]:
    """The mLSTM (Beck et al. 2024, arXiv 2405.04517), with exponents less their running maximum m, as two `lightning_attention`s.

        m_t = max(log f_t + m_{t-1}, i_t),   f'_t = exp(log f_t + m_{t-1} - m_t),   i'_t = exp(i_t - m_t)
        C_t = f'_t C_{t-1} + i'_t k_t v_t^T,   n_t = f'_t n_{t-1} + i'_t k_t
        h_t = C_t^T q_t / (max(|n_t . q_t|, exp(-m_t)) + eps)

    query, key [B, T, H, K], value [B, T, H, V], gates [B, T, H] before their functions; states C [B, H, K, V], n [B, H, K]
    and m [B, H, 1].
    """
    C, n, m = (None, None, None) if states is None else states
    # Sums over a whole sequence: in float64, so that differences of two of them keep their digits.
    log_f, i = F.logsigmoid(fgate.double()), igate.double()
    sums = log_f.cumsum(1)
    first = sums.new_zeros(()) if m is None else m.double().mT
    above = torch.maximum((i - sums).cummax(1).values, first)
    largest = sums + above
    before = torch.cat([first.expand_as(above[:, :1]), above[:, :-1]], 1)
    wide = torch.promote_types(query.dtype, torch.float32)
    log_decay, weight = (before - above).to(wide), (i - largest).exp().to(wide)
    q, k = query * query.shape[-1] ** -0.5, (key * weight.unsqueeze(-1)).to(key.dtype)

    def read(values: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return _one_or_many(lightning_attention, {"q": q, "k": k, "v": values, "log_lam": log_decay}, state, keep, {})

    parts = range(0, value.shape[-1], WIDEST)
    found = [
        read(value[..., a : a + WIDEST], None if C is None else C[..., a : a + WIDEST].contiguous()) for a in parts
    ]
    share, total = read(torch.ones_like(value[..., :1]), None if n is None else n.unsqueeze(-1))
    numerator = torch.cat([o for o, _ in found], -1) if len(found) > 1 else found[0][0]
    lowest = (-largest).exp().to(wide).unsqueeze(-1)
    h = (numerator / (torch.maximum(share.abs(), lowest) + eps)).to(query.dtype)
    if not keep:
        return h, None
    lasts = [x for _, x in found if x is not None]
    assert total is not None
    return h, (torch.cat(lasts, -1), total.squeeze(-1), largest[:, -1:].to(wide).mT)


# --- what they share --------------------------------------------------------------------------------------------------

SILU = (None, "silu", "swish")  # the activations that kernels of the short convolution have


def causal_conv1d(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A model's short convolution, which keeps packed sequences apart; without them and off a GPU it is the original."""

    def causal_conv1d_fn(
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **kwargs: object,
    ) -> Tensor:
        starts, numbers = boundaries(kwargs)
        packed = starts is not None or numbers is not None
        x = hidden_states.mT
        if activation in SILU and on_kernels(x, weight.shape[1]):
            lie = Packed(places(x.shape[1], starts, numbers).int()) if packed else None
            return convolve(x, weight.flip(1).mT, bias, activation is not None, None, lie).mT
        if not packed:
            return original(hidden_states, weight, bias, activation=activation, **kwargs)
        from transformers.activations import ACT2FN

        function = None if activation is None else ACT2FN[activation]
        return convolution(hidden_states, weight, bias, function, starts, numbers)

    return causal_conv1d_fn


def causal_conv1d_step(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same for one step of generation, which writes to conv_state [B, channels, n]: one kernel on a GPU."""

    def causal_conv1d_update(
        hidden_states: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
    ) -> Tensor:
        x, taps = hidden_states.mT, weight.shape[1]
        fits = x.shape[1] == 1 and conv_state.shape[2] >= taps - 1 and not torch.is_grad_enabled()
        if fits and activation in SILU and on_kernels(x, taps):
            return convolve_step(x[:, 0], weight.flip(1).mT, bias, activation is not None, conv_state).unsqueeze(2)
        return original(hidden_states, conv_state, weight, bias, activation)

    return causal_conv1d_update


def boundaries(packed: Mapping[str, object]) -> tuple[Tensor | None, Tensor | None]:
    """(cu_seqlens, seq_idx) of a call's arguments, at most one of them."""
    starts, numbers = (packed.get(n) for n in ("cu_seqlens", "seq_idx"))
    starts = packed.get("cu_seq_lens_q") if starts is None else starts
    if isinstance(starts, Tensor):
        return starts, None
    return None, numbers if isinstance(numbers, Tensor) else None


def _one_or_many(
    op: RecurrentOp, given: dict[str, Tensor], state: Tensor | None, keep: bool, packed: Mapping[str, object]
) -> tuple[Tensor, Tensor | None]:
    """The op on [B, T, ..]; its decoding step where that is one step without gradients."""
    starts, numbers = boundaries(packed)
    compiling = torch.compiler.is_compiling()  # a step launches by address, which a graph can't hold
    if given["v"].shape[1] == 1 and starts is None and not torch.is_grad_enabled() and not compiling:
        now = {n: x if n == "log_gamma" else x.squeeze(1) for n, x in given.items()}
        o, last = op.step(state, **now)
        return o.unsqueeze(1), last if keep else None
    log = next(n for n in given if n.startswith("log_"))
    given = given | {log: forgetting(given[log], numbers)}
    if state is not None and torch.is_grad_enabled():
        state = state.clone()  # of a cache, which is written to before gradients are asked for
    more = {} if starts is None else {"cu_seqlens": starts}
    return op(**given, initial_state=state, output_final_state=keep, **more)
