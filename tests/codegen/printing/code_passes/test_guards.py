"""Whatever kernels of each step store and load under the guard of another gradient is refused. An argument that is missing only
where all that is made of it is needs nothing that stands for it."""

from dataclasses import replace
from pathlib import Path

import pytest
from shared.passed import instead

from chunkform.codegen.ir.code import Binary, Name
from chunkform.codegen.ir.kernel_ir import If, KernelFunction, assigned, reads
from chunkform.codegen.printing.code_passes.passes import KERNEL_PASSES
from chunkform.codegen.recurrence.emit import emit
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.triton import section
from chunkform.codegen.recurrence.triton.gates.kernel_gate import gate_kernel
from chunkform.codegen.recurrence.triton.kernels.elementwise_scan import ScanKernel
from chunkform.codegen.recurrence.triton.kernels.per_step import RowKernel, sometimes
from chunkform.errors import GateError
from chunkform.spec.language import find, load

Made = list[tuple[RowKernel, KernelFunction]]
SPECS = Path(__file__).parents[2] / "specs"


@pytest.fixture(scope="module")
def made() -> Made:
    """Per-step kernels, most of several gradients, as passes have made them."""
    found: Made = []
    with instead(section, gate_kernel=lambda k, f: found.append((k, f))):
        for r in (*load(SPECS / "signed.py"), *find("retention")):
            emit(compile_spec(r), tidy=False)
    return [(k, f) for k, f in found if isinstance(k, RowKernel) and not isinstance(k, ScanKernel)]


def gradients_of(k: RowKernel) -> dict[str, frozenset[str]]:
    """For which gradients each argument that may be missing is given."""
    uses = sometimes(k.results)
    found = {f"{r.name}_out": frozenset({r.wanted}) for r in k.results if r.wanted is not None}
    for base, _, x in k.leaves:
        own = frozenset(uses[x.attrs[:2]] or ())
        found |= dict.fromkeys(k.function.optional & {f"{base}_p", f"{base}_sums"}, own)
    return found


def guards(f: KernelFunction) -> dict[str, If]:
    """The statements under guards, by the argument that has to be given."""
    found = {}
    for x in f.body:
        if isinstance(x, If) and isinstance(x.condition, Binary) and isinstance(x.condition.left, Name):
            found[x.condition.left.id] = x
    return found


def test_the_guard_of_another_gradient_is_refused(made):
    tried = 0
    for k, f in made:
        given, own = gradients_of(k), guards(f)
        gate_kernel(k, f)
        for a, x in own.items():
            for b, other in own.items():
                wrong = replace(f, body=tuple(replace(y, condition=other.condition) if y is x else y for y in f.body))
                if given[a] == given[b]:
                    gate_kernel(k, wrong)  # they are given, or missing, together
                else:
                    tried += 1
                    with pytest.raises(GateError):
                        gate_kernel(k, wrong)
    assert tried > 100


def test_what_falls_back_is_needed_where_something_else_is_made_of_it(made):
    """A guard may hold the fallback as well, as it does when `guarded` comes before `falling_back`, where guards of the same
    gradients hold all that read it: then nothing reads it where it is missing. Else the gate refuses it."""
    needed: dict[str, bool] = {}
    for k, f in made:
        wrong, given, own = guarded_first(k.function), gradients_of(k), guards(f)
        loads = {
            n: given[a]
            for a, x in own.items()
            if not a.endswith("_out")
            for n in frozenset().union(*map(assigned, x.body))
        }
        under = {id(x): given[a] for a, x in own.items()}
        needed[f.name] = any(n in reads(x) and under.get(id(x)) != g for n, g in loads.items() for x in f.body)
        if needed[f.name]:
            with pytest.raises(GateError):
                gate_kernel(k, wrong)
        else:
            gate_kernel(k, wrong)
    assert not needed["backward_per_step_5"] and needed["backward_per_step_1"]


def guarded_first(f: KernelFunction) -> KernelFunction:
    for name in ("in_slices", "guarded", "falling_back"):
        f = next(p for p in KERNEL_PASSES if p.name == name).run(f)
    return f
