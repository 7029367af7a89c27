"""Generated ops with and without replays, under Triton's interpreter: a program of its own, as that is chosen at import.

python replays.py      # prints what differs, as JSON: {case: [quantities]}
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import json

import torch
from shared.op_cases import op_of, problem, run

from chunkform.codegen.recurrence.samples import Case
from chunkform.runtime.launch import replay

CASE = Case(batch=1, steps=40, heads=2, width=8)
own = replay.room


def room(*args):
    """Fresh memory full of NaN."""
    x = own(*args)
    return x.fill_(255 if x.dtype == torch.uint8 else float("nan") if x.is_floating_point() else 7)


def differing(p, **options) -> list[str]:
    """The quantities in which a replay differs."""
    replay.ON = False
    expected = run(p, backend="triton", **options)
    replay.ON = True
    known = op_of(p.name).__globals__["OP"].known
    known.clear()
    for _ in range(3):
        got = run(p, backend="triton", **options)
    (kind,) = known.values()
    assert [type(x) for x in kind.call.replays.values()] == [replay.Recorded] * 2, p.name
    return [n for n, x in expected.items() if not torch.equal(x, got[n])]


def compiled(p) -> list[str]:
    """The quantities that differ where a call within a compiled function is a replay."""
    replay.ON = False
    graph = torch.compile(op_of(p.name), backend="aot_eager", fullgraph=True)
    expected = run(p, op=graph, backend="triton")
    replay.ON = True
    played = replay.Recorded.replay
    count = []
    replay.Recorded.replay = lambda self, tensors: count.append(1) or played(self, tensors)
    try:
        got = [run(p, op=graph, backend="triton") for _ in range(3)][-1]
    finally:
        replay.Recorded.replay = played
    assert len(count) == 2, (p.name, len(count))
    return [n for n, x in expected.items() if not torch.equal(x, got[n])]


def unpacked(p) -> list[str]:
    """The quantities that differ where, after a replay, saved tensors come back laid out otherwise."""
    assert not differing(p)
    expected = run(p, backend="triton")
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.mT.contiguous().mT):
        got = [run(p, backend="triton") for _ in range(3)]
    return [n for n, x in expected.items() if any(not torch.equal(x, found[n]) for found in got)]


def main() -> None:
    replay.room = room
    found = {}
    for name in ("lightning_attention", "gated_linear_attention", "gated_delta_rule", "sherman_morrison"):
        found[name] = differing(problem(name, CASE))
    delta, light = "gated_delta_rule", "lightning_attention"
    found["computed again"] = differing(problem(delta, CASE), recompute="always")
    found["packed"] = differing(problem(delta, CASE, lengths=(5, 0, 33)))
    found["groups"] = differing(problem(light, CASE, groups={"k": 1, "lam": 1}))
    turned = problem(light, CASE)
    turned.given.update({n: x.transpose(1, 2).contiguous().transpose(1, 2) for n, x in turned.given.items()})
    found["strides"] = differing(turned)
    found["compiled"] = compiled(problem(light, CASE))
    found["compiled, packed"] = compiled(problem(delta, CASE, lengths=(5, 0, 33)))
    found["unpacked"] = unpacked(problem(delta, CASE))
    print(json.dumps({n: x for n, x in found.items() if x}))


if __name__ == "__main__":
    main()
