"""Arguments that are misspelt, missing, too many or given twice: one sentence with the nearest name."""

import inspect
import pickle

import pytest
import torch

import chunkform
from chunkform.errors import ArgumentError
from chunkform.generated import lightning_attention, mesa, softmax_attention
from chunkform.runtime.nn import Mixer
from chunkform.runtime.op.naming import named
from chunkform.spec.language import Recurrence

X = torch.randn(1, 5, 2, 4)
LOG = -torch.rand(1, 5, 2)
STEP = lightning_attention.step


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lightning_attention(X, X, X, log_lamda=LOG), "no argument 'log_lamda': did you mean log_lam?"),
        (lambda: lightning_attention(X, X, X, lam=LOG), "no argument 'lam': did you mean log_lam?"),
        (
            lambda: lightning_attention(X, X, X, LOG, cu_seqlen=None),
            "no argument 'cu_seqlen': did you mean cu_seqlens?",
        ),
        (
            lambda: lightning_attention(X, X, X, LOG, zzz=1),
            "no argument 'zzz': it takes q, k, v and log_lam, and may be",
        ),
        (
            lambda: lightning_attention(X, X, X),
            "lightning_attention needs log_lam as well: it takes q, k, v and log_lam",
        ),
        (
            lambda: lightning_attention(X, X, X, LOG, q=X),
            "lightning_attention: q is given twice, by position and by name",
        ),
        (lambda: softmax_attention(*[X] * 9), "takes at most 4 arguments by position, got 9: it takes q, k and v"),
        (
            lambda: softmax_attention(X, X, X, casual=True),
            "softmax_attention has no argument 'casual': did you mean causal?",
        ),
        (lambda: mesa(X, X, LOG, lam0=1), "mesa has no argument 'lam0': did you mean lam_0?"),
        (
            lambda: STEP(None, X, X, X, loglam=LOG),
            "lightning_attention.step has no argument 'loglam': did you mean log_lam?",
        ),
        (lambda: Mixer("retention", width=8, head=2), "Mixer has no argument 'head': did you mean heads?"),
        (
            lambda: Mixer("retention", 8, 2)(X[0], cash=None),
            "Mixer.forward has no argument 'cash': did you mean cache?",
        ),
        (lambda: chunkform.compile("retention", backend="torch"), "compile has no argument 'backend': it takes spec"),
    ],
)
def test_what_does_not_fit_is_named(call, message):
    with pytest.raises(ArgumentError) as found:
        call()
    assert message in str(found.value)


@pytest.mark.parametrize("name", ["leaky_op", "leaky_step", "step"])
def test_an_op_is_called_by_its_own_name(name, tmp_path, monkeypatch):
    monkeypatch.setenv("CHUNKFORM_CACHE", str(tmp_path))
    r = Recurrence(name)
    d = r.dims("d")
    x = r.inputs("x", d)
    h = r.state("h", d)
    r.update(h, h.prev / 2 + x)
    r.output("y", h.next)
    op = chunkform.compile(r)
    with pytest.raises(ArgumentError, match=f"^{name} has no argument 'v'"):
        op(v=X)
    with pytest.raises(ArgumentError, match=rf"^{name}\.step has no argument 'v'"):
        op.step(v=X)


def test_compiled_functions_say_the_same():
    f = torch.compile(lambda x: lightning_attention(x, x, x, log_lamda=LOG)[0], backend="aot_eager")
    with pytest.raises(ArgumentError, match="did you mean log_lam"):
        f(X)


def test_type_errors_from_within_are_left_alone():
    @named
    def f(x):
        return len(x)

    with pytest.raises(TypeError, match="has no len"):
        f(1)


def test_an_op_stays_a_function_of_its_module():
    assert pickle.loads(pickle.dumps(lightning_attention)) is lightning_attention
    assert next(iter(inspect.signature(lightning_attention).parameters)) == "q"
    assert lightning_attention.__globals__["OP"].signature.name == "lightning_attention"
