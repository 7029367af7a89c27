"""Decays that may be zero or negative: parallel over the sequence, exact at zeros, gradients there included."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from shared.forked import script
from shared.spec_files import SPECS as FOLDER
from shared.spec_files import read

from chunkform.codegen.commands.compile import compile_op
from chunkform.codegen.recurrence.backends import triton_section
from chunkform.codegen.recurrence.check import judge_all
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.definition import defined
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case, sample
from chunkform.spec.language import Recurrence, diag, hadamard, ones, tanh

SPECS = {r.name: r for r in read(FOLDER / "signed.py")}
ENTRIES = {r.name: r for r in read(FOLDER / "entries.py")}
FRAMED = ("gla_signed", "gateloop", "mamba3_complex")  # by channels, and so over chunks in a frame that moves with them
ANY = {"g": lambda x: torch.where(x.abs() < 0.4, 0.0, x * 4), "th": lambda x: x * 3}
VALUES = {  # of what a decay is a function of: of any size, often exactly 0, both signs next to each other
    "ssd_signed": lambda x: torch.where(x.abs() < 0.4, 0.0, x * 4),
    "delta_rule_signed": lambda x: x * 2,
}


def judged_call(r: Recurrence, case: Case, changed: dict[str, Callable[[torch.Tensor], torch.Tensor]]) -> Compiled:
    """Outputs, final states and gradients of a call beside the plain loop's; float64 within 1e-13."""
    c, op = compile_spec(r), compile_op(r)
    s = sample(c, case)
    noise = torch.Generator().manual_seed(1)
    values = {n: f(torch.randn(s.given[n].shape, generator=noise)).to(case.dtype) for n, f in changed.items()}
    s = dataclasses.replace(s, given=s.given | values)
    exact = defined(c, s)
    given = {n: x.clone().requires_grad_() for n, x in s.given.items()}
    states = {n: x.clone().requires_grad_() for n, x in s.states.items() if x is not None}
    keys = {v.name: f"log_{v.name}" if v.is_decay else v.name for v in c.step.variables}
    initial = tuple(states.values()) if len(states) > 1 else next(iter(states.values()))
    *outputs, last = op(
        **{keys[n]: x for n, x in given.items()}, initial_state=initial, output_final_state=True, backend="torch"
    )
    finals = dict(zip(states, last if isinstance(last, tuple) else (last,), strict=True))
    named = dict(zip(c.step.outputs, outputs, strict=True))
    torch.autograd.backward(
        [*named.values(), *finals.values()],
        [*(s.cotangents[n] for n in named), *(s.final_cotangents[n] for n in finals)],
    )
    found = {n: x.detach() for n, x in named.items()} | {f"final {n}": x.detach() for n, x in finals.items()}
    found |= {f"d{n}": x.grad for n, x in given.items()} | {f"d initial {n}": x.grad for n, x in states.items()}
    bounds = dict.fromkeys(exact, 1e-13) if case.dtype == torch.float64 else None
    judged = judge_all(c, found, exact, s, case, bounds=bounds)
    assert {n: j.error for n, j in judged.items() if not j.ok} == {}
    return c


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_outputs_and_gradients_are_those_of_the_plain_loop(name: str, dtype: torch.dtype) -> None:
    """Also at zeros, where a logarithm has no gradient; the final state and the initial one's gradient included."""
    c = judged_call(SPECS[name], Case(seed=0, steps=150, width=8, dtype=dtype), {"g": VALUES[name]})
    assert c.family == "chunk-parallel", c.reason


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_states_that_are_multiplied_entry_by_entry_run_over_segments_of_the_sequence(
    name: str, dtype: torch.dtype
) -> None:
    """Two sequences whose last parts are shorter; each head alone, with decays that forget all, and zeros among signs."""
    changed = {n: f for n, f in ANY.items() if any(v.name == n for v in ENTRIES[name].variables)}
    case = Case(seed=0, steps=150, width=4, dtype=dtype, decay="extreme")
    c = judged_call(ENTRIES[name], case, changed)
    assert c.family == ("strata" if name in FRAMED else "segment-parallel")
    assert any(g.name == "entries" for g in c.gates)


def test_nothing_passes_a_decay_of_zero() -> None:
    op = compile_op(SPECS["ssd_signed"])
    q, k, v = torch.randn(3, 1, 90, 1, 4)
    g = torch.randn(1, 90, 1)
    g[:, 50] = 0.0
    first, _ = op(q, k, v, g, backend="torch")
    k[:, :50] = 1e30
    second, _ = op(q, k, v, g, backend="torch")
    assert torch.equal(first[:, 50:], second[:, 50:])


def test_kernels_run_over_segments_of_sequences_also_of_packed_ones(tmp_path: Path) -> None:
    """In Triton's interpreter; two states whose entries turn into each other."""
    here = Path(__file__)
    specs = here.parents[1] / "specs/entries.py"
    done = script(here.with_name("segments_interpreted.py"), str(specs), "turned_entries", str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    errors = json.loads(done.stdout)
    assert len(errors) == 20 and {n: x for n, x in errors.items() if not x < 1e-5} == {}


def test_a_zero_forgets_a_channel_and_nothing_else() -> None:
    op = compile_op(ENTRIES["gla_signed"])
    q, k, v = torch.randn(3, 1, 90, 1, 4)
    g = torch.randn(1, 90, 1, 4)
    g[:, 50, :, :2] = 0.0
    first, _ = op(q, k, v, g, backend="torch")
    other = k.clone()
    other[:, :50, :, :2] = 1e30
    second, _ = op(q, other, v, g, backend="torch")
    assert torch.equal(first[:, 50:], second[:, 50:])


def test_where_chunks_have_no_kernels_kernels_run_over_parts() -> None:
    r = Recurrence("square")
    d = r.dims("d")
    k, g = r.inputs("k", d), r.inputs("g")
    S = r.state("S", d, d)
    r.update(S, tanh(g) * S.prev + k * k.T)
    r.output("o", S.next * k)
    c = compile_spec(r)
    section = triton_section(c)
    assert c.family == "chunk-parallel" and section.stepwise is not None
    assert section.states and "InSegments" in section.text


def test_a_decay_for_each_entry_has_one_reason_however_it_is_written() -> None:
    reasons = set()
    for n, decayed in enumerate(
        (
            lambda S, k, eps: hadamard(1 - k**2 * eps.T, S),
            lambda S, k, eps: S - hadamard(k**2 * eps.T, S),
            lambda S, k, eps: S - diag(k**2) * S * diag(eps),
            lambda S, k, eps: hadamard(ones(*(k * eps.T).shape) - hadamard(k, k) * eps.T, S),
        )
    ):
        r = Recurrence(f"spelling_{n}")
        d, e = r.dims("d e")
        k, eps = r.inputs("k", d), r.inputs("eps", e)
        S = r.state("S", d, e)
        r.update(S, decayed(S.prev, k, eps) + k * eps.T)
        r.output("o", S.next.T * k)
        c = compile_spec(r)
        assert c.family == "segment-parallel"
        reasons.add(c.reason)
    assert len(reasons) == 1
