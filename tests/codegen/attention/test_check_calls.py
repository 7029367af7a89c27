"""`chunkform check` sees what an attention's op does: faults are planted, found and named."""

import dataclasses
import inspect

import pytest
import torch
from shared.attentions import CATALOGUE

from chunkform.codegen.checking.calls import check_calls, rows_of
from chunkform.codegen.commands.check import again, subject_of
from chunkform.spec.language import find


@pytest.fixture(scope="module")
def sound():
    return subject_of(find("softmax_attention")[0], "cpu")


def planted(subject, when, change):
    names = list(inspect.signature(subject.op).parameters)
    op = subject.op

    def wrong(*arguments, **named):
        given = dict(zip(names, arguments, strict=False)) | named
        return change(given, op) if when(given) else op(*arguments, **named)

    return dataclasses.replace(subject, op=wrong)


def larger(given, op):
    found = op(**given)
    return (1.5 * found[0], *found[1:]) if isinstance(found, tuple) else 1.5 * found


def another_scale(given, op):
    return op(**given, scale=0.3)


def swapped(given, op):
    return op(**given | {"k": given["v"], "v": given["k"]})


FAULTS = {
    "causal": (lambda g: g.get("causal"), larger, lambda r: r["causal"] == "yes", "causal is yes"),
    "long": (lambda g: g["q"].shape[1] > 100, larger, lambda r: r["T"] > 100, "T >= 101"),
    "more keys": (lambda g: g["k"].shape[1] > g["q"].shape[1], larger, lambda r: r["keys"] == "more", "keys are more"),
    "a default": (
        lambda g: "scale" not in g,
        another_scale,
        lambda r: r["defaults"] != "given",
        "defaults are left to their defaults",
    ),
    "float16": (lambda g: g["q"].dtype == torch.float16, larger, lambda r: r["dtype"] == "float16", "dtype is float16"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(fault, sound):
    when, change, affected, words = FAULTS[fault]
    subject = planted(sound, when, change)
    rows = rows_of(subject)
    wrong = [r for r in rows if affected(r) and 1 < r["T"] < 160][:2]
    assert wrong, "no call of the array is affected"
    others = [r for r in rows if not affected(r) and r["T"] < 65][:2]
    report = check_calls(subject, rows=[*others, *wrong])
    assert [t.ok for t in report.calls] == [True] * len(others) + [False] * len(wrong)
    assert [c.words for c in report.causes] == [f"fails wherever {words}"]


def test_arguments_in_another_order(sound):
    names = ("q", "v", "k", "scale")

    def op(*arguments, **named):
        return sound.op(**dict(zip(names, arguments, strict=False)), **named)

    subject = dataclasses.replace(sound, op=op)
    row = rows_of(subject)[0] | {"arguments": "in order", "T": 64, "keys": "as many"}
    assert subject.allowed(row)
    report = check_calls(subject, rows=[row])
    assert [c.words for c in report.causes] == ["fails wherever arguments are in order"]


@pytest.mark.parametrize("name", CATALOGUE)
def test_calls_of_short_sequences_are_right(name):
    subject = subject_of(find(name)[0], "cpu")
    report = check_calls(subject, rows=[r for r in rows_of(subject) if r["T"] < 64][:6])
    assert report.ok, [(t.row, t.raised, t.worst) for t in report.calls if not t.ok]


def test_a_call_is_made_again():
    assert any(x.startswith("dq: head") for x in again("softmax_attention", "softmax_attention", {"causal": "yes"}))
