"""Scans in Triton's interpreter, against the torch form in float64: in parts, and over packed sequences."""

import json
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

STEPS, HEADS, WIDTH = 140, 1, 5


def spec():
    """Factors of either sign, a factor for all entries, a state that another reads, numbers, and a parameter; under names that a
    kernel might use itself."""
    from chunkform.spec.language import Recurrence, hadamard, tanh

    r = Recurrence("signed")
    d = r.dims("d")
    x, a = r.inputs("width edge", d)
    b = r.inputs("b")
    w = r.parameter("whole", d)
    lam = r.decay("lam")
    g = r.decay("g", d)
    h, m, z, n = r.state("h", d), r.state("m", d), r.state("z", d), r.state("n")
    r.update(h, hadamard(tanh(a + w), h.prev) + x)
    r.update(m, lam * (m.prev + hadamard(h.prev, h.next)))
    r.update(z, hadamard(g, z.prev) + b * x)
    r.update(n, b * n.prev + lam)
    r.output("o", hadamard(m.next, a) + n.next * z.prev)
    r.output("p", z.next)
    return r


def kinds():
    """States of each kind of maps that compose, of numbers and of channels."""
    from chunkform.spec.language import Max, Min, Recurrence, exp, hadamard, log, sigmoid

    r = Recurrence("kinds")
    d = r.dims("d")
    x, a = r.inputs("width edge", d)
    b, w = r.inputs("b"), r.parameter("whole", d)
    lam, g = r.decay("lam"), r.decay("g", d)
    h, m, z, n = r.state("h", d), r.state("m", d), r.state("z", d), r.state("n")
    r.update(h, Max(hadamard(g, h.prev) + x, a))
    r.update(m, Min(m.prev + a + w, x))
    r.update(z, log(exp(z.prev + x) + exp(a)))
    noise = sigmoid(b) + lam * n.prev
    r.update(n, noise / (1 + noise))
    r.output("o", hadamard(h.next, a) + n.next * m.prev)
    r.output("p", z.next + h.prev)
    return r


def angles():
    """Sums of angles that begin with many turns, so that float32 would round them to some 1e-4; before and after each step."""
    from chunkform.spec.language import Recurrence, cos, hadamard, sin

    r = Recurrence("angles")
    d = r.dims("d")
    x, a = r.inputs("width edge", d)
    b, w = r.inputs("b"), r.parameter("whole", d)
    lam, g = r.decay("lam"), r.decay("g", d)
    h, m, z, n = r.state("h", d), r.state("m", d), r.state("z", d), r.state("n")
    r.update(h, h.prev + x)
    r.update(m, m.prev + w)
    r.update(z, hadamard(g, z.prev) + cos(h.prev + a))
    r.update(n, n.prev + b)
    r.output("o", hadamard(cos(h.prev), sin(2 * m.next)) + lam * sin(n.next) * x)
    r.output("p", z.next + cos(n.prev) * a)
    return r


def costly():
    """Maps and outputs of more functions than a scan computes."""
    from chunkform.spec.language import Recurrence, cos, exp, hadamard, sigmoid, sin, softplus, tanh

    r = Recurrence("costly")
    d = r.dims("d")
    x, a = r.inputs("width edge", d)
    b, w = r.inputs("b"), r.parameter("whole", d)
    lam, g = r.decay("lam"), r.decay("g", d)
    h, m, z, n = r.state("h", d), r.state("m", d), r.state("z", d), r.state("n")
    many = hadamard(hadamard(sigmoid(x), softplus(a)), hadamard(tanh(w), hadamard(cos(x), sin(a))))
    r.update(h, hadamard(exp(-softplus(a)), h.prev) + hadamard(many, hadamard(tanh(x + w), sin(x + a) + cos(w + a))))
    r.update(m, lam * m.prev + hadamard(h.prev, many))
    r.update(z, hadamard(g, z.prev) + b * x)
    r.update(n, b * n.prev + sigmoid(b))
    r.output("o", hadamard(m.next, many) + n.next * hadamard(z.prev, cos(a)))
    r.output("p", z.next + tanh(h.next))
    return r


def main():
    """Prints the largest error of outputs, last states and gradients: whole, in parts, and packed. In a process of its own, as
    Triton's interpreter is chosen before Triton is imported."""
    import chunkform
    from chunkform.codegen.checking.accuracy import relative_error
    from chunkform.runtime.chunk_kernels import elementwise_scan as scan

    ops, segments_for = [chunkform.compile(x()) for x in (spec, kinds, costly, angles)], scan.segments_for
    scan.AT_ONCE = 2  # of the maps of segments
    vectors, numbers = (1, STEPS, HEADS, WIDTH), (1, STEPS, HEADS)
    found = []
    for op, parts, bounds in product(ops, map(int, sys.argv[1:]), (None, (0, 37, 37, 41, STEPS))):
        if parts > 1 and bounds is not None:
            continue
        torch.manual_seed(parts)
        given = {n: torch.randn(vectors) / 2 for n in ("width", "edge")} | {
            "b": torch.rand(numbers),
            "whole": torch.randn(HEADS, WIDTH),
        }
        given |= {"log_lam": -torch.rand(numbers), "log_g": -3 * torch.rand(vectors)}
        count = 1 if bounds is None else len(bounds) - 1
        start = [torch.randn(count, HEADS, *size) for size in ((WIDTH,), (WIDTH,), (WIDTH,))]
        start.append(torch.rand(count, HEADS))
        start = [4096 * x for x in start] if op is ops[-1] else start
        incoming = [torch.randn(vectors), torch.randn(vectors), *(torch.randn_like(x) for x in start)]
        packed = {} if bounds is None else {"cu_seqlens": torch.tensor(bounds)}

        def both(backend, dtype, op=op, given=given, start=start, incoming=incoming, packed=packed):
            leaves = {n: x.to(dtype).requires_grad_() for n, x in given.items()}
            states = [x.to(dtype).requires_grad_() for x in start]
            *outputs, last = op(**leaves, initial_state=states, output_final_state=True, backend=backend, **packed)
            results = [*outputs, *last]
            wanted = [*leaves.values(), *states]
            return *results, *torch.autograd.grad(results, wanted, [x.to(dtype) for x in incoming])

        scan.segments_for = lambda *_, parts=parts: parts
        made = both("triton", torch.float32)
        scan.segments_for = segments_for
        exact = both("torch", torch.float64)
        axes = [2, 2, 1, 1, 1, 1, *(0 if n == "whole" else 2 for n in given), 1, 1, 1, 1]
        found.append(max(relative_error(x, y, axis) for x, y, axis in zip(made, exact, axes, strict=True)))
    print(json.dumps(found))


@pytest.mark.parametrize("parts", ["3", pytest.param("1 2 4", marks=pytest.mark.long)])
def test_scans_agree_with_the_torch_form(parts):
    from shared.forked import script

    done = script(Path(__file__), *parts.split())
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == (16 if "1" in parts else 4) and all(e < 1e-5 for e in found), found


if __name__ == "__main__":
    main()


def test_what_a_scan_loads_in_any_case_it_is_given_in_any_case():
    """The state of another scan is in its factor, and in the gradient of a decay, which may not be wanted."""
    from chunkform.codegen.ir.launch_ir import Launch, statements
    from chunkform.codegen.recurrence.pipeline import compile_spec
    from chunkform.codegen.recurrence.triton import triton_form
    from chunkform.spec.language import Recurrence, hadamard

    r = Recurrence("factors_of_states")
    d = r.dims("d")
    x, y = r.inputs("x y", d)
    lam, mu = r.decay("lam"), r.decay("mu", d)
    m, S = r.state("m", d), r.state("S", d)
    r.update(m, lam * m.prev + x)
    r.update(S, hadamard(mu, hadamard(m.prev, S.prev)) + y)
    r.output("o", S.next)
    body = triton_form(compile_spec(r)).functions["triton_backward"].body
    scans = [x for x in statements(body) if isinstance(x, Launch) and x.kernel == "backward_scan_3"]
    assert scans
    for scan in scans:
        given = {n: a.wanted for a in scan.arguments for n in a.value.names}
        assert given["m_before_"] is None and given["S_before_"] == frozenset({"mu"})


def test_a_state_that_forgets_itself_hands_on_what_it_reads_of_another():
    """Its whole update is what is added to it, and is no value that a later kernel finds in memory."""
    from chunkform.codegen.recurrence.pipeline import compile_spec
    from chunkform.codegen.recurrence.triton import triton_source
    from chunkform.spec.language import Recurrence, dot

    r = Recurrence("forgets_itself")
    d = r.dims("d")
    x, k = r.inputs("x k", d)
    c, lam = r.inputs("c"), r.decay("lam")
    R, h = r.state("R"), r.state("h", d)
    r.update(R, c * dot(h.prev, k) + 1)
    r.update(h, lam * h.prev + x)
    r.output("o", h.next)
    assert "h_before_ = " in triton_source(compile_spec(r))  # whose gate refuses what nothing has assigned


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_a_scan_computes_few_functions(backward, monkeypatch):
    """It has one warp, and what it holds of many values spills; kernels of many warps make them, and it loads them."""
    from chunkform.codegen.recurrence.pipeline import compile_spec
    from chunkform.codegen.recurrence.triton.launch import elementwise_scan
    from chunkform.codegen.recurrence.triton.launch.elementwise_scan import FUNCTIONS, ScanHost, functions

    def most() -> int:
        host = ScanHost(compiled, backward)
        host.function_ir()
        found = [x for x in host.kernels if x.sweeps]
        return max(functions([*x.entry.printed, *(r.node for r in x.results)]) for x in found)

    compiled = compile_spec(costly())
    assert most() <= FUNCTIONS
    monkeypatch.setattr(elementwise_scan, "FUNCTIONS", 1000)
    assert most() > FUNCTIONS


def scans_of_kinds():
    """The kernels of all kinds that scan forwards, and the function that launches them."""
    from chunkform.codegen.recurrence.pipeline import compile_spec
    from chunkform.codegen.recurrence.triton.launch.elementwise_scan import ScanHost

    host = ScanHost(compile_spec(kinds()), False)
    function = host.function_ir()
    found = [k for k in host.kernels if k.sweeps]
    assert {k.kind for k in found} == {"maximum", "minimum", "logaddexp", "rational"}
    return found, function


def test_scans_of_every_kind_are_cut_into_segments():
    """Each is launched for the maps of segments, which are scanned, and for what is made of each step."""
    from chunkform.codegen.ir.launch_ir import Call, Launch, statements

    kernels, function = scans_of_kinds()
    launched = [x for x in statements(function.body) if isinstance(x, Launch) and x.kernel in {k.name for k in kernels}]
    assert sorted(x.kernel for x in launched) == sorted(k.name for k in kernels for _ in range(2))
    calls = [x for x in statements(function.body) if isinstance(x, Call) and x.function == "scanned"]
    assert [x.arguments[0].text.strip('"') for x in calls] == [k.kind for k in kernels]


def test_a_wrong_map_of_a_segment_is_refused():
    """As where the rounds of a segment are composed in the wrong order, or all but the last are left out."""
    from dataclasses import replace

    import pytest

    from chunkform.codegen.ir.code import Call
    from chunkform.codegen.ir.kernel_ir import Let, changed
    from chunkform.codegen.recurrence.triton.gates.kernel_gate import gate_kernel
    from chunkform.codegen.recurrence.triton.section import functions_of
    from chunkform.errors import GateError

    for k in scans_of_kinds()[0]:

        def swapped(x, kind=k.kind):
            if isinstance(x, Let) and isinstance(x.value, Call) and x.value.function == f"{kind}_then":
                half = len(x.value.arguments) // 2
                arguments = (*x.value.arguments[half:], *x.value.arguments[:half])
                return (replace(x, value=replace(x.value, arguments=arguments)),)
            return (x,)

        def left_out(x, kind=k.kind):
            composes = isinstance(x, Let) and isinstance(x.value, Call) and x.value.function == f"{kind}_then"
            return () if composes else (x,)

        (f,) = functions_of(k)  # which the gate has passed
        for wrong in (swapped, left_out):
            with pytest.raises(GateError, match="a segment's map"):
                gate_kernel(k, replace(f, body=changed(f.body, wrong)))
