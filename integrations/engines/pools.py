"""What the functions of both engines share: steps of an op between rows of a pool of states, in either layout of its axes."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from chunkform.errors import ArgumentError
from chunkform.runtime.op import debugging
from chunkform.runtime.op.arguments import FLOATS, check_call
from chunkform.runtime.op.op import Op
from chunkform.runtime.op.results import Public
from chunkform.runtime.op.rows import look_at_rows, told
from chunkform.runtime.op.several import Places, Writes, several_steps

INTEGERS = (torch.int32, torch.int64)
HARMLESS = (
    "chunk_indices",
    "chunk_offsets",
    "cu_seqlens_cpu",
    "fuse_gate",
    "num_warps",
)  # what engines work out beforehand, or choose, for kernels of theirs


@dataclass(frozen=True, eq=False)
class Rows:
    """Which states a call means. rows: [N], where each sequence's state is; each: [N, K], where the one after each token goes.

    starts: [N + 1] of packed tokens. A row below 0 is padding, and so is `null`, where there is one. A captured graph has more
    rows than sequences: those beyond are left out.
    """

    rows: Tensor | None = None
    each: Tensor | None = None
    starts: Tensor | None = None
    null: int | None = None

    def of(self, name: str, count: int, steps: int) -> Rows:
        """Those of so many sequences, and steps of one where they aren't packed; padding is below 0."""
        rows, each = (
            _real(f"{name}: {key}", x, self.null, count)
            for key, x in (("rows", self.rows), ("rows of tokens", self.each))
        )
        if each is not None and self.starts is None:
            if each.shape[1] < steps:
                raise ArgumentError(
                    f"{name}: there are rows for {each.shape[1]} tokens of a sequence, which has {steps}"
                )
            each = each[:, :steps]
        return Rows(rows, _contiguous(each), _contiguous(self.starts))

    def look(self, name: str, pool: Tensor, kept: Tensor | None, tokens: int, writes: bool) -> None:
        """In debug mode, and on a CPU, for which nobody waits: rows that there are, and packed tokens that there are."""
        looking = debugging.switched_on and debugging.can_look()
        if not looking and (pool.device.type != "cpu" or torch.compiler.is_compiling()):
            return
        if self.rows is not None:
            look_at_rows(f"{name}: rows", self.rows.clamp(min=-1).tolist(), pool.shape[0], once=looking and writes)
        if self.each is not None and kept is not None:
            look_at_rows(
                f"{name}: rows of tokens", self.each.clamp(min=-1).flatten().tolist(), kept.shape[0], once=looking
            )
        if self.starts is not None:
            starts = self.starts.tolist()
            if not starts or starts[0] != 0 or starts != sorted(starts) or starts[-1] > tokens:
                raise ArgumentError(f"{name}: cu_seqlens must rise from 0 to {tokens} tokens at most, got {starts}")
            longest = max((b - a for a, b in itertools.pairwise(starts)), default=0)
            if self.each is not None and longest > self.each.shape[1]:
                raise ArgumentError(
                    f"{name}: there are rows for {self.each.shape[1]} tokens of a sequence, but one has {longest}"
                )

    def places(self) -> Places:
        return Places(self.rows, self.each, None, self.starts)


def op_of(name: str) -> Op:
    """The op of the catalogue, with its step."""
    found: Op = importlib.import_module(f"chunkform.generated.{name}").OP
    return found


def public_of(name: str) -> Public:
    """The op of the catalogue as it is called."""
    found: Public = getattr(importlib.import_module(f"chunkform.generated.{name}"), name)
    return found


def take_steps(
    name: str,
    given: dict[str, Tensor],
    pool: Tensor,
    where: Rows,
    *,
    v_first: bool,
    last: bool,
    kept: Tensor | None = None,
    out: Tensor | None = None,
) -> None:
    """Steps of the op from the pool's rows. last: the states go back there. kept: a pool for the states after each token.

    given: by declared names, [B, T, H, ..]. out: [B, T, H, e], or None where none is wanted.
    """
    op = op_of(name)
    tensors = [given[a.name] for a in op.signature.tensors]
    sizes = dict(check_call(op.signature, [*tensors, *(None for _ in op.signature.states)], {}, None).sizes)
    heads, tokens = sizes["H"], sizes["T"]
    count = sizes["B"] if where.starts is None else where.starts.shape[0] - 1
    where = where.of(name, count, tokens)
    most = tokens
    if where.each is not None:
        most = where.each.shape[1]
    elif where.starts is not None and where.starts.device.type == "cpu":
        most = int(where.starts.diff().max()) if count else 0
    sizes |= {"B": count, "T": most}
    inner = (sizes["e"], sizes["d"]) if v_first else (sizes["d"], sizes["e"])
    for x in (pool, kept):
        if x is not None and tuple(x.shape[1:]) != (heads, *inner):
            layout = "[rows, heads, V, K]" if v_first else "[rows, heads, K, V]"
            raise ArgumentError(
                f"{name}: states must be {layout} = [.., {heads}, {inner[0]}, {inner[1]}], got {list(x.shape)}"
            )
    _check_states(
        name, [x for x in (pool, kept) if x is not None], kept if kept is not None else pool if last else None
    )
    if torch.is_grad_enabled() and any(x.requires_grad for x in (*tensors, pool)):
        raise ArgumentError(f"{name}: steps have no gradient, but an argument requires one: call under torch.no_grad()")
    where.look(name, pool, kept, tokens, last)
    pools = [pool.mT if v_first else pool]
    others = [] if kept is None else [kept.mT if v_first else kept]
    writes = Writes(outputs=out is not None, each=kept is not None, last=last)
    with torch.no_grad():
        several_steps(op.step, dict(given), pools, others, [] if out is None else [out], sizes, where.places(), writes)


def _check_states(name: str, pools: list[Tensor], written: Tensor | None) -> None:
    """Pools in a dtype that steps take, and memory for each entry of what is written."""
    for x in pools:
        if x.dtype not in FLOATS:
            raise ArgumentError(f"{name}: states must be in float32, bfloat16 or float16, got {x.dtype}")
    if written is not None and any(n > 1 and s == 0 for n, s in zip(written.shape, written.stride(), strict=True)):
        raise ArgumentError(
            f"{name}: states are written to, and must have memory for each entry; got an expanded tensor of shape "
            f"{list(written.shape)}: pass its .contiguous()"
        )


def normalised(x: Tensor, on: bool) -> Tensor:
    """x / |x| in float32, where `on`; as both engines have it, with 1e-6 under the root."""
    x = x.float()
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() if on else x


def scaled(q: Tensor, k: Tensor, scale: float | None, on: bool) -> tuple[Tensor, Tensor]:
    """Queries and keys as the recurrence takes them: normalised where `on`, queries times the scale, K^-0.5 by default."""
    if scale is None:
        scale = k.shape[-1] ** -0.5
    elif not isinstance(scale, int | float) or not scale > 0:
        raise ArgumentError(f"scale must be above 0, a number, got {told(scale)}")
    return normalised(q, on) * scale, normalised(k, on)


def decays(
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor | None,
    keys: Tensor,
    kda: bool,
    softplus: tuple[float, float] = (1.0, 20.0),
    lower_bound: float | None = None,
) -> Tensor:
    """Log decays -exp(A_log) softplus(a + dt_bias): [B, T, H], or [B, T, H, K] where `kda`.

    softplus: its beta, and above what it is the identity. With a lower bound: lower_bound sigmoid(exp(A_log) (a + dt_bias)).
    """
    heads = A_log.numel()
    own = (heads, keys.shape[-1]) if kda else (heads,)
    x = a.float().reshape(*keys.shape[:2], *own)
    x = x if dt_bias is None else x + dt_bias.float().reshape(own)
    rate = A_log.float().exp().reshape(heads, *([1] if kda else []))
    if lower_bound is not None:
        return lower_bound * torch.sigmoid(rate * x)
    return -rate * torch.nn.functional.softplus(x, *softplus)


def packed_decode(
    name: str,
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    scale: float | None,
    state: Tensor,
    out: Tensor,
    rows: Tensor,
    normalise: bool,
    v_first: bool,
    null: int | None,
    lower_bound: float | None = None,
) -> tuple[Tensor, Tensor]:
    """A step of each sequence from rows of the pool `state`, into `out` [B, 1, HV, V]; of padding that is zero.

    mixed: [B, 2 H K + HV V], queries, keys and values as a layer's projection has them; a and b: the gates' part of it."""
    if mixed.dim() != 2 or state.dim() != 4:
        raise ArgumentError(
            f"{name}: mixed_qkv must be [B, 2 H K + HV V], and states [rows, HV, ..], got {told(mixed)}"
        )
    count, heads = mixed.shape[0], state.shape[1]
    width, own = (state.shape[3], state.shape[2]) if v_first else (state.shape[2], state.shape[3])
    rest = mixed.shape[1] - heads * own
    few = rest // (2 * width)
    if rest <= 0 or rest != 2 * width * few or heads % few:
        raise ArgumentError(
            f"{name}: mixed_qkv must be [B, 2 H K + HV V] with HV = {heads}, V = {own}, K = {width}, got {told(mixed)}"
        )
    if tuple(out.shape) != (count, 1, heads, own):
        raise ArgumentError(f"{name}: out must be [B, 1, HV, V] = {[count, 1, heads, own]}, got {told(out)}")
    parts = mixed.unsqueeze(1).split([few * width, few * width, heads * own], -1)
    q, k, v = (x.unflatten(-1, (h, -1)) for x, h in zip(parts, (few, few, heads), strict=True))
    q, k = scaled(q, k, scale, normalise)
    g = decays(A_log, a, dt_bias, k, name == "kimi_delta_attention", lower_bound=lower_bound)
    given = {"q": q, "k": k, "v": v, "beta": b.float().sigmoid().reshape(count, 1, heads), "alpha": g}
    take_steps(name, given, state, Rows(rows, null=null), v_first=v_first, last=True, out=out.zero_())
    return out, state


def refuse_others(name: str, others: Mapping[str, object]) -> None:
    """An argument that isn't known may change what is asked for; nothing is left out in silence."""
    for key, x in others.items():
        if key not in HARMLESS and x is not None and x is not False:
            raise ArgumentError(f"{name}: {key} isn't supported, got {told(x)}")


def checked_packing(q: Tensor, cu_seqlens: Tensor | None) -> None:
    """Packed tokens are one batch entry."""
    if cu_seqlens is not None and (
        not isinstance(cu_seqlens, Tensor) or cu_seqlens.dim() != 1 or cu_seqlens.dtype not in INTEGERS
    ):
        raise ArgumentError(f"cu_seqlens must be a tensor [N + 1] of int32 or int64, got {told(cu_seqlens)}")
    if cu_seqlens is not None and q.shape[0] != 1:
        raise ArgumentError(f"with cu_seqlens the batch size must be 1, got {q.shape[0]}: flatten the sequences first")


def whole(
    name: str,
    given: dict[str, Tensor],
    state: Tensor | None,
    cu_seqlens: Tensor | None,
    v_first: bool,
    final: bool,
) -> tuple[Tensor, Tensor | None]:
    """The op over whole sequences, with states in the engine's layout."""
    v = given["v"]
    if cu_seqlens is not None and cu_seqlens.shape[0] == 1 and v.shape[1] == 0:  # of which the op takes one at least
        widths = (v.shape[3], given["k"].shape[3])
        none = v.new_zeros(0, v.shape[2], *(widths if v_first else widths[::-1]), dtype=torch.float32)
        return torch.zeros_like(v), none if final else None
    first = None if state is None else (state.mT if v_first else state)
    op = public_of(name)
    keys = {a.name: a.key for a in op_of(name).signature.tensors}
    arguments = {keys[n]: x for n, x in given.items()}
    o, last = op(**arguments, initial_state=first, output_final_state=final, cu_seqlens=cu_seqlens)
    return o, None if last is None else (last.mT.contiguous() if v_first else last)


def _real(what: str, rows: Tensor | None, null: int | None, count: int) -> Tensor | None:
    """The rows of so many sequences; padding is below 0."""
    if rows is None:
        return None
    if not isinstance(rows, Tensor) or rows.dtype not in INTEGERS or rows.shape[0] < count:
        raise ArgumentError(f"{what} must be int32 or int64, for {count} sequences, got {told(rows)}")
    rows = rows[:count]
    return (rows if null is None else torch.where(rows == null, -1, rows)).contiguous()


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()
