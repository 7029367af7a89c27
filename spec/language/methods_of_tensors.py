"""What methods of tensors and arrays are called in a spec, for those who write one."""

from __future__ import annotations

from chunkform.errors import page_of

_CALLED = "abs cos erf exp log norm relu sigmoid silu sin softmax softplus sqrt tanh".split()
METHODS = {
    **{n: f"write {'absolute' if n == 'abs' else n}(..), of chunkform.spec.language" for n in _CALLED},
    **dict.fromkeys(("t", "transpose", "mT"), "write .T"),
    **dict.fromkeys(("dot", "inner", "vdot"), "write dot(a, b)"),
    **dict.fromkeys(("outer", "ger"), "write a * b.T"),
    **dict.fromkeys(("matmul", "mm", "mv", "bmm"), "write a * b"),
    **dict.fromkeys(("add", "sub", "mul", "div", "pow", "neg"), "write it with + - * / **, and hadamard for entries"),
    **dict.fromkeys(("max", "maximum", "amax"), "write Max(a, b)"),
    **dict.fromkeys(("min", "minimum", "amin", "clamp", "clip"), "write Max(a, b) and Min(a, b)"),
    **dict.fromkeys(
        ("view", "reshape", "unsqueeze", "squeeze", "expand", "repeat", "size", "ndim", "dim"), "its dims say its shape"
    ),
    **dict.fromkeys(("cat", "concat", "stack"), "declare each part as a quantity of its own"),
    **dict.fromkeys(
        "to float double half bfloat16 numpy detach item".split(),
        "dtypes and devices are those of what its op is called with",
    ),
    **dict.fromkeys(
        ("cumsum", "cumprod", "logcumsumexp"), "what runs over steps is a state, as in r.update(c, c.prev + x)"
    ),
    **dict.fromkeys(("roll", "shift", "diff"), "the value of the step before is a state, as in r.update(last, x)"),
    **{n: f"write {n}(..), of chunkform.spec.language" for n in ("conj", "real", "imag")},
    **dict.fromkeys(("inverse", "inv", "pinv", "solve"), f"a Program solves with a state, see {page_of('programs')}"),
    **dict.fromkeys(("H", "mH"), "write .T"),
    "where": "a spec has no branches: write Max, Min, relu or sigmoid",
    "einsum": "write products with *, hadamard, diag and total",
    "sum": "write total(..), of chunkform.spec.language",
    "mean": "write total(..) / r.size(d)",
    "prev": "a state has it, and this is a term",
    "next": "a state has it, and this is a term",
}
