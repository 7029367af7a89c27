"""Matrix states whose rows and columns decay, each at a rate of its own: over chunks, as exact as where one axis decays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from shared.spec_files import SPECS, read

from chunkform.codegen.commands.compile import compile_op
from chunkform.codegen.ir.expr import leaf, mul
from chunkform.codegen.printing.kernel_text import kernel_function_text
from chunkform.codegen.recurrence.backends import triton_section
from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.normal_form.form import by_axis
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.codegen.recurrence.triton.section import triton_form
from chunkform.spec.language import Recurrence, diag, exp, hadamard, ones, sigmoid, softplus, total

OTHERS = {r.name: r for r in read(Path(__file__).parent / "triton/specs/both_decays.py")}
FEW = ("both_decays_corrected",)


def errors(r: Recurrence, *decays: str) -> dict[str, float]:
    """Of outputs, last states and gradients of all that is given, in float64: the largest of several calls."""
    c, op = compile_spec(r), compile_op(r)
    assert c.family == "chunk-parallel", c.reason
    found: dict[str, float] = {}
    for decay in decays:
        for x in check_op(c, op, Case(batch=1, steps=150, width=4, dtype=torch.float64, decay=decay)):
            assert x.ok, x
            found[x.quantity] = max(found.get(x.quantity, 0.0), x.error)
    return found


def test_the_form_over_chunks_makes_what_single_steps_do() -> None:
    (r,) = read(SPECS / "gla2d.py")
    assert triton_section(compile_spec(r)).stepwise is None
    found = errors(r, "usual", "extreme", "strong", "forgetful")
    assert len(found) == 8 and {n: x for n, x in found.items() if not x < 1e-13} == {}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FEW else pytest.mark.long) for n in OTHERS])
def test_other_recurrences_with_both(name: str) -> None:
    assert triton_section(compile_spec(OTHERS[name])).stepwise is None
    found = errors(OTHERS[name], "usual", "strong", "forgetful")
    assert {n: x for n, x in found.items() if not x < 1e-13} == {}
    assert errors(
        OTHERS[name], "extreme"
    )  # sums of a number's logarithm and a channel's, which are large: within their bounds


def gated(update: Callable[..., Any]) -> Recurrence:
    r = Recurrence("gated")
    d, e = r.dims("d e")
    q, k, v = r.inputs("q", d), r.inputs("k", d), r.inputs("v", e)
    a, b, S = r.inputs("a", d), r.inputs("b", e), r.state("S", d, e)
    r.update(S, update(S, sigmoid(a), sigmoid(b)) + k * v.T)
    r.output("o", S.next.T * q)
    return r


SPELLINGS: dict[str, Callable[..., Any]] = {
    "diagonals": lambda S, a, b: diag(a) * S.prev * diag(b),
    "a product of gates": lambda S, a, b: hadamard(a * b.T, S.prev),
    "one after the other": lambda S, a, b: diag(a) * (S.prev * diag(b)),
    "with a number": lambda S, a, b: 0.5 * diag(a) * S.prev * diag(b),
    "twice": lambda S, a, b: diag(a) * diag(a) * S.prev * diag(b),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_has_this_form(spelling: str) -> None:
    c = compile_spec(gated(SPELLINGS[spelling]))
    assert c.family == "chunk-parallel", c.reason


def test_a_rate_that_is_no_product_has_no_such_form() -> None:
    c = compile_spec(gated(lambda S, a, b: hadamard(sigmoid(a * b.T), S.prev)))
    assert c.family == "segment-parallel" and "both axes" in c.reason
    c = compile_spec(gated(lambda S, a, b: (diag(a) * S.prev + S.prev * diag(b)) / 2))
    assert c.family == "segment-parallel" and "both axes" in c.reason


def test_factors_of_a_decay_by_axis() -> None:
    a, b, c, n = leaf("decay", "a", ("d",)), leaf("decay", "b", ("e",)), leaf("decay", "c", ("d",)), leaf("decay", "n")
    assert by_axis(mul(a, b, c, n)) == (mul(a, c, n), b)
    assert by_axis(mul(a, c, n)) == (mul(a, c, n),)
    both = leaf("decay", "m", ("d", "e"))
    assert by_axis(mul(a, both)) == (mul(a, both),)


def test_matrices_with_the_decays_of_one_axis_are_made_once_and_not_for_each_tile_of_the_other() -> None:
    (r,) = read(SPECS / "gla2d.py")
    functions = {f.name: kernel_function_text(f) for f in triton_form(compile_spec(r)).built}
    ahead = {n for n, text in functions.items() if "decayed_product(" in text and not n.endswith("_slow")}
    assert ahead == {
        *(f"{way}_prologue_{n}" for way, count in (("forward", 1), ("backward", 3)) for n in range(1, count + 1)),
        "backward_prologue_unroll_1",
        "backward_prologue_unroll_2",
    }
    assert {"backward_unroll_1", "backward_unroll_2"} < functions.keys()


def _by_entries(made: Any, name: str = "by_entries") -> Recurrence:
    r = Recurrence(name)
    d, e = r.dims("d e")
    q, k, a, v, b = *r.inputs("q k a", d), *r.inputs("v b", e)
    S = r.state("S", d, e)
    rows, columns = (lambda x: x * ones(e).T), (lambda x: ones(d) * x.T)
    r.update(S, made(S.prev, softplus(a), softplus(b), rows, columns) + k * v.T)
    r.output("o", S.next.T * q)
    return r


@pytest.mark.parametrize(
    "spelling",
    [
        lambda S, a, b, rows, columns: hadamard(exp(-rows(a) - columns(b)), S),
        lambda S, a, b, rows, columns: hadamard(exp(-(columns(b) + rows(a))), S),
        lambda S, a, b, rows, columns: hadamard(exp(-rows(a)), hadamard(exp(-columns(b)), S)),
        lambda S, a, b, rows, columns: hadamard(exp(-a) * exp(-b).T, S),
    ],
)
def test_an_exponential_of_a_sum_over_both_axes_is_a_product_of_two_decays(spelling: Any) -> None:
    product = compile_spec(_by_entries(lambda S, a, b, *_: diag(exp(-a)) * S * diag(exp(-b))))
    c = compile_spec(_by_entries(spelling))
    assert c.family == "chunk-parallel" and c.step.updates == product.step.updates


def test_a_factor_of_both_axes_is_multiplied_out_before_it_separates() -> None:
    c = compile_spec(
        _by_entries(lambda S, a, b, rows, columns: hadamard(exp(-0.5 * total(a) * (rows(a) + columns(b))), S))
    )
    op = compile_op(c.spec)
    assert c.family == "chunk-parallel"
    rows = check_op(c, op, Case(seed=1, steps=100, width=8, dtype=torch.float64), backend="torch")
    assert {x.quantity: x.error for x in rows if not x.error < 1e-12} == {}
    mixed = compile_spec(_by_entries(lambda S, a, b, rows, columns: hadamard(exp(-rows(a) - a * b.T), S)))
    assert mixed.family == "segment-parallel"


def test_a_head_decay_beside_channels_that_forget_all_has_a_gradient() -> None:
    """Decays of rows, and of a head, multiply what is written too: the head's gradient is a sum over rows of what rows have,
    divided by their decays, of which some are 0 in float32."""
    r = Recurrence("head_beside_rows")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    rows, columns, head = r.decay("rows", d), r.decay("columns", e), r.head_decay("head")
    S = r.state("S", d, e)
    r.update(S, diag(rows) * (head * (S.prev * diag(columns) + k * v.T)))
    r.output("o", S.next.T * q)
    op = compile_op(r)
    torch.manual_seed(0)
    given = {n: torch.randn(1, 20, 2, 3) for n in "qkv"} | {"log_head": torch.tensor([-0.1, -0.2])}
    given |= {n: -torch.rand(1, 20, 2, 3) for n in ("log_rows", "log_columns")}
    given["log_rows"][:, 7, :, 1] = -200.0
    found = []
    for dtype in (torch.float32, torch.float64):
        leaves = {n: x.to(dtype, copy=True).requires_grad_() for n, x in given.items()}
        op(**leaves)[0].square().sum().backward()
        found.append([leaves[n].grad for n in given])
    for x, y in zip(*found, strict=True):
        assert (x - y).norm() < 1e-5 * y.norm()
