"""Names in printed kernels: an author's never meet those of kernels, and kernels store over none of their arguments."""

import ast

import pytest

from chunkform.codegen.ir.expr import leaf
from chunkform.codegen.recurrence.emit import emit
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.triton import triton_form, triton_source
from chunkform.codegen.recurrence.triton.print.axis_names import axis_name, block_name, size_name
from chunkform.codegen.recurrence.triton.print.names import Names
from chunkform.codegen.recurrence.triton.print.reserved import RESERVED
from chunkform.spec.language import Recurrence


def test_names_of_a_spec_are_none_that_kernels_make_of_others():
    """As they are, a name that begins as another is told from what kernels make of that; in letters of their own none need be."""
    r = Recurrence("r")
    d, e = r.dims("d d_ok")
    k, q = r.inputs("k k_t", d)
    v = r.inputs("k_p", e)
    S = r.state("S", d, e)
    r.update(S, S.prev + k * v.T)
    r.output("o", S.next.T * q)
    c = compile_spec(r)
    names = Names(c)
    assert [names(leaf("input", n, ())) for n in ("k", "k_p", "k_t")] == ["k", "k_p_", "k_t_"]
    for f in triton_form(c).built:
        given = [p.name for line in f.parameters for p in line]
        assert len(set(given)) == len(given)
    text = emit(c, tidy=False)
    found = [x for x in ast.parse(text).body if isinstance(x, ast.FunctionDef)]
    assert all(len({*given}) == len(given) for x in found for given in [[y.arg for y in x.args.args]])
    assert any({"k_p", "k_p_p"} <= {y.arg for y in x.args.args} for x in found)  # the name as it is, where that is free


@pytest.mark.parametrize("name", sorted(n for n in RESERVED if n.islower()))
def test_dims_may_have_any_name_that_kernels_use(name):
    assert not {axis_name(name), size_name(name), block_name(name)} & RESERVED


@pytest.mark.parametrize(
    "names",
    [
        "x p m since seen",
        "t until k_each matrix1 part_d",
        *(pytest.param(x, marks=pytest.mark.long) for x in ("w kept k2 pairs S_live", "y s b_each sums weight1")),
    ],
)
def test_kernels_store_over_none_of_their_arguments(names):
    r = Recurrence("named")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v, g = r.inputs("v", e), r.decay("g")
    one, two, three, four, *five = [r.constant(n, 0.5) for n in names.split()]
    S = r.state("S", d, e)
    r.update(S, g * S.prev + one * k * (v - two * S.prev.T * (three * k)).T)
    r.output("o", four * S.next.T * q + sum(five))
    for kernel in ast.walk(ast.parse(triton_source(compile_spec(r)))):
        if isinstance(kernel, ast.FunctionDef) and kernel.decorator_list:
            stored = {x.id for x in ast.walk(kernel) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
            given = {x.arg for x in kernel.args.args}
            assert not {x for x in stored & given if not x.endswith("_p")}, kernel.name  # pointers move on
