"""Kernels are proved where there is no Triton, too: what they call is read with a stand-in, of which nothing is left."""

from shared.forked import code

CODE = """
import sys
sys.modules["triton"] = None
import chunkform
from chunkform.codegen.recurrence.backends import triton_section
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.codegen.exact.runtime_source import module_of
from chunkform.spec.language import find

for name in ("delta_rule", "gated_linear_attention"):
    assert triton_section(compile_spec(find(name)[0]))
assert sys.modules["triton"] is None
assert not [n for n in sys.modules if n.startswith(("triton.", "chunkform.runtime.chunk_kernels.decays"))]
try:
    module_of("chunkform.runtime.nothing")
except ModuleNotFoundError as error:
    print(error.name)
"""


def test_kernels_are_proved_without_triton() -> None:
    done = code(CODE)
    assert done.stdout.strip() == "chunkform.runtime.nothing", done.stderr
