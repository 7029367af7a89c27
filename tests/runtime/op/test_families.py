"""Each family of recurrences with each option of an op: what a call in parts, a pack, a group of heads or a step gives is what
the whole call gives. (`tests/runtime/parallel` has sequences on several processes.)"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import chunkform
from chunkform.codegen.checking.covering import Row, covering
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.spec.language import Max, Min, Recurrence, cos, diag, exp, hadamard, log, sigmoid, sin, softplus, tanh

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
    "strata: signs": signed_channels,
    "chunk-parallel: both axes": both_axes,
    "segment-parallel: entries": entry_decays,
    "strata: rotation": rotation,
    "segment-parallel: rank m": rank_m,
    "strata: corrections": corrected,
    "scan": scan,
    "strata": strata,
}


def strengths() -> Recurrence:
    """A correction of another strength for each channel of the value."""
    r, _, e, (q, k), v, S = declared("strengths")
    kept = r.decay("a") * S.prev
    r.update(S, kept + k * hadamard(sigmoid(r.inputs("b", e)), v - kept.T * k / 8).T)
    r.output("o", S.next.T * q)
    return r


def kinds() -> Recurrence:
    """Maps of each kind that compose."""
    r = Recurrence("kinds")
    d = r.dims("d")
    x, a = r.inputs("x a", d)
    g, b = r.decay("g", d), r.inputs("b")
    h, m, z, n = r.state("h", d), r.state("m", d), r.state("z", d), r.state("n", domain=(0, 1))
    r.update(h, Max(hadamard(g, h.prev) + x, a))
    r.update(m, Min(m.prev + a, x))
    r.update(z, log(exp(z.prev + x) + exp(a)))
    noise = sigmoid(b) + n.prev
    r.update(n, noise / (1 + noise))
    r.output("o", hadamard(h.next, z.prev) + n.next * m.prev)
    return r


def turned() -> Recurrence:
    """Queries and keys turned by a sum of angles."""
    r, d, e, (q, k), v, S = declared("turned")
    I, at, a = r.state("I", d, e), r.state("at", d), r.decay("a")
    r.update(at, at.prev + r.inputs("th", d))
    c, s = cos(at.next), sin(at.next)
    r.update(S, a * S.prev + hadamard(c, k) * v.T)
    r.update(I, a * I.prev + hadamard(s, k) * v.T)
    r.output("o", S.next.T * hadamard(c, q) + I.next.T * hadamard(s, q))
    return r


def signed_correction() -> Recurrence:
    """A correction beside a number of either sign."""
    r, _, _, (q, k), v, S = declared("signed_correction")
    kept = tanh(r.inputs("g")) * S.prev
    r.update(S, kept + k * (v - kept.T * k).T / 8)
    r.output("o", S.next.T * q)
    return r


FORMS = {
    **FAMILIES,
    "strengths": strengths,
    "kinds": kinds,
    "turned": turned,
    "signed correction": signed_correction,
}


@functools.cache
def built(name: str) -> Any:
    return chunkform.compile(FORMS[name]())


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


# --- pairs of options ---------------------------------------------------------------------------------------------------

BOUNDS = (0, 9, 9, 34)  # of sequences, one of them empty
FACTORS = {
    "form": tuple(FORMS),
    "way": ("plain", "compiled", "steps", "vmap"),
    "sequences": ("one", "packed"),
    "states": ("none", "given"),
    "heads": ("own", "shared"),
    "gradients": ("all", "of the first", "none"),
    "dtype": (torch.float64, torch.bfloat16),
}


def allowed(row: Row) -> bool:
    """Steps take no packs, and have no gradients; nor does a batch here."""
    way, dtype = row.get("way"), row.get("dtype")
    if way in ("steps", "vmap") and (row.get("sequences") == "packed" or row.get("gradients") not in (None, "none")):
        return False
    return not (way == "steps" and dtype is torch.bfloat16)  # which round what they hand on


def name_of(row: Row) -> str:
    return ", ".join(str(x).removeprefix("torch.") for x in row.values())


SHOWN = ("strata: rotation", "segment-parallel: rank m", "strengths", "kinds", "turned")  # in every run


def marked(row: Row) -> Any:
    few = row["form"] in SHOWN and row["way"] != "compiled"
    return pytest.param(row, id=name_of(row), marks=[] if few else [pytest.mark.long])


@pytest.mark.parametrize("row", [*map(marked, covering(FACTORS, allowed))])
def test_options_change_nothing(row: Row) -> None:
    op = built(row["form"])
    bounds = BOUNDS if row["sequences"] == "packed" else (0, T)
    arguments = arguments_of(op)
    given = drawn(op, bounds[-1], row["dtype"])
    starts = None
    if row["states"] == "given":
        # a state as the op leaves it has its shape
        *_, last = op(**steps_of(op, given, slice(0, 5)), output_final_state=True)
        starts = [
            torch.rand_like(x[:1].expand(len(bounds) - 1, *x.shape[1:]).float()).to(x.dtype) for x in listed(last)
        ]
    shared = next(a for a in arguments if a.kind == "input").key if row["heads"] == "shared" else None
    found = differentiated(row, op, given, starts, shared, lambda *x: called(row["way"], bounds, *x))
    expected = differentiated(row, op, given, starts, shared, lambda *x: one_each(bounds, *x))
    bound = 1e-11 if row["dtype"] is torch.float64 else 3e-2
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x.double(), y.double(), rtol=bound, atol=bound * max(1.0, float(y.abs().max())))


def listed(states: Any) -> list[Tensor]:
    return list(states) if isinstance(states, tuple | list) else [states]


def drawn(op: Any, steps: int, dtype: torch.dtype) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    found = {}
    for a in arguments_of(op):
        lead = [1, steps, 2] if a.kind in ("input", "decay") else [2]
        x = torch.randn(*lead, *(SIZES[n] for n in a.dims), generator=g, dtype=torch.float64)
        decay = a.kind.startswith("decay")
        found[a.key] = -x.abs().to(torch.float32 if dtype is torch.bfloat16 else dtype) if decay else x.to(dtype)
    return found


def steps_of(op: Any, given: dict[str, Tensor], at: slice) -> dict[str, Tensor]:
    timeless = {a.key for a in arguments_of(op) if a.kind not in ("input", "decay")}
    return {n: x if n in timeless else x[:, at] for n, x in given.items()}


def differentiated(row: Row, op: Any, given: Any, starts: Any, shared: str | None, run: Any) -> list[Tensor]:
    """Outputs, last states and the gradients that are asked for; a shared argument has one head."""
    leaves = {n: (x[:, :, :1] if n == shared else x).detach().clone() for n, x in given.items()}
    states = None if starts is None else [x.detach().clone() for x in starts]
    which = {"all": list(leaves), "of the first": list(leaves)[:1], "none": []}[row["gradients"]]
    wanted = [leaves[n].requires_grad_() for n in which]
    if row["gradients"] == "all" and states is not None:
        wanted += [x.requires_grad_() for x in states]
    results = run(op, leaves, states)
    if not wanted:
        return results
    g = torch.Generator().manual_seed(1)
    loss = sum((x * torch.randn(x.shape, generator=g, dtype=torch.float64)).sum() for x in results)
    return [*(x.detach() for x in results), *torch.autograd.grad(loss, wanted)]


def called(way: str, bounds: tuple[int, ...], op: Any, given: dict[str, Tensor], states: Any) -> list[Tensor]:
    start = None if states is None else states[0] if len(states) == 1 else tuple(states)
    if way == "steps":
        found = []
        for t in range(bounds[-1]):
            now = steps_of(op, given, t)
            *outputs, start = op.step(**now, state=start)
            found.append(outputs[0])
        return [torch.stack(found, 1), *listed(start)]
    options = {"initial_state": start, "output_final_state": True}
    if len(bounds) > 2:
        options["cu_seqlens"] = torch.tensor(bounds)
    f = op
    if way == "compiled":
        torch._dynamo.reset()  # the code of a call is compiled anew for each op: after eight torch refuses
        f = torch.compile(op, fullgraph=True, backend="aot_eager")
    if way == "vmap":
        name = next(iter(given))
        *outputs, last = torch.func.vmap(lambda x: f(**{**given, name: x}, **options))(given[name][None])
        return [x[0] for x in (*outputs, *listed(last))]
    *outputs, last = f(**given, **options)
    return [*outputs, *listed(last)]


def one_each(bounds: tuple[int, ...], op: Any, given: dict[str, Tensor], states: Any) -> list[Tensor]:
    """A plain call for each sequence, of arguments of all heads."""
    whole = {
        n: x.expand(*x.shape[:2], 2, *x.shape[3:]) if x.ndim > 2 and x.shape[0] == 1 else x for n, x in given.items()
    }
    outputs, lasts = [], []
    for n, (begin, end) in enumerate(itertools.pairwise(bounds)):
        start = None if states is None else [x[n : n + 1] for x in states]
        start = start if start is None else start[0] if len(start) == 1 else tuple(start)
        *found, last = op(**steps_of(op, whole, slice(begin, end)), initial_state=start, output_final_state=True)
        outputs.append(found)
        lasts.append(listed(last))
    made = [torch.cat(x, 1) for x in zip(*outputs, strict=True)]
    return [*made, *(torch.cat(x) for x in zip(*lasts, strict=True))]
