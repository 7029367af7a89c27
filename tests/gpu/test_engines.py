"""The functions of vLLM's and SGLang's names on a GPU: the tests of tests/integrations/engines, with every tensor there."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

ONLY_ON_A_CPU = (
    "mistake",
    "named",
    "debug",
    "given_once",
    "without_tokens",
)  # of errors, which are looked for there alone


def _module(name: str) -> ModuleType:
    path = Path(__file__).parents[1] / "integrations" / "engines" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_on_a_cpu", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


for _file in ("test_engines", "test_engine_calls"):
    for _name, _test in vars(_module(_file)).items():
        if _name.startswith("test_") and not any(x in _name for x in ONLY_ON_A_CPU):
            globals()[_name] = _test


@pytest.fixture(autouse=True)
def on_gpu():
    """Tensors that a test makes are on the GPU."""
    with torch.device("cuda"):
        yield
