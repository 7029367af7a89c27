"""Type checkers accept what the documentation does, from an installed wheel, and see what is wrong."""

import builtins
import json
import os
import re
import subprocess
import symtable
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TORCHS_OWN = re.compile(r"(from module|Module) .torch[\w.]*.")  # what torch exports, but doesn't say so
# What is short on purpose in recipes and tutorials: functions, whose bodies are checked, and what a loop has left.
BRIEF = re.compile(r"missing a (return )?type annotation|untyped (context|function)|is possibly unbound")
LARGE = "sympy mpmath networkx numpy triton transformers matplotlib".split()
# Parts of torch that no type of the documentation comes from; pyright reads all of it.
LARGE += [
    f"torch.{x}"
    for x in "_inductor _dynamo _functorch _higher_order_ops _export _decomp _prims _prims_common _refs _subclasses _library "
    "_logging ao backends compiler cpu distributed distributions export fft func futures fx hub jit library linalg masked "
    "monitor mps mtia multiprocessing nested onnx overrides package profiler quantization sparse special testing xpu".split()
]
CACHE = os.environ["CHUNKFORM_CACHE"]  # which later runs share

# What a checker must see: (a name for the test, code, what each line that is marked with ! is)
WRONG = """import torch
from chunkform.generated import gated_delta_rule, mesa, retention, softmax_attention
from chunkform.runtime.nn import Mixer
import chunkform

q = torch.randn(1, 8, 2, 4)
g = torch.rand(1, 8, 2)
gated_delta_rule(q, q, q, g)  # !
gated_delta_rule(q, q, q, g, -g, backend="cuda")  # !
gated_delta_rule(q, q, q, g, log_alfa=-g)  # !
a, b, c = gated_delta_rule(q, q, q, g, -g)  # !
gated_delta_rule(q, q, q, g, -g).final_state.shape  # !
gated_delta_rule(q, q, q, g, -g).out  # !
softmax_attention(q, q, q).lse  # !
softmax_attention(q, q, q, None, True)  # !
retention.step(None, q, q)  # !
Mixer(3, width=8, heads=2)  # !
x: int = chunkform.catalogue()  # !
"""
RIGHT = """from typing import assert_type

import torch
from torch import Tensor
import chunkform
from chunkform.generated import gated_delta_rule, ked, mesa, softmax_attention
from chunkform.runtime.nn import Cache, Mixer

q = torch.randn(1, 8, 2, 4)
g = torch.rand(1, 8, 2)
assert_type(gated_delta_rule(q, q, q, g, -g, output_final_state=True).final_state, Tensor)
assert_type(gated_delta_rule(q, q, q, g, -g)[0], Tensor)
assert_type(gated_delta_rule(q, q, q, g, -g).final_state, None)
flag = bool(g.sum() > 0)
assert_type(gated_delta_rule(q, q, q, g, -g, output_final_state=flag).final_state, Tensor | None)
gated_delta_rule(*[q, q, q, g, -g], deterministic=True)
o, state = gated_delta_rule.step(None, q[:, 0], q[:, 0], q[:, 0], g[:, 0], -g[:, 0])
assert_type(o, Tensor)
assert_type(softmax_attention(q, q, q), Tensor)
assert_type(softmax_attention(q, q, q, output_lse=True).lse, Tensor)
assert_type(mesa(q, q, -g, g[0, 0]).o, Tensor)
assert_type(mesa(q, q, -g, g[0, 0], output_residual=True).x_residual, Tensor)
assert_type(gated_delta_rule.source(), str)
mixer = Mixer("retention", width=8, heads=2)
assert_type(mixer(torch.randn(1, 3, 8)), Tensor)
assert_type(mixer(torch.randn(1, 3, 8), output_cache=True), tuple[Tensor, Cache])
r = chunkform.Recurrence("mine")
assert_type(r.explain(), chunkform.Explanation)
assert_type(r.verify(), chunkform.Verdicts)
assert_type(r.check(quick=True), chunkform.Check)
op: chunkform.Op = r.compile()
assert_type(op.derivation, chunkform.Derivation)
other: chunkform.Op = chunkform.compile("mine.py")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each block of code of the documentation as a file, and two files of ours."""
    out: Path = tmp_path_factory.mktemp("code")
    for page in PAGES:
        for n, text in enumerate(whole(BLOCK.findall(page.read_text()))):
            (out / f"{page.stem}_{n}.py").write_text(text)
            if named := re.match(r"# (\w+\.py)\n", text):
                (out / named[1]).write_text(text)
    for page in TUTORIALS:  # which are one session each
        blocks = BLOCK.findall(page.read_text())
        (out / f"tutorial_{page.stem}.py").write_text("\n".join(x for x in blocks if not x.startswith("# ")))
    (out / "wrong.py").write_text(WRONG)
    (out / "right.py").write_text(RIGHT)
    return out


def whole(blocks: list[str]) -> list[str]:
    """Blocks of a page, each after those before it where it goes on with their names."""
    found: list[str] = []
    for text in blocks:
        table = symtable.symtable(text, "block", "exec")
        taken = {x.get_name() for x in table.get_symbols() if x.is_referenced() and not x.is_assigned()}
        taken -= {x.get_name() for x in table.get_symbols() if x.is_imported()} | set(vars(builtins))
        before = found[-1] if found and taken else ""
        found.append(f"{before}\n{text}" if before else text)
    return found


def by_mypy(folder: Path, python: Path) -> list[tuple[str, int, str]]:
    skipped = folder / "mypy.ini"  # what is large, and of which the documentation uses no types
    skipped.write_text("".join(f"[mypy-{x}.*]\nfollow_imports = skip\nignore_missing_imports = true\n" for x in LARGE))
    words = ["--strict", "--untyped-calls-exclude=torch", "--python-executable", str(python), "--output=json"]
    words.append(f"--config-file={skipped}")
    command = [sys.executable, "-m", "mypy", *words, "--cache-dir", f"{CACHE}/mypy", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [(x["file"], x["line"], x["message"]) for x in found if x["severity"] == "error"]


def by_pyright(folder: Path, python: Path) -> list[tuple[str, int, str]]:
    command = [sys.executable, "-m", "pyright", "--pythonpath", str(python), "--outputjson", "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [
        (Path(x["file"]).name, x["range"]["start"]["line"] + 1, x["message"]) for x in found if x["severity"] == "error"
    ]


@pytest.mark.parametrize(
    "checker", [by_mypy, pytest.param(by_pyright, marks=pytest.mark.long)], ids=["mypy", "pyright"]
)
def test_checkers_accept_the_documentation_and_see_mistakes(checker, folder: Path, python: Path) -> None:
    found = [x for x in checker(folder, python) if not TORCHS_OWN.search(x[2])]
    found = [x for x in found if x[0].startswith("README") or not BRIEF.search(x[2])]
    assert [x for x in found if x[0] != "wrong.py"] == []
    lines = WRONG.splitlines()
    seen = {lines[line - 1] for file, line, _ in found if file == "wrong.py"}
    assert seen == {x for x in lines if x.endswith("# !")}
