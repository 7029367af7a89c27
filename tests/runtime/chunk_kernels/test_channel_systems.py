"""Triangular systems of which each channel has its own, in Triton's interpreter, against torch's solver."""

import json
from pathlib import Path

import torch
import triton
import triton.language as tl

from chunkform.runtime.chunk_kernels.channel_systems import channel_solve, decayed_channel_solve

CHANNELS = 16


@triton.jit
def solved(right, scale, t, decay, out, X: tl.constexpr, C: tl.constexpr, FORWARD: tl.constexpr):
    at = tl.arange(0, X)[:, None] * C + tl.arange(0, C)[None, :]
    if decay is None:
        found = channel_solve(tl.load(right + at), tl.load(scale + at), t, FORWARD, C)
    else:
        found = decayed_channel_solve(
            tl.load(right + at), tl.load(scale + at), t, tl.load(decay + at), FORWARD, False, True, C
        )
    tl.store(out + at, found)


def main() -> None:
    """Prints the largest error for each number of steps, in both directions, without and with decays."""
    torch.manual_seed(0)
    found = []
    for steps in (2, 16, 32, 64):
        for forward in (True, False):
            right, scale = torch.randn(CHANNELS, steps), torch.rand(CHANNELS, steps)
            t = torch.randn(steps, steps) / steps**0.5
            t = t.tril(-1) if forward else t.triu(1)
            decay = torch.rand(CHANNELS, steps).sqrt()
            for given in (None, decay):
                out = torch.empty_like(right)
                solved[(1,)](right, scale, t, given, out, X=CHANNELS, C=steps, FORWARD=forward)
                matrices = t.double()[None] * scale.double()[..., None]
                if given is not None:  # of the steps between a write and a read
                    sums = given.double().log().cumsum(1)
                    between = sums[:, :, None] - sums[:, None, :]
                    own = given.double().log()[:, :, None] if forward else -given.double().log()[:, None, :]
                    matrices *= (between - own if forward else -between + own).clamp(max=0).exp()
                expected = torch.linalg.solve(torch.eye(steps).double() - matrices, right.double()[..., None])[..., 0]
                found.append(float((out - expected).abs().max() / expected.abs().max()))
    print(json.dumps(found))


def test_each_channel_solves_its_own_system() -> None:
    from shared.forked import script

    done = script(Path(__file__))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 16 and all(e < 1e-5 for e in found), found


def test_explain_says_why_sequences_are_not_cut_into_segments() -> None:
    from shared.op_cases import compiled as catalogue
    from shared.triton_errors import compiled

    from chunkform.codegen.recurrence.explain import segments_reason

    reason = segments_reason(compiled("value_strengths"))
    assert reason is not None and "a strength for each channel of e" in reason and "a matrix of its own" in reason
    assert segments_reason(compiled("value_strengths_momentum")) == "M and S are added to each other"
    assert segments_reason(catalogue("gated_delta_rule")) is None


def test_what_waits_for_a_system_is_added_first_whatever_quantities_are_called() -> None:
    """Else a tile of each slice of the state is held while all channels take one step after the other; a kernel that held these
    at 128 channels reached outside of memory on an H200."""
    import re

    from chunkform.codegen.recurrence.pipeline import compile_spec
    from chunkform.codegen.recurrence.triton import triton_source
    from chunkform.spec.language import Recurrence, hadamard, normalize, sigmoid

    for query, strength, decay in (("q", "b", "a"), ("q", "b", "g"), ("z", "b", "g")):
        r = Recurrence("renamed")
        d, e = r.dims("d e")
        q, k = r.inputs(query, d), r.inputs("k", d)
        v, b, a = r.inputs("v", e), r.inputs(strength, e), r.decay(decay)
        S = r.state("S", d, e)
        key = normalize(k)
        r.update(S, a * S.prev + key * hadamard(sigmoid(b), v - a * S.prev.T * key).T)
        r.output("o", S.next.T * q)
        text = triton_source(compile_spec(r))
        (sweep,) = re.findall(r"def backward_sweep_2\(.*?(?=^@triton)", text, re.MULTILINE | re.DOTALL)
        assert sweep.index("channel_solve(") < sweep.index(f"tl.load({query}_p +"), (query, strength, decay)


if __name__ == "__main__":
    main()
