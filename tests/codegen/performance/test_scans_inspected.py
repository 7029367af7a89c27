"""What `inspect` compiles of scans: launches for the maps of segments, those that scan these, and those over whole sequences."""

from __future__ import annotations

from chunkform.codegen.performance.compile_report import generated_module, launches_of
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.spec.language import Max, Recurrence, hadamard


def test_a_scan_is_launched_over_segments_and_over_whole_sequences():
    r = Recurrence("peaks")
    d = r.dims("d")
    x, a = r.inputs("x", d), r.decay("a", d)
    h = r.state("h", d)
    r.update(h, Max(hadamard(a, h.prev), x))
    r.output("y", h.next)
    c = compile_spec(r)
    found = launches_of(c, generated_module(c), "bfloat16", 64)
    scans = {(x.kernel.fn.__name__, x.options["RESULTS"], x.options["STAGES"]) for x in found if "RESULTS" in x.options}
    names = {name for name, *_ in scans}
    assert {name.partition("_")[0] for name in names} == {"forward", "backward"}
    assert scans == {(n, *which) for n in names for which in ((False, 3), (True, 3), (True, 4))}
    joined = {(x.options["KIND"], x.options["FORWARD"]) for x in found if x.kernel.fn.__name__ == "scanned_kernel"}
    assert joined == {("maximum", True), ("affine", False)}
