"""Errors of kernels in Triton's interpreter, whose products of float32 are those of tensor cores.

TRITON_INTERPRET=1 python divided.py NAME STEPS WIDTH SEED     # prints (error, that of the definition) of each quantity as JSON
"""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))

from shared import tensor_cores  # noqa: F401
from shared.triton_errors import errors

from chunkform.codegen.recurrence.samples import Case

name, *numbers = sys.argv[1:]
steps, width, seed = map(int, numbers)
rows = errors(name, Case(batch=1, steps=steps, heads=2, width=width, seed=seed), torch.float32)
print(json.dumps({r.quantity: (r.error, r.definition) for r in rows}))
