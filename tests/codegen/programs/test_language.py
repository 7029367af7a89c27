"""What may be solved for, and what is refused, with the term named."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import sympy
import torch

from chunkform.codegen.commands.program_kind import generated_module
from chunkform.codegen.programs.check import check_program
from chunkform.codegen.programs.partition import partition
from chunkform.codegen.programs.pipeline import compile_program
from chunkform.codegen.recurrence.samples import Case
from chunkform.errors import DimensionError, NameError_, SpecError
from chunkform.spec.language import (
    Dim,
    Matrix,
    Program,
    State,
    cg,
    diag,
    dot,
    exp,
    eye,
    hadamard,
    neumann,
    sherman_morrison,
    sigmoid,
)
from chunkform.spec.language.rank_one import rank_one_state


@dataclass(frozen=True)
class Parts:
    """A program with a state H that isn't updated yet, and things to update it with."""

    p: Program
    d: Dim
    e: Dim
    q: Matrix
    u: Matrix
    w: Matrix
    v: Matrix
    b: sympy.Expr
    c: sympy.Expr
    beta: sympy.Expr
    lam: sympy.Expr
    mu: sympy.Expr
    a: Matrix
    free: Matrix
    lamb: Matrix
    H: State

    @classmethod
    def of(cls, initial=True):
        p = Program("tried")
        d, e = p.dims("d e")
        vectors = *p.inputs("q u w", d), p.inputs("v", e)
        numbers = *p.inputs("b c"), p.inputs("beta", sign=">= 0")
        decays = *p.decay("lam mu"), p.decay("a", d)
        s = p.parameters("s", sign="> 0")
        learned = p.parameters("free", d), p.parameters("lamb", d, sign="> 0")
        return cls(
            p, d, e, *vectors, *numbers, *decays, *learned, p.state("H", d, d, initial=s * eye(d) if initial else None)
        )

    def solve(self, update, matrix=None, method=None):
        self.p.update(self.H, update)
        return self.p.solve("x", self.H.next if matrix is None else matrix, self.q, method or cg(3))


ALLOWED = {
    "a decay": lambda t: t.lam * t.H.prev + t.u * t.u.T,
    "a signed weight": lambda t: t.lam * t.H.prev + t.beta * t.u * t.u.T,
    "a weight on either side": lambda t: t.H.prev + t.u * (t.beta * t.u).T,
    "a vector and a name for it": lambda t: t.H.prev + t.p.let("z", t.beta * t.u) * t.u.T,
    "two names for a vector": lambda t: t.H.prev + t.p.let("z", t.u / 2) * t.p.let("y", t.beta * t.u).T,
    "a sigmoid": lambda t: t.H.prev + sigmoid(t.b) * t.u * t.u.T,
    "an exponential": lambda t: exp(t.b) * t.H.prev + t.u * t.u.T,
    "what a decay leaves": lambda t: t.lam * t.H.prev + (1 - t.lam) * t.u * t.u.T,
    "a square": lambda t: t.H.prev + t.b**2 * t.u * t.u.T + dot(t.u, t.u) * t.w * t.w.T,
    "a sum in brackets": lambda t: t.lam * (t.H.prev + t.u * t.u.T),
    "a transpose": lambda t: t.lam * t.H.prev.T + t.u * t.u.T,
    "a channel's decay on both sides": lambda t: diag(t.a) * t.H.prev * diag(t.a) + t.u * t.u.T,
    "a diagonal": lambda t: t.lam * t.H.prev + t.u * t.u.T + diag(t.lamb),
    "a sum between diagonals": lambda t: t.H.prev + diag(t.w) * (diag(t.lamb) + t.beta * t.u * t.u.T) * diag(t.w),
}


@pytest.mark.parametrize("update", ALLOWED.values(), ids=ALLOWED)
def test_allowed(update):
    t = Parts.of()
    x = t.solve(update(t))
    t.p.output("o", x)
    assert partition(t.p).nodes


REFUSED = {
    "a weight without a sign": (lambda t: t.lam * t.H.prev + t.b * t.u * t.u.T, r"the factor b of the term"),
    "a negative weight": (lambda t: t.lam * t.H.prev - t.u * t.u.T, r"the factor -1 of the term"),
    "a difference": (lambda t: t.lam * t.H.prev + (t.lam - t.mu) * t.u * t.u.T, r"the factor lam - mu"),
    "more than is left": (lambda t: t.H.prev + (1 - t.lam - t.mu) * t.u * t.u.T, r"1"),
    "two vectors": (lambda t: t.lam * t.H.prev + t.u * t.w.T, r"u \* w.T isn't symmetric"),
    "a name for another vector": (lambda t: t.lam * t.H.prev + t.p.let("z", t.w) * t.u.T, r"z \* u.T isn't symmetric"),
    "a negative weight in a name": (lambda t: t.H.prev + t.p.let("z", -t.u) * t.u.T, r"the factor -1 of the term"),
    "a channel's decay on one side": (lambda t: diag(t.a) * t.H.prev + t.u * t.u.T, r"isn't symmetric"),
    "a diagonal without a sign": (lambda t: t.H.prev + diag(t.free), r"the diagonal free"),
    "an entrywise product": (lambda t: hadamard(t.H.prev, t.u * t.u.T), r"isn't symmetric positive semidefinite"),
}


@pytest.mark.parametrize(("update", "said"), REFUSED.values(), ids=REFUSED)
def test_refused(update, said):
    t = Parts.of()
    with pytest.raises(SpecError, match=said) as found:
        t.solve(update(t))
    assert "the solve x" in str(found.value)
    assert found.value.where.text  # the line that says it


def test_nothing_makes_it_definite():
    t = Parts.of(initial=False)
    with pytest.raises(SpecError, match=r"nothing in H\.next makes it positive definite"):
        t.solve(t.lam * t.H.prev + t.u * t.u.T)


def test_a_diagonal_makes_it_definite():
    t = Parts.of(initial=False)
    t.solve(t.lam * t.H.prev + t.u * t.u.T, t.H.next + diag(t.lamb))


@pytest.mark.parametrize("scaled", [False, True])
def test_what_is_added_to_a_state_is_part_of_the_matrix(scaled):
    t = Parts.of(initial=False)
    a, b = t.p.let("z", 2 * t.w), t.beta
    matrix = diag(a) * (t.H.next + b * t.u * t.u.T) * diag(a) if scaled else t.H.next + b * t.u * t.u.T
    t.p.output("o", t.solve(t.lam * t.H.prev + t.u * t.u.T, matrix + diag(t.lamb), cg(12)))
    c = compile_program(t.p)
    rows = check_program(c, getattr(generated_module(c), t.p.name), Case(steps=40, width=5, dtype=torch.float64))
    assert not [(r.quantity, r.error) for r in rows if not r.ok]


def test_a_diagonal_that_is_taken_away():
    t = Parts.of()
    with pytest.raises(SpecError, match="the factor -1"):
        t.solve(t.lam * t.H.prev + t.u * t.u.T, t.H.next - diag(t.lamb))


def test_right_sides_and_matrices_have_fitting_shapes():
    t = Parts.of()
    t.p.update(t.H, t.lam * t.H.prev + t.u * t.u.T)
    with pytest.raises(DimensionError, match="must have the same dim"):
        t.p.solve("x", t.H.next, t.v, cg(3))
    with pytest.raises(SpecError, match="square matrix"):
        t.p.solve("x", t.u, t.q, cg(3))
    with pytest.raises(SpecError, match="method of the solve"):
        t.p.solve("x", t.H.next, t.q, "cg")


def test_a_state_must_be_updated_first():
    t = Parts.of()
    with pytest.raises(SpecError, match="before"):
        t.p.solve("x", t.H.next, t.q, cg(3))


def test_a_solve_cannot_feed_its_own_matrix():
    t = Parts.of()
    x = None
    p = t.p
    S = p.state("S", t.d, t.d, initial=eye(t.d))
    p.update(S, t.lam * S.prev + t.u * t.u.T)
    x = p.solve("x", S.prev, t.q, cg(3))
    p.update(t.H, t.lam * t.H.prev + x * x.T)
    p.output("o", p.solve("y", t.H.next, t.q, cg(3)))
    assert [n.name for n in partition(p).nodes] == ["x", "y"]  # one feeds the other's matrix: two ops


def test_a_solve_that_needs_itself_is_refused():
    p = Program("ring")
    d = p.dims("d")
    q, u = p.inputs("q u", d)
    H = p.state("H", d, d, initial=eye(d))
    G = p.state("G", d, d, initial=eye(d))
    p.update(G, G.prev + u * u.T)
    x = p.solve("x", G.next + H.prev if False else G.next, q, cg(2))
    p.update(H, H.prev + x * x.T)
    y = p.solve("y", H.prev, q, cg(2))
    p.step.updates[0] = type(p.step.updates[0])("G", G.prev + y * y.T, p.step.updates[0].where)
    p.output("o", y)
    with pytest.raises(SpecError, match="a step can't both solve and be solved for"):
        partition(p)


def test_sherman_morrison_finds_the_vector_that_is_written():
    t = Parts.of()
    t.p.update(t.H, t.lam * t.H.prev + t.p.let("z", t.beta * t.u) * t.u.T)
    assert rank_one_state(t.p.step, t.H.next, "x")[2:4] == (t.beta, t.u)


def test_sherman_morrison_names_what_it_cannot_invert():
    t = Parts.of()
    with pytest.raises(SpecError, match="written 2 times"):
        t.solve(t.lam * t.H.prev + t.u * t.u.T + t.w * t.w.T, method=sherman_morrison())
    t = Parts.of()
    with pytest.raises(SpecError, match="decays by a scalar"):
        t.solve(diag(t.a) * t.H.prev * diag(t.a) + t.u * t.u.T, method=sherman_morrison())
    t = Parts.of(initial=False)
    with pytest.raises(SpecError, match=r"inverts a state such as H\.next"):
        t.solve(t.lam * t.H.prev + t.u * t.u.T, t.H.next + diag(t.lamb), sherman_morrison())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: cg(0), "at least 1"),
        (lambda: cg(2.5), "whole number"),
        (lambda: cg(3, tolerance=-1), "tolerance"),
        (lambda: neumann(3, backward="exact"), "unrolled, simplified or implicit"),
        (lambda: neumann(3, start="q"), "start of neumann"),
    ],
)
def test_methods_check_their_arguments(make, said):
    with pytest.raises(SpecError, match=said):
        make()


def test_step_sizes():
    t = Parts.of()
    with pytest.raises(SpecError, match="step size of x"):
        t.solve(t.lam * t.H.prev + t.u * t.u.T, method=neumann(3, step=-1))
    t = Parts.of()
    with pytest.raises(SpecError, match="has no recurrence of its own"):
        t.solve(diag(t.a) * t.H.prev * diag(t.a) + t.u * t.u.T, method=neumann(3, step="trace"))
    t = Parts.of()
    x = t.solve(t.lam * t.H.prev + t.u * t.u.T, method=neumann(3, step=sigmoid(t.b)))
    t.p.output("o", x)
    assert partition(t.p).nodes[-1].step == "x_step"


def test_apply_checks_what_it_is_given():
    t = Parts.of()
    with pytest.raises(NameError_, match="it takes k, lam, q, v"):
        t.p.apply("lightning_attention", q=t.q, k=t.u, v=t.v)
    with pytest.raises(DimensionError, match="in the place of"):
        t.p.apply("lightning_attention", q=t.q, k=t.v, v=t.v, lam=t.lam)
    with pytest.raises(SpecError, match="lam must be a decay"):
        t.p.apply("lightning_attention", q=t.q, k=t.u, v=t.v, lam=t.b)


def test_a_state_that_no_output_needs():
    t = Parts.of()
    t.p.update(t.H, t.lam * t.H.prev + t.u * t.u.T)
    t.p.output("o", t.q)
    with pytest.raises(SpecError, match="is never read"):
        partition(t.p)


def test_a_sign_that_is_none():
    p = Program("signs")
    with pytest.raises(SpecError, match='">= 0" or "> 0"'):
        p.inputs("beta", sign="positive")
