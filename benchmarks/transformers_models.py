"""A training step of models of transformers, 4 layers in bfloat16: on generated ops, on fla's functions, on the library's torch.

    python -m benchmarks.transformers_models [--json PATH] [--device cpu --width 64 --length 96]

What of fla and mamba_ssm is installed is what transformers takes by itself; the torch path is measured without them. A path that
takes more than the limit for a length isn't measured at a longer one. Each model has a process of its own, and the models are
dealt out to the GPUs. Processes compile our kernels side by side; then one after the other has its GPU to itself and measures.
Every row is written as it comes, so that a run that is cut short keeps what it has; rows that the file has of other models stay.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import fcntl
import importlib
import importlib.util
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from filelock import FileLock
from torch import Tensor, nn

from chunkform.integrations.transformers import enable

from . import peers, places, tuning

LIMIT = 6.0  # seconds of one step, above which a path is given up for longer sequences; and of a path's steps together
LAYERS = 4
PATHS = ("chunkform", "installed", "torch")
COMPILING = 8  # threads, for the configurations that fla times
GUARD = (
    "fla refuses this on Hopper with Triton 3.4.0 to 3.7.0, where its gradients are wrong: refusal lifted, for its time"
)


@dataclass(frozen=True)
class Row:
    """One training step; milliseconds are null where it didn't run. `why` says why, or how it did."""

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


@dataclass(frozen=True)
class Job:
    """A model's rows: where they are measured, and the file that they go to. `turn`: a file that processes of a GPU share."""

    name: str
    device: str
    width: int
    lengths: tuple[int, ...]
    paths: tuple[str, ...]
    turn: Path
    out: Path | None


def main(
    out: Annotated[Path | None, typer.Option("--json", parser=places.file, help="where to write the rows")] = None,
    device: Annotated[str, typer.Option(help="of the measurement")] = "cuda",
    width: Annotated[int, typer.Option(help="of the models")] = 1024,
    length: Annotated[list[int] | None, typer.Option(help="of the sequence; several are taken")] = None,
    only: Annotated[list[str] | None, typer.Option(help="models; all where not said")] = None,
    path: Annotated[list[str] | None, typer.Option(help=f"of {', '.join(PATHS)}; all where not said")] = None,
) -> None:
    names = [n for n in models(width) if not only or n in only]
    gpus = torch.cuda.device_count() if device == "cuda" else 0
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for i, name in enumerate(names):
            place = f"cuda:{i % gpus}" if gpus else device
            turn = Path(folder) / place.replace(":", "")
            turn.touch()
            jobs.append(Job(name, place, width, tuple(length or [4096, 32768]), tuple(path or PATHS), turn, out))
        workers = len(jobs) if gpus else 1
        with concurrent.futures.ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            for done in concurrent.futures.as_completed([pool.submit(rows_of, job) for job in jobs]):
                done.result()


def rows_of(job: Job) -> None:
    """A model's rows, path by path: ours first, and what takes longest last."""
    if job.device.startswith("cuda"):
        torch.cuda.set_device(job.device)
    model = made(job.name, *models(job.width)[job.name], job.device)
    if "chunkform" in job.paths and job.device.startswith("cuda"):
        with held(job.turn, fcntl.LOCK_SH), enable():
            for steps in job.lengths:
                timed(model, sequence(steps, job.device))
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
    with held(job.turn, fcntl.LOCK_EX):
        for path in job.paths:
            if path == "installed" and not has_kernels(job.name):
                continue
            slow, said = False, made_bearable(job.name) if path == "installed" else ""
            for steps in job.lengths:
                row = measured(model, job.name, path, steps, job.device, slow, said)
                slow = row.milliseconds is None or row.milliseconds > 1e3 * LIMIT
                print(shown(row), flush=True)
                if job.out is not None:
                    add(row, job.out)


@contextlib.contextmanager
def held(turn: Path, how: int) -> Iterator[None]:
    """Hold a file, with others (LOCK_SH) or alone (LOCK_EX)."""
    with turn.open() as file:
        fcntl.flock(file, how)
        yield


def add(row: Row, out: Path) -> None:
    """Write a row into the file, in the place of the same one of an earlier run."""
    with FileLock(out.with_suffix(".lock")):
        kept = json.loads(out.read_text())["rows"] if out.exists() else []
        same = (row.model, row.length, row.path)
        kept = [r for r in kept if (r["model"], r["length"], r["path"]) != same]
        rows = [*kept, {**asdict(row), "date": str(datetime.date.today())}]
        order = list(models(1024))
        rows.sort(key=lambda r: (order.index(r["model"]), r["length"], PATHS.index(r["path"])))
        out.write_text(json.dumps({"about": about(), "rows": rows}, indent=1) + "\n")


def about() -> dict[str, str | None]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    versions = {n: peers.version(d) for n, d in (("transformers", "transformers"), ("fla", "fla-core"))}
    return {"device": device, "torch": torch.__version__, "triton": peers.version("triton"), **versions}


def shown(row: Row) -> str:
    if row.milliseconds is None:
        return f"{row.model:12} T={row.length:<6} {row.path:10} {row.why}"
    memory = "" if row.gibibytes is None else f"{row.gibibytes:8.2f} GiB"
    return f"{row.model:12} T={row.length:<6} {row.path:10} {row.milliseconds:10.1f} ms {memory} loss {row.loss:.4f} {row.why}"


def made(name: str, config: str, model: str, given: dict[str, object], device: str) -> nn.Module:
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    library = importlib.import_module("transformers")
    torch.manual_seed(0)
    tried = getattr(module, model)(getattr(library, config)(**given))
    return tried.to(device=device, dtype=torch.bfloat16).train()


def modeling(name: str) -> object:
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def has_kernels(name: str) -> str | None:
    """The package with kernels for this model's recurrence that transformers finds, if any."""
    wanted = {"qwen3_5": "fla", "kimi_linear": "fla", "mamba2": "mamba_ssm"}.get(name)
    return wanted if wanted is not None and importlib.util.find_spec(wanted) is not None else None


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


def made_bearable(name: str) -> str:
    """fla's configurations are compiled side by side, and its guard is lifted; what a row has to say of that."""
    if has_kernels(name) != "fla" or not torch.cuda.is_available():
        return ""
    tuning.side_by_side(COMPILING, warmup=5, repeat=20)
    return GUARD if peers.lift_guard() and name == "qwen3_5" else ""


def measured(model: nn.Module, name: str, path: str, steps: int, device: str, give_up: bool, said: str) -> Row:
    if give_up:
        return Row(name, steps, path, None, None, why="not tried: a shorter sequence took too long")
    paths = {"chunkform": enable, "torch": lambda: plain_torch(name)}
    ids = sequence(steps, device)
    on_gpu = device.startswith("cuda")
    times: list[float] = []
    try:
        with paths.get(path, contextlib.nullcontext)():
            _, loss = timed(model, ids)  # compiles
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            while not times or (len(times) < 5 and sum(times) < LIMIT):
                times.append(timed(model, ids)[0])
    except (torch.OutOfMemoryError, RuntimeError, ValueError) as error:
        model.zero_grad(set_to_none=True)
        return Row(name, steps, path, None, None, why=f"{type(error).__name__}: {str(error).splitlines()[0][:80]}")
    finally:
        if on_gpu:
            torch.cuda.empty_cache()
    memory = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None
    return Row(name, steps, path, 1e3 * statistics.median(times), memory, loss, said)


def sequence(steps: int, device: str) -> Tensor:
    """The same numbers of tokens for each path, `[1, T]`."""
    torch.manual_seed(steps)
    return torch.randint(1, 4096, (1, steps), device=device)


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
