"""The functions of flash-linear-attention that the catalogue has too, by their names and arguments, on top of our ops.

    from chunkform.runtime.compat.fla import chunk_gated_delta_rule        # was: from fla.ops.gated_delta_rule import ...

All take tensors [B, T, H, ...] and log decays as natural logarithms, and return (o, final state or None).
The page "Coming from flash-linear-attention" of the documentation lists what differs. What they share, by keyword:

    scale                     of the queries; 1 / sqrt(K) where None
    initial_state             [N, H, K, V], or [N, H, V, K] with `state_v_first`
    output_final_state        also return the last state, in float32
    cu_seqlens                [N + 1], boundaries of packed sequences in [1, T, ...]
    use_qk_l2norm_in_kernel   divide q and k by their length: x / sqrt(x.x + 1e-6)
    reverse                   run from the last step to the first

Arguments that only tell the other library's kernels how to run (`HINTS`) are taken and do nothing. Whatever would
change the result and isn't here is refused with an ArgumentError.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import functional as F

from chunkform.errors import ArgumentError, nearest, page_of

from ..nn.rows import bounded_decay, softplus_decay, unit
from .fla_arguments import checked, of_an_op

__all__ = [
    "chunk_delta_rule",
    "chunk_gated_delta_rule",
    "chunk_gdn",
    "chunk_gla",
    "chunk_kda",
    "chunk_lightning_attn",
    "chunk_linear_attn",
    "chunk_mesa_net",
    "chunk_retention",
    "chunk_simple_gla",
    "fused_chunk_linear_attn",
    "fused_chunk_retention",
    "fused_chunk_simple_gla",
    "fused_recurrent_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_gdn",
    "fused_recurrent_gla",
    "fused_recurrent_kda",
    "fused_recurrent_lightning_attn",
    "fused_recurrent_linear_attn",
    "fused_recurrent_retention",
    "fused_recurrent_simple_gla",
    "parallel_attn",
    "parallel_retention",
    "parallel_simple_gla",
]

HINTS = {"chunk_size", "chunk_indices", "cu_seqlens_cpu", "disable_recompute", "safe_gate"}
NORMALIZER_EPS = 1e-10
__path__: list[str] = []  # of a package without modules, so that a misspelt import is told (chunkform/misspelt.py)
__elsewhere__ = dict.fromkeys(["ops", "modules"], f"the functions are in {__name__} itself")
__elsewhere__ |= dict.fromkeys(
    ["layers", "DeltaNet", "GatedDeltaNet", "KimiDeltaAttention", "GatedLinearAttention", "Mamba2"],
    f"layers are in {__name__}_layers",
)
THEIRS = {"log_lam": "g", "log_alpha": "g", "log_beta": "gv", "log_gamma": "g_gamma"}  # by names of our ops
PER_HEAD = {"log_gamma", "lamb"}  # arguments without a time axis

Result = tuple[Tensor, Any]


# --- states that decay ------------------------------------------------------------------------------------------------


def chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    **options: Any,
) -> Result:
    """S_t = exp(g_t) S_{t-1} + k_t v_t^T.

    With g [B, T, H] it is `lightning_attention`, with g_gamma [H] `retention`, with neither `linear_attention`.
    Options: reverse, state_v_first, cu_seqlens.
    """
    if g is not None and g_gamma is not None:
        raise ArgumentError("simple_gla: give g or g_gamma, not both")
    op, decay = "linear_attention", {}
    if g is not None:
        op, decay = "lightning_attention", {"log_lam": g}
    elif g_gamma is not None:
        op, decay = "retention", {"log_gamma": g_gamma}
    return _run("simple_gla", op, q, k, v, decay, scale, initial_state, output_final_state, options)


def chunk_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    **options: Any,
) -> Result:
    """S_t = diag(exp(g_t)) S_{t-1} + k_t v_t^T, g [B, T, H, K]: `gated_linear_attention`. Options: state_v_first, cu_seqlens."""
    decay = {"log_alpha": g}
    return _run("gla", "gated_linear_attention", q, k, v, decay, scale, initial_state, output_final_state, options)


def fused_recurrent_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    **options: Any,
) -> Result:
    """As `chunk_gla`, with decays gk [B, T, H, K], or of value channels, gv [B, T, H, V] (`value_decay_attention`).

    Options: reverse, state_v_first, cu_seqlens. Both decays at once aren't in the catalogue: ArgumentError.
    """
    if gk is not None and gv is not None:
        raise ArgumentError("gla: gk and gv at once have no op in the catalogue; give one of them")
    op, decay = "linear_attention", {}
    if gk is not None:
        op, decay = "gated_linear_attention", {"log_alpha": gk}
    elif gv is not None:
        op, decay = "value_decay_attention", {"log_beta": gv}
    return _run("gla", op, q, k, v, decay, scale, initial_state, output_final_state, options, "gk")


def chunk_retention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    **options: Any,
) -> Result:
    """S_t = gamma_h S_{t-1} + k_t v_t^T with gamma_h = 1 - 2^(-5-h): `retention`. Options: reverse, state_v_first, cu_seqlens."""
    decay = {"log_gamma": torch.log1p(-torch.exp2(-5 - _heads(q)))}
    return _run("retention", "retention", q, k, v, decay, scale, initial_state, output_final_state, options)


def chunk_lightning_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int,
    num_layers: int,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    **options: Any,
) -> Result:
    """S_t = exp(-(8 h / H) (1 - layer / layers)) S_{t-1} + k_t v_t^T for head h: `retention`. Options: reverse, cu_seqlens."""
    decay = {"log_gamma": -(8 / q.shape[2] * (1 - layer_idx / num_layers)) * _heads(q)}
    return _run("lightning_attn", "retention", q, k, v, decay, scale, initial_state, output_final_state, options)


def _heads(q: Tensor) -> Tensor:
    """The numbers of the heads, from 0, at least in float32."""
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return torch.arange(q.shape[2], device=q.device, dtype=dtype)


def chunk_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    normalize: bool = True,
    **options: Any,
) -> Result:
    """S_t = S_{t-1} + k_t v_t^T: `linear_attention`. With `normalize`, o_t is divided by q_t . z_t + 1e-10, z_t = z_{t-1} + k_t.

    Then states are pairs (S, z), z [N, 1, H, K]. Options: reverse, cu_seqlens.
    """
    if not normalize:
        return _run("linear_attn", "linear_attention", q, k, v, {}, scale, initial_state, output_final_state, options)
    first, z = initial_state if isinstance(initial_state, tuple) else (initial_state, None)
    ones = torch.ones_like(v[..., :1])
    before = None if z is None else z.squeeze(1).unsqueeze(-1)
    o, last = _run("linear_attn", "linear_attention", q, k, v, {}, scale, first, output_final_state, options)
    share, after = _run("linear_attn", "linear_attention", q, k, ones, {}, scale, before, output_final_state, options)
    if output_final_state:
        last = last, after.squeeze(-1).unsqueeze(1)
    return o / (share + NORMALIZER_EPS), last


def fused_recurrent_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Any = None,
    output_final_state: bool = False,
    **options: Any,
) -> Result:
    """As `chunk_linear_attn`, where `normalize` is False unless said."""
    options = {"normalize": False} | options
    return chunk_linear_attn(q, k, v, scale, initial_state, output_final_state, **options)


# --- delta rules ------------------------------------------------------------------------------------------------------


def chunk_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **options: Any,
) -> Result:
    """S_t = S_{t-1} + beta_t k_t (v_t - S_{t-1}^T k_t)^T, beta [B, T, H], ones where None: `delta_rule`. Options: cu_seqlens."""
    given = {"beta": torch.ones_like(v[..., 0]) if beta is None else beta}
    options["l2norm"] = use_qk_l2norm_in_kernel
    return _run("delta_rule", "delta_rule", q, k, v, given, scale, initial_state, output_final_state, options)


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    **options: Any,
) -> Result:
    """S_t = a_t S_{t-1} + beta_t k_t (v_t - a_t S_{t-1}^T k_t)^T with a = exp(g): `gated_delta_rule`.

    v [B, T, HV, V], g and beta [B, T, HV]; HV may be a multiple of q's and k's H. Options: use_qk_l2norm_in_kernel,
    state_v_first, cu_seqlens, use_gate_in_kernel with A_log [HV] and dt_bias [HV] (then a = exp(-exp(A_log)
    softplus(g + dt_bias))), use_beta_sigmoid_in_kernel and allow_neg_eigval (then beta is 2 sigmoid(beta)).
    """
    return fused_recurrent_gated_delta_rule(
        q, k, v, g, None, None, beta, scale, initial_state, output_final_state, **options
    )


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    *,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    **options: Any,
) -> Result:
    """As `chunk_gated_delta_rule`; with gk [B, T, HV, K], alone or beside g, `kimi_delta_attention`; with none, `delta_rule`.

    Decays of value channels, gv, have no op in the catalogue: ArgumentError.
    """
    what = "gated_delta_rule"
    if gv is not None:
        raise ArgumentError(f"{what}: decays of value channels (gv) with a delta rule have no op in the catalogue")
    if use_gate_in_kernel:
        g = _gate(what, g, A_log, dt_bias, None)
    given = {"beta": _beta(what, v, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)}
    op, called = "delta_rule", "g"
    if gk is not None:
        op, given["log_alpha"], called = "kimi_delta_attention", gk, "gk"
        if g is not None:
            given["log_alpha"], called = _both(what, gk, g), "gk + g"
    elif g is not None:
        op, given["log_alpha"] = "gated_delta_rule", g
    options["l2norm"] = use_qk_l2norm_in_kernel
    return _run(what, op, q, k, v, given, scale, initial_state, output_final_state, options, called)


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
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    *,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    lower_bound: float | None = None,
    **options: Any,
) -> Result:
    """The gated delta rule with a decay for each key channel, g [B, T, HV, K]: `kimi_delta_attention`.

    Options as `chunk_gated_delta_rule` has them, with dt_bias [HV * K]; with `lower_bound` b the decay made in the
    kernel is exp(b sigmoid(exp(A_log) (g + dt_bias))).
    """
    if use_gate_in_kernel:
        g = _gate("kda", g, A_log, dt_bias, lower_bound)
    given = {"log_alpha": g, "beta": _beta("kda", v, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)}
    options["l2norm"] = use_qk_l2norm_in_kernel
    return _run("kda", "kimi_delta_attention", q, k, v, given, scale, initial_state, output_final_state, options)


def fused_recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    **options: Any,
) -> Result:
    """As `chunk_kda`, with the arguments in another order."""
    return chunk_kda(
        q, k, v, g, beta, scale, initial_state, output_final_state, A_log=A_log, dt_bias=dt_bias, **options
    )


def chunk_mesa_net(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    lamb: Tensor,
    h_kk_init: Tensor | None = None,
    h_kv_init: Tensor | None = None,
    output_final_state: bool = False,
    max_CG_iteration: int = 30,
    use_qk_l2norm_in_kernel: bool = False,
    **options: Any,
) -> Result:
    """o_t = S_t^T (H_t + diag(lamb))^-1 q_t, H and S decaying sums of beta k k^T and beta k v^T, by 30 steps of CG: `mesa_net`.

    lamb [H, K]. Returns (o, (H, S)), or (o, (None, None)). Options: cu_seqlens. Another number of steps is another
    spec: ArgumentError.
    """
    if max_CG_iteration != 30:
        raise ArgumentError(
            f"mesa_net: the catalogue's takes 30 steps of conjugate gradients, got max_CG_iteration = {max_CG_iteration}; "
            "compile spec/mesa_net.py with another cg(..)"
        )
    given = {"log_lam": g, "beta": beta, "lamb": lamb}
    first = None if h_kk_init is None and h_kv_init is None else (h_kk_init, h_kv_init)
    options["l2norm"] = use_qk_l2norm_in_kernel
    o, last = _run("mesa_net", "mesa_net", q, k, v, given, 1.0, first, output_final_state, options)
    return o, last if output_final_state else (None, None)


# --- softmax ----------------------------------------------------------------------------------------------------------


def parallel_attn(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, scale: float | None = None, **options: Any
) -> Tensor:
    """Causal softmax attention: `softmax_attention`. k and v may have fewer heads than q. Returns o alone.

    Forget gates (g), windows, sinks and packed sequences aren't supported: ArgumentError.
    """
    for n, x in {"g": g, **options}.items():
        if n not in HINTS and x is not None:
            raise ArgumentError(f"attn: {n} isn't supported; there are q, k, v and scale")
    from chunkform.generated import softmax_attention

    return softmax_attention(q, k, v, scale, causal=True)


# --- the same under other names ---------------------------------------------------------------------------------------

fused_chunk_simple_gla = fused_recurrent_simple_gla = chunk_simple_gla
fused_chunk_retention = fused_recurrent_retention = chunk_retention
fused_chunk_linear_attn = chunk_linear_attn
fused_recurrent_lightning_attn = chunk_lightning_attn
fused_recurrent_delta_rule = chunk_delta_rule
chunk_gdn, fused_recurrent_gdn = chunk_gated_delta_rule, fused_recurrent_gated_delta_rule


def parallel_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    scale: float | None = None,
    output_attentions: bool = False,
    **options: Any,
) -> Result:
    """The o of `chunk_simple_gla`, and None: there is no T x T matrix to return."""
    _no_matrix("parallel_simple_gla", output_attentions)
    return chunk_simple_gla(q, k, v, g, scale=scale, **options)


def parallel_retention(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, output_attentions: bool = False, **options: Any
) -> Result:
    """The o of `chunk_retention`, and None: there is no T x T matrix to return."""
    _no_matrix("parallel_retention", output_attentions)
    return chunk_retention(q, k, v, scale, **options)


# --- what they share --------------------------------------------------------------------------------------------------


def _run(
    what: str,
    op: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    others: dict[str, Tensor],
    scale: float | None,
    initial_state: Any,
    output_final_state: bool,
    options: dict[str, Any],
    log_alpha: str = THEIRS["log_alpha"],
) -> Result:
    """Call our op; what it gets in their conventions becomes ours, and what it returns theirs again. `log_alpha` is what the
    decay of that name is called in the function that was called."""
    theirs = THEIRS | {"log_alpha": log_alpha}
    options = _understood(what, options)
    starts, reverse, v_first = (options.get(n) for n in ("cu_seqlens", "reverse", "state_v_first"))
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    if options.get("l2norm"):
        q, k = unit(q, scale), unit(k, 1.0)
    else:
        q = q * scale
    given = {"q": q, "k": k, "v": v} | others
    # Their kernels read each input in its own dtype; ours take one, which shouldn't be a gate's float32.
    given = {n: x if n.startswith("log_") or n in PER_HEAD else x.to(v.dtype) for n, x in given.items()}
    if reverse:  # sequences and their order turn round
        given = {n: x if n in PER_HEAD else x.flip(1) for n, x in given.items()}
        starts = None if starts is None else v.shape[1] - starts.flip(0)
    state = initial_state
    if state is not None:
        state = state.mT if v_first and state.dim() > 1 else state
        state = state.flip(0) if reverse and starts is not None else state
    extra: dict[str, Any] = {} if starts is None else {"cu_seqlens": starts}
    function = getattr(importlib.import_module(f"chunkform.generated.{op}"), op)
    step = getattr(function, "step", None)
    quiet = not torch.is_grad_enabled() and not torch.compiler.is_compiling()  # a graph can't hold a launch by address
    if step and v.shape[1] == 1 and not extra and quiet:  # generation
        wide = _float32(state)
        now = {n: x if n in PER_HEAD else x.squeeze(1) for n, x in given.items()}
        o, last = _called(lambda: step(wide, **now), v_first, theirs)
        o, last = o.unsqueeze(1), last if output_final_state else None
    else:
        extra |= {"initial_state": state, "output_final_state": output_final_state}
        o, last = _called(lambda: function(**given, **extra), v_first, theirs)
    if reverse:
        o = o.flip(1)
    if last is not None:
        last = last.flip(0) if reverse and starts is not None else last
        last = last.mT.contiguous() if v_first else last
    return o, last


def _both(what: str, gk: Tensor, g: Tensor) -> Tensor:
    """The decay of each channel and that of all of them, as one."""
    if g.dim() != 3 or gk.shape[:-1] != g.shape:
        raise ArgumentError(
            f"{what}: gk must have the axes of g, then the channels of keys, got gk {list(gk.shape)} and g {list(g.shape)}"
        )
    return gk + g.unsqueeze(-1)


def _called(call: Callable[[], Result], v_first: object, theirs: dict[str, str]) -> Result:
    """What a call of our op returns. What is wrong with its arguments is told with their names in the other library."""
    if torch.compiler.is_compiling():
        return call()
    try:
        return call()
    except ArgumentError as error:
        said = str(error)
        also = [f"{n} is {x} here" for n, x in theirs.items() if n in said]
        if v_first and "initial_state" in said:
            also.append("with state_v_first the last two axes of what is given are exchanged first")
        raise ArgumentError("; ".join([said, *also])) from None


def _float32(state: Any) -> Any:
    """States in float32 at least, as a final state is: a step returns them in the dtype in which it was given them."""
    if isinstance(state, tuple):
        return tuple(None if x is None else x.to(torch.promote_types(x.dtype, torch.float32)) for x in state)
    return None if state is None else state.to(torch.promote_types(state.dtype, torch.float32))


def _understood(what: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options that mean something here; hints dropped, others refused."""
    options = {n: x for n, x in options.items() if n not in HINTS}
    if "transpose_state_layout" in options:  # the older name
        options["state_v_first"] = options.pop("transpose_state_layout")
    for n, x in options.items():
        if n == "head_first":
            if x:
                raise ArgumentError(f"{what}: head_first isn't supported: tensors are [B, T, H, ...]")
        elif n not in ("cu_seqlens", "l2norm", "reverse", "state_v_first") and x is not None and x is not False:
            others = (
                "; there are scale, initial_state, output_final_state, reverse, state_v_first and cu_seqlens, and what "
            )
            near = nearest(n, _keywords()) or f"{others}the function's own documentation says"
            raise ArgumentError(f"{what}: {n} isn't supported{near}")
    return options


def _keywords() -> list[str]:
    """What the functions take by name."""
    own = [p for n in __all__ for p in inspect.signature(globals()[n]).parameters if len(p) > 1]
    return list(dict.fromkeys(["reverse", "state_v_first", "cu_seqlens", *own]))


def __getattr__(name: str) -> NoReturn:
    near = nearest(name, __all__)
    told = f"{near or ';'} {page_of('from_fla')} lists the functions"
    raise AttributeError(f"module {__name__!r} has no {name!r}{told}")


def _gate(what: str, g: Tensor | None, A_log: Tensor | None, dt_bias: Tensor | None, lower: float | None) -> Tensor:
    """The log decay that `use_gate_in_kernel` makes of g [B, T, HV] or [B, T, HV, K]."""
    if g is None or (A_log is None and lower is None):
        raise ArgumentError(f"{what}: use_gate_in_kernel needs {'g' if g is None else 'A_log'}, got None")
    count = math.prod(g.shape[2:])
    for name, x, size in (("A_log", A_log, g.shape[2]), ("dt_bias", dt_bias, count)):
        if x is not None and x.numel() != size:
            raise ArgumentError(f"{what}: {name} must have {size} numbers for g {list(g.shape)}, got {list(x.shape)}")
    if g.dim() == 4 and A_log is not None and dt_bias is not None and lower is None:
        return softplus_decay(g, A_log.flatten(), dt_bias.view(g.shape[2:]))
    if g.dim() == 4 and A_log is not None and dt_bias is not None and lower is not None:
        return bounded_decay(g, A_log.flatten(), dt_bias.view(g.shape[2:]), lower)
    g = g.to(torch.promote_types(g.dtype, torch.float32))
    if dt_bias is not None:
        g = g + dt_bias.to(g.dtype).view(g.shape[2:])
    rate = torch.ones((), dtype=g.dtype, device=g.device)
    if A_log is not None:
        rate = A_log.to(g.dtype).flatten().exp()
        rate = rate if g.dim() == 3 else rate.unsqueeze(-1)
    return -rate * F.softplus(g) if lower is None else lower * torch.sigmoid(rate * g)


def _beta(what: str, v: Tensor, beta: Tensor | None, raw: bool, negative: bool) -> Tensor:
    """beta as the op wants it: ones where None, its sigmoid where it is `raw`, up to 2 where eigenvalues may be `negative`."""
    if negative and not raw:
        raise ArgumentError(f"{what}: allow_neg_eigval needs use_beta_sigmoid_in_kernel")
    if beta is None:
        return torch.ones_like(v[..., 0])
    if raw:
        beta = beta.to(torch.promote_types(beta.dtype, torch.float32)).sigmoid()
    return 2 * beta if negative else beta


def _no_matrix(what: str, asked: bool) -> None:
    if asked:
        raise ArgumentError(f"{what}: output_attentions isn't supported: no op forms the T x T matrix")


ONTO = {  # functions that hand their options on to others; all but one to the ops
    chunk_gated_delta_rule: (fused_recurrent_gated_delta_rule, of_an_op),
    fused_recurrent_kda: (chunk_kda, of_an_op),
    fused_chunk_linear_attn: (chunk_linear_attn, of_an_op),
    parallel_attn: (),
}
globals().update({name: checked(globals()[name], name, ONTO.get(globals()[name], (of_an_op,))) for name in __all__})
