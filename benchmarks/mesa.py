"""MesaNet's op against flash-linear-attention's, in one process: time, peak memory, errors against dense float64 solves.

    python -m benchmarks.mesa            # writes results/gpu/mesa.json and mesa.md
    python -m benchmarks.mesa --quick    # one shape, few repeats, nothing written

Both make the same number of products with the matrix: flash-linear-attention's `max_CG_iteration` steps from b over the diagonal
take one more, and so does cg(steps), from the best multiple of b.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from chunkform.codegen.checking.accuracy import relative_error
from chunkform.codegen.commands.compile import compile_op
from chunkform.spec.language import cg
from chunkform.spec.language.load import CATALOGUE, load

from . import tuning
from .timing import QUICK, USUAL, medians, peak_mebibytes, release, seconds

RESULTS = Path(__file__).parent.parent / "results" / "gpu"
SHAPES = {"S1": (8, 4096, 16, 128), "S3": (8, 4096, 32, 64), "S4": (1, 4096, 16, 128)}
STEPS = (30, 10)
NAMES = ("q", "k", "v", "beta", "log_lam", "lamb")


def ours(steps: int) -> Callable[..., Any]:
    """The catalogue's op with another number of steps."""
    (p,) = load(CATALOGUE / "mesa_net.py")
    p.solves[:] = [dataclasses.replace(s, method=cg(steps)) for s in p.solves]
    op = compile_op(p)
    return lambda *x: op(*x)[0]


def theirs(steps: int) -> Callable[..., Any]:
    """flash-linear-attention's op; its guard against a compiler's error in gated backward passes is lifted."""
    import fla.ops.common.chunk_o
    from fla.ops.mesa_net import chunk_mesa_net

    fla.ops.common.chunk_o.TRITON_ABOVE_3_7_1 = True
    return lambda q, k, v, beta, log_lam, lamb: chunk_mesa_net(q, k, v, log_lam, beta, lamb, max_CG_iteration=steps)[0]


def draw(shape: tuple[int, int, int, int], seed: int = 0) -> tuple[Tensor, ...]:
    """Unit queries and keys, decays around 0.95, a diagonal from 0.7 to 1.5, as MesaNet has them."""
    b, t, h, d = shape
    g = torch.Generator("cuda").manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=g, device="cuda")

    q, k = (torch.nn.functional.normalize(normal(b, t, h, d), dim=-1).bfloat16() for _ in range(2))
    v = normal(b, t, h, d).bfloat16()
    beta = normal(b, t, h).sigmoid().bfloat16()
    log_lam = torch.nn.functional.logsigmoid(normal(b, t, h) + 3.0)
    lamb = torch.nn.functional.softplus(normal(h, d)) + 0.25
    return q, k, v, beta, log_lam, lamb


def dense(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_lam: Tensor, lamb: Tensor) -> Tensor:
    """The definition, step by step, with dense solves."""
    b, t, h, d = q.shape
    H = q.new_zeros(b, h, d, d)
    S = q.new_zeros(b, h, d, v.shape[-1])
    out = []
    for i in range(t):
        lam, weighted = log_lam[:, i].exp()[..., None, None], beta[:, i, :, None] * k[:, i]
        H = lam * H + weighted.unsqueeze(-1) * k[:, i].unsqueeze(-2)
        S = lam * S + weighted.unsqueeze(-1) * v[:, i].unsqueeze(-2)
        x = torch.linalg.solve(H + torch.diag_embed(lamb), q[:, i].unsqueeze(-1))
        out.append((S.mT @ x).squeeze(-1))
    return torch.stack(out, 1)


def gradients(op: Callable[..., Any], inputs: tuple[Tensor, ...], do: Tensor) -> list[Tensor]:
    """The output, and the gradient of each input."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    o = op(*leaves)
    return [o.detach(), *torch.autograd.grad(o, leaves, do.to(o.dtype))]


def errors(op: Callable[..., Any], shape: tuple[int, int, int, int] = (1, 320, 2, 128)) -> dict[str, float]:
    """||out - ref|| / ||ref|| of the output and of every gradient, of its worst head."""
    inputs = draw(shape, seed=1)
    do = torch.randn(shape, generator=torch.Generator("cuda").manual_seed(2), device="cuda").bfloat16()
    exact = gradients(dense, tuple(x.double() for x in inputs), do.double())
    got = gradients(op, inputs, do)
    return {
        n: relative_error(a, b, 0 if n == "dlamb" else 2)
        for n, a, b in zip(("o", *(f"d{n}" for n in NAMES)), got, exact, strict=True)
    }


def measure(op: Callable[..., Any], shape: tuple[int, int, int, int], quick: bool) -> dict[str, Any]:
    """Milliseconds of a forward pass, and of both; peak memory; how long the first call of both took."""
    inputs = [x.requires_grad_() for x in draw(shape)]
    do = torch.randn_like(inputs[2])

    def forward() -> Any:
        with torch.no_grad():
            return op(*inputs)

    def both() -> Any:
        return torch.autograd.grad(op(*inputs), inputs, do)

    effort = QUICK if quick else USUAL
    first = seconds(both, "cuda")
    found = {
        "forward": medians(forward, "cuda", effort),
        "both": medians(both, "cuda", effort),
        "peak_mebibytes": peak_mebibytes(both, "cuda"),
        "first_call_seconds": first,
    }
    release("cuda")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one shape, few repeats, nothing written")
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, help="only these")
    parser.add_argument("--steps", nargs="*", type=int, help="only these numbers of steps")
    parser.add_argument("--no-peer", action="store_true", help="only our op")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.mesa: torch sees no CUDA device")
    makers = {"chunkform": ours} | ({} if asked.no_peer else {"fla": theirs})
    shapes = asked.shapes or (["S1"] if asked.quick else list(SHAPES))
    if not asked.no_peer:
        tuning.side_by_side(os.cpu_count() or 1, 5, 25)
    about = {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "shapes": {n: SHAPES[n] for n in shapes},
        "fla": None if asked.no_peer else _version(),
    }
    rows: list[dict[str, Any]] = []
    for steps in asked.steps or STEPS:
        for who, make in makers.items():
            op = make(steps)
            own = [{"op": who, "steps": steps, "shape": n, **measure(op, SHAPES[n], asked.quick)} for n in shapes]
            found = errors(op)
            for row in own:
                rows.append(row | {"errors": found})
                print(
                    who,
                    steps,
                    row["shape"],
                    f"{row['forward']['median']:.3f}",
                    f"{row['both']['median']:.3f}",
                    flush=True,
                )
            if not asked.quick:  # after each, so that a run that is cut short leaves what it has
                RESULTS.mkdir(parents=True, exist_ok=True)
                (RESULTS / "mesa.json").write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
                (RESULTS / "mesa.md").write_text(page(about, rows))
    print(page(about, rows))


def _version() -> str:
    import fla

    return getattr(fla, "__version__", "unknown")


def page(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The results as markdown."""
    shown = "; ".join(f"{n}: {', '.join(map(str, s))}" for n, s in about["shapes"].items())
    lines = [
        "# MesaNet's op on a GPU",
        "",
        f"{about['gpu']}, torch {about['torch']}, Triton {about['triton']}, {about['date']}; flash-linear-attention "
        f"{about['fla']} with its guard against gated backward passes on Hopper lifted (`TRITON_ABOVE_3_7_1 = True`). "
        "bf16 inputs, float32 log decays; medians, in milliseconds. Shapes are batch, steps, heads, width: "
        f"{shown}. Made by `python -m benchmarks.mesa`." + (f" {about['note']}" if "note" in about else ""),
        "",
        "| steps | shape | op | forward | forward + backward | peak MiB | times as fast |",
        "|---|---|---|---|---|---|---|",
    ]
    by = {(r["op"], r["steps"], r["shape"]): r for r in rows}
    for r in rows:
        peer = by.get(("fla", r["steps"], r["shape"]))
        ratio = ""
        if peer is not None and r["op"] != "fla":
            ratio = " / ".join(f"{peer[n]['median'] / r[n]['median']:.2f}" for n in ("forward", "both"))
        lines.append(
            f"| {r['steps']} | {r['shape']} | {r['op']} | {r['forward']['median']:.3f} | {r['both']['median']:.3f} | "
            f"{r['peak_mebibytes']:.0f} | {ratio} |"
        )
    names = list(rows[0]["errors"])
    lines += [
        "",
        "Errors, as the norm of the difference to dense float64 solves over their norm (1 x 320 x 2 x 128):",
        "",
        f"| steps | op | {' | '.join(names)} |",
        f"|---|---|{'---|' * len(names)}",
    ]
    for steps, op in dict.fromkeys((r["steps"], r["op"]) for r in rows):
        found = next(r["errors"] for r in rows if (r["steps"], r["op"]) == (steps, op))
        lines.append(f"| {steps} | {op} | {' | '.join(f'{found[n]:.1e}' for n in names)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
