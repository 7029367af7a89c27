"""Runs kernels over segments of a sequence in Triton's interpreter, in a process of its own: prints errors by name as JSON.

TRITON_INTERPRET=1 python segments_interpreted.py SPECS NAME FOLDER
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import torch

from chunkform.codegen.checking.accuracy import relative_error
from chunkform.codegen.recurrence.definition import defined
from chunkform.codegen.recurrence.emit import emit
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case, sample
from chunkform.runtime.launch.varlen import Packed
from chunkform.spec.language import load


def main(specs: str, name: str, folder: str) -> dict[str, float]:
    c = compile_spec(next(r for r in load(Path(specs)) if r.name == name))
    path = Path(folder, f"{name}.py")
    path.write_text(emit(c, tidy=False))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    errors = {}
    steps = 66 if c.step.states[0].axes[1:] else 400  # a vector's map takes a run for each entry
    for case in (Case(steps=steps, width=4, decay="extreme"), Case(steps=steps, heads=1, width=4, packed="several")):
        s = sample(c, case)
        packed = None
        if case.lengths:
            starts = torch.tensor((0, *case.lengths)).cumsum(0)
            packed = Packed(starts, len(case.lengths), case.steps)
        outputs, finals, saved = module.triton_forward(s.given, s.states, s.constants, packed)
        assert any(n.startswith("map ") for n in saved)
        needs = frozenset({*s.given, *s.states})
        gradients, first = module.triton_backward(
            s.given, s.states, s.constants, saved, s.cotangents, s.final_cotangents, needs, packed
        )
        found = outputs | {f"final {n}": x for n, x in finals.items()} | {f"d{n}": x for n, x in gradients.items()}
        found |= {f"d initial {n}": x for n, x in first.items()}
        exact = defined(c, s, case.lengths) if case.lengths else defined(c, s)
        errors |= {f"{n} {case.packed}": float(relative_error(x, exact[n], None)) for n, x in found.items()}
    return errors


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
