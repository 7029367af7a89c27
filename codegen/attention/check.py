"""Compare an attention's op with its float64 oracle: outputs, log-sum-exp and every gradient, on fresh random inputs.

The oracle evaluates the energy of all pairs at once, from the terms of the spec, with PyTorch's own gradients. It knows nothing
of features, blocks or kernels.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from chunkform.spec.language.attention import Attention

from ..checking.accuracy import Judged, judge, relative_error
from ..ir.evaluate import Env, aligned, evaluate
from ..ir.expr import dim_of
from ..recurrence.check import BOUND, PERTURBED
from ..recurrence.oracle import TorchNumbers
from .compiled import CompiledAttention
from .lower import KEY, QUERY, Lowered
from .split import Split

if TYPE_CHECKING:
    pass

SPREAD = 8  # how much wider each dim is than the one before it


@dataclass(frozen=True)
class Case:
    """What to run. `keys` is S where there is no stream; `key_heads` are the heads of what is `grouped`, in turn."""

    batch: int = 2
    steps: int = 150
    keys: int | None = None
    heads: int = 2
    key_heads: Sequence[int] = ()
    width: int = 32
    nodes: int = 5
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    seed: int = 0
    causal: bool = False
    scale: float = 1.0  # of inputs: energies grow with its square
    same: bool = False  # are all dims of the same width?
    widths: tuple[int, ...] = ()  # of the dims, in order, in the place of `width`


@dataclass(frozen=True)
class Row:
    """The worst head of one quantity."""

    name: str
    quantity: str
    judged: Judged

    @property
    def error(self) -> float:
        return self.judged.error

    @property
    def bound(self) -> float:
        return self.judged.bound

    @property
    def allowed(self) -> float:
        return self.judged.allowed

    @property
    def ok(self) -> bool:
        return self.judged.ok


@dataclass(frozen=True)
class Sample:
    given: dict[str, Tensor]
    constants: dict[str, float]
    cotangents: dict[str, Tensor]


def sample(c: CompiledAttention, case: Case) -> Sample:
    """Random arguments, and incoming gradients of the outputs and of the log-sum-exp."""
    g = torch.Generator().manual_seed(case.seed)
    a = c.spec
    dims = {
        d.name: case.width + (0 if case.same else SPREAD * n)
        for n, d in enumerate(x for x in a.dim_list if x != a.nodes)
    }
    dims |= dict(zip(dims, case.widths, strict=False))
    if a.nodes is not None:
        dims[a.nodes.name] = case.nodes
    wide = torch.float64 if case.dtype == torch.float64 else torch.float32
    aligned_ = any(v.kind == "stream" for v in a.variables)
    S = case.steps if case.keys is None or aligned_ else case.keys
    given: dict[str, Tensor] = {}
    constants: dict[str, float] = {}
    groups = cycle(case.key_heads or (case.heads,))
    for v in a.variables:
        own = [dims[d.name] for d in v.dims]
        heads = next(groups) if v.kind in grouped(a) else case.heads
        lead = {
            "query": [case.batch, case.steps, heads],
            "stream": [case.batch, case.steps, heads],
            "key": [case.batch, S, heads],
        }.get(v.kind, [heads])
        x = torch.randn(*lead, *own, generator=g)
        match v.kind:
            case "constant":
                constants[v.name] = 1.0 if v.default is None else float(v.default)
                continue
            case "temperature":
                x = x.exp() / dims[next(iter(dims))] ** 0.5
            case "parameter" if len(own) == 2:
                x = x / own[1] ** 0.5
            case "fixed":
                x = x / own[-1] ** 0.5
            case "parameter":
                x = x * 0.3
        low = v.kind in ("query", "key", "stream")
        given[v.name] = (x * case.scale if low else x).to(case.dtype if low else wide).to(case.device)
    p = c.lowered
    cotangents = {}
    for n, axes in p.output_axes.items():
        lead = [case.batch, case.steps, case.heads] if p.query == QUERY else [case.batch, case.heads]
        own = [dims[dim_of(d)] for d in (axes[1:] if p.query == QUERY else axes)]
        cotangents[n] = torch.randn(*lead, *own, generator=g).to(case.dtype).to(case.device)
    if a.normaliser == "softmax":
        shape = [case.batch, case.steps, case.heads] if p.query == QUERY else [case.batch, case.heads, case.nodes]
        cotangents["lse"] = torch.randn(*shape, generator=g).to(wide).to(case.device)
    return Sample(given, constants, cotangents)


def grouped(a: Attention) -> tuple[str, ...]:
    """The kinds of arguments that may have fewer heads than others that there are."""
    return ("key", "stream") if any(v.kind == "query" for v in a.variables) else ("key",)


def oracle(
    c: CompiledAttention,
    s: Sample,
    causal: bool,
    dtype: torch.dtype = torch.float64,
    blockwise: bool = False,
    low: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """Outputs, `lse`, and `d<name>` for each argument, from all pairs at once. `low`: of products of features and of weights."""
    p = c.lowered
    leaves = {n: x.detach().to(dtype).requires_grad_() for n, x in s.given.items()}
    found = definition(p, leaves, s.constants, causal, dtype, blockwise, None if low is None else (c.split, low))
    loss = torch.zeros((), dtype=dtype, device=next(iter(leaves.values())).device)
    for n, y in s.cotangents.items():
        value = torch.where(found[n].isfinite(), found[n], 0) if n == "lse" else found[n]
        loss = loss + (value * y.to(dtype)).sum()
    names = list(leaves)
    grads = (
        torch.autograd.grad(loss, [leaves[n] for n in names], allow_unused=True)
        if loss.requires_grad
        else [None] * len(names)
    )
    out = {n: x.detach() for n, x in found.items()}
    for n, g in zip(names, grads, strict=True):
        out[f"d{n}"] = torch.zeros_like(leaves[n]) if g is None else g
    return out


def definition(
    p: Lowered,
    given: dict[str, Tensor],
    constants: dict[str, float],
    causal: bool,
    dtype: torch.dtype,
    blockwise: bool = False,
    rounded: tuple[Split, torch.dtype] | None = None,
) -> dict[str, Tensor]:
    """Outputs and log-sum-exp, as the spec has them, of all pairs at once.

    `blockwise`: as where no row of pairs is ever held. Weights are exp(E - lse), and add up to 1 but for rounding; the gradient
    of an energy is the weight times what the value gives less what the average gives, which cancel but for rounding where one
    weight is all but 1. `rounded`: the operands of products between positions, features that is, are rounded to a dtype.
    """
    a = p.spec
    inputs = [v for v in a.variables if v.kind in ("query", "key", "stream")]
    device = given[inputs[0].name].device
    H = max(given[v.name].shape[2 if v in inputs else 0] for v in a.variables if v.kind != "constant")
    m = _Numbers(device, dtype)
    env, sizes = _leaves(a, given, H)
    env |= {("constant", n): torch.tensor(x, dtype=dtype, device=device) for n, x in constants.items()}
    B = given[inputs[0].name].shape[0]
    T, S = sizes[p.query], sizes[KEY]
    env["position", "i"] = torch.arange(S - T, S, dtype=dtype, device=device)
    env["position", "j"] = torch.arange(S, dtype=dtype, device=device)

    def over(x: Any, own: tuple[str, ...], axes: tuple[str, ...]) -> Tensor:
        """A value over [B, H, *axes]."""
        order = tuple(sorted(axes))
        x = aligned(x, own, order)
        shape = tuple(sizes[dim_of(b)] for b in order)
        x = x.expand(B, H, *shape)
        return x.permute(0, 1, *(2 + order.index(b) for b in axes))

    pair = (p.query, KEY)
    if rounded is None:
        energy = over(evaluate(p.energy, env, m, sizes), p.energy.axes, pair)
    else:
        energy = _of_features(*rounded, env, m, sizes, over)
    seen = torch.ones(T, S, dtype=torch.bool, device=device)
    if causal:
        seen = torch.arange(S - T, S, device=device)[:, None] >= torch.arange(S, device=device)[None, :]
    found: dict[str, Tensor] = {}
    if a.normaliser == "linear":
        weights = torch.where(seen, energy, 0)
    elif a.normaliser == "exponential":
        weights = torch.where(seen, energy, -math.inf).exp()
    else:
        energy = torch.where(seen, energy, -math.inf)
        some = (energy > -math.inf).any(-1, keepdim=True)
        safe = torch.where(some, energy, 0)
        lse = safe.logsumexp(-1) if S else safe.new_full(safe.shape[:-1], -math.inf)
        parts = (safe - lse[..., None]).exp() if blockwise else safe.softmax(-1)
        weights = torch.where(some, parts, 0) if S else safe
        found["lse"] = torch.where(some[..., 0], lse, -math.inf)
    for name, node in p.averages.items():
        axes = (*p.average_axes[name],)
        value = over(evaluate(node, env, m, sizes), node.axes, (*pair, *axes))
        flat = value.flatten(4) if value.ndim > 4 else value.unsqueeze(-1)
        if rounded is not None:
            weights, flat = (x.to(rounded[1]).to(dtype) for x in (weights, flat))
        if blockwise and a.normaliser == "softmax":
            mean = _Blockwise.apply(weights.detach(), energy, flat)
        else:
            mean = (weights.unsqueeze(-1) * flat).sum(3)
        env["average", name] = mean.reshape(*mean.shape[:3], *(sizes[dim_of(x)] for x in axes))
    for name, node in p.outputs.items():
        axes = p.output_axes[name]
        x = over(evaluate(node, env, m, sizes), node.axes, axes)
        found[name] = x.transpose(1, 2) if p.query == QUERY else x
    if "lse" in found and p.query == QUERY:
        found["lse"] = found["lse"].transpose(1, 2)
    return found


def _leaves(a: Attention, given: dict[str, Tensor], H: int) -> tuple[Env, dict[str, int]]:
    """The tensors that a call is given as the values of leaves, with all heads, and the sizes of dims."""
    env: Env = {}
    sizes: dict[str, int] = {}
    for v in a.variables:
        if v.kind == "constant":
            continue
        x = given[v.name]
        sizes |= {d.name: n for d, n in zip(v.dims, x.shape[x.ndim - len(v.dims) :], strict=True)}
        if v.kind in ("query", "key", "stream"):
            x = x.transpose(1, 2).repeat_interleave(H // x.shape[2], 1)
        if v.kind in ("query", "stream"):
            env["query", f"{v.name}_i"], sizes[QUERY] = x, x.shape[2]
        if v.kind in ("key", "stream"):
            env["key", f"{v.name}_j"], sizes[KEY] = x, x.shape[2]
        if v.kind == "fixed":
            env["fixed", f"{v.name}_k"] = x
        elif v.kind not in ("query", "key", "stream"):
            env["parameter", v.name] = x
    return env, sizes


def _of_features(
    s: Split, low: torch.dtype, env: Env, m: TorchNumbers, sizes: dict[str, int], over: Callable[..., Tensor]
) -> Tensor:
    """The energy of each pair, from inner products of rounded features."""
    query, key = s.pair
    known: Env = {n: x for n, x in env.items() if n[0] == "position"}
    for name, parts in s.scores.items():
        known["score", name] = m.const(Fraction(0))
        for part in parts:
            q, k = (
                over(evaluate(x, env, m, sizes), x.axes, (side, *part.axes)).flatten(3).to(low).to(m.dtype)
                for x, side in ((part.query, query), (part.key, key))
            )
            known["score", name] = known["score", name] + q @ k.mT
    for kind, table in (("row", s.rows), ("column", s.columns), ("scalar", s.scalars)):
        for name, node in table.items():
            known[kind, name] = evaluate(node, env, m, sizes)
    tile = over(evaluate(s.tile, known, m, sizes), s.tile.axes, s.pair)
    return tile + over(evaluate(s.row, env, m, sizes), s.row.axes, s.pair)


class _Blockwise(torch.autograd.Function):
    """The average by weights, whose gradient goes to the energies."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, energy: Tensor, values: Tensor) -> Tensor:
        mean = (weights.unsqueeze(-1) * values).sum(3)
        ctx.save_for_backward(weights, values, mean)
        return mean

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        weights, values, mean = ctx.saved_tensors
        (g,) = gradients
        # The two are added up in other orders, as by tensor cores and by threads.
        along = torch.einsum("bhie,bhije->bhij", g, values) - (g * mean).flip(-1).cumsum(-1)[..., -1:]
        return None, weights * along, weights.unsqueeze(-1) * g.unsqueeze(3)


class _Numbers(TorchNumbers):
    """The derivative of a root at 0, as of a length, is 0."""

    def pow(self, a: Tensor, n: Fraction) -> Tensor:
        if n.denominator == 1 or n < 0:
            return super().pow(a, n)
        return torch.where(a == 0, 0, super().pow(torch.where(a == 0, 1, a), n))


def run(
    c: CompiledAttention, op: Callable[..., Any], s: Sample, causal: bool, backend: str | None
) -> dict[str, Tensor]:
    """What the op makes of a sample, by the names of the oracle's quantities."""
    arguments = {n: x.detach().clone().requires_grad_() for n, x in s.given.items()}
    options: dict[str, Any] = {} if c.spec.nodes is not None else {"causal": causal}
    if c.spec.normaliser == "softmax":
        options["output_lse"] = True
    results = op(**arguments, **s.constants, **options, backend=backend)
    names = [*c.lowered.outputs, *(["lse"] if "output_lse" in options else [])]
    found = dict(zip(names, results if isinstance(results, tuple) else (results,), strict=True))
    torch.autograd.backward(
        [found[n] for n in names], [s.cotangents[n].to(found[n].dtype) for n in names], inputs=list(arguments.values())
    )
    return {**{n: x.detach() for n, x in found.items()}, **{f"d{n}": x.grad for n, x in arguments.items()}}


def check_op(c: CompiledAttention, op: Callable[..., Any], case: Case, backend: str | None = None) -> list[Row]:
    """The errors of one call, forward and backward."""
    s = sample(c, case)
    reference = oracle(c, s, case.causal)
    got = run(c, op, s, case.causal, backend)
    return [Row(c.name, n, j) for n, j in judge_all(c, got, reference, s, case).items()]


def judge_all(
    c: CompiledAttention, got: Mapping[str, Tensor | None], reference: dict[str, Tensor], s: Sample, case: Case
) -> dict[str, Judged]:
    """The worst head of each quantity. Where one misses the dtype's bound, it is judged by what rounding makes of the definition:
    of its arguments, and of a run in float32, block by block, in two bytes with rounded features. No gradient counts as zeros."""

    @functools.cache
    def others() -> list[dict[str, Tensor]]:
        found = [oracle(c, rounded(s, case, seed), case.causal) for seed in range(PERTURBED)]
        if case.dtype != torch.float64:
            single = dataclasses.replace(case, dtype=torch.float32)
            some = [s, *(rounded(s, single, seed) for seed in range(PERTURBED))]
            found += [oracle(c, x, case.causal, torch.float32, blockwise=True) for x in some]
        if case.dtype in (torch.bfloat16, torch.float16):
            found.append(oracle(c, s, case.causal, torch.float32, True, case.dtype))
        return found

    def finite(n: str) -> Callable[[], list[Tensor]]:
        return lambda: [torch.where(reference[n].isinf(), 0, x[n]) for x in others()]

    judged = {}
    for n, x in got.items():
        value, infinite = torch.zeros_like(reference[n]) if x is None else x, reference[n].isinf()
        if value.shape != infinite.shape or not torch.equal(value.isinf(), infinite):
            judged[n] = Judged(0, math.inf, BOUND[case.dtype])
            continue
        zero, dtype = torch.where(infinite, 0, reference[n]), case.dtype if x is None else None
        value = torch.where(infinite, 0, value)
        judged[n] = judge(value, zero, head_axis(c, n), BOUND[case.dtype], finite(n), dtype)
    return judged


def difference(c: CompiledAttention, quantity: str, value: Tensor, reference: Tensor) -> float:
    """||value - reference|| / ||reference|| of the worst head; infinite where they are not infinite at the same places."""
    infinite = reference.isinf()
    if not torch.equal(value.isinf(), infinite):
        return math.inf
    value, reference = (torch.where(infinite, 0, x) for x in (value, reference))
    return relative_error(value, reference, head_axis(c, quantity))


def head_axis(c: CompiledAttention, quantity: str) -> int:
    if quantity == "lse" or quantity in c.lowered.outputs:
        return 2 if c.lowered.query == QUERY else 1
    kind = next(v.kind for v in c.spec.variables if quantity == f"d{v.name}")
    return 2 if kind in ("query", "key", "stream") else 0


def rounded(s: Sample, case: Case, seed: int = 0) -> Sample:
    """The sample with each input off by half a unit in the last place."""
    g = torch.Generator().manual_seed(case.seed + 1 + seed)
    unit = torch.finfo(case.dtype).eps / 2

    def off(x: Tensor) -> Tensor:
        sign = torch.where(torch.rand(x.shape, generator=g) < 0.5, -1.0, 1.0).to(x.device, torch.float64)
        return x.to(torch.float64) * (1 + unit * sign)

    return dataclasses.replace(s, given={n: off(x) for n, x in s.given.items()})


__all__ = ["Case", "Row", "Sample", "check_op", "definition", "oracle", "run", "sample"]
