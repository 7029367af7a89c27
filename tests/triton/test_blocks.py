"""Which sweeps walk, and what is read at the borders of blocks instead."""

from dataclasses import replace

import pytest

from chunkform.codegen.ir import terms_of, walk
from chunkform.codegen.pipeline import compile_spec
from chunkform.codegen.stages import Sweep
from chunkform.codegen.triton.blocks import blocks
from chunkform.codegen.triton.fuse import fuse
from chunkform.codegen.triton.host import Host
from chunkform.codegen.triton.opened import opened
from chunkform.spec.language import find


def test_a_decays_gradient_is_read_at_borders_by_one_kernel_or_summed_by_walks():
    c = compile_spec(find("kimi_delta_attention")[0])
    fused = fuse(c.backward)
    found = blocks(c.backward, fused, ["S"])
    assert (len(found.walks), len(found.pieces), set(found.spans), found.whole) == (1, 2, {"S"}, {"S"})
    stages = list(c.backward.stages)
    last = max(k for k, s in enumerate(stages) if isinstance(s, Sweep) and s.borders)
    stages[last] = replace(stages[last], side="row" if stages[last].side == "col" else "col")
    apart = blocks(replace(c.backward, stages=tuple(stages)), fused, ["S"])
    assert (len(apart.walks), len(apart.pieces), apart.spans) == (3, 0, {})
    assert sum(len(s.borders) for s in apart.walks.values()) == 2


@pytest.mark.parametrize("name", ["lightning_attention", "gated_delta_rule", "gated_linear_attention"])
def test_what_walks_hold_is_not_read_at_borders(name):
    c = compile_spec(find(name)[0])
    found = blocks(c.backward, fuse(c.backward), ["S"])
    assert (set(found.walks), found.pieces) == (
        {k for k, s in enumerate(c.backward.stages) if isinstance(s, Sweep)},
        {},
    )


def test_what_is_only_used_in_one_sum_is_stored_as_one():
    """Of Kimi delta attention's keys, a read takes of two kinds of writes of its own block."""
    c = compile_spec(find("kimi_delta_attention")[0])
    pieces = [opened(s, True) for s in blocks(c.backward, fuse(c.backward), ["S"]).pieces.values()]
    assert [sorted(len(terms_of(n)) for n in o.intra.values()) for o in pieces] == [[2], [1, 1]]
    for o in pieces:
        used = {x.attrs[1] for x in walk(*o.outputs.values()) if x.op == "leaf" and x.attrs[0] == "intra"}
        assert used == {x.attrs[1] for x in o.intra}


@pytest.mark.parametrize(
    ("name", "many"),
    [("gated_delta_rule", ["backward_prepare_3"]), ("lightning_attention", []), ("gated_linear_attention", [])],
)
def test_kernels_ahead_have_few_registers_unless_they_load_many_tensors(name, many):
    c = compile_spec(find(name)[0])
    host = Host(c, c.backward, True, True)
    text = host.text()
    ahead = [k for k in host.kernels if not k.walks]
    assert ahead and [k.name for k in ahead if not k.few] == many
    assert text.count("maxnreg=config.registers") == len(ahead) - len(many)
