"""What the functions of both engines share: steps of an op between rows of a pool of states, in either layout of its axes."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import torch
from torch import Tensor

from chunkform.errors import ArgumentError
from chunkform.runtime.op.op import Op
from chunkform.runtime.op.several import Places, Writes, several_steps


@dataclass(frozen=True, eq=False)
class Rows:
    """Which states a call means. rows: [N], where each sequence's state is; each: [N, K], where the one after each token goes.

    starts: [N + 1] of packed tokens. A row below 0 is padding, and so is `null`, where there is one.
    """

    rows: Tensor | None = None
    each: Tensor | None = None
    starts: Tensor | None = None
    null: int | None = None

    def places(self) -> Places:
        return Places(_real(self.rows, self.null), _real(self.each, self.null), None, _contiguous(self.starts))


def op_of(name: str) -> Op:
    """The op of the catalogue, with its step."""
    found: Op = importlib.import_module(f"chunkform.generated.{name}").OP
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
    heads = max(x.shape[2] for x in given.values())
    sizes = {d: n for a in op.signature.tensors for d, n in zip(a.dims, given[a.name].shape[3:], strict=True)}
    some = given[op.signature.leading.name]
    count = some.shape[0] if where.starts is None else where.starts.shape[0] - 1
    most = some.shape[1]
    if where.each is not None:
        most = where.each.shape[1]
    elif where.starts is not None and some.device.type == "cpu":
        most = int(where.starts.diff().max()) if count else 0
    sizes |= {"B": count, "T": most, "H": heads}
    inner = (sizes["e"], sizes["d"]) if v_first else (sizes["d"], sizes["e"])
    for x in (pool, kept):
        if x is not None and tuple(x.shape[1:]) != (heads, *inner):
            layout = "[rows, heads, V, K]" if v_first else "[rows, heads, K, V]"
            raise ArgumentError(
                f"{name}: states must be {layout} = [.., {heads}, {inner[0]}, {inner[1]}], got {list(x.shape)}"
            )
    pools = [pool.mT if v_first else pool]
    others = [] if kept is None else [kept.mT if v_first else kept]
    writes = Writes(outputs=out is not None, each=kept is not None, last=last)
    with torch.no_grad():
        several_steps(op.step, dict(given), pools, others, [] if out is None else [out], sizes, where.places(), writes)


def normalised(x: Tensor, on: bool) -> Tensor:
    """x / |x| in float32, where `on`; as both engines have it, with 1e-6 under the root."""
    x = x.float()
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() if on else x


def scaled(q: Tensor, k: Tensor, scale: float | None, on: bool) -> tuple[Tensor, Tensor]:
    """Queries and keys as the recurrence takes them: normalised where `on`, queries times the scale, K^-0.5 by default."""
    if scale is None:
        scale = k.shape[-1] ** -0.5
    elif not scale > 0:
        raise ArgumentError(f"scale must be above 0, got {scale}")
    return normalised(q, on) * scale, normalised(k, on)


def decays(A_log: Tensor, a: Tensor, dt_bias: Tensor, beta: float, threshold: float, like: Tensor, kda: bool) -> Tensor:
    """Log decays -exp(A_log) softplus(a + dt_bias): [B, T, H], or [B, T, H, K] where `kda`."""
    heads = A_log.numel()
    own = (heads, a.numel() // (heads * like.shape[0] * like.shape[1])) if kda else (heads,)
    x = a.float().reshape(*like.shape[:2], *own) + dt_bias.float().reshape(own)
    rate = A_log.float().exp().reshape(heads, *([1] if kda else []))
    return -rate * torch.nn.functional.softplus(x, beta, threshold)


def checked_packing(q: Tensor, cu_seqlens: Tensor | None) -> None:
    """Packed tokens are one batch entry."""
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
    first = None if state is None else (state.mT if v_first else state)
    op = getattr(importlib.import_module(f"chunkform.generated.{name}"), name)
    keys = {a.name: a.key for a in op_of(name).signature.tensors}
    arguments = {keys[n]: x for n, x in given.items()}
    o, last = op(**arguments, initial_state=first, output_final_state=final, cu_seqlens=cu_seqlens)
    return o, None if last is None else (last.mT.contiguous() if v_first else last)


def _real(rows: Tensor | None, null: int | None) -> Tensor | None:
    if rows is None or null is None:
        return _contiguous(rows)
    return torch.where(rows == null, -1, rows).contiguous()


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()
