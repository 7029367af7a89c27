"""Runs programs' Triton kernels in Triton's interpreter, which must be chosen before Triton is imported: in a process of its own.

TRITON_INTERPRET=1 python interpret.py      # prints {case: {quantity: relative error}} as JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from programs.conftest import PROGRAMS

from chunkform.codegen.check import Case, relative_error
from chunkform.codegen.programs.check import _named, run
from chunkform.codegen.programs.kind import generated_module
from chunkform.codegen.programs.oracle import oracle, sample
from chunkform.codegen.programs.pipeline import compile_program
from chunkform.spec.language.load import CATALOGUE, load


def main() -> dict[str, dict[str, float]]:
    found = {}
    for name, p, case in (
        ("mesa_net", load(CATALOGUE / "mesa_net.py")[0], Case(batch=1, steps=70, heads=1, width=16, seed=1)),
        (
            "float16 mesa_net",
            load(CATALOGUE / "mesa_net.py")[0],
            Case(batch=1, steps=3, heads=1, width=36, seed=3, initial=False, dtype=torch.float16),
        ),
        ("two solves", PROGRAMS["two solves"](), Case(batch=1, steps=5, heads=2, width=17, initial=False)),
        ("cg", PROGRAMS["cg"](), Case(batch=2, steps=3, heads=1, width=8, initial=False)),
    ):
        c = compile_program(p)
        s = sample(c, case)
        got, _ = run(c, getattr(generated_module(c), c.name), s, "triton")
        keys = {v.name: f"log_{v.name}" if v.is_decay else v.name for v in c.step.variables}
        expected = _named(keys, oracle(c, s.given, s.states, s.constants, s.cotangents, s.final_cotangents))
        found[name] = {n: relative_error(x, expected[n]) for n, x in got.items()}
    return found


if __name__ == "__main__":
    print(json.dumps(main()))
