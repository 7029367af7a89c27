"""The compiler is a function of a spec's structure: it repeats, and it never looks at a name."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shared.spec_files import SPECS, catalogue, compiled_once, read

from chunkform.codegen.ir.expr import Node, walk
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.chunkwise.plan import Plan, Sweep
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.spec.language import Matrix, Recurrence, find
from chunkform.spec.language.expression import ONE, Atom, Contraction, Dim

SOME = ["delta_rule", "inverse_attention", "kimi_delta_attention", "retention", "sherman_morrison"]
OTHERS = ["gated_slot_attention", "rwkv7", "ttt_linear", "two_timescales", "leaky_integrator"]


def spec(name: str) -> Recurrence:
    return read(SPECS / f"{name}.py")[0] if name in OTHERS else next(r for r in catalogue() if r.name == name)


def known(name: str) -> Compiled:
    return compiled_once(spec(name))


def keys(compiled: Compiled) -> list[str]:
    """Everything that text is printed from, as keys, in order."""
    roots: list[Node] = [*compiled.step.updates.values(), *compiled.step.outputs.values()]
    roots += [*compiled.adjoint.program.updates.values(), *compiled.adjoint.program.outputs.values()]
    for plan in (compiled.forward, compiled.backward):
        for sweep in plan.sweeps if plan is not None else ():
            c = sweep.chunk
            for table in (c.streams, c.definitions, c.outputs):
                roots += [x for pair in table.items() for x in pair]
            roots += c.states.values()
        roots += plan.form.values.values() if plan is not None else ()
    return [x.key for x in roots]


@pytest.mark.parametrize("name", SOME + OTHERS)
def test_compiling_twice_gives_the_same_nodes(name: str) -> None:
    first, second = known(name), compile_spec(spec(name))
    assert keys(first) == keys(second)
    assert all(a is b for a, b in zip(first.step.updates.values(), second.step.updates.values(), strict=True))


def test_another_process_with_other_hashes_gives_the_same_nodes() -> None:
    program = (
        "import sys, hashlib\n"
        f"sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[2])!r}]\n"
        "from test_structure import OTHERS, SOME, keys, known\n"
        "for name in SOME[:3] + OTHERS[:3]:\n"
        "    print(name, hashlib.sha256(''.join(keys(known(name))).encode()).hexdigest())\n"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    here = {n: hashlib.sha256("".join(keys(known(n))).encode()).hexdigest() for n in SOME[:3] + OTHERS[:3]}
    assert dict(line.split() for line in run.stdout.splitlines()) == here


# --- names -----------------------------------------------------------------------------------------------------------


class Renamed:
    """A recurrence with every name replaced, term by term."""

    def __init__(self, r: Recurrence, new: dict[str, str]) -> None:
        self.new = new
        out = Recurrence("renamed")
        self.dims = {d.name: out.dims(new[d.name]) for d in r.dim_list}
        kinds = {
            "input": out.inputs,
            "decay": out.decay,
            "parameter": out.parameters,
            "decay parameter": out.head_decay,
        }
        for v in r.variables:
            if v.kind == "constant":
                out.constant(new[v.name], v.default)
            else:
                kinds[v.kind](new[v.name], *(self.dims[d.name] for d in v.dims))
        states = {}
        for s in r.states:
            initial = None if s.initial is None else self.term(s.initial)
            states[s.name] = out.state(new[s.name], *(self.dims[d.name] for d in s.dims), initial=initial)
        for kind, x in sorted(
            [("let", x) for x in r.lets] + [("update", x) for x in r.updates] + [("output", x) for x in r.outputs],
            key=lambda pair: pair[1].where.line,
        ):
            term = self.term(x.term)
            if kind == "update":
                out.update(states[x.name], term)
            else:
                getattr(out, kind)(new[x.name], term)
        self.recurrence = out

    def name(self, name: str) -> str:
        base, dot, which = name.partition(".")
        return self.new[base] + dot + which

    def dim(self, d: Dim) -> Dim:
        return ONE if d is ONE else self.dims[d.name]

    def term(self, x: Any) -> Any:
        if isinstance(x, Matrix):
            rows, cols = self.dim(x.rows), self.dim(x.cols)
            if x.op == "symbol":
                return Matrix("symbol", (self.name(x.args[0]), x.args[1]), rows, cols)
            return Matrix(x.op, tuple(self.term(a) for a in x.args), rows, cols)
        if isinstance(x, Contraction):
            return Contraction(self.term(x.matrix))
        if isinstance(x, Atom):
            return Atom(self.name(x.name), x.kind)
        if getattr(x, "args", ()):
            return x.func(*(self.term(a) for a in x.args))
        return x


def renamed(r: Recurrence) -> Recurrence:
    """Names that sort the other way round, and look like other quantities."""
    names = [x.name for x in (*r.dim_list, *r.variables, *r.states, *r.lets, *r.outputs)]
    lures = ["S", "lam", "k", "v", "q", "beta", "alpha", "o", "error", "W", "z", "y", "x", "g", "h", "M", "N", "P", "R"]
    unused = [x for x in lures if x not in names] + [f"name{i}" for i in range(len(names))]
    return Renamed(r, dict(zip(dict.fromkeys(names), unused, strict=False))).recurrence


def shape(x: Node) -> Any:
    """How a node is made, without names."""
    return sorted((y.op, len(y.axes), len(y.args)) for y in walk(x))


def structure(plan: Plan | None) -> Any:
    if plan is None:
        return None
    stages = []
    for stage in plan.stages:
        if not isinstance(stage, Sweep):
            stages.append(type(stage).__name__)
            continue
        writes = [[(w.late, w.leaf is not None) for w in s.writes] for s in stage.group]
        chunk = stage.chunk
        nodes = sorted(shape(x) for x in (*chunk.definitions.values(), *chunk.outputs.values(), *chunk.states.values()))
        counts = len(stage.reads), len(stage.finals), len(chunk.streams), len(chunk.decays)
        stages.append((stage.direction, stage.side, stage.solve, counts, sorted(writes), nodes))
    return stages


@pytest.mark.parametrize("name", [r.name for r in catalogue()] + OTHERS)
def test_no_pass_looks_at_a_name(name: str) -> None:
    one, other = known(name), compile_spec(renamed(spec(name)))
    assert one.family == other.family
    assert structure(one.forward) == structure(other.forward)
    assert structure(one.backward) == structure(other.backward)


@pytest.mark.parametrize("name", ["stacked", "gated_delta_product", "mlstm", "retention"])
def test_the_end_of_a_state_is_that_of_the_sweep_that_sums_its_reads(name: str) -> None:
    plan = compile_spec(read(SPECS / f"{name}.py")[0] if (SPECS / f"{name}.py").exists() else find(name)[0]).backward
    assert plan is not None
    states = [(b.state, s) for s in plan.sweeps for b in s.boundary_sums if b.kind == "in"]
    assert states
    for state, sweep in states:
        assert [s for s in plan.sweeps if state in s.finals] == [sweep]
