"""Row maps in Triton's interpreter beside their definition, as JSON: what misses its bound. By `shared.forked`."""

import importlib
import json

import torch

from chunkform.codegen.recurrence.check import check_op
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.recurrence.samples import Case
from chunkform.spec.language.load import row_maps

CASES = [Case(seed=0, steps=37, width=20), Case(seed=1, steps=3, batch=1, heads=1, width=70), Case(seed=2, steps=1)]

found = {}
for m in row_maps():
    op = getattr(importlib.import_module("chunkform.generated.rows"), m.name)
    for case in CASES:
        for dtype in (torch.float32, torch.float16):
            given = Case(**{**vars(case), "dtype": dtype})
            rows = check_op(compile_spec(m), op, given, backend="triton")
            found |= {f"{m.name} {r.quantity} {dtype} {case.seed}": r.error for r in rows if not r.ok}
            found[f"{m.name} tried"] = len(rows)
print(json.dumps(found))
