"""What surrounds an op in a layer runs on kernels: convolution, norms and gates, forwards, backwards and in steps."""

import json
from pathlib import Path

import pytest
from shared.forked import script

pytest.importorskip("transformers", minversion="5.17")
EVERYWHERE = {"convolved", "convolution_gradients", "step", "unit"}
MAPS = {
    "qwen3_5": EVERYWHERE | {"gated_rms_norm"},
    "bamba": {"convolved", "convolution_gradients", "step", "gate_first_rms_norm"},
    "glm5_next": EVERYWHERE | {"sigmoid_gated_rms_norm", "bounded_decay"},
    "kimi_linear": EVERYWHERE | {"sigmoid_gated_rms_norm", "softplus_decay"},
}


LONG = ("glm5_next", "kimi_linear")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n in LONG)) for n in MAPS])
def test_models_are_the_librarys_with_kernels_around_the_op(name):
    done = script(Path(__file__).parent / "around_interpreted.py", name)
    assert done.returncode == 0, done.stderr
    error, tensor, same, used = json.loads(done.stdout.splitlines()[-1])[name]
    assert error < 1e-5, tensor
    assert same
    assert set(used) == MAPS[name]
