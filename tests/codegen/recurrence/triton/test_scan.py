"""Scans in Triton's interpreter, against the torch form in float64: in parts, and over packed sequences."""

import json
from pathlib import Path

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


def main():
    """Prints the largest error of outputs, last states and gradients: whole, in parts, and packed. In a process of its own, as
    Triton's interpreter is chosen before Triton is imported."""
    import chunkform
    from chunkform.codegen.checking.accuracy import relative_error
    from chunkform.runtime.chunk_kernels import elementwise_scan as scan

    op, segments_for = chunkform.compile(spec()), scan.segments_for
    vectors, numbers = (1, STEPS, HEADS, WIDTH), (1, STEPS, HEADS)
    found = []
    for parts, bounds in ((1, None), (2, None), (1, (0, 37, 37, 41, STEPS))):
        torch.manual_seed(parts)
        given = {n: torch.randn(vectors) / 2 for n in ("width", "edge")} | {
            "b": torch.rand(numbers),
            "whole": torch.randn(HEADS, WIDTH),
        }
        given |= {"log_lam": -torch.rand(numbers), "log_g": -3 * torch.rand(vectors)}
        count = 1 if bounds is None else len(bounds) - 1
        start = [torch.randn(count, HEADS, *size) for size in ((WIDTH,), (WIDTH,), (WIDTH,), ())]
        incoming = [torch.randn(vectors), torch.randn(vectors), *(torch.randn_like(x) for x in start)]
        packed = {} if bounds is None else {"cu_seqlens": torch.tensor(bounds)}

        def both(backend, dtype, given=given, start=start, incoming=incoming, packed=packed):
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


def test_scans_agree_with_the_torch_form():
    from shared.forked import script

    done = script(Path(__file__))
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 3 and all(e < 1e-5 for e in found), found


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
