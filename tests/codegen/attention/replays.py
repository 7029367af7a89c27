"""Attentions with and without replays, under Triton's interpreter: a program of its own, as that is chosen at import.

python replays.py NAME..      # prints what differs, as JSON: {case: [quantities]}
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from shared.attentions import everything

from chunkform.codegen.attention.check import Case, run, sample
from chunkform.codegen.attention.pipeline import compile_attention
from chunkform.codegen.commands.compile import compile_module
from chunkform.errors import ArgumentError, DoubleBackwardError
from chunkform.generated.kattention import OP as KATTENTION
from chunkform.generated.kattention import kattention
from chunkform.generated.self_attention import OP as SELF
from chunkform.generated.self_attention import self_attention
from chunkform.generated.softmax_attention import OP as SOFTMAX
from chunkform.generated.softmax_attention import softmax_attention
from chunkform.runtime.launch import replay

CASE = Case(batch=2, steps=20, heads=2, width=8)
CASES = {
    "float16, causal": replace(CASE, batch=1, dtype=torch.float16, causal=True, same=True),
    "float32, groups": replace(CASE, heads=4, key_heads=(2,), keys=33),
}
own = replay.room, replay.Recorded.replay
replays: list[bool] = []  # one for each pass that was replayed


def room(*args):
    """Fresh memory full of NaN."""
    x = own[0](*args)
    return x.fill_(255 if x.dtype == torch.uint8 else float("nan") if x.is_floating_point() else 7)


def counted(self, tensors):
    replays.append(True)
    return own[1](self, tensors)


def directly(op, call, *given):
    """As if it were the first call."""
    op.known.clear()
    replay.ON = False
    try:
        return call(*given)
    finally:
        replay.ON = True


def differing(op, call, sets, passes=2) -> list[str]:
    """The quantities in which replays differ: of calls of one kind with each of `sets`, the first of which are watched."""
    expected = [directly(op, call, x) for x in sets]
    op.known.clear()
    for _ in range(2):
        call(sets[0])
    replays.clear()
    got = [call(x) for x in sets]
    wrong = [] if len(replays) == passes * len(sets) else [f"{len(replays)} replays of {passes * len(sets)}"]
    return wrong + [n for a, b in zip(expected, got, strict=True) for n in a if not same(a[n], b[n])]


def same(a, b) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


def energies(names: list[str]) -> dict[str, list[str]]:
    """Attentions of each kind, in several shapes and dtypes."""
    found = {}
    for a in everything():
        if a.name not in names:
            continue
        c, op = compile_attention(a), getattr(compile_module(a), a.name)
        for what, case in CASES.items():
            if a.nodes is not None:
                case = replace(case, causal=False)
            sets = [sample(c, replace(case, seed=seed)) for seed in range(2)]
            causal = case.causal
            found[f"{a.name}, {what}"] = differing(
                op.__globals__["OP"], lambda s, c=c, op=op, causal=causal: run(c, op, s, causal, "triton"), sets
            )
    return found


def numbers(count, *shape, dtype=torch.float32):
    return [[torch.randn(*shape).to(dtype) for _ in range(count)] for _ in range(2)]


def results(given, y, wanted=None):
    """Outputs and gradients by name; of a tuple the outputs in `wanted` have incoming gradients."""
    ys = y if isinstance(y, tuple) else (y,)
    some = [x for n, x in enumerate(ys) if wanted is None or n in wanted]
    gradients = torch.autograd.grad([x.square().sum() for x in some], given)
    return {f"output {n}": x.detach() for n, x in enumerate(ys)} | {f"d{n}": g for n, g in enumerate(gradients)}


def with_gradients(given):
    return [x.detach().requires_grad_() for x in given]


def attend(*given, **options):
    return softmax_attention(*given, **options, backend="triton")


def calls() -> dict[str, list[str]]:
    """Kinds of calls of one attention."""
    qkv = numbers(3, 1, 20, 2, 8)

    def plain(given, **options):
        given = with_gradients(given)
        return results(given, attend(*given, **options))

    def no_gradients(given):
        with torch.no_grad():
            return {"o": attend(*given)}

    def some_outputs(wanted):
        def call(given):
            given = with_gradients(given)
            return results(given, attend(*given, output_lse=True), wanted)

        return call

    def one_tensor(given):
        x = given[0].detach().requires_grad_()
        return results([x], attend(x, x, x))

    def parts(given):
        x = torch.cat(given, -1).requires_grad_()
        return results([x], attend(*x.split(8, -1)))

    def turned(given):
        return plain([x.transpose(1, 2).contiguous().transpose(1, 2) for x in given])

    def spread_cotangent(given):
        given = with_gradients(given)
        return dict(zip("qkv", torch.autograd.grad(attend(*given).sum(), given), strict=True))

    def one_gradient(given):
        q, k, v = given
        k = k.detach().requires_grad_()
        return results([k], attend(q, k, v))

    def mixed(given):
        return plain([x.to(kind) for x, kind in zip(given, (torch.float16, torch.float32, torch.float16), strict=True)])

    def cast(given):
        with torch.autocast("cpu", torch.float16):
            return plain(given)

    def temperature(given):
        given = with_gradients([*given, torch.rand(2) + 0.5])
        return results(given, attend(*given[:3], scale=given[3]))

    torch.manual_seed(0)
    found = {
        "plain": differing(SOFTMAX, plain, qkv),
        "no gradients": differing(SOFTMAX, no_gradients, qkv, passes=1),
        "only the log-sum-exp": differing(SOFTMAX, some_outputs([1]), qkv),
        "only the output": differing(SOFTMAX, some_outputs([0]), qkv),
        "one tensor three times": differing(SOFTMAX, one_tensor, qkv),
        "parts of one tensor": differing(SOFTMAX, parts, qkv),
        "other strides": differing(SOFTMAX, turned, qkv),
        "a cotangent without memory of its own": differing(SOFTMAX, spread_cotangent, qkv),
        "one gradient": differing(SOFTMAX, one_gradient, qkv),
        "several dtypes": differing(SOFTMAX, mixed, qkv),
        "autocast": differing(SOFTMAX, cast, qkv),
        "a number as a temperature": differing(SOFTMAX, lambda given: plain(given, scale=0.3), qkv),
    }
    state = torch.get_rng_state()

    def again(given):
        torch.set_rng_state(state)
        return temperature(given)

    found["a tensor as a temperature"] = differing(SOFTMAX, again, qkv)
    return found | kinds_are_told_apart(qkv) | {"guards": guards(qkv)}


def kinds_are_told_apart(qkv) -> dict[str, list[str]]:
    """Calls that differ in something beside arguments, in turns."""

    def options(given):
        kinds = [{}, {"causal": True}, {"scale": 0.3}, {"scale": 0.4}, {"output_lse": True}]
        found = {}
        for n, o in enumerate(kinds):
            y = turn(lambda o=o: attend(*given, **o))
            found |= {f"{n} {k}": x for k, x in enumerate(y if isinstance(y, tuple) else (y,))}
        return found

    def backward_passes(given):
        found = {}
        for wanted in ([0, 1], [0], [1]):
            q = with_gradients(given)
            found |= {f"{wanted} {n}": x for n, x in turn(lambda q=q, w=wanted: some(q, w)).items()}
        for n in range(3):
            q = with_gradients(given)
            y = turn(lambda q=q: attend(*q, output_lse=True))[0]
            found[f"d{n} alone"] = torch.autograd.grad(y.sum(), q[n])[0]
        return found

    def some(given, wanted):
        return results(given, attend(*given, output_lse=True), wanted)

    def turn(call):
        if not replay.ON:
            SOFTMAX.known.clear()
        return call()

    return {
        "options in turns": differing(SOFTMAX, options, qkv, passes=5),
        "backward passes in turns": differing(SOFTMAX, backward_passes, qkv, passes=12),
    }


def guards(qkv) -> list[str]:
    """What is refused is refused in a replay too, and what was returned stays as it is."""
    wrong = []
    given = with_gradients(qkv[0])
    for _ in range(3):
        y = attend(*given)
        kept = torch.autograd.grad(y.sum(), given, create_graph=True)
    try:
        torch.autograd.grad(kept[0].sum(), given)
        wrong.append("a second derivative")
    except DoubleBackwardError:
        pass
    before = [y.clone(), *(x.clone() for x in kept)]
    other = with_gradients(qkv[1])
    torch.autograd.grad(attend(*other).sum(), other)
    wrong += [] if all(map(torch.equal, before, [y, *kept])) else ["results that were returned before"]
    beta = torch.ones(2)
    for _ in range(3):
        attend(*qkv[0], scale=beta)
    beta[1] = -1.0
    try:
        attend(*qkv[0], scale=beta)
        wrong.append("a temperature below 0")
    except ArgumentError:
        pass
    y = attend(*given)
    with torch.no_grad():
        given[0].mul_(2)
    try:
        torch.autograd.grad(y.sum(), given)
        wrong.append("an argument that was changed before the backward pass")
    except RuntimeError:
        pass
    return wrong


def several_calls_before_the_backward_passes() -> list[str]:
    sets = [
        with_gradients(
            [torch.randn(1, 20, 2, 8), torch.randn(2, 8, 8) / 3, torch.randn(2, 8, 8) / 3, torch.randn(2, 8)]
        )
        for _ in range(3)
    ]

    def together(_):
        ys = [kattention(*x, backend="triton") for x in sets]
        return {f"{n}": g for k, (x, y) in enumerate(zip(sets, ys, strict=True)) for n, g in named(k, x, y)}

    def named(k, x, y):
        return [(f"{k} {n}", g) for n, g in results(x, y).items()]

    return differing(KATTENTION, together, [None], passes=6)


def outputs_without_averages() -> list[str]:
    """Where nothing needs a gradient, the forward kernel writes the output alone."""
    x, *matrices = torch.randn(1, 20, 2, 8), *(torch.randn(2, 8, 8) / 3 for _ in "QKV")

    def call(_):
        y = self_attention(x, *matrices, backend="triton")
        return {"y": y} if torch.equal(y, expected) else {}

    expected = self_attention(x.requires_grad_(), *matrices, backend="triton").detach()
    x = x.detach()
    return [*differing(SELF, call, [None], passes=1), *({"y"} - call(None).keys())]


def compiled() -> list[str]:
    """A call within a compiled function is a replay too."""
    sets = [[torch.randn(1, 20, 2, 8), *(torch.randn(2, 8, 8) / 3 for _ in "QKV")] for _ in range(2)]

    def plain(x, Q, K, V):
        return 2 * self_attention(x, Q, K, V, causal=True, backend="triton")

    graph = torch.compile(plain, backend="aot_eager")

    def call(given):
        given = with_gradients(given)
        return results(given, (graph if replay.ON else plain)(*given))

    return differing(SELF, call, sets)


def main() -> None:
    replay.room, replay.Recorded.replay = room, counted
    names = sys.argv[1:]
    found = energies(names) if names else calls()
    if not names:
        found["several calls"] = several_calls_before_the_backward_passes()
        found["outputs without averages"] = outputs_without_averages()
        found["compiled"] = compiled()
    print(json.dumps({n: x for n, x in found.items() if x}))


if __name__ == "__main__":
    main()
