"""Errors of ops in 16 bits beside those of an eager run that rounds where any kernel must.

    python -m benchmarks.rounding [--device cuda] [--out DIR] [--dtypes bfloat16,float16] [SPEC..]

A SPEC is a name of the catalogue, a spec file or a folder; the recurrences of tests/codegen/specs and spec/published where
there is none. Each output, final state and gradient is compared, head by head, with a run in float64 on the same rounded
inputs. The eager run is the op's own torch form, made from the same plan: over chunks, in float32, states in float32, with the
operands of its products of matrices rounded to 16 bits, as tensor cores take them, and results rounded at the end. Without a GPU
the errors of the eager run alone are shown, which tell what of an error is the problem's own conditioning.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, TimeoutError, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import chunkform
from chunkform.codegen.checking.accuracy import relative_error
from chunkform.runtime.op.call import Wants, make_call
from chunkform.runtime.op.passes import backward_pass, forward_pass
from chunkform.runtime.op.signature import Signature
from chunkform.spec.language import find

ROOT = Path(__file__).parent.parent
FOLDERS = ("tests/codegen/specs", "spec/published")
PRODUCTS = {torch.matmul, torch.bmm, torch.mm, torch.einsum, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__}
PRODUCTS |= {torch.linalg.solve_triangular}
MORE = 2.0  # times the error of the eager run, from which on a cause is wanted
DRAWS = 8  # of inputs, which are compared as one where the errors of the first draw are further apart
FLOAT32 = 1e-6  # an error that float32's own rounding makes, whatever the dtype of the inputs: sums in another order
LARGEST = 1e4  # that a value may be, so that float16 holds what it is made of
CAUSES: dict[tuple[str, str], str] = {  # (op, quantity), or (op, ""): why a kernel's error is larger
    (
        "ones_written",
        "final S",
    ): "a product with ones in the kernel, whose operands are rounded; a sum in the eager run",
    (
        "equal_keys",
        "db",
    ): "a read that one kernel leaves for another in 16 bits, over two steps; without that rounding 1.4",
}


@dataclass(frozen=True)
class Row:
    """Errors of a quantity, of the worst head; `error` is None where no kernel ran."""

    op: str
    dtype: str
    steps: int
    quantity: str
    error: float | None
    eager: float
    ratio: float | None
    cause: str = ""


class Rounded(TorchFunctionMode):
    """Operands of products are rounded to a dtype on their way, and what accumulates is as wide as before."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PRODUCTS:
            args = tuple(self._rounded(x) for x in args)
        return func(*args, **(kwargs or {}))

    def _rounded(self, x: Any) -> Any:
        if isinstance(x, Tensor) and x.is_floating_point():
            return x.to(self.dtype).to(x.dtype)
        return x


def rows_of(
    name: str, op: Any, s: Signature, dtype: torch.dtype, device: str, steps: int, width: int, normal: bool = False
) -> list[Row]:
    """The errors of one op's quantities, on a sequence so short that its values stay within reason. Where those of a draw are
    further apart than MORE, of a few numbers often by chance, DRAWS of them are compared as one."""
    backend = "triton" if device == "cuda" or os.environ.get("TRITON_INTERPRET") == "1" else None
    steps, drawn = runs_of(op, s, dtype, device, steps, width, normal, backend, 0)
    errors = {n: errors_in(x) for n, x in drawn.items()}
    far = [n for n, (own, theirs) in errors.items() if own is not None and own > max(MORE * theirs, FLOAT32)]
    if far:
        more = [drawn] + [runs_of(op, s, dtype, device, steps, width, normal, backend, n)[1] for n in range(1, DRAWS)]
        errors |= {n: errors_in(Runs.together([x[n] for x in more])) for n in far}
    kind = str(dtype).removeprefix("torch.")
    rows = []
    for n, (own, theirs) in errors.items():
        ratio = None if own is None else own / theirs if theirs else (1.0 if own == 0 else math.inf)
        rows.append(Row(name, kind, steps, n, own, theirs, ratio, cause(name, n, own, ratio)))
    return rows


@dataclass(frozen=True)
class Runs:
    """A quantity as the op made it, None where it didn't run, as the eager run did, and in float64: [heads, the rest]."""

    own: Tensor | None
    eager: Tensor
    exact: Tensor

    @staticmethod
    def together(each: list[Runs]) -> Runs:
        """Several draws as one."""
        own = [x.own for x in each if x.own is not None]
        eager, exact = torch.cat([x.eager for x in each], 1), torch.cat([x.exact for x in each], 1)
        return Runs(torch.cat(own, 1) if own else None, eager, exact)


def errors_in(x: Runs) -> tuple[float | None, float]:
    """The error of the worst head, of the op and of the eager run."""
    return None if x.own is None else relative_error(x.own, x.exact, 0), relative_error(x.eager, x.exact, 0)


def runs_of(
    op: Any, s: Signature, dtype: torch.dtype, device: str, steps: int, width: int, normal: bool, backend: str | None,
    seed: int,
) -> tuple[int, dict[str, Runs]]:  # fmt: skip
    """How many steps were taken, and what each quantity was."""
    while True:
        given, constants, cotangents, finals = arguments(s, dtype, device, steps, width, normal, seed)
        exact = run(op, s, given, constants, cotangents, finals, torch.float64, "torch")
        if steps == 1 or all(bool((x.abs() < LARGEST).all()) for x in exact.values()):
            break
        steps //= 2
    with Rounded(dtype):
        wide = run(op, s, given, constants, cotangents, finals, torch.float32, "torch")
    eager = {n: x.to(kind) for (n, x), kind in zip(wide.items(), kinds(s, given, wide), strict=True)}
    found = None if backend is None else run(op, s, given, constants, cotangents, finals, None, backend)

    def by_head(values: dict[str, Tensor], n: str) -> Tensor:
        x = values[n].movedim(head_axis(s, n), 0)
        return x.reshape(len(x), -1)

    return steps, {
        n: Runs(None if found is None else by_head(found, n), by_head(eager, n), by_head(exact, n)) for n in exact
    }


def cause(name: str, quantity: str, error: float | None, ratio: float | None) -> str:
    """Why a kernel's error is more than MORE times that of the eager run, where it is known."""
    if ratio is None or error is None or ratio <= MORE:
        return ""
    if error <= FLOAT32:
        return "float32's own rounding"
    return CAUSES.get((name, quantity)) or CAUSES.get((name, "")) or "unexplained"


def arguments(
    s: Signature, dtype: torch.dtype, device: str, steps: int, width: int, standard: bool = False, seed: int = 0
) -> tuple[Any, ...]:
    """Inputs as users have them: normal, vectors over the root of their width, numbers from 0 to 1, usual decays; or all of
    them `standard` normal."""
    g = torch.Generator().manual_seed(seed)
    heads, batch = 2, 2

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    given: dict[str, Tensor] = {}
    for a in s.tensors:
        own = [width for _ in a.dims]
        lead = [batch, steps, heads] if a.per_step else [heads]
        if a.kind.startswith("decay"):
            x = torch.nn.functional.logsigmoid(normal(*lead, *own) + 2)
        elif own or (standard and a.kind == "input"):
            x = normal(*lead, *own) / (1.0 if standard else width**0.5)
        else:
            x = torch.rand(*lead, generator=g)
        given[a.key] = x.to(device, dtype if a.kind == "input" else torch.float32)
    constants = {a.name: 0.5 if a.default is None else a.default for a in s.constants}
    shown = [dims for n, dims in s.outputs if n not in s.hidden]
    cotangents = [normal(batch, steps, heads, *(width for _ in dims)).to(device, dtype) for dims in shown]
    finals = [(0.1 * normal(batch, heads, *(width for _ in dims))).to(device) for _, dims in s.states]
    return given, constants, cotangents, finals


def run(
    op: Any,
    s: Signature,
    given: dict[str, Tensor],
    constants: dict[str, float],
    cotangents: list[Tensor],
    finals: list[Tensor],
    dtype: torch.dtype | None,
    backend: str,
) -> dict[str, Tensor]:
    """Every quantity, computed from arguments in a dtype, or as they are."""
    own = {n: (x if dtype is None else x.to(dtype)).detach().clone() for n, x in given.items()}
    if dtype is None:
        for x in own.values():
            x.requires_grad_()
        *outputs, last = op(**own, **constants, output_final_state=True, backend=backend)
        states = last if isinstance(last, tuple) else (last,)
        results, incoming = [*outputs, *states], [*cotangents, *finals]
        torch.autograd.backward(results, [g.to(x.dtype) for x, g in zip(results, incoming, strict=True)])
        gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in own.values()]
    else:  # without autograd, whose engine runs backward passes where no mode sees them
        tensors = [*own.values(), *(None for _ in s.states)]
        backends = op.__globals__["OP"].backends
        heads = max(x.shape[a.head_axis] for a, x in zip(s.tensors, own.values(), strict=True))
        call = make_call(s, backends, backend, constants, heads, None, "default", tensors, False, Wants())
        results, saved = forward_pass(call, tensors)
        incoming = [x.to(dtype) for x in (*cotangents, *finals)]
        wanted = [True] * len(own) + [False] * len(s.states)
        found = backward_pass(call, tensors, saved, incoming, wanted)[: len(own)]
        gradients = [torch.zeros_like(x) if g is None else g for g, x in zip(found, own.values(), strict=True)]
    names = [*(n for n, _ in s.outputs if n not in s.hidden), *(f"final {n}" for n, _ in s.states)]
    named = dict(zip(names, results, strict=True)) | {f"d{n}": g for n, g in zip(own, gradients, strict=True)}
    return {n: x.detach() for n, x in named.items()}


def kinds(s: Signature, given: dict[str, Tensor], found: dict[str, Tensor]) -> list[torch.dtype]:
    """The dtype of each quantity, as an op has it."""
    leading = given[s.leading.key].dtype
    return [
        given[n[1:]].dtype if n[1:] in given else x.dtype if n.startswith("final ") else leading
        for n, x in found.items()
    ]


def head_axis(s: Signature, quantity: str) -> int:
    """Where a quantity has its heads."""
    if quantity.startswith("final "):
        return 1
    return next((a.head_axis for a in s.tensors if quantity == f"d{a.key}"), 2)


# --- the table ----------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description="errors in 16 bits beside those of an eager run that rounds operands")
    parser.add_argument("specs", nargs="*", default=FOLDERS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtypes", default="bfloat16,float16")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument(
        "--normal", action="store_true", help="inputs as they are drawn, not over the root of their width"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--budget", type=float, default=3600, help="seconds; what isn't done by then is left out")
    parser.add_argument("--out", type=Path, help="a folder for rounding.json and rounding.md")
    parser.add_argument("--merge", action="store_true", help="keep what these have of other recurrences and steps")
    parser.add_argument("--of", type=Path, nargs="+", help="rounding.json of other runs, in the place of a run")
    given = parser.parse_args()
    if given.of is not None:
        runs = [json.loads(file.read_text()) for file in given.of]
        own = [Row(**x) for told in runs for x in told["rows"]]
        missing = {n: why for told in runs for n, why in told["missing"].items()}
        print("\n".join(table(in_order(own))))
        if given.out is not None:
            write(merged(own, given.out) if given.merge else in_order(own), missing, runs[0]["about"], given.out)
        return
    common = (given.device, given.steps, given.width, given.normal)
    jobs = [(*x, dtype, *common) for dtype in given.dtypes.split(",") for x in recurrences_of(given.specs)]
    rows, failed = measured(jobs, given.jobs, given.budget)
    for name, why in failed.items():
        print(f"{name}: {why}")
    print("\n".join(table(rows)))
    if given.out is not None:
        if given.merge:
            rows = merged(rows, given.out)
        about = {"date": datetime.date.today().isoformat(), "torch": torch.__version__, "device": given.device}
        if given.device == "cuda":
            about["device"] = torch.cuda.get_device_name()
        write(rows, failed, about, given.out)


def merged(rows: list[Row], out: Path) -> list[Row]:
    """With the rows of an earlier run that are of other recurrences, dtypes or numbers of steps."""
    new = {(r.op, r.dtype, r.steps) for r in rows}
    earlier = [Row(**x) for x in json.loads((out / "rounding.json").read_text())["rows"]]
    return in_order([*rows, *(r for r in earlier if (r.op, r.dtype, r.steps) not in new)])


def recurrences_of(given: Any) -> list[tuple[str, str]]:
    """All recurrences of specs, with the spec that each is in."""
    return [(spec, r.name) for spec in specs_of(given) for r in find(spec)]


def specs_of(given: Any) -> list[str]:
    """Names of the catalogue and files; of folders, the files in them."""
    found: list[str] = []
    for x in given:
        path = ROOT / x if (ROOT / x).is_dir() else Path(x)
        found += map(str, sorted(path.glob("[!_]*.py"))) if path.is_dir() else [x]
    return found


def measured(
    jobs: list[tuple[str, str, str, str, int, int, bool]], processes: int, budget: float
) -> tuple[list[Row], dict[str, str]]:
    """The rows of all jobs that end in time, and what is known of the others."""
    rows: list[Row] = []
    failed = {called(*job): "not done in time" for job in jobs}
    end = time.monotonic() + budget
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))
    names = {pool.submit(measure, *job): called(*job) for job in jobs}
    try:
        for done in as_completed(names, timeout=max(1.0, end - time.monotonic())):
            problem = done.exception()
            if problem is None:
                rows += done.result()
                del failed[names[done]]
            else:
                failed[names[done]] = f"{type(problem).__name__}: {problem}".replace(f"{ROOT}/", "")[:300]
    except TimeoutError:
        for process in list(pool._processes.values()):
            process.terminate()
    pool.shutdown(wait=False, cancel_futures=True)
    return in_order(rows), failed


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda r: (r.dtype, -(r.ratio or 0.0), r.op))


def called(spec: str, name: str, dtype: str, *_: Any) -> str:
    """A job as messages have it; recurrences of one name lie in several folders."""
    path = Path(spec)
    return f"{name} of {path.relative_to(ROOT) if path.is_relative_to(ROOT) else spec}, {dtype}"


def measure(spec: str, name: str, dtype: str, device: str, steps: int, width: int, normal: bool) -> list[Row]:
    """One op in one dtype, in a process of its own."""
    torch.set_num_threads(1)
    op = chunkform.compile(next(r for r in find(spec) if r.name == name))
    s = sys.modules[op.__module__].SIGNATURE
    return rows_of(s.name, op, s, getattr(torch, dtype), device, steps, width, normal)


def table(rows: list[Row]) -> list[str]:
    """Rows of a page: all that have a cause, and of each op and dtype the worst ratio."""
    lines = [
        "| recurrence | dtype | steps | quantity | error | eager | ratio | cause where above 2 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    seen = set()
    for r in rows:
        if r.cause or (r.op, r.dtype, r.steps) not in seen:
            seen.add((r.op, r.dtype, r.steps))
            own = "" if r.error is None else f"{r.error:.1e}"
            ratio = "" if r.ratio is None else f"{r.ratio:.2f}"
            lines.append(
                f"| {r.op} | {r.dtype} | {r.steps} | {r.quantity} | {own} | {r.eager:.1e} | {ratio} | {r.cause} |"
            )
    return lines


def write(rows: list[Row], failed: dict[str, str], about: dict[str, str], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    listed = [json.dumps({n: round_to(x) for n, x in asdict(r).items()}) for r in rows]
    body = ",\n".join(listed).replace("Infinity", "null").replace("NaN", "null")
    (out / "rounding.json").write_text(
        f'{{"about": {json.dumps(about)}, "missing": {json.dumps(failed)}, "rows": [\n{body}\n]}}\n'
    )
    within = sum(1 for r in rows if r.ratio is not None and r.ratio <= MORE)
    lines = [
        "# Errors in 16 bits, beside an eager run that rounds where any kernel must",
        "",
        f"{about['device']}, torch {about['torch']}, {about['date']}; made by `python -m benchmarks.rounding`, which says",
        "what is compared. Errors are those of the worst head.",
        f"{within} of {len(rows)} quantities are within {MORE:g} times the eager run's error. Of each recurrence and dtype:",
        "all that aren't, or the largest ratio; every number is in `rounding.json`.",
        "",
        *table(rows),
    ]
    lines += ["", *(f"- {n}: {why}" for n, why in failed.items())] if failed else []
    (out / "rounding.md").write_text("\n".join(lines) + "\n")


def round_to(x: Any) -> Any:
    return float(f"{x:.3g}") if isinstance(x, float) else x


if __name__ == "__main__":
    main()
