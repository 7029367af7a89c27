"""A training step of models of transformers, 4 layers in bfloat16: on generated ops, on fla's functions, on the library's torch.

    python -m benchmarks.transformers_models [--json PATH] [--device cpu --width 64 --length 96]

What of fla and mamba_ssm is installed is what transformers takes by itself; the torch path is measured without them. A path that
takes more than the limit for a length isn't measured at a longer one.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn

from chunkform.integrations.transformers import enable

from . import places

LIMIT = 6.0  # seconds of one step, above which a path is given up for longer sequences
LAYERS = 4


@dataclass(frozen=True)
class Row:
    """One training step; milliseconds are null where it didn't run, and `why` says why."""

    model: str
    length: int
    path: str
    milliseconds: float | None
    gibibytes: float | None
    loss: float | None = None
    why: str = ""


def models(width: int) -> dict[str, tuple[str, str, dict[str, object]]]:
    """By folder of transformers: its classes, and a configuration whose layers are all recurrent, with heads of up to 128."""
    head = min(128, width // 2)
    heads = width // head
    linear = {"layer_types": ["linear_attention"] * LAYERS, "num_hidden_layers": LAYERS}
    some = {"vocab_size": 4096, "hidden_size": width, "intermediate_size": 2 * width, "pad_token_id": 0}
    delta = {
        "linear_num_key_heads": heads,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": head,
        "linear_value_head_dim": head,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": head,
    }
    dense = {"mlp_layer_types": ["dense"] * LAYERS, "num_attention_heads": heads, "num_key_value_heads": heads}
    mamba = {"num_heads": 2 * width // 64, "head_dim": 64, "state_size": 128, "n_groups": 1}
    return {
        "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", some | linear | delta),
        "kimi_linear": (
            "KimiLinearConfig",
            "KimiLinearForCausalLM",
            some | linear | dense | {"linear_head_dim": head, "linear_num_heads": heads},
        ),
        "mamba2": (
            "Mamba2Config",
            "Mamba2ForCausalLM",
            {"vocab_size": 4096, "hidden_size": width, "num_hidden_layers": LAYERS} | mamba,
        ),
        "minimax": (
            "MiniMaxConfig",
            "MiniMaxForCausalLM",
            some | linear | {"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": head}
            | {"num_local_experts": 2, "num_experts_per_tok": 1},
        ),
        "xlstm": (
            "xLSTMConfig",
            "xLSTMForCausalLM",
            {"vocab_size": 4096, "hidden_size": width, "num_hidden_layers": LAYERS, "num_heads": heads, "mode": "train"},
        ),
    }  # fmt: skip


def main(
    out: Annotated[Path | None, typer.Option("--json", parser=places.file, help="where to write the rows")] = None,
    device: Annotated[str, typer.Option(help="of the measurement")] = "cuda",
    width: Annotated[int, typer.Option(help="of the models")] = 1024,
    length: Annotated[list[int] | None, typer.Option(help="of the sequence; several are taken")] = None,
    only: Annotated[list[str] | None, typer.Option(help="models; all where not said")] = None,
) -> None:
    rows: list[Row] = []
    for name, (config, model, given) in models(width).items():
        if only and name not in only:
            continue
        tried = made(name, config, model, given, device)
        slow: set[str] = set()
        for steps in length or [4096, 32768]:
            for path in ("chunkform", "installed", "torch"):
                if path == "installed" and not has_kernels(name):
                    continue
                row = measured(tried, name, path, steps, device, path in slow)
                slow |= {path} if row.milliseconds is None or row.milliseconds > 1e3 * LIMIT else set()
                rows.append(row)
                print(shown(row), flush=True)
        del tried
    if out is not None:
        out.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")


def shown(row: Row) -> str:
    if row.milliseconds is None:
        return f"{row.model:12} T={row.length:<6} {row.path:10} {row.why}"
    memory = "" if row.gibibytes is None else f"{row.gibibytes:8.2f} GiB"
    return f"{row.model:12} T={row.length:<6} {row.path:10} {row.milliseconds:10.1f} ms {memory} loss {row.loss:.4f}"


def made(name: str, config: str, model: str, given: dict[str, object], device: str) -> nn.Module:
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    library = importlib.import_module("transformers")
    torch.manual_seed(0)
    tried = getattr(module, model)(getattr(library, config)(**given))
    return tried.to(device=device, dtype=torch.bfloat16).train()


def modeling(name: str) -> object:
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def has_kernels(name: str) -> bool:
    """Whether transformers has found a package with kernels for this model's recurrence."""
    wanted = {"qwen3_5": "fla", "kimi_linear": "fla", "mamba2": "mamba_ssm"}.get(name)
    return wanted is not None and importlib.util.find_spec(wanted) is not None


@contextlib.contextmanager
def plain_torch(name: str) -> Iterator[None]:
    """The library's own functions, whatever is installed: below the decorator that looks for packages."""
    module = modeling(name)
    before = {n: f for n, f in vars(module).items() if getattr(f, "__wrapped__", None) and n.islower()}
    before = {n: f for n, f in before.items() if any(w in n for w in ("delta", "mamba2", "conv1d"))}
    for n, f in before.items():
        setattr(module, n, f.__wrapped__)
    try:
        yield
    finally:
        for n, f in before.items():
            setattr(module, n, f)


def measured(model: nn.Module, name: str, path: str, steps: int, device: str, give_up: bool) -> Row:
    if give_up:
        return Row(name, steps, path, None, None, why="not tried: a shorter sequence took too long")
    paths = {"chunkform": enable, "torch": lambda: plain_torch(name)}
    torch.manual_seed(steps)  # the same for each path
    ids = torch.randint(1, 4096, (1, steps), device=device)
    on_gpu = device.startswith("cuda")
    try:
        with paths.get(path, contextlib.nullcontext)():
            first, loss = timed(model, ids)  # compiles
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            times = [timed(model, ids)[0] for _ in range(max(1, min(5, math.floor(LIMIT / max(first, 1e-3)))))]
    except (torch.OutOfMemoryError, RuntimeError, ValueError) as error:
        model.zero_grad(set_to_none=True)
        return Row(name, steps, path, None, None, why=f"{type(error).__name__}: {str(error).splitlines()[0][:80]}")
    memory = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None
    return Row(name, steps, path, 1e3 * statistics.median(times), memory, loss)


def timed(model: nn.Module, ids: Tensor) -> tuple[float, float]:
    """Seconds of a forward and a backward pass, and the loss."""
    model.zero_grad(set_to_none=True)
    wait(ids)
    start = time.perf_counter()
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    wait(ids)
    return time.perf_counter() - start, loss.item()


def wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


if __name__ == "__main__":
    typer.run(main)
