"""A recurrence written as data, and read again, is the same spec; what is read runs no code."""

import copy
import json
from pathlib import Path

import pytest

from chunkform.errors import ChunkformError
from chunkform.spec.language import Recurrence, apply, catalogue, find, normalize, sigmoid
from chunkform.spec.language.data import as_data, from_data

SPECS = sorted(Path(__file__).parents[2].glob("codegen/specs/*.py"))


def recurrences():
    found = [r for r in catalogue() if isinstance(r, Recurrence)]
    return found + [r for p in SPECS for r in find(str(p)) if isinstance(r, Recurrence)]


def terms(r):
    return [(x.name, x.term) for x in (*r.lets, *r.updates, *r.outputs)] + [(s.name, s.initial) for s in r.states]


def test_every_spec_is_the_same_after_it_was_written_as_json_and_read():
    tried = 0
    for r in recurrences():
        again = from_data(json.loads(json.dumps(as_data(r))))
        assert terms(again) == terms(r), r.name
        said = [(v.name, v.kind, v.dims, v.default, v.domain) for v in r.variables]
        assert [(v.name, v.kind, v.dims, v.default, v.domain) for v in again.variables] == said, r.name
        tried += 1
    assert tried > 40


def decayed_sum():
    r = Recurrence("decayed")
    d = r.dims("d")
    x, a = r.inputs("x a", d)
    S = r.state("S", d)
    r.update(S, apply(lambda u, v: u * v, sigmoid(a), S.prev) + normalize(x))
    r.output("y", S.next * 2)
    return r


@pytest.mark.parametrize(
    "harm",
    [
        lambda d: d.update(format=2),
        lambda d: d.update(name="__import__('os')"),
        lambda d: d.update(name="a'''b"),
        lambda d: d["dims"].append("x y z"),
        lambda d: d["variables"][0].update(kind="exec"),
        lambda d: d["equations"][-1].update(kind="exec"),
        lambda d: d["variables"][0].update(name="x\nimport os"),
        lambda d: d["nodes"].insert(0, ["__import__", "os"]),
        lambda d: d["nodes"][-1].append(10**6),
        lambda d: d["nodes"].__setitem__(-1, ["Pow", len(d["nodes"]) - 1, 0]),
        lambda d: d["equations"][0].update(term="S.prev"),
        lambda d: d["equations"].pop(),
        lambda d: d.pop("states"),
    ],
)
def test_other_data_are_refused(harm):
    data = json.loads(json.dumps(as_data(decayed_sum())))
    from_data(copy.deepcopy(data))
    harm(data)
    with pytest.raises(ChunkformError):
        from_data(data)


def test_a_power_that_would_never_end_is_refused():
    data = as_data(decayed_sum())
    start = len(data["nodes"])
    data["nodes"] += [
        ["number", "9" * 100],
        ["Pow", start, start],
        ["matrix scale", start + 1, data["equations"][0]["term"]],
    ]
    data["equations"][0]["term"] = start + 2
    with pytest.raises(ChunkformError, match="at most 100"):
        from_data(data)
