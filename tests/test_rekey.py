"""Tables of configurations go on holding for kernels whose variables alone are called otherwise."""

from benchmarks import rekey

KERNEL = '''@triton.jit(do_not_specialize=["T"])
def kernel(x_p, T, C: tl.constexpr):
    """{doc}"""
    {a} = tl.load(x_p)
    {b} = {a} + C
    tl.store(x_p, {kept})


def triton_forward(x):
    config = choose("{key}")
    kernel[(1,)](x)
'''


def test_names_of_variables_are_none_of_what_kernels_say():
    def moved(**names):
        texts = [
            KERNEL.format(a="p", b="p2", kept="p2", doc="One.", key="0" * 16),
            KERNEL.format(key="1" * 16, **names),
        ]
        return rekey.unnamed(texts[0]).replace("0" * 16, "1" * 16).replace("One.", names["doc"]) == rekey.unnamed(
            texts[1]
        )

    assert moved(a="k_S", b="w", kept="w", doc="One.")
    assert not moved(a="k_S", b="w", kept="k_S", doc="One."), "another variable is stored"
    assert not moved(a="w", b="w", kept="w", doc="One."), "two variables have become one"


def test_what_is_no_variable_keeps_its_name():
    text = rekey.unnamed(KERNEL.format(a="p", b="p2", kept="p2", doc="One.", key="0" * 16))
    assert "tl.load(v0)" in text and "triton_forward(x)" in text and "kernel[1,](x)" in text
