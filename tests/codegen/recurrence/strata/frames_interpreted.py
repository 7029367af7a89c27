"""Runs kernels of a spec in Triton's interpreter, whole and packed: prints errors by name as JSON.

TRITON_INTERPRET=1 python frames_interpreted.py SPECS NAME
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import chunkform
from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.spec.language import load


def main(specs: str, name: str) -> dict[str, float]:
    r = next(r for r in load(Path(specs)) if r.name == name)
    c, op = compile_spec(r), chunkform.compile(r)
    errors = {}
    for case in (Case(batch=1, heads=1, steps=70, width=16), Case(heads=1, steps=40, width=16, packed="several")):
        errors |= {f"{x.quantity} {case.packed}": x.error for x in check_op(c, op, case, "triton")}
    return errors


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
