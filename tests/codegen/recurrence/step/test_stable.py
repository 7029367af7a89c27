"""Exponentials that are divided by their sum don't overflow, in outputs and gradients, however a spec writes them."""

import dataclasses
from pathlib import Path

import pytest
import sympy
import torch
from shared.forked import script

import chunkform
from chunkform.codegen.checking.accuracy import judge
from chunkform.codegen.ir.expr import add, const, fn, walk
from chunkform.codegen.ir.expr import replace as replaced
from chunkform.codegen.recurrence.gates.gates import gate_stable
from chunkform.codegen.recurrence.oracle import oracle
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.step.lower import lower
from chunkform.codegen.recurrence.step.stabilize import stable
from chunkform.errors import GateError
from chunkform.spec.language import Recurrence, exp, hadamard, load, softmax, total

GSA = Path(__file__).parents[4] / "spec" / "published" / "gsa.py"


def pooled(name, weigh):
    """A running mean of values, weighed by a function of inputs."""
    r = Recurrence(name)
    d = r.dims("d")
    q, v = r.inputs("q v", d)
    lam = r.decay("lam")
    S = r.state("S", d)
    r.update(S, lam * S.prev + v)
    r.output("o", weigh(q, S.next))
    return r


def shifts(r):
    step = lower(r)
    return [x for x in walk(*stable(step).outputs.values()) if x.op == "peak"]


def test_a_softmax_is_found_however_it_is_written():
    written = {
        "function": lambda q, s: hadamard(softmax(q), s),
        "by_hand": lambda q, s: s * total(exp(q) ** 2) / total(exp(q)) ** 2,
        "logarithm": lambda q, s: sympy.log(total(exp(q))) * s,
        "two": lambda q, s: hadamard(softmax(q), softmax(s)),
    }
    for name, weigh in written.items():
        assert len(shifts(pooled(name, weigh))) == (2 if name == "two" else 1), name


def test_a_softmax_is_one_along_both_axes_of_a_square_state():
    """Its sum is along one of them, where it is written along the other one."""
    r = Recurrence("square")
    d = r.dims("d")
    x, b = r.inputs("x", d), r.inputs("b")
    S = r.state("S", d, d)
    u = softmax(b * x)
    r.update(S, S.prev + 0.5 * (x - S.prev * u) * u.T)
    r.output("o", S.next.T * x)
    step = stable(lower(r))
    exponentials = [y for y in walk(*step.updates.values(), *step.outputs.values()) if y.op == "fn"]
    assert len(exponentials) > 1 and all("peak" in [z.op for z in walk(y)] for y in exponentials)


def test_what_does_depend_on_the_size_of_exponentials_is_left_alone():
    r = pooled("plain", lambda q, s: exp(q) + s / total(exp(q)))
    step = lower(r)
    assert stable(step) is step


def test_the_gate_refuses_a_shift_that_matters():
    step = lower(pooled("soft", lambda q, s: s * total(exp(q) ** 2) / total(exp(q)) ** 2))
    (exponential,) = {x for x in walk(*step.outputs.values()) if x.op == "fn"}
    harmless = {
        n: replaced(x, {exponential: fn("exp", add(exponential.args[0], const(1)))}) for n, x in step.outputs.items()
    }
    gate_stable(step, dataclasses.replace(step, outputs=harmless))
    shifted = stable(step)
    gate_stable(step, shifted)
    (low,) = {x for x in walk(*shifted.outputs.values()) if x.op == "fn"}
    once = {n: add(x, low) for n, x in shifted.outputs.items()}
    with pytest.raises(GateError, match="stable"):
        gate_stable(step, dataclasses.replace(shifted, outputs=once))


def by_steps(q, k, v, s, log_g):
    K = V = torch.zeros(())
    out = []
    for t in range(q.shape[1]):
        g = log_g[:, t].exp()
        K = K * g[..., None, :] + k[:, t, :, :, None] * s[:, t, :, None, :]
        V = V * g[..., None] + s[:, t, :, :, None] * v[:, t, :, None, :]
        weights = torch.einsum("bhdm,bhd->bhm", K, q[:, t]).softmax(-1)
        out.append(torch.einsum("bhm,bhme->bhe", weights, V))
    return torch.stack(out, 1)


def main():
    """Prints the worst error and what is allowed, of exponents of some hundreds, which are rounded.

    Where the softmax of a head is saturated at each step, the gradients of its exponents are all but zero, and the
    definition's own rounding is larger. Triton's interpreter must be chosen before Triton is imported: in its own process.
    """
    torch.manual_seed(0)
    names = ("q", "k", "v", "s")
    given = {n: 4 * torch.randn(1, 40, 2, 16, dtype=torch.float64) for n in names}
    given["log_g"] = torch.nn.functional.logsigmoid(torch.randn(1, 40, 2, 16, dtype=torch.float64) + 2)
    incoming = torch.randn(1, 40, 2, 16, dtype=torch.float64)

    def both(op, dtype):
        leaves = {n: x.to(dtype).requires_grad_() for n, x in given.items()}
        o = op(**leaves)
        return o, *torch.autograd.grad(o, leaves.values(), incoming.to(dtype))

    op = chunkform.compile(load(GSA)[0])
    exact = both(by_steps, torch.float64)
    c = compile_spec(load(GSA)[0])
    named = {n.removeprefix("log_"): x for n, x in given.items()}
    for backend, dtype in (("torch", torch.float64), ("torch", torch.float32), ("triton", torch.float32)):
        found = both(lambda backend=backend, **x: op(**x, backend=backend)[0], dtype)
        outputs, _, gradients, _ = oracle(c, named, {"K": None, "V": None}, {}, {"o": incoming}, dtype=dtype)
        rounded = (outputs["o"], *(gradients[n] for n in named))
        bound = 1e-11 if dtype == torch.float64 else 5e-3
        rows = [judge(a, b, 2, bound, lambda x=x: [x]) for a, b, x in zip(found, exact, rounded, strict=True)]
        worst = max(rows, key=lambda r: r.badness)
        print(backend, worst.error, worst.allowed)


def test_outputs_and_gradients_with_large_exponents():
    done = script(Path(__file__))
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [x.split() for x in done.stdout.splitlines()]
    assert len(rows) == 3
    for backend, error, bound in rows:
        assert float(error) <= float(bound), backend


if __name__ == "__main__":
    main()
