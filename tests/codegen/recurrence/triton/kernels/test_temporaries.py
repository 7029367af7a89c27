"""What kernels over chunks make is called by what it holds: products by the two tiles, results by their own names."""

from shared.triton_errors import compiled

from chunkform.codegen.ir.code import Call
from chunkform.codegen.ir.kernel_ir import KernelFunction, Let, statements
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.triton import triton_form
from chunkform.spec.language import Recurrence


def products(c) -> dict[str, set[str]]:
    """What products on tensor cores are called, by kernel."""
    return {
        f.name: {
            n
            for x in statements(f.body)
            if isinstance(x, Let) and isinstance(x.value, Call) and x.value.function == "tl.dot"
            for n in x.names
        }
        for f in triton_form(c).parts
        if isinstance(f, KernelFunction)
    }


def test_products_are_called_by_their_tiles_and_results_by_their_names():
    found = products(compiled("delta_rule"))
    assert {"k_S", "q_S", "S_after", "o", "write1"} <= found["forward_sweep_1"]
    every = set().union(*found.values())
    assert "k_k" in every and "q_k" in every
    assert not [n for n in every if len(n.rstrip("0123456789")) < 2 and n not in ("o", "y")]


def test_a_product_isnt_called_as_an_argument_is():
    """Of k and g it would be k_g, which is how many heads share k."""
    r = Recurrence("strides")
    d, e = r.dims("d e")
    k, g = r.inputs("k g", d)
    v, S = r.inputs("v", e), r.state("S", d, e)
    r.update(S, S.prev + g * v.T)
    r.output("o", S.next.T * k)
    c = compile_spec(r)
    found, kernels = products(c), [f for f in triton_form(c).parts if isinstance(f, KernelFunction)]
    given = {f.name: {p.name for line in f.parameters for p in line} for f in kernels}
    assert any("k_g" in names for names in given.values())
    assert all(not found[n] & given[n] for n in found) and any("product" in names for names in found.values())
