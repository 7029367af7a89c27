"""Specs of every kind whose names are for the asking, the words that these may meet, and what the ops compute.

By hand, all words in all roles (an hour; `--interpret` through Triton's interpreter, `--only PATTERN` for some of the specs):

    python tests/shared/spec_names.py [--interpret] [--only PATTERN] [--every N]
"""

from __future__ import annotations

import argparse
import ast
import builtins
import functools
import keyword
import os
import re
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

if "--interpret" in sys.argv:  # before Triton is imported
    os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl

import chunkform
from chunkform.errors import ChunkformError, NameError_
from chunkform.spec.language import Attention, Program, Recurrence, cg, dot, eye, hadamard, normalize, softmax, tanh

ROOT = Path(__file__).resolve().parents[2]
Name = Callable[[str], str]
B, T, H = 2, 37, 2


# --- specs, by the names that things in them have -----------------------------------------------------------------------


def chunked(n: Name) -> Recurrence:
    """Chunk-parallel, with writes that depend on reads, and whatever else a recurrence may have."""
    r = Recurrence(n("op"))
    d, e = r.dims(f"{n('d')} {n('e')}")
    q, k = r.inputs(f"{n('q')}, {n('k')}", d)
    v, b = r.inputs(n("v"), e), r.inputs(n("b"))
    lam = r.decay(n("lam"))
    p, c = r.parameter(n("p"), d), r.constant(n("c"), 0.5)
    S = r.state(n("S"), d, e)
    key = r.let(n("key"), normalize(k))
    r.update(S, lam * S.prev + c * b * key * (v - S.prev.T * key).T)
    r.output(n("o"), S.next.T * hadamard(q, p))
    return r


def channels(n: Name) -> Recurrence:
    """A decay for each channel, and one of each head; two states."""
    r = Recurrence(n("op"))
    d, e = r.dims(f"{n('d')} {n('e')}")
    q, k = r.inputs(f"{n('q')} {n('k')}", d)
    v = r.inputs(n("v"), e)
    lam, gamma = r.decay(n("lam"), d), r.head_decay(n("gamma"))
    S, Z = r.state(n("S"), d, e), r.state(n("Z"), d)
    from chunkform.spec.language import diag

    r.update(S, diag(lam) * S.prev + k * v.T)
    r.update(Z, gamma * Z.prev + k)
    r.output(n("o"), S.next.T * q)
    r.output(n("u"), dot(Z.next, q))
    return r


def momentum(n: Name) -> Recurrence:
    """States that are added to each other."""
    r = Recurrence(n("op"))
    d, e = r.dims(f"{n('d')} {n('e')}")
    k, q = r.inputs(f"{n('k')} {n('q')}", d)
    v = r.inputs(n("v"), e)
    mu, c = r.inputs(n("mu")), r.constant(n("c"))
    M, S = r.state(n("M"), d, e), r.state(n("S"), d, e)
    r.update(M, mu * M.prev + k * v.T)
    r.update(S, S.prev - c * M.next)
    r.output(n("o"), S.next.T * q)
    return r


def stepwise(n: Name) -> Recurrence:
    """Step by step, with a matrix of each head and a state that starts from a parameter."""
    r = Recurrence(n("op"))
    d = r.dims(n("d"))
    x = r.inputs(n("x"), d)
    W, h0 = r.parameters(n("W"), d, d), r.parameters(n("h0"), d)
    lam, c = r.decay(n("lam")), r.constant(n("c"), 0.5)
    h = r.state(n("h"), d, initial=h0)
    a = r.let(n("a"), tanh(W * h.prev + x))
    r.update(h, lam * h.prev + c * a)
    r.output(n("o"), h.next)
    return r


def rows(n: Name) -> Recurrence:
    """Step by step over a matrix that is read and written both ways."""
    r = Recurrence(n("op"))
    d = r.dims(n("d"))
    u, q = r.inputs(f"{n('u')} {n('q')}", d)
    lam = r.decay(n("lam"))
    S = r.state(n("S"), d, d, initial=eye(d))
    su = r.let(n("su"), S.prev * u)
    r.update(S, (S.prev - su * (S.prev.T * u).T / (1 + dot(u, u))) * lam)
    r.output(n("o"), S.next.T * softmax(q))
    return r


def scanned(n: Name) -> Recurrence:
    """A state without products of matrices."""
    r = Recurrence(n("op"))
    d = r.dims(n("d"))
    a, x = r.inputs(f"{n('a')} {n('x')}", d)
    lam, p = r.decay(n("lam"), d), r.parameter(n("p"), d)
    h = r.state(n("h"), d)
    r.update(h, hadamard(lam, h.prev) + hadamard(p, x))
    r.output(n("o"), hadamard(h.next, a))
    return r


def substeps(n: Name) -> Recurrence:
    """Two corrections a step."""
    r = Recurrence(n("op"))
    d, e = r.dims(f"{n('d')} {n('e')}")
    q, k1, k2 = r.inputs(f"{n('q')} {n('k1')} {n('k2')}", d)
    v1, v2 = r.inputs(f"{n('v1')} {n('v2')}", e)
    b1, b2 = r.inputs(f"{n('b1')} {n('b2')}")
    S = r.state(n("S"), d, e)
    one = r.let(n("one"), S.prev + b1 * normalize(k1) * (v1 - S.prev.T * normalize(k1)).T)
    r.update(S, one + b2 * normalize(k2) * (v2 - one.T * normalize(k2)).T)
    r.output(n("o"), S.next.T * q)
    return r


def program(n: Name) -> Program:
    """Solves, a map, a recurrence of its own."""
    p = Program(n("op"))
    d, e = p.dims(f"{n('d')} {n('e')}")
    q, k = p.inputs(f"{n('q')} {n('k')}", d)
    v = p.inputs(n("v"), e)
    lam, c = p.decay(n("lam")), p.constant(n("c"), 0.5)
    mu = p.parameters(n("mu"), sign="> 0")
    S, G = p.state(n("S"), d, d, initial=mu * eye(d)), p.state(n("G"), d, e)
    p.update(S, lam * S.prev + k * k.T)
    p.update(G, lam * G.prev + k * v.T)
    w = p.let(n("w"), c * q)
    x = p.solve(n("x"), S.next, w, cg(15))
    p.output(n("o"), G.next.T * x)
    p.output(n("u"), w + x)
    return p


def pairs(n: Name) -> Attention:
    """Attention over one sequence, with maps on both sides."""
    a = Attention(n("op"))
    e, d = a.dims(f"{n('e')} {n('d')}")
    x_i, x_j = a.stream(n("x"), e)
    g = a.keys(n("g"))
    Q, K = a.parameters(f"{n('Q')} {n('K')}", d, e)
    b, c = a.parameters(n("b"), d), a.constant(n("c"), 0.5)
    beta = a.inverse_temperature(n("beta"), 1 / a.size(d))
    a.softmax(dot(Q * x_i, K * x_j) + c * dot(b, K * x_j) + g, beta)
    a.output(n("o"), a.average(x_j))
    return a


RECURRENCES = (chunked, channels, momentum, stepwise, rows, scanned, substeps)
SPECS = (*RECURRENCES, program, pairs)
# under neutral names, each role's own
NEUTRAL: dict[str, Callable[[], Recurrence]] = {f.__name__: functools.partial(f, str) for f in RECURRENCES}
NEUTRAL_PROGRAMS: dict[str, Callable[[], Program]] = {"program": functools.partial(program, str)}
NEUTRAL_ATTENTIONS: dict[str, Callable[[], Attention]] = {"pairs": functools.partial(pairs, str)}


def roles(spec: Callable) -> list[str]:
    """What has a name in a spec, in the order in which it gets it."""
    asked: dict[str, None] = {}
    spec(lambda role: asked.setdefault(role) or role)
    return list(asked)


# --- what an op computes ------------------------------------------------------------------------------------------------


def numbers(spec: Callable, names: dict[str, str], dtype: torch.dtype, backend: str) -> dict[str, torch.Tensor]:
    """Outputs, final states and gradients of the op whose roles have these names."""
    declared = spec(lambda role: names.get(role, role))
    n = lambda role: unicodedata.normalize("NFKC", names.get(role, role))  # noqa: E731
    op = chunkform.compile(declared)
    signature = sys.modules[op.__module__].OP.signature
    own = {n(role): role for role in roles(spec)}
    generator = torch.Generator().manual_seed(0)
    sizes = {"B": B, "T": T, "S": T, "H": H} | {n("d"): 6, n("e"): 5}
    given, found = {}, {}
    for a in sorted(signature.arguments, key=lambda a: own[a.name]):
        if a.kind == "constant":
            given[a.name] = 0.3
            continue
        lead = {"parameter": "H", "decay parameter": "H", "temperature": "H"}.get(a.kind, "BTH")
        x = torch.randn([sizes[s] for s in (*lead, *a.dims)], generator=generator, dtype=torch.float64)
        x = x.abs().neg() if a.kind.startswith("decay") else x.abs() + 1 if own[a.name] in ("mu", "beta") else x / 2
        key = f"log_{a.name}" if a.kind.startswith("decay") else a.name
        given[key] = found[own[a.name]] = x.to(dtype).requires_grad_()
    options = {} if isinstance(declared, Attention) else {"output_final_state": True}
    results = op(**given, **options, backend=backend)
    results = results if isinstance(results, tuple) else (results,)
    flat = [x for r in results for x in (r if isinstance(r, tuple) else (r,))]
    sum((x.square() * (i + 1)).sum() for i, x in enumerate(flat)).backward()
    out = {f"result {i}": x.detach() for i, x in enumerate(flat)}
    return out | {f"d{role}": x.grad for role, x in found.items()}


@functools.cache
def neutral(spec: Callable, dtype: torch.dtype, backend: str) -> dict[str, torch.Tensor]:
    return numbers(spec, {}, dtype, backend)


def difference(spec: Callable, names: dict[str, str], dtype: torch.dtype, backend: str) -> float:
    """How far from those under neutral names, relatively."""
    found, wanted = numbers(spec, names, dtype, backend), neutral(spec, dtype, backend)
    assert found.keys() == wanted.keys()
    return max(float((found[n] - x).norm() / x.norm().clamp(min=1e-30)) for n, x in wanted.items())


def refused(spec: Callable, names: dict[str, str]) -> bool:
    """Is a declaration with these names refused, in one sentence?"""
    try:
        spec(lambda role: names.get(role, role))
    except NameError_ as error:
        assert "\n" not in str(error), error
        return True
    return False


# --- words --------------------------------------------------------------------------------------------------------------


def identifiers(text: str) -> Iterator[str]:
    for x in ast.walk(ast.parse(text)):
        match x:
            case ast.Name():
                yield x.id
            case ast.arg():
                yield x.arg
            case ast.Attribute():
                yield x.attr
            case ast.keyword(arg=str()):
                yield x.arg
            case ast.FunctionDef() | ast.ClassDef():
                yield x.name
            case ast.alias():
                yield from (x.asname or x.name).split(".")


@functools.cache
def of_files() -> tuple[str, ...]:
    """The identifiers of all generated files."""
    files = sorted((ROOT / "generated").glob("*.py"))
    return tuple(sorted({x for f in files for x in identifiers(f.read_text(encoding="utf-8"))}))


@functools.cache
def of_runtime() -> tuple[str, ...]:
    """What runtime's modules have at their top."""
    found: set[str] = set()
    for f in (ROOT / "runtime").rglob("*.py"):
        for x in ast.parse(f.read_text(encoding="utf-8")).body:
            found |= {x.name} if isinstance(x, ast.FunctionDef | ast.ClassDef) else set()
            found |= {a.asname or a.name for a in x.names} if isinstance(x, ast.ImportFrom) else set()
    return tuple(sorted(found))


@functools.cache
def words() -> tuple[str, ...]:
    """All words that a name may meet, and how the compiler forms others."""
    own = {*of_files(), *of_runtime(), *dir(builtins), *keyword.kwlist, *keyword.softkwlist, *dir(torch), *dir(tl)}
    own |= {*dir(triton)}
    own |= {f"{stem}{n}" for stem in ("t", "t_", "y_", "w_", "x", "p", "r", "sum", "number_") for n in (1, 2, 3, 11)}
    own |= {
        f"{stem}_{x}" for stem in ("d", "at", "in", "size", "block", "log", "last", "next", "given") for x in "dekqvS"
    }
    return tuple(sorted(own))


def batches(spec: Callable, found: tuple[str, ...], shift: int = 0) -> Iterator[dict[str, str]]:
    """The words as names of all roles but the op's, several at once, without those that are refused there."""
    own = [role for role in roles(spec) if role != "op"]
    names: dict[str, str] = {}
    for n, word in enumerate(found):
        role = own[(n + shift) % len(own)]
        if role in names or refused(spec, {**names, role: word}):
            continue
        names[role] = word
        if len(names) == len(own):
            yield names
            names = {}
    if names:
        yield names


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--interpret", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--every", type=int, default=1)
    chosen = parser.parse_args()
    dtype, backend = (torch.float32, "triton") if chosen.interpret else (torch.float64, "torch")
    bound = 2e-4 if chosen.interpret else 1e-9
    count = failures = 0
    with tempfile.TemporaryDirectory() as cache:
        os.environ["CHUNKFORM_CACHE"] = cache
        for spec in SPECS:
            if not re.search(chosen.only, spec.__name__):
                continue
            for shift in range(len(roles(spec)) - 1):
                for names in list(batches(spec, words(), shift))[shift % chosen.every :: chosen.every]:
                    count += 1
                    try:
                        error = difference(spec, names, dtype, backend)
                    except ChunkformError as why:
                        error, why = float("inf"), str(why).splitlines()[0]
                        print(why)
                    except Exception as why:
                        error = float("inf")
                        print(repr(why)[:300])
                    if not error < bound:
                        failures += 1
                        print(f"FAILED {spec.__name__} {error:.1e} {names}", flush=True)
                print(f"{spec.__name__} {shift}: {count} ops, {failures} failures", flush=True)
    raise SystemExit(failures > 0)


if __name__ == "__main__":
    main()
