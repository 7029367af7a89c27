"""Compile random valid specs, run them, and compare every number with a plain loop in float64.

    python -m random_specs.run 0 2000                in tests/, with OMP_NUM_THREADS=1; about a second a spec
    python -m random_specs.run 0 200 --triton        kernels, in Triton's interpreter, in float32
    python -m random_specs.run 0 200 --cuda          kernels, on a GPU, in float32
    python -m random_specs.run 17 18 --show          one spec, and its text
    python -m random_specs.run 1000000 1000100       of the wider grammar (`wider.py`)

A spec fails that is refused, ends in any error, or whose outputs, last states or gradients differ from the loop's, for any head.
`--json PATH` adds what was run to a record, such as results/random_specs.json, after each spec. `--seconds N`
begins no spec later than that. A failure repeats with its seed.
"""

from __future__ import annotations

import argparse
import builtins
import json
import math
import os
import sys
import tempfile
import time
import traceback
import types
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if "--triton" in sys.argv:  # chosen before triton is imported
    os.environ["TRITON_INTERPRET"] = "1"

import sympy
import torch
from shared.outside import names_from_outside
from torch import Tensor

import chunkform
from chunkform.codegen.commands.compile import compiler_hash
from chunkform.codegen.recurrence.chunkwise.compiled import Compiled
from chunkform.codegen.recurrence.emit import emit
from chunkform.codegen.recurrence.explain import explanation
from chunkform.codegen.recurrence.pipeline import compile_spec
from chunkform.spec.language import Recurrence

from .grammar import Drawn
from .grammar import draw as draw_first
from .reference import HEADS, Call, arguments, run_loop
from .wider import FIRST, draw_wider

DEVICE = "cuda" if "--cuda" in sys.argv else "cpu"
CHUNK = 16  # steps of the torch form's chunks here, so that short sequences have several
LENGTHS = (1, 2, 5), (15, 16, 17, 23, 35)
OF_KERNELS = (1, 2, 5), (17, 33, 64, 65, 70)  # whose blocks have 64 steps
LARGEST = 1e8
# What is allowed, relative to a head's size and beside it, and what arguments are moved by to see what rounding makes of them.
ROUNDING = {torch.float64: (1e-9, 1e-12, 1e-13), torch.float32: (1e-5, 1e-6, 1e-6)}


@dataclass(frozen=True)
class Outcome:
    """What became of a seed: `problem` is None where all is well."""

    seed: int
    family: str
    seconds: float
    problem: str | None = None


def draw(seed: int) -> Drawn:
    """The spec of a seed."""
    return draw_wider(seed) if seed >= FIRST else draw_first(seed)


def try_seed(seed: int, triton: bool = False, explained: bool = False) -> Outcome:
    """Draw a spec, compile and run it."""
    start, family = time.process_time(), "-"
    s = draw(seed)
    try:
        c = compile_spec(recurrence_of(s))
        family = "recurrent form" if c.forward is None else "chunks"
        m = module_of(c, triton)
        if explained:
            explanation(c)
        problem = compared(s, m, seed, triton)
    except Exception:
        problem = traceback.format_exc(limit=-6)
    return Outcome(seed, family, time.process_time() - start, problem)


def recurrence_of(s: Drawn) -> Recurrence:
    space: dict[str, Any] = {}
    exec(compile(s.text, f"{s.name}.py", "exec"), space)
    return space["r"]


def module_of(c: Compiled, triton: bool) -> Any:
    """The generated module, in which every name is known. Kernels are plain functions unless they are to run."""
    text = emit(c, tidy=False)
    if not triton:
        text = text.replace("@triton.jit\n", "")
    m = types.ModuleType(f"{c.name}_generated")
    sys.modules[m.__name__] = m
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{m.__name__}.py"  # triton reads the source of kernels
        m.__file__ = str(path)
        path.write_text(text)
        exec(compile(text, str(path), "exec"), m.__dict__)
    unknown = {n for n in names_from_outside(text) if n not in m.__dict__ and not hasattr(builtins, n)}
    assert not unknown, f"names that nothing defines: {unknown}"
    for name, size in (("CHUNK", CHUNK), ("CHANNEL_CHUNK", CHUNK // 2)):
        if name in m.__dict__:
            setattr(m, name, size)
    return m


def compared(s: Drawn, m: Any, seed: int, triton: bool) -> str | None:
    """What differs in calls of several lengths, with and without first states; None where nothing does."""
    torch.manual_seed(seed)
    for n, lengths in enumerate(OF_KERNELS if triton else LENGTHS):
        steps = lengths[seed % len(lengths)]
        while steps:
            call = arguments(s, seed, steps, initial=(seed + n) % 2 == 0)
            exact = run_loop(s, call)
            if all(bool(x.isfinite().all()) and float(x.abs().max()) < LARGEST for x in exact.values()):
                break
            steps //= 2
        if not steps:
            return None
        dtype = torch.float32 if triton else torch.float64
        got = run_triton(s, m, call.to(dtype, DEVICE)) if triton else run_op(s, m, call)
        wrong = differences(s, call, exact, got, dtype)
        if wrong:
            first = "with" if (seed + n) % 2 == 0 else "without"
            return f"{steps} steps, {first} first states: {wrong}"
    return None


def run_op(s: Drawn, m: Any, call: Call) -> dict[str, Tensor]:
    """The op, as users call it."""
    kinds = {x.name: x.kind for x in s.given}
    keys = {n: f"log_{n}" if "decay" in kinds[n] else n for n in call.given}
    leaves = {n: x.clone().requires_grad_() for n, x in call.given.items()}
    first = {n: None if x is None else x.clone().requires_grad_() for n, x in call.initial.items()}
    initial: Any = tuple(first.values()) if len(first) > 1 else next(iter(first.values()))
    if all(x is None for x in first.values()):
        initial = None
    *outputs, last = getattr(m, s.name)(
        **{keys[n]: x for n, x in leaves.items()}, **call.constants, initial_state=initial, output_final_state=True
    )
    lasts = last if isinstance(last, tuple) else (last,)
    found = dict(zip(s.outputs, outputs, strict=True))
    found |= {f"final {n}": x for n, x in zip(first, lasts, strict=True)}
    ends = [(found[n], x) for n, x in call.cotangents.items() if found[n].requires_grad]
    torch.autograd.backward([a for a, _ in ends], [b for _, b in ends])
    gradients = {f"d{n}": x for n, x in leaves.items()}
    gradients |= {f"d initial {n}": x for n, x in first.items() if x is not None}
    zero = torch.zeros_like
    return {n: x.detach() for n, x in found.items()} | {
        n: zero(x) if x.grad is None else x.grad for n, x in gradients.items()
    }


def run_triton(s: Drawn, m: Any, call: Call) -> dict[str, Tensor]:
    """The kernels' two functions, as the op calls them, on the device of the call; results on the CPU."""
    ends = {n: call.cotangents[f"final {n}"] for n in s.states}
    incoming = {n: call.cotangents[n] for n in s.outputs}
    needs = frozenset([*call.given, *(n for n, x in call.initial.items() if x is not None)])
    outputs, finals, saved = m.triton_forward(call.given, call.initial, call.constants, None)
    gradients, initial = m.triton_backward(call.given, call.initial, call.constants, saved, incoming, ends, needs, None)
    found = {**outputs, **{f"final {n}": x for n, x in finals.items()}}
    found |= {f"d{n}": x for n, x in gradients.items()} | {f"d initial {n}": x for n, x in initial.items()}
    return {n: x.cpu() for n, x in found.items() if x is not None}


def differences(
    s: Drawn, call: Call, exact: dict[str, Tensor], got: dict[str, Tensor], dtype: torch.dtype
) -> list[str]:
    """The quantities that are off, for a head, by more than rounding can make of the arguments' own rounding."""
    allowed, least, moved = ROUNDING[dtype]
    near: dict[str, Tensor] = {}
    wrong = []
    for n, x in exact.items():
        if n not in got:
            if float(x.norm()):
                wrong.append(f"{n} is missing")
            continue
        if got[n].shape != x.shape:
            wrong.append(f"{n} has the shape {list(got[n].shape)}, and should have {list(x.shape)}")
            continue
        size, error = by_head(s, n, x), by_head(s, n, got[n].double() - x)
        if bool((error <= allowed * size + least).all()):
            continue
        near = near or run_loop(s, call.moved(moved))
        if not bool((error <= allowed * size + 100 * by_head(s, n, near[n] - x)).all()):
            wrong.append(f"{n} is off by {error.tolist()}, of a size of {size.tolist()}")
    return wrong


def by_head(s: Drawn, name: str, x: Tensor) -> Tensor:
    """The norm of each head."""
    kinds = {f"d{g.name}": g.kind for g in s.given}
    if name.startswith(("final ", "d initial ")):
        axis = 1
    else:
        axis = 0 if kinds.get(name) in ("parameter", "head_decay") else 2
    return x.movedim(axis, 0).reshape(HEADS, -1).norm(dim=1)


def backend_named(a: argparse.Namespace) -> str:
    if a.cuda:
        return f"triton, {torch.cuda.get_device_name()}, float32"
    return "triton, interpreted, float32" if a.triton else "torch, float64"


def record_of(a: argparse.Namespace, stop: int, counts: Counter[str], failed: list[Outcome], seconds: float) -> Any:
    """A run as a record has it: which seeds, with what, and which of them failed."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "seeds": [a.first, stop],
        "backend": backend_named(a),
        "families": dict(sorted(counts.items())),
        "failed": [o.seed for o in failed],
        "cpu_seconds": math.ceil(seconds),
        "versions": {"chunkform": chunkform.__version__, "torch": torch.__version__, "sympy": sympy.__version__},
        "compiler": compiler_hash(),
    }


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("first", type=int)
    p.add_argument("stop", type=int)
    p.add_argument("--triton", action="store_true", help="kernels in Triton's interpreter")
    p.add_argument("--cuda", action="store_true", help="kernels on a GPU")
    p.add_argument("--explain", action="store_true", help="what `chunkform explain` says as well")
    p.add_argument("--show", action="store_true", help="print each spec's text")
    p.add_argument("--json", type=Path, help="a record to which what was run is added")
    p.add_argument("--seconds", type=float, default=math.inf, help="begin no spec after so many seconds")
    a = p.parse_args()
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    failed = []
    start, began = time.process_time(), time.monotonic()
    known = json.loads(a.json.read_text()) if a.json is not None and a.json.exists() else []
    for seed in range(a.first, a.stop):
        if time.monotonic() - began > a.seconds:
            break
        if a.show:
            print(draw(seed).text)
        o = try_seed(seed, a.triton or a.cuda, a.explain)
        counts[o.family] += 1
        if (seed - a.first + 1) % 50 == 0:
            print(f"up to seed {seed}: {len(failed)} failed, {math.ceil(time.process_time() - start)} s", flush=True)
        if o.problem is not None:
            failed.append(o)
            print(f"--- seed {seed} ({o.family})\n{draw(seed).text}\n{o.problem}\n", flush=True)
        if a.json is not None:
            here = record_of(a, seed + 1, counts, failed, time.process_time() - start)
            a.json.write_text(json.dumps([*known, here], indent=1) + "\n")
    seconds = time.process_time() - start
    print(f"{counts.total()} specs, {len(failed)} failed, {dict(counts)}, {math.ceil(seconds)} s of CPU")
    if failed:
        print("failed:", *(o.seed for o in failed))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
