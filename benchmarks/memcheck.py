"""Every kernel under NVIDIA's memory checker, on a GPU: `make memcheck` writes results/gpu/memcheck.json and .md.

    python -m benchmarks.memcheck [OP ..] [--processes 8] [--seconds 480] [--unchecked]

Runs `compute-sanitizer --tool memcheck` over small calls of each op, which between them launch what it has: float32 and
bfloat16, widths that are no powers of two, packed sequences with empty ones, head groups, decays of any strength, sequences
in segments, the decoding step. Torch takes each tensor's memory from the driver alone, so that no access beyond one falls
into another. With --seconds no op begins after that time, and --unchecked leaves out those that were checked with today's
kernels: pieces add up.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import functools
import importlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from chunkform.runtime.launch.fingerprint import is_jit

from .verified import GENERATED, MEMCHECK, ROOT, key_of, names

RESULT = MEMCHECK
CHECKER = "compute-sanitizer"
TIMEOUT = 900


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*", default=[])
    parser.add_argument("--processes", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--unchecked", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.child:
        print("CALLED " + json.dumps(called(a.ops[0])))
        return
    checker = found_checker()
    if checker is None:
        raise SystemExit(f"make memcheck: there is no {CHECKER} on this machine; it comes with NVIDIA's CUDA toolkit")
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    chosen = [n for n in a.ops or names() if not (a.unchecked and known.get(n, {}).get("kernels") == key_of(n))]
    until = time.time() + a.seconds
    with ThreadPoolExecutor(a.processes) as pool:
        for name, row in pool.map(lambda n: (n, checked(checker, n) if time.time() < until else None), chosen):
            if row is None:
                print(f"{name}: left for another piece", flush=True)
                continue
            known[name] = row
            said = row["problem"] or f"{len(row['launched'])} kernels, {len(row['errors'])} errors"
            print(f"{name}: {said}", *row["errors"], sep="\n  ", flush=True)
            RESULT.parent.mkdir(parents=True, exist_ok=True)
            RESULT.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
            RESULT.with_suffix(".md").write_text(page(known))
    raise SystemExit(any(x["errors"] or x["problem"] for x in known.values()))


def found_checker() -> str | None:
    places = [Path(p) / "bin" / CHECKER for p in sorted(Path("/usr/local").glob("cuda*"))]
    return shutil.which(CHECKER) or next((str(p) for p in places if p.exists()), None)


def checked(checker: str, name: str) -> dict[str, Any]:
    """What the checker says of an op's calls."""
    command = [checker, "--tool", "memcheck", "--print-limit", "50", sys.executable, "-W", "ignore", "-m"]
    command += ["benchmarks.memcheck", "--child", name]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
        out, tail = done.stdout, done.stderr.strip().splitlines()[-1:]
    except subprocess.TimeoutExpired as late:
        out, tail = late.stdout.decode() if isinstance(late.stdout, bytes) else "", [f"still at it after {TIMEOUT} s"]
    said = re.search(r"^CALLED (.*)$", out, re.MULTILINE)
    summary = re.search(r"ERROR SUMMARY: (\d+) error", out)
    row: dict[str, Any] = json.loads(said[1]) if said else {"launched": [], "calls": []}
    own = {x.name for x in ast.parse((GENERATED / f"{name}.py").read_text()).body if is_jit(x)}
    kernels = {x.name for x in ast.walk(ast.parse((GENERATED / f"{name}.py").read_text())) if _is_kernel(x, own)}
    return row | {
        "kernels": key_of(name),
        "not launched": sorted(kernels - set(row["launched"])),
        "errors": errors_in(out),
        "problem": "" if said and summary else " ".join(tail) or "the checker gave no summary",
        "checker": version(checker),
        **about(),
    }


def _is_kernel(node: ast.AST, own: set[str]) -> bool:
    """Is it launched, as a function that gives nothing back?"""
    if not isinstance(node, ast.FunctionDef) or node.name not in own:
        return False
    return not any(isinstance(x, ast.Return) and x.value is not None for x in ast.walk(node))


def errors_in(said: str) -> list[str]:
    """What the checker found, a line each: what, and where; the same once."""
    lines = [x.removeprefix("=========").strip() for x in said.splitlines() if x.startswith("=========")]
    found = []
    for n, x in enumerate(lines):
        if re.match(r"(Invalid|Out-of-range|Misaligned|Program hit|Fatal|Unaligned|Race|Leaked)", x):
            where = next((y for y in lines[n + 1 : n + 4] if y.startswith("at ")), "")
            found.append(re.sub(r"0x[0-9a-f]+", "..", f"{x} {where}".strip()))
    return list(dict.fromkeys(found))


def version(checker: str) -> str:
    done = subprocess.run([checker, "--version"], capture_output=True, text=True)
    found = re.search(r"[Vv]ersion ([\d.]+)", done.stdout)
    return found[1] if found else "unknown"


def about() -> dict[str, str]:
    import torch
    import triton

    return {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
    }


def page(known: dict[str, Any]) -> str:
    lines = [
        "# Memory accesses of the kernels",
        "",
        "What `compute-sanitizer --tool memcheck` says of small calls of each op, which are in `memcheck.json`. Made by "
        "`make memcheck`.",
        "",
        "| op | kernels launched | errors | not launched by these calls | GPU | versions | date |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, x in sorted(known.items()):
        versions = f"torch {x['torch']}, Triton {x['triton']}, {CHECKER} {x['checker']}"
        said = x["problem"] or "; ".join(x["errors"]) or "none"
        missing = ", ".join(x["not launched"])
        lines.append(f"| {name} | {len(x['launched'])} | {said} | {missing} | {x['gpu']} | {versions} | {x['date']} |")
    return "\n".join(lines) + "\n"


# --- the calls, in a process under the checker ---------------------------------------------------------------------------


def called(name: str, device: str = "cuda") -> dict[str, Any]:
    """The calls of an op that were made, and the kernels that they launched."""
    import torch
    import triton

    launched: set[str] = set()
    if device == "cuda":
        triton.knobs.runtime.launch_enter_hook.add(lambda x: launched.add(x.get()["name"]))
    calls = []
    for said, call in calls_of(name, device):
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        calls.append(said)
    return {"calls": calls, "launched": sorted(launched)}


def calls_of(name: str, device: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Small calls that between them launch an op's kernels."""
    text = (GENERATED / f"{name}.py").read_text()
    op = getattr(importlib.import_module(f"chunkform.generated.{name}"), name)
    if "AttentionOp(" in text:
        yield from attention_calls(name, op, device)
    elif "chunkform.runtime.solves.programs" in text:
        yield from program_calls(name, op, device)
    else:
        yield from recurrence_calls(name, op, device)


def recurrence_calls(name: str, op: Any, device: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    import torch
    from shared.op_cases import problem, run

    from chunkform.codegen.recurrence.samples import Case

    def made(said: str, case: Case, **options: Any) -> tuple[str, Callable[[], Any]]:
        p = problem(name, case, **options)
        return said, lambda: run(p, backend="triton")

    few = problem(name, Case(steps=1)).given
    yield made(
        "float32, 2 x 65 x 2, extreme decays",
        Case(2, 65, 2, 33, torch.float32, device, decay="extreme"),
        sizes=(20, 33),
    )
    packed = Case(1, 66, 2, 33, torch.bfloat16, device)
    groups = {n: 1 for n in list(few)[1:]}
    yield made(
        "bfloat16, packed 1, 64, 0, 1, head groups", packed, sizes=(20, 33), lengths=(1, 64, 0, 1), groups=groups
    )
    yield made(
        "bfloat16, 1 x 520 x 1, in segments", Case(1, 520, 1, 16, torch.bfloat16, device, same=True, decay="strong")
    )
    yield made("float16, 1 x 128 x 2", Case(1, 128, 2, 64, torch.float16, device, same=True, initial=False))
    if "rows_kernel" in (GENERATED / f"{name}.py").read_text():  # for states that a program doesn't hold
        yield made("float32, 1 x 3 x 1, width 136", Case(1, 3, 1, 136, torch.float32, device, same=True))
        yield "decoding, width 136", lambda: decoded(problem(name, Case(1, 3, 1, 136, torch.float32, device)), op)
    yield "decoding", lambda: decoded(problem(name, Case(2, 3, 2, 20, torch.float32, device)), op)


def decoded(p: Any, op: Any) -> None:
    import torch

    state = None
    per_step = {a.name for a in sys.modules[op.__module__].OP.signature.arguments if a.per_step}
    with torch.no_grad():
        for t in range(3):
            given = {p.keys[n]: x[:, t] if n in per_step else x for n, x in p.given.items()}
            *_, state = op.step(state, **given, **p.constants, inplace=t == 1, backend="triton")


def program_calls(name: str, op: Any, device: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    import torch

    from chunkform.codegen.programs.check import run
    from chunkform.codegen.programs.oracle import sample
    from chunkform.codegen.programs.pipeline import compile_program
    from chunkform.codegen.recurrence.samples import Case
    from chunkform.spec.language.load import CATALOGUE, load

    c = compile_program(load(CATALOGUE / f"{name}.py")[0])
    for case in (
        Case(2, 65, 2, 20, torch.float32, device),
        Case(1, 70, 2, 33, torch.bfloat16, device, decay="extreme"),
        Case(1, 520, 1, 16, torch.bfloat16, device, initial=False),
    ):
        said = f"{case.dtype}, {case.batch} x {case.steps} x {case.heads}"
        yield said, functools.partial(run, c, op, sample(c, case), "triton")


def attention_calls(name: str, op: Any, device: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    import torch

    from chunkform.codegen.attention.check import Case, run, sample
    from chunkform.codegen.attention.pipeline import compile_attention
    from chunkform.spec.language import find

    c = compile_attention(find(name)[0])
    for dtype, causal, steps in ((torch.float32, False, 70), (torch.bfloat16, True, 130), (torch.bfloat16, False, 33)):
        causal = causal and c.spec.nodes is None
        case = Case(batch=2, steps=steps, heads=2, width=24, same=True, dtype=dtype, causal=causal, device=device)
        said = f"{dtype}, 2 x {steps} x 2{', causal' if causal else ''}"
        yield said, functools.partial(run, c, op, sample(c, case), causal, "triton")
    case = Case(batch=1, steps=17, heads=2, width=24, device=device)
    yield "float32, 1 x 17 x 2, dims of other widths", functools.partial(run, c, op, sample(c, case), False, "triton")


if __name__ == "__main__":
    main()
