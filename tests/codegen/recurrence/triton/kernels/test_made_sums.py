"""A prologue kernel that makes the sums of a decay itself: it stores those of whole chunks, and how far they reach."""

from dataclasses import replace

from shared.passed import instead
from shared.triton_errors import compiled

from chunkform.codegen.ir.kernel_ir import KernelFunction, Let, Store, statements
from chunkform.codegen.recurrence.triton import section


def test_how_far_sums_reach_is_found_from_those_of_whole_chunks() -> None:
    """One number for each channel: a decay is at most one, and so the sums of a chunk are lowest at its end."""
    found: dict[str, KernelFunction] = {}
    with instead(section, gate_over_chunks=lambda k, f: found.setdefault(k.name, f[0])):
        section.made_form(replace(compiled("gated_linear_attention")), exchanges=False)
    body = [*statements(found["forward_prologue_1"].body)]
    ends = [x.value.text for x in body if isinstance(x, Store) and x.pointer.text.startswith("alpha_sums + step")]
    reach = [x.value.text for x in body if isinstance(x, Let) and x.names[0] in ("alpha_most", "alpha_least")]
    assert ends == ["alpha_a_end", "sums"]  # and all sums, of chunks of a large decay range
    assert sum("axis=0" in x for x in reach) == 2 and not any("axis=1" in x for x in reach)
    assert all("alpha_a_end" in x for x in reach if "axis" in x)
