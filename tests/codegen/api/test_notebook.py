"""In a notebook: specs, terms and results show typeset, the example runs, and a cell that is run again says what to do."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import torch

import chunkform
from chunkform.runtime.nn import Mixer
from chunkform.spec.language import Declaration, catalogue

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = nbformat.read(ROOT / "examples" / "from_a_recurrence_to_its_op.ipynb", as_version=4)


# In a process of its own: the threads of a client would be in the way of tests that fork.
EXECUTE = """
import os, sys
import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

class OwnKernel(AsyncKernelManager):
    def format_kernel_cmd(self, extra_arguments=None):
        return [sys.executable, "-m", "ipykernel_launcher", "-f", self.connection_file]

path, folder = sys.argv[1:]
notebook = nbformat.read(path, as_version=4)
manager = OwnKernel(kernel_name="python3")
NotebookClient(notebook, km=manager, timeout=120, resources={"metadata": {"path": folder}}).execute(env=os.environ)
nbformat.write(notebook, path)
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> list[nbformat.NotebookNode]:
    """The cells of the example, run; then the one that declares the spec's quantities once more."""
    notebook = copy.deepcopy(EXAMPLE)
    again = nbformat.v4.new_code_cell(notebook.cells[2].source, metadata={"tags": ["raises-exception"]})
    notebook.cells.append(again)
    folder = tmp_path_factory.mktemp("notebook")
    path = folder / "example.ipynb"
    nbformat.write(notebook, path)
    own = {"IPYTHONDIR": str(folder / "ipython"), "CHUNKFORM_CACHE": str(folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", EXECUTE, str(path), str(folder)]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[nbformat.NotebookNode] = nbformat.read(path, as_version=4).cells
    return found


def shown(cell: nbformat.NotebookNode, kind: str) -> str:
    return "".join(x.data[kind] for x in cell.outputs if "data" in x)


def test_the_example_runs_and_shows_mathematics(executed):
    results = [c for c in executed if c.cell_type == "code" and any("data" in x for x in c.outputs)]
    assert len(results) == 6
    spec, term, explanation, verdicts, check, result = results
    assert r"\mathbf{S}_t &= \lambda_t \mathbf{S}_{t-1}" in shown(spec, "text/latex")
    assert shown(term, "text/latex") == r"$\displaystyle \mathbf{S}_{t-1}^\top \mathbf{k}_t$"
    assert "<math" in shown(explanation, "text/html") and "chunk-parallel" in shown(explanation, "text/html")
    assert shown(verdicts, "text/html").count("<math") >= 3 and "1 holds, 1 fails" in shown(verdicts, "text/html")
    assert "all within their bounds" in shown(check, "text/html")
    assert shown(result, "text/plain").count("\n") == 0


def test_a_cell_that_is_run_again_says_what_to_do(executed):
    (error,) = (x for x in executed[-1].outputs if x.output_type == "error")
    assert error.ename == "NameError_" and "used twice in leaky_memory" in error.evalue
    assert "Run the cell that makes leaky_memory again first" in error.evalue


def test_a_spec_over_several_cells_is_in_the_order_of_the_cells(executed):
    explanation = next(c for c in executed if "explanation = r.explain()" in c.source)
    html = shown(explanation, "text/html")
    assert html.index("The recurrence") < html.index("Its adjoint")


@pytest.mark.parametrize("spec", catalogue(Declaration), ids=lambda r: r.name)
def test_every_spec_shows_its_equations(spec):
    latex = spec._repr_latex_()
    assert latex.startswith(r"$$\begin{aligned} ") and latex.endswith(r" \end{aligned}$$")
    assert latex.count("&=") >= 2 and latex.count("{") == latex.count("}")


@pytest.mark.parametrize("name", ["mesa_net", "rotary_attention"])
def test_a_program_and_an_attention_are_typeset(name):
    explanation = chunkform.explain(name)
    html = explanation._repr_html_()
    formulas = [f for s in explanation.derivation.sections for f in s.formulas]
    assert "<pre>" not in html and "\\cf" not in html and html.count("<math") >= len(formulas) > 10
    assert all(f.latex and f.plain for f in formulas)


def test_parts_of_results_are_typeset_too():
    """A section of a derivation, a state, one verdict, and an op itself."""
    r = chunkform.Recurrence("parts")
    d = r.dims("d")
    q, S = r.inputs("q", d), r.state("S", d)
    r.update(S, S.prev + q)
    r.output("o", S.next)
    t, o, S_t = r.quantities("t o S")
    r.claim("twice", o(t), 2 * S_t(t))
    assert S._repr_latex_() == r"$\displaystyle \mathbf{S}_t$"
    section = r.explain().derivation["Its adjoint"]
    latex = section._repr_latex_()
    assert (
        latex.startswith(r"$$\begin{aligned} &\mathrm{d}\mathbf{S}_{t} = ")
        and latex.count(r"\\") == len(section.formulas) - 1
    )
    verdict = r.verify()["twice"]
    assert "<math" in verdict._repr_html_() and repr(verdict) == "<Verdict on twice: fails>"
    assert str(verdict).startswith("twice fails\n") and str(verdict).endswith("by definition: o(t) = S(t)")
    assert r.compile()._repr_latex_() == r._repr_latex_()


def test_who_looks_for_what_a_state_or_a_term_may_have_finds_nothing():
    """Debuggers and displays ask with hasattr."""
    r = chunkform.Recurrence("looked_at")
    S = r.state("S", r.dims("d"))
    assert not hasattr(S, "to_html") and not hasattr(S.prev, "sum") and not hasattr(chunkform.Attention("a"), "state")
    with pytest.raises(chunkform.errors.AttributeError_, match=r"write S\.prev or S\.next"):
        _ = S.previous
    with pytest.raises(chunkform.errors.SpecError, match="write total"):
        S.prev.sum()


def test_an_empty_spec_shows_its_name():
    r = chunkform.Recurrence("empty")
    assert r._repr_latex_() is None and repr(r) == "Recurrence('empty')"


def test_a_state_whose_name_a_quantity_has_taken():
    r = chunkform.Recurrence("taken")
    S = r.state("S", r.dims("d"))
    r.update(S, S.prev)
    r.output("o", S.next)
    claim = r.claim("o", r.quantities("o")(1), r.quantities("S")(1))
    assert repr(claim) == "<Claim o: o(1) = S(1)>"
    with pytest.raises(chunkform.errors.SpecError, match="S is a quantity of formulas here"):
        _ = r.quantities("S").prev


def test_a_file_says_nothing_of_cells():
    r = chunkform.Recurrence("in_a_file")
    r.inputs("x")
    with pytest.raises(chunkform.errors.NameError_) as told:
        r.inputs("x")
    assert "cell" not in str(told.value)


@pytest.mark.parametrize("name", ["gated_delta_rule", "mesa_net", "softmax_attention"])
def test_caches_and_results_are_one_line(name):
    maps = {"lamb": torch.nn.functional.softplus} if name == "mesa_net" else None
    layer = Mixer(name, width=64, heads=2, maps=maps)
    _, cache = layer(torch.randn(2, 10, 64), output_cache=True)
    assert repr(cache).startswith("Cache(state=") and "\n" not in repr(cache) and len(repr(cache)) < 200
    assert "float32 [2, 3, " in repr(cache)


def test_a_result_is_one_line():
    from chunkform.generated import delta_rule

    r = delta_rule(*torch.randn(3, 1, 5, 2, 4), torch.rand(1, 5, 2), output_final_state=True)
    assert repr(r) == "delta_rule_result(o=float32 [1, 5, 2, 4], final_state=float32 [1, 2, 4, 4])"
    assert repr(delta_rule.__globals__["OP"]) == "<Op delta_rule(q, k, v, beta)>"
