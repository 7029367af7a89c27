"""What surrounds an op in models of transformers, on its kernels in Triton's interpreter, beside the library: as JSON.

The ops themselves run in torch. By `shared.forked`: errors of logits, of every gradient, and whether generated tokens are equal.
"""

import json
import sys

import torch
from shared.tiny_models import differences, greedy, tiny, tokens, trained

from chunkform.integrations.transformers import enable, functions, layers
from chunkform.runtime.nn import convolve, rows

used = set()


def noting(name, made):
    def called(*given, **options):
        used.add(name)
        return made(*given, **options)

    return called


def yes(*_):
    return True


for module, name in ((convolve, "on_kernels"), (functions, "on_kernels"), (rows, "in_kernels"), (layers, "in_kernels")):
    setattr(module, name, yes)
for name in ("convolved", "convolution_gradients"):
    setattr(convolve, name, noting(name, getattr(convolve, name)))
functions.convolve_step = noting("step", functions.convolve_step)
rows.row_map = (lambda found: lambda name: noting(name, found(name)))(rows.row_map)

found = {}
for model_name in sys.argv[1:]:
    used.clear()
    model, ids = tiny(model_name), tokens(1, 11)
    before, text = trained(model, ids), greedy(model, ids[:, :5], 3)
    with enable(model):
        after, same = trained(model, ids), greedy(model, ids[:, :5], 3)
    apart = differences(before, after)
    worst = max(apart, key=apart.get)
    found[model_name] = [apart[worst], worst, torch.equal(text, same), sorted(used)]
print(json.dumps(found))
