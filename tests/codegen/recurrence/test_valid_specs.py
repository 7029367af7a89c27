"""Specs that a pass once refused, or broke: each compiles, prints, explains itself, and computes what it says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from chunkform.codegen.commands.compile import compile_op
from chunkform.codegen.ir import expr as ir
from chunkform.codegen.ir.expr import leaf, mul, power
from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.explain import explanation
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.codegen.recurrence.triton.section import triton_form
from chunkform.spec.language import (
    Recurrence,
    cos,
    diag,
    dot,
    exp,
    eye,
    hadamard,
    norm,
    normalize,
    ones,
    sigmoid,
    sin,
    softmax,
    softplus,
)


def negative_eigenvalues() -> Recurrence:
    """The expanded delta rule: a key over its norm comes twice as a factor, beside a number."""
    r = Recurrence("negative_eigenvalues")
    d, e = r.dims("d e")
    k = r.inputs("k", d)
    v = r.inputs("v", e)
    S = r.state("S", d, e)
    u = normalize(k)
    r.update(S, S.prev - 2 * u * (S.prev.T * u).T + 2 * u * v.T)
    r.output("o", S.next.T * k)
    return r


def same_in_each_step() -> Recurrence:
    """Steps whose maps load nothing, of states so narrow that several are taken at once."""
    r = Recurrence("same_in_each_step")
    d, e = r.dims("d e")
    q = r.inputs("q", d)
    v = r.inputs("v", e)
    th = r.parameter("th", d)
    A, B = r.state("A", d, e), r.state("B", d, e)
    r.update(A, diag(cos(th)) * A.prev - diag(sin(th)) * B.prev + q * v.T)
    r.update(B, diag(sin(th)) * A.prev + diag(cos(th)) * B.prev)
    r.output("o", A.next.T * q)
    return r


def root_of_a_scale() -> Recurrence:
    """The same factor by a number of the step instead of a norm."""
    r = Recurrence("root_of_a_scale")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    b = r.inputs("b")
    lam = r.decay("lam")
    S = r.state("S", d, e)
    s = (1 + b**2) ** -0.75
    r.update(S, lam * S.prev - 3 * s * k * (s * S.prev.T * k).T + s * k * v.T)
    r.output("o", s * S.next.T * k + s * s * s * S.next.T * q)
    return r


def no_root_left() -> Recurrence:
    """Two roots of one number: no function is left in the step, and yet it is one only where roots mean what they do."""
    r = Recurrence("no_root_left")
    d = r.dims("d")
    k, x = r.inputs("k x", d)
    al = r.decay("al", d)
    S = r.state("S", d, d)
    r.update(S, S.prev * diag(al) + normalize(k) * normalize(k).T)
    r.output("o", dot(x, S.next * x))
    return r


def read_by_what_is_written() -> Recurrence:
    """The sweep that makes the last state comes after all that its decay's gradient sums is known."""
    r = Recurrence("read_by_what_is_written")
    d, e = r.dims("d e")
    k = r.inputs("k", d)
    w, y = r.inputs("w y", e)
    al = r.decay("al", d)
    S = r.state("S", d, e)
    r.update(S, diag(al) * S.prev + 0.3 * (S.prev * y) * y.T + k * w.T)
    r.output("o", S.prev * y)
    return r


def nothing_read() -> Recurrence:
    """A state with a decay for each channel that is only left at the end: nothing is written to its gradient."""
    r = Recurrence("nothing_read")
    d, e = r.dims("d e")
    x, x1 = r.inputs("x x1", d)
    y = r.inputs("y", e)
    g, al = r.decay("g"), r.decay("al", e)
    S0, S1 = r.state("S0", e, d), r.state("S1", e, d)
    r.update(S0, g * S0.prev + 0.3 * (S0.prev * x) * x1.T)
    r.update(S1, diag(al) * S1.prev + y * x1.T)
    r.output("o", S0.next * x)
    return r


def nothing_written() -> Recurrence:
    """A state that only decays."""
    r = Recurrence("nothing_written")
    d, e = r.dims("d e")
    q = r.inputs("q", d)
    v = r.inputs("v", e)
    al = r.decay("al", d)
    S = r.state("S", d, e)
    r.update(S, diag(al) * S.prev)
    r.output("o", dot(S.next.T * q, v))
    return r


def numbers_for_all_steps() -> Recurrence:
    """A vector with a decay for each channel whose reads and writes weigh all steps alike."""
    r = Recurrence("numbers_for_all_steps")
    d, e = r.dims("d e")
    q = r.inputs("q", d)
    u, v = r.inputs("u v", e)
    b = r.inputs("b")
    al = r.decay("al", e)
    S = r.state("S", e)
    r.update(S, hadamard(S.prev, hadamard(al, sigmoid(v))) + (normalize(u) - sigmoid(b) * S.prev))
    r.output("o", dot(q, q) * S.next)
    return r


def read_for_a_read() -> Recurrence:
    """A backward read takes a forward read as its vector: no kernel that reads tiles of both can make the two at once."""
    r = Recurrence("read_for_a_read")
    d = r.dims("d")
    q = r.inputs("q", d)
    al = r.decay("al", d)
    S = r.state("S", d, d)
    u = normalize(q)
    r.update(S, (eye(d) - 0.5 * u * u.T) * S.prev * diag(al) + u * q.T)
    r.output("o", S.prev * q)
    return r


def left_alone() -> Recurrence:
    """A state that nothing is written to and nothing read of: its decay's gradient is the same at all steps of a chunk."""
    r = Recurrence("left_alone")
    d, e = r.dims("d e")
    q = r.inputs("q", d)
    v = r.inputs("v", e)
    al = r.decay("al", e)
    S, R = r.state("S", d, e), r.state("R", d, e)
    r.update(S, S.prev * diag(al))
    r.update(R, R.prev + q * v.T)
    r.output("o", R.next.T * q)
    return r


def transposed_alone() -> Recurrence:
    """A state stored columns first, whose gradient is nothing but a product over a chunk."""
    r = Recurrence("transposed_alone")
    d, e = r.dims("d e")
    q = r.inputs("q", d)
    v = r.inputs("v", e)
    lam = r.decay("lam")
    S, R = r.state("S", d, e), r.state("R", e, d)
    r.update(S, lam * S.prev + q * v.T)
    r.update(R, lam * R.prev + v * q.T)
    r.output("o", S.next.T * q)
    return r


def scanned_vector() -> Recurrence:
    """A vector that is scanned, which no sweep over chunks computes."""
    r = Recurrence("scanned_vector")
    d = r.dims("d")
    a, x = r.inputs("a x", d)
    h = r.state("h", d)
    r.update(h, hadamard(a, h.prev) + x)
    r.output("y", h.next)
    return r


def prologue_for_two() -> Recurrence:
    """A delta rule in which keys have unit norm: a matrix of one sweep is made of a read of an earlier one, by the kernel that
    makes those of another sweep, which fewer gradients need."""
    r = Recurrence("prologue_for_two")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    b, g = r.inputs("b g")
    S = r.state("S", e, d)
    key, beta = k / norm(k), 2 * sigmoid(b)
    r.update(S, exp(-softplus(g)) * S.prev * (eye(d) - beta * key * key.T) + beta * v * key.T)
    r.output("o", S.next * q)
    return r


def read_of_a_read() -> Recurrence:
    """A square state whose gradient is read with what a read of the state from the other side makes: no kernel that has a tile of
    one axis makes both."""
    r = Recurrence("read_of_a_read")
    e = r.dims("e")
    v, u, n, k, c = r.inputs("v u n k c", e)
    g = r.inputs("g")
    al = r.decay("al", e)
    p = r.parameter("p", e)
    R, h = r.state("R", e, e), r.state("h", e)
    r.update(R, diag(al) * R.prev + v * (n - R.prev.T * u).T - v * (g * k).T + p * c.T)
    r.update(h, h.prev + R.next * p)
    r.output("o", h.prev)
    return r


def decay_as_a_number() -> Recurrence:
    """A decay that the spec writes out, which the gradient of a read with ones takes as a number as well."""
    r = Recurrence("decay_as_a_number")
    e = r.dims("e")
    v, u, w = r.inputs("v u w", e)
    S = r.state("S", e, e)
    r.update(S, diag(exp(-softplus(w))) * S.prev + v * (v - S.prev.T * u).T)
    r.output("o", S.next.T * ones(e))
    return r


def value_of_a_matrix() -> Recurrence:
    """A value that is made of a matrix before the kernels, which so never see one of its dims."""
    r = Recurrence("value_of_a_matrix")
    d, e = r.dims("d e")
    v, w = r.inputs("v w", e)
    q, x = r.inputs("q", d), r.inputs("x", e, d)
    al = r.decay("al", e)
    S = r.state("S", e, e)
    r.update(S, diag(al) * S.prev + w * (x * q).T)
    r.output("o", S.next.T * v)
    return r


def read_by_another_sweep() -> Recurrence:
    """A kernel of many reads has a term with one that another sweep has made: it is loaded, and not waited for."""
    r = Recurrence("read_by_another_sweep")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    c = r.inputs("c")
    mu, lam = r.decay("mu", e), r.decay("lam")
    S, n = r.state("S", d, e), r.state("n", d)
    r.update(S, S.prev * diag(mu) + k * (S.prev.T * k).T / 8)
    r.update(n, lam * n.prev + c * q)
    r.output("o", S.next.T * k)
    r.output("z", hadamard(n.next, q))
    return r


def beside_what_is_not_read() -> Recurrence:
    """A state that its backward sweep doesn't change, as nothing reads it and it doesn't decay, beside another one's sweeps."""
    r = Recurrence("beside_what_is_not_read")
    d, e = r.dims("d e")
    k, q = r.inputs("k q", d)
    y, z = r.inputs("y z", e)
    b = r.inputs("b")
    R, U = r.state("R", e, d), r.state("U", e, d)
    r.update(R, R.prev + b * y * k.T)
    r.update(U, U.prev - b * z * k.T)
    r.output("o", R.next * q)
    return r


def strength_beside_two_decays() -> Recurrence:
    """Decays of rows and of columns, and a correction times a number of the step, which no sum over writes depends on."""
    r = Recurrence("strength_beside_two_decays")
    d, e = r.dims("d e")
    x, k, q = r.inputs("x k q", d)
    v, y = r.inputs("v y", e)
    b = r.inputs("b")
    S = r.state("S", d, e)
    u = normalize(v)
    r.update(S, diag(sigmoid(x)) * S.prev * diag(sigmoid(y)) + sigmoid(b) * (k - S.prev * u) * u.T)
    r.output("o", S.next.T * q)
    return r


def alike_exponentials() -> Recurrence:
    """A decay for each channel that is a half of each, as its logarithm shows."""
    r = Recurrence("alike_exponentials")
    d, e = r.dims("d e")
    x, k, q = r.inputs("x k q", d)
    v = r.inputs("v", e)
    S = r.state("S", d, e)
    r.update(S, diag(exp(x) / (exp(x) + exp(x))) * S.prev + k * v.T)
    r.output("o", S.next.T * (q + x))
    return r


def scaled_beside_corrected() -> Recurrence:
    """A sweep that scales its state and adds nothing loads no tile, which a loader could fetch."""
    r = Recurrence("scaled_beside_corrected")
    d, e = r.dims("d e")
    v, w = r.inputs("v w", e)
    q = r.inputs("q", d)
    b = r.inputs("b")
    lam = r.decay("lam")
    S, R, h = r.state("S", d, d), r.state("R", e, e), r.state("h", e, d)
    u = normalize(v)
    r.update(S, lam * S.prev)
    r.update(R, R.prev - u * (w - R.prev * u).T)
    r.update(h, sigmoid(b) * h.prev + w * q.T)
    r.output("o", h.prev.T * u)
    return r


def read_and_left_as_it_is() -> Recurrence:
    """A sweep reads a state that stays what it was at first, beside corrections of another one."""
    r = Recurrence("read_and_left_as_it_is")
    d, e = r.dims("d e")
    v, w = r.inputs("v w", e)
    k = r.inputs("k", d)
    S, R = r.state("S", d, e), r.state("R", e, e)
    r.update(S, S.prev)
    r.update(R, R.prev - normalize(v) * (v - R.prev.T * normalize(v)).T + w * (S.next.T * k).T)
    r.output("o", S.next * v)
    return r


def written_before_the_decay() -> Recurrence:
    """What a step writes decays with the state in the same step, so that a decay lies between it and all that reads it."""
    r = Recurrence("written_before_the_decay")
    d, e = r.dims("d e")
    x, p, q = r.inputs("x p q", d)
    v = r.inputs("v", e)
    al = r.decay("al", d)
    S = r.state("S", d, e)
    r.update(S, diag(al) * (S.prev + x * (v - S.prev.T * p / 4).T))
    r.output("o", S.next.T * q)
    return r


def two_written_before_the_decay() -> Recurrence:
    """The same of two writes: their terms have the decay in common, which stands before their sum."""
    r = Recurrence("two_written_before_the_decay")
    d, e = r.dims("d e")
    x, y, q = r.inputs("x y q", d)
    v, w = r.inputs("v w", e)
    al = r.decay("al", d)
    S = r.state("S", d, e)
    r.update(S, diag(al) * (S.prev + x * v.T + y * (w - S.prev.T * y / 4).T))
    r.output("o", S.next.T * q)
    return r


def correction_by_two_names() -> Recurrence:
    """A square state whose pieces call the axis of what is written by two names."""
    r = Recurrence("correction_by_two_names")
    d = r.dims("d")
    q, k, x = r.inputs("q k x", d)
    c = r.inputs("c")
    al = r.decay("al", d)
    S = r.state("S", d, d)
    u = normalize(q)
    r.update(S, (S.prev + x * (k - sigmoid(c) * ((S.prev + normalize(k) * u.T).T * u)).T / 4) * diag(al))
    r.output("o", q.T * (S.next * q))
    return r


def signs_of_columns() -> Recurrence:
    """A number of either sign for each column of a square matrix: the product of the signs is a vector like any other."""
    r = Recurrence("signs_of_columns")
    e = r.dims("e")
    z, v = r.inputs("z v", e)
    w = r.parameter("w", e)
    S = r.state("S", e, e)
    r.update(S, S.prev * diag(z) + v * w.T)
    r.output("o", S.prev * v)
    return r


def angles_of_columns() -> Recurrence:
    """Square matrices whose columns are turned into each other."""
    r = Recurrence("angles_of_columns")
    e = r.dims("e")
    th, q, k, v = r.inputs("th q k v", e)
    A, B = r.state("A", e, e), r.state("B", e, e)
    r.update(A, A.prev * diag(cos(th)) - B.prev * diag(sin(th)) + k * v.T)
    r.update(B, A.prev * diag(sin(th)) + B.prev * diag(cos(th)))
    r.output("o", A.next * q)
    return r


def signs_not_read() -> Recurrence:
    """A number of either sign for each row, of a matrix that is only left at the end."""
    r = Recurrence("signs_not_read")
    d, e = r.dims("d e")
    z, x = r.inputs("z x", d)
    v = r.inputs("v", e)
    S = r.state("S", d, e)
    r.update(S, diag(z) * S.prev + x * v.T)
    r.output("o", x)
    return r


def written_by_another_axis() -> Recurrence:
    """What is written depends on reads, and on a sum over an axis that the state hasn't."""
    r = Recurrence("written_by_another_axis")
    d, e = r.dims("d e")
    q = r.inputs("q", d)
    u, v, w = r.inputs("u v w", e)
    al = r.decay("al", e)
    S = r.state("S", e, e)
    mean = ones(d).T * normalize(q)
    r.update(S, diag(al) * S.prev + mean * v * (v - 0.1 * S.prev.T * softmax(u)).T - mean * v * softmax(v).T)
    r.output("o", S.next.T * w)
    return r


SPECS = (
    signs_of_columns,
    angles_of_columns,
    signs_not_read,
    alike_exponentials,
    negative_eigenvalues,
    same_in_each_step,
    root_of_a_scale,
    no_root_left,
    read_by_what_is_written,
    nothing_read,
    nothing_written,
    numbers_for_all_steps,
    read_for_a_read,
    left_alone,
    transposed_alone,
    scanned_vector,
    prologue_for_two,
    scaled_beside_corrected,
    read_and_left_as_it_is,
)
OF_KERNELS = (
    read_of_a_read,
    decay_as_a_number,
    value_of_a_matrix,
    read_by_another_sweep,
    beside_what_is_not_read,
    strength_beside_two_decays,
    written_before_the_decay,
    two_written_before_the_decay,
    correction_by_two_names,
    written_by_another_axis,
)  # which gates of kernels refused


@pytest.mark.parametrize("spec", OF_KERNELS, ids=lambda f: f.__name__)
def test_gates_find_the_kernels_of_a_spec_right(spec) -> None:
    assert triton_form(compile_spec(spec())).text


LONG = (
    root_of_a_scale,
    read_for_a_read,
    prologue_for_two,
    negative_eigenvalues,
    transposed_alone,
)  # also told by their gates, below


@pytest.mark.parametrize("spec", LONG, ids=lambda f: f.__name__)
def test_gates_find_a_spec_right(spec) -> None:
    assert compile_spec(spec()).family == "chunk-parallel"


@pytest.mark.parametrize(
    "spec",
    [pytest.param(x, marks=[pytest.mark.long] if x in (*LONG, *OF_KERNELS) else []) for x in (*SPECS, *OF_KERNELS)],
    ids=lambda f: f.__name__,
)
def test_a_spec_that_a_pass_once_broke(spec) -> None:
    c = compile_spec(spec())
    op = compile_op(c.spec)
    rows = check_op(c, op, Case(steps=70, width=8))
    assert all(row.ok for row in rows), [row for row in rows if not row.ok]
    assert explanation(c)["name"] == c.name
    assert f"def {c.name}(" in op.source() and not undefined(op.source()), undefined(op.source())


def test_what_a_function_makes_of_a_number_is_no_number_for_the_next_one() -> None:
    """Torch makes a tensor of a tensor with a warning."""
    r = Recurrence("nested_numbers")
    d, e = r.dims("d e")
    q, v = r.inputs("q", d), r.inputs("v", e)
    lam, c = r.decay("lam"), r.constant("c", 0.5)
    S = r.state("S", d, e)
    r.update(S, lam * S.prev + sigmoid(exp(-(c**2))) * q * v.T)
    r.output("o", S.next.T * q)
    source = compile_op(r).source()
    number = "torch.as_tensor(-c ** 2, dtype=like.dtype, device=like.device)"
    assert f"torch.sigmoid(torch.exp({number}))" in source


def undefined(text: str) -> set[str]:
    """Names in a generated file, functions' own included, that nothing gives a value."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F821", "--output-format=json", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    return {x["message"] for x in json.loads(done.stdout)}


def test_no_factor_comes_twice_in_a_product() -> None:
    x, y = leaf("input", "x", ("d",)), leaf("input", "y", ("e",))
    root = power(x, "1/2")
    assert mul(root, root) is x and mul(root, root, y) is mul(x, y)
    assert mul(root, power(x, "-1/2"), x) is x
    for n in ("1/2", "-1/2", "-3/4", "2/3"):
        for count in (2, 3, 4):
            product = mul(*(power(x, n) for _ in range(count)), y)
            assert len(set(product.args)) == len(product.args)
    one = ir.eye("d", "d'")
    assert mul(one, one) is one
