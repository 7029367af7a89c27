"""`chunkform check` sees what an op does: each way in which one can be wrong is planted, and is to be found and named."""

import dataclasses
import importlib.util
import sys

import pytest
import torch

from chunkform.codegen.checking.calls import call, check_calls, rows_of
from chunkform.codegen.commands.check import again, causes_text, checked, subject_of
from chunkform.codegen.commands.recurrence_kind import subject
from chunkform.codegen.recurrence.emit import emit
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.spec.language import find, load

SPEC = """
from chunkform.spec.language import Recurrence

r = Recurrence("planted")
d, e = r.dims("d e")
q, k = r.inputs("q k", d)
v = r.inputs("v", e)
lam = r.decay("lam")
c = r.constant("c", 1.5)
S = r.state("S", d, e)
r.update(S, lam * S.prev + c * k * v.T)
r.output("o", S.next.T * q)
"""
NAMES = ("q", "k", "v", "log_lam", "initial_state", "output_final_state")


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    path = tmp_path_factory.mktemp("spec") / "planted.py"
    path.write_text(SPEC)
    return path


@pytest.fixture(scope="module")
def sound(spec):
    """The op as it should be."""
    with pytest.MonkeyPatch.context() as m:
        m.setenv("CHUNKFORM_CACHE", str(spec.parent / "cache"))
        return subject_of(load(spec)[0], "cpu")


def imported(text, folder, name):
    path = folder / f"{name}.py"
    path.write_text(text)
    found = importlib.util.spec_from_file_location(f"planted_{name}", path)
    module = importlib.util.module_from_spec(found)
    sys.modules[module.__name__] = module
    found.loader.exec_module(module)
    return module.planted


class Wrong(torch.autograd.Function):
    """The same numbers, with another gradient."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return ctx.change(g), None


def forwards(op, when):
    """Outputs that are 1.5 times as large for some calls."""

    def planted(*arguments, **named):
        o, last = op(*arguments, **named)
        return (1.5 * o if when(dict(zip(NAMES, arguments, strict=False)) | named) else o), last

    return planted


def backwards(op, when, of, change):
    """Another gradient of one argument for some calls."""

    def planted(*arguments, **named):
        given = dict(zip(NAMES, arguments, strict=False)) | named
        if when(given) and given.get(of) is not None:
            given[of] = Wrong.apply(given[of], change)
        return op(**given)

    return planted


def tensors(g):
    return [g[n] for n in NAMES[:4]]


def has_heads(r):
    """Has q several heads? One head first lies as it did."""
    return r["heads"] in ("two", "fewer in the others")


def late_steps_lost(g):
    g = g.clone()
    g[:, 64:] = 0
    return g


# What is planted: the calls that it makes wrong, as a test of their choices, and what it is to be called.
FORWARDS = {
    "long": (lambda g: g["q"].shape[1] > 150, lambda r: r["T"] > 150, "T >= 151"),
    "square": (
        lambda g: g["q"].shape[-1] == g["v"].shape[-1],
        lambda r: len(set(r["widths"])) == 1,
        "all dims have the same width",
    ),
    "wide": (
        lambda g: max(g["q"].shape[-1], g["v"].shape[-1]) > 64,
        lambda r: max(r["widths"]) > 64,
        "a width is above 64",
    ),
    "narrow": (
        lambda g: min(g["q"].shape[-1], g["v"].shape[-1]) == 1,
        lambda r: min(r["widths"]) == 1,
        "a width is 1",
    ),
    "packed": (
        lambda g: g.get("cu_seqlens") is not None,
        lambda r: "packed" in r["sequences"],
        "sequences are one packed or several packed",
    ),
    "fewer heads": (
        lambda g: len({x.shape[2] for x in tensors(g)}) > 1,
        lambda r: "fewer" in r["heads"],
        "heads are fewer in the first argument or fewer in the others",
    ),
    "no initial state": (
        lambda g: g.get("initial_state") is None,
        lambda r: r["initial state"] == "none",
        "initial state is none",
    ),
    "strong decay": (
        lambda g: bool((g["log_lam"] < -20).any()),
        lambda r: "down to" in r["log decays"],
        "log decays are down to -28 or down to -inf",
    ),
    "float64": (lambda g: g["q"].dtype == torch.float64, lambda r: r["dtype"] == "float64", "dtype is float64"),
    "bfloat16": (lambda g: g["q"].dtype == torch.bfloat16, lambda r: r["dtype"] == "bfloat16", "dtype is bfloat16"),
    "strided": (
        lambda g: not g["q"].is_contiguous(),
        lambda r: r["layout"] != "contiguous" and r["T"] > 1 and (r["layout"] != "heads first" or has_heads(r)),
        "layout is other than contiguous",
    ),
    "one sequence": (lambda g: g["q"].shape[0] == 1, lambda r: r["sequences"] != "two", "sequences are other than two"),
    "long and packed": (
        lambda g: g["q"].shape[1] > 100 and g.get("cu_seqlens") is not None,
        lambda r: r["T"] > 100 and "packed" in r["sequences"],
        "T >= 101 and sequences are one packed or several packed",
    ),
}
BACKWARDS = {
    "recomputed": (
        lambda g: g.get("recompute") == "always",
        "q",
        lambda g: 1.01 * g,
        lambda r: (
            r["recompute"] == "always" and r["dtype"] in ("float32", "float64") and r["gradients"] in ("all", "some")
        ),
        "recompute is always",
    ),
    "initial state of packed sequences": (
        lambda g: g.get("cu_seqlens") is not None and len(g["cu_seqlens"]) > 2,
        "initial_state",
        torch.zeros_like,
        lambda r: r["sequences"] == "several packed" and r["initial state"] == "given" and r["gradients"] == "all",
        "sequences are several packed",
    ),
    "a key alone": (
        lambda g: g["k"].requires_grad and not g["q"].requires_grad,
        "k",
        lambda g: 1.1 * g,
        lambda r: r["gradients"] == "the others",
        "gradients are the others",
    ),
    "a tail of one step": (
        lambda g: g["q"].shape[1] % 64 == 1,
        "k",
        late_steps_lost,
        lambda r: r["T"] in (65, 129) and r["gradients"] == "all",
        "T is 65 or 129",
    ),
}


def refused(planted, affected, words):
    """The wrong calls, and a few others, are in the array; `check` refuses the op, and says where it is wrong."""
    rows = rows_of(planted)
    wrong = sorted((r for r in rows if affected(r) and r["gradients"] != "none" and r["T"] > 1), key=lambda r: r["T"])[
        :2
    ]
    assert wrong, "no call of the array is affected"
    others = [r for r in rows if not affected(r) and r["T"] < 65][:2]
    report = check_calls(planted, rows=[*others, *wrong])
    assert [t.ok for t in report.calls] == [True] * len(others) + [False] * len(wrong)
    assert [c.words for c in report.causes] == [f"fails wherever {words}"]
    found = [r for r in checked(planted.spec, report, planted, "cpu") if not r.ok]
    assert found and all(words in r.json()["cause"] and "again(" in r.json()["python"] for r in found)
    assert words in "\n".join(causes_text(report))


ONE_OF_A_KIND = (
    "square",
    "narrow",
    "packed",
    "fewer heads",
    "long and packed",
)  # as causes are found and told; others are `long`


@pytest.mark.parametrize(
    "fault",
    [f if f in ONE_OF_A_KIND else pytest.param(f, marks=pytest.mark.long) for f in FORWARDS],
)
def test_outputs_that_are_wrong_for_some_calls(fault, sound):
    when, affected, words = FORWARDS[fault]
    refused(dataclasses.replace(sound, op=forwards(sound.op, when)), affected, words)


@pytest.mark.parametrize("fault", BACKWARDS)
def test_gradients_that_are_wrong_for_some_calls(fault, sound):
    when, of, change, affected, words = BACKWARDS[fault]
    refused(dataclasses.replace(sound, op=backwards(sound.op, when, of, change)), affected, words)


def test_a_default_that_changes_after_lowering(spec, tmp_path):
    r = load(spec)[0]
    c = compile_spec(r)
    variables = tuple(dataclasses.replace(v, default=2.5) if v.kind == "constant" else v for v in c.step.variables)
    changed = dataclasses.replace(c, step=dataclasses.replace(c.step, variables=variables))
    op = imported(emit(changed, tidy=False), tmp_path, "default")
    words = "constants are left to their defaults"
    refused(subject(r, changed, op, "cpu"), lambda row: row["constants"] != "given", words)


def test_two_inputs_that_are_swapped_in_the_order_of_arguments(spec, tmp_path):
    r = load(spec)[0]
    c = compile_spec(r)
    text = emit(c, tidy=False)
    swapped = text.replace(
        "def planted(q: torch.Tensor, k: torch.Tensor,", "def planted(k: torch.Tensor, q: torch.Tensor,"
    )
    assert swapped != text
    op = imported(swapped, tmp_path, "order")
    refused(subject(r, c, op, "cpu"), lambda row: row["arguments"] == "in order", "arguments are in order")


def tried(planted, precision, **choices):
    """A call of the array with these choices, with as many steps as may be, in a precision."""
    rows = [r for r in rows_of(planted) if all(r[n] == x for n, x in choices.items())]
    return call(planted, max(rows, key=lambda r: r["T"]) | {"precision": precision})


def test_high_precision_that_is_the_default_one(sound):
    def op(*arguments, **named):
        return sound.op(*arguments, **{n: x for n, x in named.items() if n != "precision"})

    choices = {"dtype": "float32", "gradients": "all"}
    assert tried(sound, "high", **choices).ok
    assert not tried(dataclasses.replace(sound, op=op), "high", **choices).ok


def test_the_gradient_of_a_decay_that_forgets_all(sound):
    def op(*arguments, **named):
        given = dict(zip(NAMES, arguments, strict=False)) | named
        x = given["log_lam"]
        return sound.op(**given | {"log_lam": torch.where(x < -16, x.detach(), x)})

    choices = {"log decays": "-20 at each step", "dtype": "float32", "gradients": "all"}
    assert tried(sound, "default", **choices).ok
    assert not tried(dataclasses.replace(sound, op=op), "default", **choices).ok


def test_vectors_that_are_divided_by_their_size_are_never_of_one_entry(sound):
    """Of these nothing but rounding is left in gradients."""
    r = find("rwkv7")[0]
    assert subject(r, compile_spec(r), sound.op, "cpu").divided_by == {"d"}
    assert sound.divided_by == set() and any(1 in x for x in sound.factors["widths"])


def test_a_call_that_raises_is_a_failure(sound):
    def op(*arguments, **named):
        if named.get("precision") == "high":
            raise RuntimeError("out of tiles")
        return sound.op(*arguments, **named)

    planted = dataclasses.replace(sound, op=op)
    rows = [r for r in rows_of(planted) if r["T"] < 100]
    report = check_calls(planted, rows=[*rows[:2], next(r for r in rows if r["precision"] == "high")])
    assert [c.words for c in report.causes] == ["fails wherever precision is high"]
    bad = [r for r in checked(planted.spec, report, planted, "cpu") if not r.ok]
    assert [(r.quantity, r.raised) for r in bad] == [("the call", "RuntimeError: out of tiles")]


def test_every_call_of_a_sound_op_is_right(sound):
    report = check_calls(sound)
    assert report.ok and report.whole and report.pairs == report.of and report.causes == ()


def test_a_call_is_made_again(spec, sound, monkeypatch):
    monkeypatch.setenv("CHUNKFORM_CACHE", str(spec.parent / "cache"))
    lines = again(str(spec), "planted", {"T": 65, "sequences": "several packed"})
    assert {x.partition(":")[0] for x in lines} == {"o", "final S", "dq", "dk", "dv", "dlog_lam", "d initial S"}
    assert not any("too large" in x for x in lines)


def test_a_check_that_is_cut_short_says_so(sound):
    report = check_calls(sound, seconds=1e-9)
    assert not report.whole and len(report.calls) <= 1 and report.pairs < report.of
