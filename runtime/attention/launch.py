"""Launching the generated kernels of an attention: block sizes by shape class, and what they read and write."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from chunkform.errors import BackendError

from ..launch.launch import launch, padded
from ..launch.narrowing import level
from .arguments import WIDEST, After, Setting
from .kernels import LOG2E, LOWEST, columns_kernel, inner_kernel, products_kernel, rows_beside_kernel, sum_kernel
from .products import Product, as_dtype

MOST = 4  # terms that `sum_kernel` adds up
PROGRAMS = 256  # that keep a GPU busy
# Rows and stages of kernels that make features in two bytes, of more than 64 channels and of fewer.
WIDE, NARROW = (64, 4), (64, 3)
BESIDE = (torch.bfloat16,)  # dtypes in which numbers of rows and keys are channels beside products


@dataclass(frozen=True)
class Kernels:
    """The kernels of one attention, and the features that they take, by name or number, in the order of their arguments.

    `score_scale`, of the scalars, is what an energy multiplies its first score with, where that and terms without it are all of
    it; `beside` is the column that is the only such term. `light` is the forward kernel where energies needn't be computed for
    the largest of them to be known. `after` is what the forward kernel can make of averages. `same`: they take `SAME`, which says
    that keys are values, too.
    """

    forward: Any
    rows: Any
    keys: Any
    scores: tuple[str, ...]
    columns: tuple[str, ...]
    rows_: tuple[str, ...] = ()
    scalars: tuple[str, ...] = ()
    of_rows: tuple[str, ...] = ()
    of_keys: tuple[str, ...] = ()
    normaliser: str = "softmax"
    score_scale: Callable[..., Tensor | None] | None = None
    beside: str = ""
    light: bool = False
    after: After | None = None
    same: bool = False


@dataclass(frozen=True)
class Blocks:
    """Rows and keys of a tile, warps and stages of a kernel; whether it holds the block of its rows in registers; and how many
    registers a thread may have, where the compiler would take so many that fewer programs fit on a multiprocessor."""

    rows: int
    keys: int
    warps: int
    stages: int
    held: bool = False
    registers: int | None = None


def choose(
    kernel: str, itemsize: int, width: int, causal: bool, scores: int, plain: bool, light: bool, same: bool
) -> Blocks:
    """The blocks of a kernel (forward | rows | keys), by the size of operands and the padded width; never keyed on T.

    Where energies are `plain`, of one score and numbers a head, or even `light`, they are the fastest of those that gave the
    right results on an H200: mostly blocks of 64 rows, of which several fit on a multiprocessor, larger ones where keys are the
    `same` as values and take no more shared memory. What else is loaded with a tile takes registers, and they are those near by
    that spill little. With several scores, they are those that fit into shared memory.
    """
    if itemsize == 4:
        if width <= 64:
            return Blocks(64, 32, 4, 2)
        if width <= 128:
            return Blocks(32, 32, 4, 1)
        return Blocks(16, 16 if kernel == "keys" else 32, 8, 1)
    if width > 128:
        return {"forward": Blocks(128, 64, 8, 2), "rows": Blocks(64, 32, 8, 2), "keys": Blocks(32, 64, 8, 2)}[kernel]
    if width > 64 and scores > 1:
        return Blocks(128, 64, 8, 3) if kernel == "forward" else Blocks(64, 64, 4, 2)
    if width > 64:
        held = Blocks(64, 64, 4, 3, held=True, registers=255)
        forward = held if light else Blocks(128, 128, 8, 3, held=True)
        if same and light:
            forward = Blocks(64, 64, 4, 3, registers=168) if causal else Blocks(64, 128, 4, 3, held=True, registers=255)
        return {
            "forward": forward,
            "rows": held,
            "keys": Blocks(64, 64, 4, 2, registers=255) if same and causal else Blocks(64, 128, 8, 3),
        }[kernel]
    held = Blocks(64, 64, 4, 3, held=True, registers=168)
    return {
        "forward": replace(held, registers=128) if light else Blocks(128, 64, 8, 3, held=True, registers=128),
        "rows": (held if causal else Blocks(128, 64, 4, 3)) if plain else Blocks(64, 64, 4, 3),
        "keys": Blocks(64, 64, 4, 3, registers=168 if plain else None),
    }[kernel]


def narrower(b: Blocks, level: int) -> Blocks:
    """Blocks for kernels that didn't fit shared memory at the level before: half as many rows and keys, and a stage less."""
    for _ in range(level):
        b = replace(b, rows=max(16, b.rows // 2), keys=max(16, b.keys // 2), stages=max(1, b.stages - 1))
    return replace(b, warps=min(b.warps, 4)) if level else b


def forward(
    k: Kernels, features: dict[str, Tensor], at: Setting, matrix: Tensor | None = None, keep: bool = True
) -> tuple[Any, ...]:
    """(averages, log-sum-exp, mass), all [B, H, T, ..]; with the matrix [H, ..] of `k.after` also its output, and averages only
    where they are to be kept."""
    p = _Prepared(k, features, at)
    blocks = p.blocks("forward")
    averages = out = None
    after: list[Any] = [] if k.after is None else [None, 0, 0, 0, None, 0, 0, 0]
    widths = {} if k.after is None else {"F": 16, "BF": 16}
    if keep or matrix is None:
        averages = p.like("value", at.queries, at.heads)
    if matrix is not None:
        assert k.after is not None
        matrix = matrix.mT if k.after.across else matrix
        F = matrix.shape[2]
        out = torch.empty((at.batch, at.queries, at.heads, F), dtype=at.low, device=at.device).transpose(1, 2)
        after, widths = [matrix, *matrix.stride(), out, *strides(out)], {"F": F, "BF": padded(F)}
    rows = torch.empty((at.batch, at.heads, at.queries), dtype=torch.float32, device=at.device)
    shifted = k.normaliser == "softmax"
    launch(
        k.forward,
        (at.batch * at.heads * triton.cdiv(at.queries, blocks.rows),),
        *p.given,
        *([p.columns_beside()] if k.beside else []),
        *([None, 0, 0, 0] if averages is None else [averages, *strides(averages)]),
        rows if shifted else None,
        None if shifted else rows,
        *after,
        at.queries,
        at.keys,
        at.heads,
        **p.options(blocks),
        **widths,
    )
    found = (averages, rows, None) if shifted else (averages, None, rows)
    return found if matrix is None else (*found, out)


def forward_and_output(
    k: Kernels, given: dict[str, Tensor], features: dict[str, Tensor], at: Setting, keep: bool
) -> tuple[Any, ...] | None:
    """As `forward`, with the output, where the kernel can make it."""
    if k.after is None:
        return None
    matrix = given[k.after.matrix]
    if not fit(at, *matrix.shape[1:]):
        return None
    *found, out = forward(k, features, at, matrix, keep)
    return (*found, {k.after.output: out})


def backward(
    k: Kernels,
    features: dict[str, Tensor],
    at: Setting,
    averages: Tensor,
    lse: Tensor | None,
    d_averages: Tensor,
    D: Tensor,
    needs: frozenset[str],
) -> dict[str, Tensor]:
    """The cotangent of each feature."""
    d_averages, D = unit(d_averages), D.contiguous()
    found: dict[str, Tensor] = {}
    p = _Prepared(k, features, at)
    beside: list[Any] = [] if k.score_scale is None else [None, 0]
    if p.adds and lse is not None:
        shift, *beside = p.rows_beside(lse, D)
    else:  # weights are exp2(energy - shift), which is 0 in a row that saw nothing: its energies are -inf, and the shift is not
        shift = None if lse is None else lse.clamp(min=LOWEST.value).mul_(LOG2E.value)
    blocks = p.blocks("rows")
    outs: list[Any] = []
    for name in k.of_rows:
        if name.startswith("score"):
            key = name.replace("score", "query")
            found[key] = p.like(key, at.queries, at.heads)
            outs += [found[key], *strides(found[key])]
        elif name in k.scalars and name not in needs:
            outs.append(None)
        else:
            found[name] = torch.empty((at.batch, at.heads, at.queries), dtype=torch.float32, device=at.device)
            outs.append(found[name])
    with_ = {f"WITH_{n}": n in needs for n in k.of_rows if n in k.scalars}
    incoming = (d_averages, *strides(d_averages), shift, D)
    sizes = (at.queries, at.keys, at.heads)
    if k.of_rows:
        grid = (at.batch * at.heads * triton.cdiv(at.queries, blocks.rows),)
        alone = not any(with_.values())  # a number a head may want the score without what is added to it
        columns = [p.columns_beside() if alone else None] if k.beside else []
        options = p.options(blocks, alone)
        launch(k.rows, grid, *p.given, *columns, *incoming, *outs, *sizes, **with_, **options)
    for name in k.scalars:
        if name in found:
            found[name] = found[name].sum(-1)
        else:
            found[name] = torch.zeros((at.batch, at.heads), dtype=torch.float32, device=at.device)
    found["value"] = p.like("value", at.keys, p.key_heads)
    outs = [*beside, found["value"], *strides(found["value"])]
    for name in k.of_keys:
        if name.startswith("score"):
            key = name.replace("score", "key")
            found[key] = p.like(key, at.keys, p.key_heads)
            outs += [found[key], *strides(found[key])]
        else:
            found[name] = torch.empty((at.batch, p.key_heads, at.keys), dtype=torch.float32, device=at.device)
            outs.append(found[name])
    blocks = p.blocks("keys")
    grid = (at.batch * p.key_heads * triton.cdiv(at.keys, blocks.keys),)
    launch(k.keys, grid, *p.given, *incoming, *outs, *sizes, **p.options(blocks))
    for name, x in features.items():
        if name != "row" and name not in found:
            found[name] = torch.zeros_like(x)
    return {n: p.as_feature(n, g, features[n]) for n, g in found.items()}


def row_products(a: Tensor, b: Tensor) -> Tensor:
    """The sum over the last axis of a times b, [B, H, T] in float32, in one pass over both."""
    a, b = unit(a), unit(b)
    B, H, T, X = a.shape
    out = torch.empty((B, H, T), dtype=torch.float32, device=a.device)
    wide = triton.next_power_of_2(X)
    block = max(1, min(128, 8192 // wide))
    grid = (B * H * triton.cdiv(T, block),)
    launch(inner_kernel, grid, a, *strides(a), b, *strides(b), out, T, H, X=X, BX=wide, BT=block, num_warps=4)
    return out


def one_pass(terms: list[tuple[Tensor | None, Tensor]], like: Tensor) -> Tensor:
    """The sum of terms, in float32, rounded to the dtype of `like`, which is [B, T, H, X], and in its layout.

    A term is x [B, H, T, X], or a vector [H, X], times a number of each position [B, H, T], or None for 1.
    """
    B, T, H, X = like.shape
    out = torch.empty((B, T, H, X), dtype=like.dtype, device=like.device)
    wide = triton.next_power_of_2(X)
    block = max(1, min(128, 4096 // wide))
    grid = (B * H * triton.cdiv(T, block),)
    while terms:
        some, terms = terms[:MOST], terms[MOST:]
        given: list[Any] = []
        for c, x in some:
            x = unit(x)
            steps = strides(x) if x.ndim == 4 else (0, 0, x.stride(0) if x.ndim == 2 else 0)
            given += [x, *steps, None if c is None else as_dtype(c, torch.float32).expand(B, H, T).contiguous()]
        given += [None, 0, 0, 0, None] * (MOST - len(some))
        launch(sum_kernel, grid, *given, out, *strides(out.transpose(1, 2)), T, H, X=X, BX=wide, BT=block, num_warps=4)
        if terms:
            terms = [(None, out.transpose(1, 2)), *terms]
            out = torch.empty_like(out)
    return out


def sum_of_terms(terms: list[Tensor | Product], like: Tensor) -> Tensor | None:
    """The sum, in one pass, in the layout of `like` [B, T, H, X]; None where a term is of another shape.

    Up to two products of features by matrices are computed as they are added.
    """
    wanted = like.transpose(1, 2).shape
    factors = [t.factors() if isinstance(t, Product) and t.low.itemsize == 2 else None for t in terms]
    fit = [f is not None and _fits(*f, wanted) for f in factors]
    taken = [n for n, ok in enumerate(fit) if ok][:2] if like.dtype.itemsize == 2 else []
    others = [t.tensor() if isinstance(t, Product) else t for n, t in enumerate(terms) if n not in taken]
    if any(t.shape != wanted for t in others):
        return None
    if not taken:
        return one_pass([(None, t) for t in others], like)
    out = products_and([f for n in taken if (f := factors[n])], others[0] if others else None, like)
    return out if len(others) < 2 else one_pass([(None, t) for t in (out.transpose(1, 2), *others[1:])], like)


def _fits(x: Tensor, w: Tensor, wanted: tuple[int, ...]) -> bool:
    return (*x.shape[:3], w.shape[2]) == tuple(wanted) and max(w.shape[1:]) <= 128


def products_and(factors: list[tuple[Tensor, Tensor]], more: Tensor | None, like: Tensor) -> Tensor:
    """One or two products of features [B, H, T, a] by matrices [H, a, X], and a term, as `like` [B, T, H, X] is."""
    B, T, H, X = like.shape
    out = torch.empty((B, T, H, X), dtype=like.dtype, device=like.device)
    given: list[Any] = []
    widths = {"A1": 16, "A2": 16}
    for n, (x, w) in enumerate(factors):
        x = unit(x)
        given += [x, *strides(x), w, *w.stride()]
        widths[f"A{n + 1}"] = x.shape[3]
    given += [None, 0, 0, 0, None, 0, 0, 0] * (2 - len(factors))
    more = None if more is None else unit(more)
    given += [None, 0, 0, 0] if more is None else [more, *strides(more)]
    blocks = {f"B{n}": padded(a) for n, a in (*widths.items(), ("X", X))}
    block, each = max(16, 128 >> level()), 4 if max(blocks.values()) > 64 else 1
    grid = (B * H * triton.cdiv(T, block * each),)
    sizes = widths | blocks | {"X": X, "BT": block, "EACH": each, "num_warps": 8, "num_stages": 2}
    launch(products_kernel, grid, *given, out, *strides(out.transpose(1, 2)), T, H, **sizes)
    return out


def fit(at: Setting, *sizes: int) -> bool:
    """Can a kernel of a map hold matrices of these sizes?"""
    return at.low != torch.float64 and max(sizes, default=1) <= 256 // at.low.itemsize


def of_positions(
    kernel: object,
    at: Setting,
    count: int,
    positions: tuple[Tensor, ...],
    others: tuple[object, ...],
    outs: dict[str, int | None],
    sizes: dict[str, int],
) -> dict[str, Tensor]:
    """What a kernel of a map makes at `count` positions: features [B, H, T, width], and numbers [B, H, T] where width is None.

    positions: values of positions, [B, H, T, ..]. others: parameters [H, ..], and constants.
    """
    args: list[Any] = []
    for x in positions:
        x = unit(x) if x.ndim == 4 else x
        args += [x, *strides(x)]
    for y in others:
        args += [y, *y.stride()] if isinstance(y, Tensor) else [y]
    found = {}
    for name, width in outs.items():
        if width is None:
            x = torch.empty((at.batch, at.heads, count), dtype=torch.float32, device=at.device)
        else:
            x = torch.empty((at.batch, at.heads, count, width), dtype=at.low, device=at.device)
        found[name] = x
        args += [x, *strides(x)]
    blocks = {f"B{n}": padded(size) for n, size in sizes.items()}
    block, stages = (32, 2) if at.low.itemsize == 4 else WIDE if max(blocks.values(), default=16) > 64 else NARROW
    block, stages = max(16, block >> level()), max(1, stages - level())
    # each program goes on for several blocks, as matrices are loaded once; but there are enough programs for a GPU
    each = max(1, min(16, at.batch * at.heads * triton.cdiv(count, block) // PROGRAMS))
    grid = (at.batch * at.heads * triton.cdiv(count, block * each),)
    options = sizes | blocks | {"BT": block, "num_warps": 8, "num_stages": stages}
    launch(kernel, grid, *args, count, at.heads, each, **options)
    return found


class _Prepared:
    """The features as kernels take them, and each kernel's blocks and options."""

    def __init__(self, k: Kernels, features: dict[str, Tensor], at: Setting) -> None:
        self.k, self.at = k, at
        keyed = ["value", *(f"key{n}" for n in k.scores), *k.columns]
        self.key_heads = math.lcm(*(features[n].shape[1] for n in keyed))
        self.x: dict[str, Tensor] = {}
        for name, x in features.items():
            if name in keyed:
                x = spread(x, self.key_heads)
            elif name.startswith(("query", "row")) and name != "row":
                x = spread(x, at.heads)
            self.x[name] = as_dtype(x, torch.float32).contiguous() if x.ndim < 4 else unit(x)
        wide = [n for m in k.scores for n in (f"query{m}", f"key{m}")] + ["value"]
        self.widest = max(padded(self.width(n)) for n in wide)
        self.given: list[Any] = []
        for n in wide:
            self.given += [self.x[n], *strides(self.x[n])]
        self.given += [self.x[n] for n in (*k.columns, *k.rows_, *k.scalars)]

    @property
    def adds(self) -> bool:
        """Are numbers of rows and of keys added to products as channels beside them? Three parts of float16 hold too little."""
        return self.k.score_scale is not None and self.at.low in BESIDE

    def score_scale(self) -> Tensor | None:
        scale = self.k.score_scale(*(self.x[n] for n in self.k.scalars)) if self.k.score_scale else None
        return None if scale is None else scale.contiguous()

    def columns_beside(self) -> Tensor | None:
        """The column over the score's scale, for the heads of queries."""
        if not self.adds:
            return None
        at, block = self.at, 256
        out = torch.empty((at.batch, at.heads, at.keys, 16), dtype=at.low, device=at.device)
        grid = (at.batch * at.heads * triton.cdiv(at.keys, block),)
        group = at.heads // self.key_heads
        launch(
            columns_kernel,
            grid,
            self.x[self.k.beside],
            self.score_scale(),
            out,
            at.keys,
            at.heads,
            GROUP=group,
            BS=block,
        )
        return out

    def rows_beside(self, lse: Tensor, D: Tensor) -> tuple[Tensor, Tensor, int]:
        """(shift, what goes along with queries and with incoming gradients, its numbers a head); up to whole blocks of rows."""
        at, block = self.at, 256
        rows = 128 * triton.cdiv(at.queries, 128)
        lse = lse.contiguous()
        shift = torch.empty_like(lse)
        out = torch.empty((at.batch, at.heads, rows, 16), dtype=at.low, device=at.device)
        grid = (at.batch * at.heads * triton.cdiv(rows, block),)
        launch(rows_beside_kernel, grid, lse, D, self.score_scale(), shift, out, at.queries, rows, at.heads, BT=block)
        return shift, out, rows * 16

    @property
    def same(self) -> bool:
        """Are keys values too, in kernels that then load them once?"""
        if not self.k.same:
            return False
        key, value = self.x[f"key{self.k.scores[0]}"], self.x["value"]
        return key.data_ptr() == value.data_ptr() and key.shape == value.shape and key.stride() == value.stride()

    def blocks(self, kernel: str) -> Blocks:
        scores = len(self.k.scores)
        plain = scores == 1 and not self.k.columns and not self.k.rows_
        more = self.at.causal, scores, plain, self.k.light, self.same
        return narrower(choose(kernel, self.at.low.itemsize, self.widest, *more), level())

    def width(self, name: str) -> int:
        n = self.x[name].shape[-1]
        if n > WIDEST:
            raise BackendError(
                f"the triton backend takes features of at most {WIDEST} channels, got {n}: use backend='torch'"
            )
        return n

    def options(self, b: Blocks, beside: bool = True) -> dict[str, Any]:
        widths: dict[str, int] = {}
        for n in self.k.scores:
            widths |= {f"D{n}": self.width(f"query{n}"), f"BD{n}": padded(self.width(f"query{n}"))}
        E = self.width("value")
        return {
            "GROUP": self.at.heads // self.key_heads,
            **widths,
            "E": E,
            "BE": padded(E),
            "CAUSAL": self.at.causal,
            "BM": b.rows,
            "BN": b.keys,
            "HELD": b.held and len(self.k.scores) < 2,
            **({} if self.k.score_scale is None else {"BESIDE": self.adds and beside}),
            **({"SAME": self.same} if self.k.same else {}),
            "num_warps": b.warps,
            "num_stages": b.stages,
            **({} if b.registers is None else {"maxnreg": b.registers}),
        }

    def like(self, name: str, count: int, heads: int) -> Tensor:
        """An empty cotangent of a feature, [B, H, T, width] over the memory of [B, T, H, width]."""
        shape = (self.at.batch, count, heads, self.width(name))
        return torch.empty(shape, dtype=self.at.low, device=self.at.device).transpose(1, 2)

    def as_feature(self, name: str, g: Tensor, x: Tensor) -> Tensor:
        """A cotangent with the heads of its feature."""
        if x.ndim >= 3 and g.ndim == x.ndim and g.shape[1] != x.shape[1]:
            g = g.unflatten(1, (x.shape[1], -1)).sum(2, dtype=torch.float32).to(g.dtype)
        return g


def strides(x: Tensor) -> tuple[int, int, int]:
    """Strides of batch, position and head of [B, H, T, width]."""
    return x.stride(0), x.stride(2), x.stride(1)


def unit(x: Tensor) -> Tensor:
    """With the last axis contiguous."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def spread(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)
