"""Recurrences for the tests of the sequential fallback, the modules printed from them, and random arguments."""

import functools
import importlib.util
import sys
from pathlib import Path

import torch

from chunkform.codegen.checking.accuracy import AMPLIFIED, head_axis, relative_error
from chunkform.codegen.ir.expr import dim_of
from chunkform.codegen.ir.words import text_of
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.oracle import oracle
from chunkform.codegen.recurrence.stepwise import sequential_torch, sequential_triton
from chunkform.spec.language import (
    Recurrence,
    absolute,
    apply,
    diag,
    dot,
    exp,
    eye,
    hadamard,
    log,
    ones,
    relu,
    sigmoid,
    silu,
    softmax,
    softplus,
    tanh,
    total,
)

from .spec_files import catalogue, compiled_once


def tanh_layer() -> Recurrence:
    """A classic recurrent layer; its state's initial value is a parameter."""
    r = Recurrence("tanh_layer")
    d, e = r.dims("d e")
    x = r.inputs("x", e)
    U = r.parameters("U", d, d)
    W = r.parameters("W", d, e)
    b = r.parameters("b", d)
    h = r.state("h", d, initial=tanh(b))
    r.update(h, tanh(W * x + U * h.prev + b))
    r.output("y", h.next)
    return r


def running_maximum() -> Recurrence:
    """A scalar state with a maximum; the names are those that a printer might use itself."""
    import sympy

    r = Recurrence("running_maximum")
    t, start = r.inputs("t start")
    segment = r.decay("segment")
    steps = r.constant("steps", 0.5)
    S = r.state("S", initial=steps)
    r.update(S, sympy.Max(segment * S.prev, t * start))
    r.output("like", S.next * S.prev + steps)
    return r


def momentum() -> Recurrence:
    """Gradient descent with momentum: one state feeds another as a whole."""
    r = Recurrence("momentum")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    eta = r.inputs("eta")
    theta = r.decay("theta")
    rho = r.head_decay("rho")
    M = r.state("M", d, e)
    S = r.state("S", d, e)
    r.update(M, theta * M.prev - eta * k * (S.prev.T * k - v).T)
    r.update(S, rho * S.prev + M.next)
    r.output("o", S.next.T * q)
    return r


def everything() -> Recurrence:
    """Matrix inputs, products of matrices, functions, an identity, outputs without an axis of the state."""
    r = Recurrence("everything")
    d, e = r.dims("d e")
    A = r.inputs("A", d, d)
    k, u = r.inputs("k u", d)
    v = r.inputs("v", e)
    g = r.inputs("g")
    alpha = r.decay("alpha", d)
    w = r.parameters("w", e)
    c = r.constant("c")
    S = r.state("S", d, e)
    n = r.state("n", d)
    mixed = r.let("mixed", (A + eye(d) * sigmoid(g)) * S.prev)
    r.update(S, diag(alpha) * mixed + relu(k) * tanh(hadamard(v, S.prev.T * k)).T * c)
    r.update(n, hadamard(alpha, n.prev) + softmax(k) * softplus(g))
    r.output("o", silu(S.next.T * u) / (1 + dot(n.next, n.next)))
    r.output("size", total(exp(-((hadamard(w, S.prev.T * u)) ** 2))) + c)
    return r


def channels() -> Recurrence:
    """A state whose columns are independent; only its outputs sum over them."""
    r = Recurrence("channels")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v, z = r.inputs("v z", e)
    lam = r.decay("lam")
    bias = r.parameters("bias", d)
    S = r.state("S", d, e)
    read = r.let("read", tanh(S.prev.T * k))
    r.update(S, lam * S.prev + k * (v - read).T)
    r.output("o", S.next.T * q)
    r.output("p", S.next * z + bias)
    return r


def ratios() -> Recurrence:
    """Divisions and logarithms of vectors, which are not finite where a padded tile holds zeros."""
    r = Recurrence("ratios")
    d, e = r.dims("d e")
    k, u = r.inputs("k u", d)
    v = r.inputs("v", e)
    alpha = r.decay("alpha", d)
    n = r.state("n", d)
    S = r.state("S", d, e)
    r.update(n, hadamard(alpha, n.prev) + hadamard(k, log(absolute(u))))
    r.update(S, diag(alpha) * S.prev + (k / u) * (v / (1 + v**2)).T * tanh(dot(n.prev, k)))
    r.output("o", total(n.next / u))
    r.output("p", (S.next.T * u) / v)
    return r


def two_sided() -> Recurrence:
    """Reads contract both axes of two states that aren't square, beside a vector state; so neither can be cut."""
    r = Recurrence("two_sided")
    d, e = r.dims("d e")
    k, g = r.inputs("k g", d)
    v = r.inputs("v", e)
    lam = r.decay("lam", d)
    bias = r.parameters("bias", d)
    c = r.constant("c")
    S, M = r.state("S", d, e), r.state("M", d, e)
    n = r.state("n", d)
    left = r.let("left", tanh(c**4 * S.prev * v + bias))
    right = r.let("right", tanh(c**4 * S.prev.T * (k + n.prev)))
    r.update(M, c * M.prev + hadamard(left, n.prev) * right.T)
    r.update(S, diag(lam) * S.prev + c**6 * hadamard(M.next, M.prev) * sigmoid(dot(left, g)))
    r.update(n, hadamard(lam, n.prev) + left)
    r.output("o", S.next.T * left + v)
    r.output("p", total(n.next) + dot(right, v))
    return r


def moving_averages() -> Recurrence:
    """Decays and weights that parameters alone make for each entry; one of them is also read as it is."""
    r = Recurrence("moving_averages")
    d, e = r.dims("d e")
    x = r.inputs("x", d)
    a, b = r.parameters("a b", d, e)
    w = r.parameters("w", d)
    rho = r.head_decay("rho", d)
    c = r.constant("c")
    h = r.state("h", d, e)
    share = r.let("share", sigmoid(a))
    r.update(h, hadamard(diag(rho) * share, tanh(h.prev)) + diag(x) * hadamard(share, b) * c + a)
    r.output("y", hadamard(tanh(w) * ones(e).T + apply(lambda x, y: x / (2 + y**2), b, a), h.next) * ones(e))
    return r


def specs() -> dict[str, Recurrence]:
    made = [
        tanh_layer(),
        running_maximum(),
        momentum(),
        everything(),
        channels(),
        ratios(),
        two_sided(),
        moving_averages(),
    ]
    known = {r.name: r for r in catalogue()}
    made += [known[n] for n in ("sherman_morrison", "gradient_descent_logistic", "kimi_delta_attention", "retention")]
    return {r.name: r for r in made}


HEADER = """
import torch
from chunkform.runtime.torch_form.recurrent import *
from chunkform.runtime.torch_form.chunks import dtype_of
"""

TRITON_HEADER = """
import triton
import triton.language as tl
from chunkform.runtime.launch.launch import launch, with_heads
"""


def printed(c: Compiled, folder: Path, triton: bool = False):
    """The printed forms, as an imported module."""
    text = HEADER + text_of(sequential_torch(c))
    if triton:
        text += TRITON_HEADER + text_of(sequential_triton(c))
    file = folder / f"{c.name}_{'triton' if triton else 'torch'}.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def arguments(
    c: Compiled, batch: int, steps: int, heads: int, sizes: dict, seed: int = 0, dtype=torch.float32, start=True
):
    """Random (given, states, constants, cotangents, final cotangents)."""
    torch.manual_seed(seed)

    def draw(*shape, dtype=dtype):
        return torch.randn(shape, dtype=torch.float64).to(dtype)

    def dims(axes):
        return tuple(sizes[dim_of(a)] for a in axes)

    wide = torch.float64 if dtype == torch.float64 else torch.float32
    given, constants = {}, {}
    for v in c.step.variables:
        lead = (batch, steps, heads) if v.per_step else (heads,)
        if v.kind == "constant":
            constants[v.name] = 0.5
        elif v.is_decay:
            given[v.name] = torch.nn.functional.logsigmoid(draw(*lead, *dims(v.axes), dtype=wide) + 1)
        else:
            scale = 0.5 if len(v.axes) < 2 else 0.5 / sizes[dim_of(v.axes[-1])] ** 0.5
            given[v.name] = draw(*lead, *dims(v.axes)) * scale
    states = {s.name: draw(batch, heads, *dims(s.axes), dtype=wide) * 0.2 if start else None for s in c.step.states}
    if start and c.name == "sherman_morrison":  # stay near a positive matrix, where the recurrence lives
        states["S"] = torch.eye(sizes["d"], dtype=wide) + 0.1 * states["S"]
    cotangents = {n: draw(batch, steps, heads, *dims(axes)) for n, axes in c.step.output_axes.items()}
    finals = {s.name: draw(batch, heads, *dims(s.axes), dtype=wide) for s in c.step.states}
    return given, states, constants, cotangents, finals


def results(outputs: dict, last: dict, gradients: dict, initial: dict) -> dict[str, torch.Tensor]:
    """Everything that two passes yield, by names that tell it apart."""
    groups = (("", outputs), ("final ", last), ("d", gradients), ("d initial ", initial))
    return {what + name: x for what, group in groups for name, x in group.items()}


def error_of(found: torch.Tensor, value: torch.Tensor, heads: int) -> float:
    """The worst head's relative error, over entries that the type of `found` can hold."""
    held = value.abs() <= torch.finfo(found.dtype).max
    return relative_error(found, torch.where(held, value, torch.nan), heads)


def compare(c: Compiled, forward, backward, args, tolerance: float, check_parameters: bool = True) -> dict[str, float]:
    """Run both passes, and return the relative error of each result; raises where one is too large.

    Where a problem is ill-conditioned, AMPLIFIED times the error of plain float32 steps is allowed too, as in `chunkform check`.
    Values that the result's type can't hold don't count.
    """
    given, states, constants, cotangents, finals = args
    outputs, last, saved = forward(given, states, constants)
    needs = frozenset({*given, *states})
    gradients, initial = backward(given, states, constants, saved, cotangents, finals, needs)
    found = results(outputs, last, gradients, initial)
    expected = results(*oracle(c, given, states, constants, cotangents, finals))
    for name, value in expected.items():
        assert found[name].shape == value.shape, (name, found[name].shape, value.shape)
    axes = {n: head_axis(c.step, n) for n in expected}
    errors = {n: error_of(found[n], x, axes[n]) for n, x in expected.items()}
    bad = {n: x for n, x in errors.items() if not x <= tolerance}
    if bad:
        rounded = results(*oracle(c, given, states, constants, cotangents, finals, torch.float32))
        bad = {n: x for n, x in bad.items() if not x <= AMPLIFIED * error_of(rounded[n], expected[n], axes[n])}
    assert not bad, (c.name, bad)
    for name, x in given.items():
        assert outputs[next(iter(outputs))].dtype == given[next(iter(given))].dtype
        assert gradients[name].dtype == x.dtype, name
    return errors


@functools.cache
def compiled(name: str) -> Compiled:
    return compiled_once(specs()[name])
