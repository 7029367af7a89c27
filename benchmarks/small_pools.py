"""What a pool of small states costs on a GPU beside a tensor of bfloat16: a step, drafts and their commit, a prefill.

    python -m benchmarks.small_pools [--json results/gpu/small_pools.json]

The gated delta rule, 16 heads of 128 channels, rows at random, in a CUDA graph that goes round as many rows as the L2 cache can't
hold. First rows that kernels read and write are compared with what torch makes of them.
"""

from __future__ import annotations

import copy
import datetime
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks import places
from benchmarks.decode import BEYOND_CACHE, arguments
from benchmarks.serving import D, H, K, graphed, op_of, over_steps
from chunkform.runtime.op import row_kernels
from chunkform.runtime.op.small_states import SmallPool

NAME, BATCH = "gated_delta_rule", 64
PREFILL = (4, 512)  # sequences, tokens
KINDS = ("bfloat16 tensor", "int8", "float8_e4m3fn", "bfloat16 at random")
Cases = Iterator[
    tuple[str, Callable[[torch.Tensor], object], int]
]  # what, a call on rows of the pool, and how many rows


def pool_of(kind: str, rows: int, stochastic: bool = True) -> torch.Tensor | SmallPool:
    """A pool of this kind that holds random states."""
    first = 0.1 * torch.randn(256, H, D, D, device="cuda")
    if kind == KINDS[0]:
        return first.bfloat16().repeat(rows // 256 + 1, 1, 1, 1)[:rows].contiguous()
    dtype = getattr(torch, kind.split()[0])
    pool = SmallPool.zeros(op_of(NAME)[0], rows, H, {"d": D, "e": D}, dtype, "cuda", stochastic)
    for some in torch.arange(rows, device="cuda").split(256):
        pool.write(some, [first[: len(some)]])
    return pool


def check(kind: str) -> None:
    """Rows by kernels and in torch: read with the same bits, and written to the same numbers but for a few, whose x / scale lies
    between two, and goes to either."""
    rows = torch.tensor([7, -1, 0, 300], device="cuda", dtype=torch.int32)
    first, state = pool_of(kind, 301, stochastic=False), 0.1 * torch.randn(4, H, D, D, device="cuda")
    assert isinstance(first, SmallPool)
    found = []
    for on in (True, False):
        usual, row_kernels.on_kernels = row_kernels.on_kernels, lambda pool, on=on: on
        pool = copy.deepcopy(first)
        before = pool.read(rows)[0]
        pool.write(rows, [state])
        found.append((before, pool.states[0].numbers.float()))
        row_kernels.on_kernels = usual
    (a, b), (c, d) = found
    apart = (b != d).float().mean().item()
    assert torch.equal(a, c) and apart < 1e-5, (kind, apart)
    print(f"{kind}: rows by kernels are those of torch; of numbers written {apart:.0e} aren't", flush=True)


def cases(pool: torch.Tensor | SmallPool) -> Cases:
    call, op = op_of(NAME)
    given, many = arguments(op, BATCH, H, D), over_steps(op, BATCH)
    steps = over_steps(op, PREFILL[0] * PREFILL[1] // K)
    long = {n: x.flatten(0, 1).unflatten(0, PREFILL) for n, x in steps.items()}
    accepted = torch.randint(0, K + 1, (BATCH,), device="cuda")

    def both(rows: torch.Tensor) -> None:
        call.commit(call.draft(pool, **many, state_indices=rows)[-1], accepted)

    yield "a step of 64 sequences", lambda rows: call.step(pool, **given, state_indices=rows), BATCH
    yield "four drafts of 64", lambda rows: call.draft(pool, **many, state_indices=rows), BATCH
    yield "with a commit", both, BATCH
    yield (
        f"prefill of {PREFILL[0]} x {PREFILL[1]} tokens",
        lambda rows: call(**long, state_pool=pool, state_indices=rows),
        PREFILL[0],
    )


def measure() -> Iterator[dict[str, Any]]:
    rows_of_pool = (2 * int(BEYOND_CACHE / (2 * BATCH * H * D * D)) + 2) * BATCH
    for kind in KINDS:
        if kind != KINDS[0]:
            check(kind)
        pool = pool_of(kind, rows_of_pool)
        order = torch.randperm(rows_of_pool, device="cuda").int()
        for what, run, count in cases(pool):
            for on in (True, False):
                usual = row_kernels.on_kernels
                row_kernels.on_kernels = usual if on else lambda pool: False
                with torch.no_grad():
                    seconds = graphed([partial(run, r) for r in order.view(-1, count)[:10]])
                row_kernels.on_kernels = usual
                yield {"pool": kind, "what": what, "rows": "kernels" if on else "torch", "us": round(1e6 * seconds, 1)}


def main(json_path: Annotated[Path | None, typer.Option("--json", parser=places.file)] = None) -> None:
    """Measure, print and write JSON."""
    import triton

    about = {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "what": f"{NAME}, {H} heads of {D} channels; rows of the pool moved by kernels, and by torch",
    }
    found = []
    for row in measure():
        found.append(row)
        print(row, flush=True)
        if json_path:
            json_path.write_text(json.dumps({"about": about, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
