"""Runs programs' Triton kernels in Triton's interpreter, which must be chosen before Triton is imported: in a process of its own.

TRITON_INTERPRET=1 python interpret.py      # prints {case: {quantity: relative error}} as JSON
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from shared.program_specs import PROGRAMS

from chunkform.codegen.commands.program_kind import generated_module
from chunkform.codegen.programs.check import named, run
from chunkform.codegen.programs.compiled import CompiledProgram
from chunkform.codegen.programs.oracle import oracle, sample
from chunkform.codegen.programs.pipeline import compile_program
from chunkform.codegen.recurrence.check import error_of
from chunkform.codegen.recurrence.samples import Case
from chunkform.runtime.launch import replay
from chunkform.spec.language.load import CATALOGUE, load

CATALOGUED = ("mesa_net", "mesa_neumann")


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
        ("forgetting", PROGRAMS["forgetting"](), Case(batch=1, steps=37, heads=2, width=8, initial=False)),
        ("cg", PROGRAMS["cg"](), Case(batch=2, steps=3, heads=1, width=8, initial=False)),
    ):
        c = compile_program(p)
        s = sample(c, case)
        got, _ = run(c, getattr(module_of(c), c.name), s, "triton")
        keys = {v.name: f"log_{v.name}" if v.is_decay else v.name for v in c.step.variables}
        expected = named(keys, oracle(c, s.given, s.states, s.constants, s.cotangents, s.final_cotangents))
        found[name] = {n: error_of(c.step, n, x, expected[n]) for n, x in got.items()}
    return found | {f"replayed {n}": replayed(n) for n in ("mesa_net", "mesa_neumann")}


def module_of(c: CompiledProgram) -> ModuleType:
    """The file of the catalogue, which another test compares with what is printed now, or one that is printed for this."""
    return importlib.import_module(f"chunkform.generated.{c.name}") if c.name in CATALOGUED else generated_module(c)


def replayed(name: str) -> dict[str, float]:
    """What a replay makes of other numbers, beside a call that isn't one; fresh memory is full of NaN."""
    c = compile_program(load(CATALOGUE / f"{name}.py")[0])
    module = module_of(c)
    module.OP.known.clear()  # of other calls
    first, other = (sample(c, Case(batch=1, steps=12, heads=1, width=16, seed=seed)) for seed in (0, 1))

    def call(s):
        return run(c, getattr(module, name), s, "triton")[0]

    replay.ON = False
    expected = call(other)
    replay.ON = True
    for _ in range(2):
        call(first)
    (known,) = module.OP.known.values()
    assert [type(x) for x in known.call.replays.values()] == [replay.Recorded] * 2
    own = replay.room
    replay.room = lambda *given: (x := own(*given)).fill_(float("nan") if x.is_floating_point() else 255)
    try:
        got = call(other)
    finally:
        replay.room = own
    return {n: float(not torch.equal(x, got[n])) for n, x in expected.items()}


if __name__ == "__main__":
    print(json.dumps(main()))
