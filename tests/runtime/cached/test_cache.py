"""`chunkform.compile`: one op from a spec, and a cache that survives damage and company."""

import os
import pickle
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from shared.forked import code

import chunkform
from chunkform.codegen.commands.compile import compile_module
from chunkform.errors import LoadError, SpecError
from chunkform.runtime import cached

SPEC = textwrap.dedent(
    '''
    """A test."""
    from chunkform.spec.language import Recurrence

    r = Recurrence("cached_recurrence")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v = r.inputs("v", e)
    lam = r.decay("lam")
    S = r.state("S", d, e)
    r.update(S, lam * S.prev + 2 * k * v.T)
    r.output("o", S.next.T * q)
    '''
)


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKFORM_CACHE", str(tmp_path / "cache"))
    for name in [n for n in sys.modules if n.startswith(f"{cached.__name__}.")]:
        del sys.modules[name]
    path = tmp_path / "mine.py"
    path.write_text(SPEC)
    return path


def run(op):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 70, 2, 8)
    return op(q, k, v, -torch.rand(1, 70, 2))[0]


def test_a_spec_file_becomes_an_op_that_computes(spec):
    from chunkform.generated.lightning_attention import lightning_attention

    torch.testing.assert_close(run(chunkform.compile(spec)), 2 * run(lightning_attention))


def test_a_name_of_the_catalogue_is_the_generated_op(spec):
    from chunkform.generated.lightning_attention import lightning_attention

    torch.testing.assert_close(run(chunkform.compile("lightning_attention")), run(lightning_attention))


@pytest.mark.parametrize("damage", ["", "garbage", "cut"])
def test_a_damaged_entry_is_built_anew(spec, damage):
    path = Path(compile_module(spec).__file__)
    sys.modules.pop(compile_module(spec).__name__)
    text = path.read_text()
    path.write_text(text[: len(text) // 2] if damage == "cut" else damage)
    run(chunkform.compile(spec))
    assert path.read_text() == text


@pytest.mark.parametrize("what", ["another op's file", "a pipe"])
def test_what_isnt_the_entrys_own_file_is_replaced(spec, what):
    path = Path(compile_module(spec).__file__)
    sys.modules.pop(compile_module(spec).__name__)
    text = path.read_text()
    if what == "a pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        spec.write_text(SPEC.replace("2 * k", "3 * k"))
        path.write_text(Path(compile_module(spec).__file__).read_text())
        spec.write_text(SPEC)
    run(chunkform.compile(spec))
    assert path.is_file() and path.read_text() == text


def test_what_is_in_the_cache_is_found_before_a_pass_is_run(spec, monkeypatch):
    from chunkform.codegen.commands import recurrence_kind

    path = compile_module(spec).__file__
    monkeypatch.setattr(recurrence_kind, "compile_spec", lambda r: pytest.fail("compiled again"))
    assert compile_module(spec).__file__ == path
    spec.write_text(SPEC.replace("2 * k", "3 * k"))
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        compile_module(spec)


def test_processes_may_fill_the_cache_at_once(spec, tmp_path):
    """Of which each has imported the compiler, so that all begin at the same time."""
    ran = code(
        "import os, chunkform, chunkform.codegen.commands.compile, chunkform.codegen.commands.recurrence_kind\n"
        "others = []\n"
        "while len(others) < 2 and (other := os.fork()): others.append(other)\n"
        f"chunkform.compile({str(spec)!r})\n"
        "if len(others) < 2: os._exit(0)\n"
        "print([os.waitpid(x, 0)[1] for x in others])"
    )
    assert ran.stdout.strip() == "[0, 0]", ran.stderr


def test_threads_may_compile_at_once(spec):
    with ThreadPoolExecutor(4) as pool:
        ops = list(pool.map(lambda _: chunkform.compile(spec), range(4)))
    assert len(set(ops)) == 1


def test_a_pickled_op_is_found_by_another_process(spec, tmp_path):
    op, path = chunkform.compile(spec), tmp_path / "op.pickle"
    path.write_bytes(pickle.dumps(op))
    ran = code(f"import pickle; print(pickle.load(open({str(path)!r}, 'rb')).__module__)")
    assert ran.stdout.strip() == op.__module__, ran.stderr


def test_a_file_with_two_recurrences_asks_which(spec):
    other = SPEC.replace("cached_recurrence", "another").replace("r = ", "s = ").replace("r.", "s.")
    spec.write_text(SPEC + other)
    with pytest.raises(LoadError, match=r"holds 2 recurrences \(cached_recurrence, another\)"):
        chunkform.compile(spec)


def test_something_else_is_refused():
    with pytest.raises(SpecError, match="compile takes a Recurrence, a spec file or a name"):
        chunkform.compile(3)


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(LoadError, match=r"there is no spec file .*nothing\.py"):
        chunkform.compile(tmp_path / "nothing.py")
