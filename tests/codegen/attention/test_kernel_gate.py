"""The gate of an attention's kernels sees what a wrong kernel leaves in memory."""

from dataclasses import replace
from functools import cache

import pytest
from shared.attentions import compiled

from chunkform.codegen.attention.features_kernel import features_kernel, made_by_kernels
from chunkform.codegen.attention.kernel_gate import gate_features, gate_pairs
from chunkform.codegen.attention.kernels_text import kernels
from chunkform.codegen.attention.normalisers import normalisers
from chunkform.codegen.attention.pair_memory import Derivation
from chunkform.codegen.attention.pairs import pairs_of, scaled_score
from chunkform.codegen.attention.tile_functions import (
    derivatives_of,
    energy_functions,
    shifted_functions,
    weight_functions,
)
from chunkform.codegen.ir.code import Binary, Call, Literal, Name
from chunkform.codegen.ir.code_parts import rebuilt
from chunkform.codegen.ir.kernel_ir import For, If, Let, Store, changed, statements
from chunkform.errors import GateError


@cache
def made(name):
    """(derivation, what kernels have in common, functions of tiles, kernels)."""
    c = compiled(name)
    derivatives, rule = derivatives_of(c.split, c.derivatives), normalisers(c.lowered.query)[c.spec.normaliser]
    scaled = scaled_score(c.split, derivatives) if rule.name == "softmax" else None
    p = pairs_of(c.split, c.outputs, derivatives, rule, scaled, c.moved is not None)
    functions = [*energy_functions(c.split, derivatives, rule.name), *weight_functions(c.split, rule)]
    functions += shifted_functions(c.split, rule) if scaled else []
    return Derivation(c.split, c.outputs, derivatives, rule, scaled), p, functions, kernels(p)


def everywhere(x, old, new):
    """An expression with `new` in the place of each `old`."""
    return new if x == old else rebuilt(x, lambda y: everywhere(y, old, new))


def lets(change):
    """A change of the values that names are given."""

    def of(x):
        if isinstance(x, Let):
            found = change(x)
            return () if found is None else (found,)
        return (x,)

    return of


def in_values(old, new):
    return lets(lambda x: replace(x, value=everywhere(x.value, old, new)))


def without_mask(x):
    return (replace(x, mask=None),) if isinstance(x, Store) else (x,)


def one_head(x):
    """A loop over blocks of rows that ends with the first head of a group."""
    if not isinstance(x, For) or x.name != "n":
        return (x,)
    return (replace(x, over=everywhere(x.over, Name("GROUP"), Literal(1))),)


def unmasked(x):
    """The loop over keys that some rows see goes over all that the others end at."""
    is_causal = (
        isinstance(x, If)
        and x.condition == Name("CAUSAL")
        and any(isinstance(y, Let) and y.names == ("full",) for y in x.body)
    )
    return (replace(x, body=x.body[:1]),) if is_causal else (x,)


def later(x):
    """A row doesn't see the key where it stands itself."""
    if not isinstance(x, Let) or x.names != ("visible",):
        return (x,)

    def strict(y):
        if isinstance(y, Binary) and y.operator == ">=":
            return Binary(">", y.left, y.right)
        return rebuilt(y, strict)

    return (replace(x, value=strict(x.value)),)


FORWARD, ROWS, KEYS = range(3)
NO_RESCALE = lets(lambda x: None if "rescale" in {n for n in x.value.names} and x.names == ("average",) else x)
CORRUPTED = {
    "earlier averages keep their weights": ("softmax_attention", FORWARD, NO_RESCALE),
    "a mask is strict": ("softmax_attention", FORWARD, later),
    "a mask is strict, for rows": ("capped", ROWS, later),
    "a mask is strict, for keys": ("linear", KEYS, later),
    "keys that are not seen are not masked": ("polynomial", FORWARD, unmasked),
    "rows beyond the last are stored": ("exponential", FORWARD, without_mask),
    "keys beyond the last are stored": ("masked", KEYS, without_mask),
    "heads that share keys are left out": ("rotary_attention", KEYS, one_head),
    "a head's own numbers are another's": ("kattention", ROWS, in_values(Name("h"), Literal(0))),
    "queries are those of the first block": ("two_blocks", KEYS, in_values(Name("start"), Name("low"))),
    "D is another number of each row": ("norms", ROWS, in_values(Name("D_p"), Name("shift_p"))),
    "positions are those of rows": ("distance_attention", ROWS, in_values(Name("i_at"), Name("row_at"))),
    "a matrix is on its other side": ("turned", FORWARD, in_values(Name("after_e"), Name("after_f"))),
}  # fmt: skip


@pytest.mark.parametrize("what", CORRUPTED)
def test_a_corrupted_kernel_is_refused(what):
    name, n, change = CORRUPTED[what]
    d, p, functions, found = made(name)
    gate_pairs(d, p, functions, found)
    other = replace(found[n], body=changed(found[n].body, change))
    assert other != found[n]
    with pytest.raises(GateError, match=found[n].name):
        gate_pairs(d, p, functions, (*found[:n], other, *found[n + 1 :]))


@pytest.mark.parametrize("function", ["energy_t", "dscore1", "dcolumn1_t", "tile_gradient_t", "shifted_gradient_t"])
def test_a_corrupted_function_of_the_tile_is_refused(function):
    d, p, functions, found = made("kattention")
    wrong = [
        replace(f, body=(*f.body[:-1], replace(f.body[-1], value=f.body[-1].value * 2.0))) if f.name == function else f
        for f in functions
    ]
    assert wrong != functions
    with pytest.raises(GateError):
        gate_pairs(d, p, wrong, found)


@pytest.mark.parametrize("name", ["kattention_f6", "rbf", "forgetting"])
def test_a_corrupted_kernel_of_features_is_refused(name):
    c = compiled(name)
    for m in made_by_kernels(c.lowered, c.features):
        k = features_kernel(m)
        gate_features(m, k)
        loop = next(x for x in statements(k.body) if isinstance(x, For))
        for wrong in (replace(loop, over=Call("range", (Literal(0), Literal(1)))), replace(loop, body=loop.body[:-1])):
            other = replace(k, body=tuple(wrong if x is loop else x for x in k.body))
            with pytest.raises(GateError, match=k.name):
                gate_features(m, other)
