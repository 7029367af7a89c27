"""Each family of recurrences with each option of an op: what a call in parts, a pack, a group of heads or a step gives is what
the whole call gives. (`tests/runtime/parallel` has sequences on several processes.)"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import chunkform
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.spec.language import Max, Recurrence, cos, diag, exp, hadamard, sigmoid, sin, softplus, tanh

T = 21
SIZES = {"d": 4, "e": 5, "m": 3}


def declared(name: str) -> tuple[Any, ...]:
    r = Recurrence(name)
    d, e = r.dims("d e")
    return r, d, e, r.inputs("q k", d), r.inputs("v", e), r.state("S", d, e)


def signed() -> Recurrence:
    """A decay of either sign."""
    r, _, _, (q, k), v, S = declared("signed")
    r.update(S, tanh(r.inputs("g")) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r


def signed_channels() -> Recurrence:
    """One for each channel."""
    r, d, _, (q, k), v, S = declared("signed_channels")
    r.update(S, diag(tanh(r.inputs("g", d))) * S.prev + k * v.T)
    r.output("o", S.next.T * q)
    return r


def both_axes() -> Recurrence:
    """2-D gating."""
    r, d, e, (q, k), v, S = declared("both_axes")
    r.update(S, diag(r.decay("a", d)) * S.prev * diag(r.decay("b", e)) + k * v.T)
    r.output("o", S.next.T * q)
    return r


def entry_decays() -> Recurrence:
    """The selective scan."""
    r, d, e, (q, k), x, S = declared("entry_decays")
    A, dt = r.parameter("A", d, e), softplus(r.inputs("dt", e))
    r.update(S, hadamard(exp(-exp(A) * diag(dt)), S.prev) + k * hadamard(dt, x).T)
    r.output("o", S.next.T * q)
    return r


def rotation() -> Recurrence:
    """Two states that turn into each other, channel by channel."""
    r, d, e, (q, k), v, S = declared("rotation")
    I, th, a = r.state("I", d, e), r.inputs("th", d), r.decay("a")
    r.update(S, a * (diag(cos(th)) * S.prev - diag(sin(th)) * I.prev) + k * v.T)
    r.update(I, a * (diag(sin(th)) * S.prev + diag(cos(th)) * I.prev))
    r.output("o", S.next.T * q)
    return r


def corrected() -> Recurrence:
    """A correction beside a number of either sign for each channel."""
    r, d, _, (q, k), v, S = declared("corrected")
    decayed = diag(tanh(r.inputs("g", d))) * S.prev
    r.update(S, decayed + k * (v - decayed.T * k).T / 8)
    r.output("o", S.next.T * q)
    return r


def rank_m() -> Recurrence:
    """A write that is a product of matrices."""
    r = Recurrence("rank_m")
    d, e, m = r.dims("d e m")
    q, K, V = r.inputs("q", d), r.inputs("K", d, m), r.inputs("V", e, m)
    S = r.state("S", d, e)
    r.update(S, r.decay("a") * S.prev + K * V.T)
    r.output("o", S.next.T * q)
    return r


def scan() -> Recurrence:
    """A maximum that decays."""
    r = Recurrence("scan")
    a, b = r.inputs("a b")
    m = r.state("m")
    r.update(m, Max(sigmoid(a) * m.prev, b))
    r.output("o", m.next)
    return r


def strata() -> Recurrence:
    """A stabiliser, and what it stabilises."""
    r, _, _, (q, k), v, S = declared("strata")
    f, i = r.inputs("f i")
    m = r.state("m")
    r.update(m, Max(f + m.prev, i))
    r.update(S, exp(f + m.prev - m.next) * S.prev + exp(i - m.next) * k * v.T)
    r.output("o", S.next.T * q)
    return r


FAMILIES = {
    "chunk-parallel": signed,
    "segment-parallel: signs": signed_channels,
    "chunk-parallel: both axes": both_axes,
    "segment-parallel: entries": entry_decays,
    "segment-parallel: rotation": rotation,
    "segment-parallel: rank m": rank_m,
    "segment-parallel: columns": corrected,
    "scan": scan,
    "strata": strata,
}


@functools.cache
def built(name: str) -> Any:
    return chunkform.compile(FAMILIES[name]())


def arguments_of(op: Any) -> Any:
    return sys.modules[op.__module__].OP.signature.arguments


def arguments(op: Any) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    found = {}
    for a in arguments_of(op):
        lead = [1, T, 2] if a.kind in ("input", "decay") else [2]
        x = torch.randn(*lead, *(SIZES[n] for n in a.dims), generator=g, dtype=torch.float64)
        found[f"log_{a.name}" if a.kind == "decay" else a.name] = -x.abs() if a.kind == "decay" else x
    return found


def steps(op: Any, given: dict[str, Tensor], at: slice | int) -> dict[str, Tensor]:
    """The arguments at some steps; those of a head have no steps."""
    timeless = {a.name for a in arguments_of(op) if a.kind not in ("input", "decay")}
    return {n: x if n in timeless else x[:, at] for n, x in given.items()}


def in_parts(op: Any, given: dict[str, Tensor]) -> Tensor:
    a = op(**steps(op, given, slice(0, 9)), output_final_state=True)
    b = op(**steps(op, given, slice(9, T)), initial_state=a[-1])
    return torch.cat([a[0], b[0]], 1)


def packed(op: Any, given: dict[str, Tensor]) -> Tensor:
    """The first sequence again, behind another."""
    twice = {n: torch.cat([x, x], 1) if x.ndim > 1 and x.shape[1] == T else x for n, x in given.items()}
    return op(**twice, cu_seqlens=torch.tensor([0, T, 2 * T]))[0][:, T:]


def one_by_one(op: Any, given: dict[str, Tensor]) -> Tensor:
    state, found = None, []
    for t in range(T):
        o, state = op.step(**steps(op, given, t), state=state)
        found.append(o)
    return torch.stack(found, 1)


OPTIONS: dict[str, Callable[[Any, dict[str, Tensor]], Tensor]] = {
    "states": in_parts,
    "packed": packed,
    "step": one_by_one,
    "vmap": lambda op, given: torch.func.vmap(lambda x: op(**{**given, next(iter(given)): x})[0])(
        next(iter(given.values()))[None]
    )[0],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_family(family: str) -> None:
    assert compile_spec(FAMILIES[family]()).family == family.partition(":")[0]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_an_option_changes_nothing(family: str, option: str) -> None:
    op = built(family)
    given = arguments(op)
    torch.testing.assert_close(OPTIONS[option](op, given), op(**given)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_of_a_group_share_an_argument(family: str) -> None:
    op = built(family)
    given = arguments(op)
    one = next(iter(given))
    whole = {**given, one: given[one][:, :, :1].expand_as(given[one])}
    torch.testing.assert_close(op(**{**given, one: given[one][:, :, :1]})[0], op(**whole)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_a_graph_has_it_as_one_call(family: str) -> None:
    op = built(family)
    torch._dynamo.reset()
    compiled = torch.compile(lambda given: op(**given)[0], fullgraph=True, backend="aot_eager")
    found = []
    for f in (compiled, lambda given: op(**given)[0]):
        given = {n: x.requires_grad_() for n, x in arguments(op).items()}
        f(given).sum().backward()
        found.append([x.grad for x in given.values()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
