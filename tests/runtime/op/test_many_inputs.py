"""More inputs than torch's library takes: the op works as ever, and breaks a graph instead of its compilation."""

import functools
import operator

import pytest
import torch

import chunkform


@pytest.mark.parametrize("count", [52, 60])  # as many as torch's library takes, and more
def test_many_inputs(count):
    r = chunkform.Recurrence(f"of_{count}_inputs")
    d = r.dims("d")
    xs = [r.inputs(f"x{n}", d) for n in range(count)]
    h = r.state("h", d)
    r.update(h, r.decay("lam") * h.prev + functools.reduce(operator.add, xs))
    r.output("y", h.next)
    op = chunkform.compile(r)
    given = [torch.randn(1, 5, 2, 3, requires_grad=True) for _ in xs]
    log_lam = -torch.rand(1, 5, 2)
    y, _ = op(*given, log_lam)
    (want,) = torch.autograd.grad(y.sum(), given[-1])
    compiled = torch.compile(lambda *x: 2 * op(*x, log_lam)[0], backend="aot_eager")(*given)
    torch.testing.assert_close(compiled, 2 * y)
    torch.testing.assert_close(torch.autograd.grad(compiled.sum(), given[-1])[0], 2 * want)
    both = torch.vmap(lambda x: op(x, *given[1:], log_lam)[0])(torch.stack((given[0], given[0])))
    torch.testing.assert_close(both[1], y)
    assert (op.__globals__["OP"].registered is None) == (count > 52)
