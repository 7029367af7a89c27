"""The examples that use the layers: the language model, and the comparison of recurrences."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def char_lm():
    spec = importlib.util.spec_from_file_location("char_lm_example", EXAMPLES / "char_lm.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("op", ["gated_delta_rule", "gradient_descent_squared_momentum"])
def test_generation_gives_the_logits_of_the_whole(char_lm, op):
    torch.manual_seed(0)
    model = char_lm.CharacterModel(op, 17, width=16, heads=2, blocks=2).double()
    codes = torch.randint(17, (2, 9))
    with torch.no_grad():
        whole = model(codes)
        logits, caches = model.prefill(codes[:, :4])
        for t in range(4, 9):
            assert torch.allclose(logits, whole[:, t - 1], atol=1e-9)
            logits, caches = model.step(codes[:, t], caches)
        assert torch.allclose(logits, whole[:, -1], atol=1e-9)


def test_a_model_learns(char_lm):
    """A text that repeats every seven characters is known after a few steps."""
    torch.manual_seed(0)
    codes = torch.arange(6000) % 7
    text = char_lm.Text(codes[:5000], codes[5000:], "abcdefg?", "a test")
    model = char_lm.CharacterModel("delta_rule", 8, width=16, heads=2, blocks=1)
    seen = list(char_lm.train(model, text, 60, batch=4, length=32, rate=1e-2, every=20))
    assert [p.step for p in seen if p.held_out is not None] == [20, 40, 60]
    assert seen[-1].held_out < 0.2 < seen[0].training
    assert char_lm.sample(model, text, "abcd", 3, temperature=0.1) == "abcdefg"


@pytest.mark.long
def test_the_comparison_of_recurrences(tmp_path):
    words = [sys.executable, str(EXAMPLES / "compare_recurrences.py"), "--out", str(tmp_path), "--steps", "2"]
    words += ["--text", str(EXAMPLES / "char_lm.py"), "--ops"]
    for more in (
        ["retention", "delta_rule"],
        ["--earlier", str(tmp_path / "compare.json")],
    ):  # trained, then shown again
        done = subprocess.run([*words, *more], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    page, plot = (tmp_path / "compare.md").read_text(), (tmp_path / "compare.svg").read_text()
    models = json.loads((tmp_path / "compare.json").read_text())["models"]
    for m in models:
        assert f"| {m['op']} |" in page and f"{m['op']} writes" in page
        assert m["text"].startswith("def main(") and len(m["text"]) == 409
        assert m["progress"][-1]["held_out"] > 0
    assert [m["op"] for m in models] == ["retention", "delta_rule"]
    assert "<svg" in plot
