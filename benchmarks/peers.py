"""What is measured: our ops, and the peers that compute the same or nearly the same, one row each."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from chunkform.codegen.commands.compile import compile_module
from chunkform.runtime.op.op import Signature
from chunkform.spec.language import Recurrence
from chunkform.spec.language import load as load_specs

# Arguments drawn as vectors of length one: recurrences that feed back what they read are stable only then.
UNIT = {
    "delta_rule": ("q", "k"),
    "gated_delta_rule": ("q", "k"),
    "kimi_delta_attention": ("q", "k"),
    "inverse_attention": ("q", "k"),
    "inverse_attention_unstable": ("q", "k"),
    "sherman_morrison": ("q", "u"),
    "gradient_descent_squared": ("x", "z"),
    "gradient_descent_logistic": ("x", "z"),
    "comba": ("q", "k", "p"),
    "dplr": ("q", "k", "a", "b"),
    "gated_oja_rule": ("q", "v"),
    "gdn2": ("q", "k"),
    "momentum_delta_rule": ("q", "k", "p"),
    "precond_gated_delta_rule": ("q", "k"),
}


@dataclass(frozen=True)
class Peer:
    """Somebody else's op.

    ours: the recurrence of the catalogue that it is compared with. computes: the one that it computes, where that is another.
    function: module:name. arguments: its keyword -> our keyword; decays are natural logarithms on both sides. fixed: its other
    keywords. note: what the tables have to say of it.
    """

    ours: str
    function: str
    arguments: Mapping[str, str]
    computes: str | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def recurrence(self) -> str:
        return self.computes or self.ours

    @property
    def label(self) -> str:
        return self.function.rpartition(":")[2].removeprefix("chunk_")

    @property
    def same(self) -> bool:
        """Does it compute the very same function?"""
        return self.computes is None


_QKV = {"q": "q", "k": "k", "v": "v"}
_FLA = {"scale": 1.0}
_NEAREST = "the nearest relative: the same sizes, but another function"
FLA = (
    Peer("lightning_attention", "fla.ops.simple_gla:chunk_simple_gla", {**_QKV, "g": "log_lam"}, fixed=_FLA),
    Peer("gated_linear_attention", "fla.ops.gla:chunk_gla", {**_QKV, "g": "log_alpha"}, fixed=_FLA),
    Peer(
        "gated_delta_rule",
        "fla.ops.gated_delta_rule:chunk_gated_delta_rule",
        {**_QKV, "g": "log_alpha", "beta": "beta"},
        fixed=_FLA,
    ),
    Peer(
        "kimi_delta_attention",
        "fla.ops.kda:chunk_kda",
        {**_QKV, "g": "log_alpha", "beta": "beta"},
        fixed=_FLA,
    ),
    Peer(
        "inverse_attention",
        "fla.ops.gated_delta_rule:chunk_gated_delta_rule",
        {**_QKV, "g": "log_alpha", "beta": "beta"},
        computes="gated_delta_rule",
        fixed=_FLA,
        note=_NEAREST,
    ),
    Peer("delta_rule", "fla.ops.delta_rule:chunk_delta_rule", {**_QKV, "beta": "beta"}, fixed=_FLA),
    Peer(
        "linear_attention",
        "fla.ops.linear_attn:chunk_linear_attn",
        _QKV,
        fixed={**_FLA, "normalize": False},
    ),
    Peer(
        "retention",
        "fla.ops.simple_gla:chunk_simple_gla",
        {**_QKV, "g_gamma": "log_gamma"},
        fixed=_FLA,
        note="what chunk_retention calls, with the decays given; it yields no gradient for them",
    ),
)
_GATES = {**_QKV, "g": "log_g"}
PUBLISHED = (  # of specs in spec/published
    Peer("comba", "fla.ops.comba:chunk_comba", {**_GATES, "p": "p", "beta": "beta"}, fixed=_FLA),
    Peer(
        "dplr",
        "fla.ops.generalized_delta_rule:chunk_dplr_delta_rule",
        {**_QKV, "a": "a", "b": "b", "gk": "log_w"},
        fixed=_FLA,
    ),
    Peer(
        "gated_oja_rule",
        "fla.ops.gated_oja_rule:chunk_gated_oja_rule",
        {**_QKV, "gv": "log_g", "beta": "beta"},
        fixed=_FLA,
    ),
    Peer("gdn2", "fla.ops.gdn2:chunk_gdn2", {**_GATES, "b": "b", "w": "w"}, fixed=_FLA),
    Peer("gsa", "fla.ops.gsa:chunk_gsa", {**_GATES, "s": "s"}, fixed=_FLA),
    Peer("hgrn", "benchmarks.peers:hgrn", {"x": "x", "g": "log_g"}, note="heads side by side, as it has none"),
    Peer(
        "momentum_delta_rule",
        "fla.ops.momentum_delta_rule:chunk_momentum_delta_rule",
        {**_QKV, "p": "p", "beta": "beta", "eta": "eta", "log_alpha": "log_alpha", "log_mu": "log_mu"},
        fixed={**_FLA, "use_qk_l2norm_in_kernel": False, "use_p_times_alpha": False},
    ),
    Peer(
        "precond_gated_delta_rule",
        "fla.ops.precond_gated_delta_rule:chunk_precond_gated_delta_rule",
        {**_GATES, "g_atk": "log_forget", "beta_atk": "rate", "beta": "beta", "log_atk_scale": "center"},
        fixed={**_FLA, "use_qk_l2norm_in_kernel": False},
    ),
    Peer("rwkv6", "fla.ops.rwkv6:chunk_rwkv6", {"r": "q", "k": "k", "v": "v", "w": "log_w", "u": "u"}, fixed=_FLA),
)
SOFTMAX = Peer(
    "linear_attention",
    "benchmarks.peers:scaled_dot_product_attention",
    _QKV,
    computes="softmax attention",
    note="torch's causal softmax attention: another function, as a line of reference",
)
GUARD = (
    "fla 0.6.0 refuses gated backward passes on Hopper with Triton 3.4 to 3.7.0 (a miscompile, its issue 640); that guard, "
    "fla.ops.common.chunk_o.TRITON_ABOVE_3_7_1, was lifted here for timing, and the errors below are of what then ran"
)


@dataclass(frozen=True)
class Subject:
    """Something to measure: arguments by our keywords -> outputs."""

    who: str
    signature: Signature
    call: Callable[[dict[str, Tensor]], tuple[Tensor, ...]]
    unit: tuple[str, ...] = ()


OTHERS: dict[str, tuple[Recurrence, ModuleType]] = {}  # recurrences of spec files, and their ops


def compiled(file: Path) -> list[str]:
    """The names of a spec file's recurrences, whose ops are there from now on."""
    found = load_specs(file)
    OTHERS.update((r.name, (r, compile_module(r))) for r in found)
    return [r.name for r in found]


def ours(name: str, backend: str | None = None) -> Subject:
    """An op of the catalogue, or one that was `compiled`."""
    module = OTHERS[name][1] if name in OTHERS else importlib.import_module(f"chunkform.generated.{name}")
    function, signature = getattr(module, name), module.__dict__["SIGNATURE"]

    def call(given: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return tuple(function(**given, backend=backend)[:-1])

    return Subject("chunkform", signature, call, UNIT.get(name, ()))


def load(peer: Peer) -> Subject:
    """A peer, ready to be called; ImportError where it isn't installed."""
    module, _, name = peer.function.partition(":")
    function = getattr(importlib.import_module(module), name)
    like = peer.recurrence if peer is not SOFTMAX else peer.ours

    def call(given: dict[str, Tensor]) -> tuple[Tensor, ...]:
        result = function(**{theirs: given[key] for theirs, key in peer.arguments.items()}, **peer.fixed)
        return (result[0] if isinstance(result, tuple) else result,)

    return Subject(peer.label, ours(like).signature, call, UNIT.get(like, ()))


def scaled_dot_product_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's causal attention over [B, T, H, D]."""
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)


def hgrn(x: Tensor, g: Tensor) -> Tensor:
    """fla's HGRN over [B, T, H, D]."""
    from fla.ops.hgrn import chunk_hgrn

    found, _ = chunk_hgrn(x.flatten(2), g.flatten(2))
    return found.view(x.shape)


def lift_guard() -> bool:
    """Let fla's gated backward passes run; True where its guard stood in the way."""
    module = importlib.import_module("fla.ops.common.chunk_o")
    if module.__dict__.get("TRITON_ABOVE_3_7_1") is not False:
        return False
    module.TRITON_ABOVE_3_7_1 = True  # type: ignore[attr-defined]
    return True


def version(distribution: str) -> str | None:
    """An installed distribution's version."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
