"""Loss curves of a model of 20 million parameters on real text: on generated ops, and on flash-linear-attention's.

    python -m benchmarks.loss_curves --fla [--json results/gpu/loss_curves.json] [--plot results/gpu/loss_curves.svg]
    python -m benchmarks.loss_curves --device cpu --steps 4 --width 32 --layers 1 --batch 2 --length 64

Kimi delta attention or the gated delta rule (`--op`) in six layers of width 512, bfloat16 under autocast with float32 weights,
bytes of Python's standard library and its reference documentation. Both libraries have the same weights at first, the same
batches and the same code but for the one function, for each of two seeds. The curves agree where those of one seed are nearer
to each other than those of two. All runs go side by side, each in a process of its own, dealt out to the GPUs. fla's tuning is
left out, which changes its time and not its losses; `--seconds` ends a run early, and what all have reached is compared.
"""

from __future__ import annotations

import concurrent.futures
import datetime
import importlib
import json
import math
import multiprocessing
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional as F

from . import peers, tuning

Key = tuple[str, int]  # a library, and a seed
Chunked = Callable[..., tuple[Tensor, Tensor | None]]
LIBRARIES = ("chunkform", "fla")


@dataclass(frozen=True)
class Mixing:
    """An op by the name that both libraries have for it; `channels`: does each channel have a decay, or each head?"""

    function: str
    fla: str
    channels: bool


OPS = {
    "kimi_delta_attention": Mixing("chunk_kda", "fla.ops.kda", channels=True),
    "gated_delta_rule": Mixing("chunk_gated_delta_rule", "fla.ops.gated_delta_rule", channels=False),
}
SMOOTHED, EVERY, HELD_OUT = 50, 100, 8  # steps of a mean; steps between held-out losses, and batches of one
WARM_UP, RATE, DECAY, CLIP = 100, 1e-3, 0.1, 1.0


@dataclass(frozen=True)
class Setup:
    """What all runs have in common."""

    device: str = "cuda"
    steps: int = 2000
    width: int = 512
    layers: int = 6
    batch: int = 8
    length: int = 512
    characters: int = 12_000_000
    op: str = "kimi_delta_attention"
    seconds: float = math.inf  # of a run: it ends early then


@dataclass(frozen=True)
class Run:
    """One training: the loss of each step's batch, and held-out losses by step."""

    library: str
    seed: int
    parameters: int
    seconds: float
    training: list[float]
    held_out: dict[int, float]


def text(limit: int) -> Tensor:
    """Bytes: the reference documentation that Python has within it, then the source of its standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    inner = (p for p in sorted(folder.rglob("*.py")) if not {"site-packages", "dist-packages", "test"} & set(p.parts))
    found = bytearray((folder / "pydoc_data" / "topics.py").read_bytes())
    for path in inner:
        found += path.read_bytes()
        if len(found) > limit:
            break
    return torch.frombuffer(found[:limit], dtype=torch.uint8).long()


class Layer(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)); `mix` is either library's function."""

    def __init__(self, width: int, mix: Chunked, channels: bool) -> None:
        super().__init__()
        self.mix, self.heads = mix, max(1, width // 64)
        self.decays = width if channels else self.heads
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.projections = nn.Linear(width, 4 * width + self.decays, bias=False)
        self.beta = nn.Linear(width, self.heads, bias=False)
        self.convolution = nn.Conv1d(3 * width, 3 * width, 4, groups=3 * width, bias=False)
        self.offset = nn.Parameter(
            torch.linspace(-6.0, -1.0, self.decays).view(self.heads, -1)
        )  # memories of 3 to 400 steps
        self.out = nn.Linear(width, width, bias=False)
        self.widen, self.narrow = nn.Linear(width, 5 * width, bias=False), nn.Linear(5 * width // 2, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        y = self.norms[0](x)
        qkv, decay, gate = self.projections(y).split([3 * width, self.decays, width], -1)
        qkv = F.silu(self.convolution(F.pad(qkv.mT, (3, 0)))).mT
        q, k, v, decay = (a.reshape(batch, steps, self.heads, -1) for a in (*qkv.chunk(3, -1), decay))
        g = -F.softplus(decay.float() + self.offset)
        g = g if self.decays == width else g.squeeze(-1)
        o, _ = self.mix(q, k, v, g, self.beta(y).sigmoid(), use_qk_l2norm_in_kernel=True)
        o = F.rms_norm(o.float(), (o.shape[-1],)).flatten(2) * F.silu(gate)
        x = x + self.out(o)
        a, b = self.widen(self.norms[1](x)).chunk(2, -1)
        return x + self.narrow(F.silu(a) * b)


class Model(nn.Module):
    """[B, T] bytes -> [B, T, 256] logits of the next one."""

    def __init__(self, setup: Setup, mix: Chunked) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, setup.width)
        channels = OPS[setup.op].channels
        self.layers = nn.ModuleList(Layer(setup.width, mix, channels) for _ in range(setup.layers))
        self.norm, self.head = nn.RMSNorm(setup.width), nn.Linear(setup.width, 256, bias=False)
        for m in self.modules():
            if isinstance(m, nn.Linear | nn.Embedding):
                nn.init.normal_(m.weight, std=0.02)

    def forward(self, codes: Tensor) -> Tensor:
        x = self.embedding(codes)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def trained(setup: Setup, library: str, seed: int) -> Run:
    """A model from its first weights to its last; what is random hangs on the seed alone."""
    if library == "fla":
        tuning.first_that_runs()
        if not OPS[setup.op].channels:
            peers.lift_guard()
    kind = torch.device(setup.device).type
    if kind == "cuda":
        torch.cuda.set_device(setup.device)
    home = OPS[setup.op].fla if library == "fla" else "chunkform.runtime.compat.fla"
    torch.manual_seed(seed)
    model = Model(setup, getattr(importlib.import_module(home), OPS[setup.op].function)).to(setup.device)
    codes = text(setup.characters)
    cut = len(codes) * 19 // 20
    drawn = torch.Generator().manual_seed(seed)
    starts = torch.randint(cut - setup.length - 1, (setup.steps, setup.batch), generator=drawn)
    few = torch.linspace(cut, len(codes) - setup.length - 1, HELD_OUT * setup.batch).long().view(HELD_OUT, -1)
    codes, window = codes.to(setup.device), torch.arange(setup.length + 1, device=setup.device)

    def loss(at: Tensor) -> Tensor:
        batch = codes[at.to(setup.device).unsqueeze(1) + window]
        with torch.autocast(kind, torch.bfloat16):
            logits = model(batch[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())

    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=DECAY)
    training, held_out, start = [], {}, time.perf_counter()
    for step, at in enumerate(starts):
        share = step / max(1, setup.steps)
        rate = RATE * min((step + 1) / WARM_UP, 0.55 + 0.45 * math.cos(math.pi * share))
        for group in optimizer.param_groups:
            group["lr"] = rate
        now = loss(at)
        now.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        training.append(now.detach())
        if (step + 1) % EVERY == 0 or step + 1 == setup.steps:
            with torch.no_grad():
                held_out[step + 1] = float(torch.stack([loss(at) for at in few]).mean())
            spent = time.perf_counter() - start
            print(f"{library} seed {seed}: step {step + 1}, {spent:.0f} s, {held_out[step + 1]:.4f}", flush=True)
            if spent > setup.seconds:
                break
    seconds = time.perf_counter() - start
    count = sum(p.numel() for p in model.parameters())
    return Run(library, seed, count, round(seconds, 1), torch.stack(training).float().cpu().tolist(), held_out)


def trainings(setup: Setup, seeds: dict[str, int]) -> Iterator[Run]:
    """All runs, as they end: side by side, each in a process of its own, and dealt out to the GPUs."""
    wanted = [(library, seed) for library, many in seeds.items() for seed in range(many)]
    gpus = torch.cuda.device_count() if setup.device == "cuda" else 0
    with concurrent.futures.ProcessPoolExecutor(len(wanted), multiprocessing.get_context("spawn")) as pool:
        jobs = []
        for i, (library, seed) in enumerate(wanted):
            device = f"cuda:{i % gpus}" if gpus else setup.device
            jobs.append(pool.submit(trained, replace(setup, device=device), library, seed))
        for job in concurrent.futures.as_completed(jobs):
            yield job.result()


def write(path: Path, said: dict[str, object], runs: list[Run]) -> None:
    """All losses, and how far they are from each other."""
    runs = sorted(runs, key=lambda r: (r.library, r.seed))
    rounded = [asdict(r) | {"training": [round(x, 4) for x in r.training]} for r in runs]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"about": said, "compared": compared(runs), "runs": rounded}) + "\n")


def smoothed(losses: list[float]) -> Tensor:
    x = torch.tensor(losses, dtype=torch.float64)
    return x.unfold(0, min(SMOOTHED, len(x)), 1).mean(1)


def compared(runs: list[Run]) -> dict[str, object]:
    """Mean distances of smoothed curves, as far as all go: of two libraries with one seed, and of two seeds with one library."""
    steps = min(len(r.training) for r in runs)
    last = max(n for n in runs[0].held_out if all(n in r.held_out for r in runs))
    by = {(r.library, r.seed): (smoothed(r.training[:steps]), r.held_out[last]) for r in runs}

    def far(pairs: list[tuple[Key, Key]]) -> dict[str, float]:
        found = {
            "training": max(float((by[a][0] - by[b][0]).abs().mean()) for a, b in pairs),
            "held_out": max(abs(by[a][1] - by[b][1]) for a, b in pairs),
        }
        return {n: round(x, 5) for n, x in found.items()}

    seeds = [(a, b) for a in by for b in by if a[0] == b[0] and a[1] < b[1]]
    libraries = [(a, b) for a in by for b in by if a[0] < b[0] and a[1] == b[1]]
    said: dict[str, object] = {"steps": steps}
    if seeds:
        said["two seeds"] = apart = far(seeds)
    if libraries:
        said["two libraries"] = beside = far(libraries)
    if seeds and libraries:
        said["within the spread"] = all(beside[n] <= apart[n] for n in beside)
    return said


def draw(runs: list[Run], path: Path) -> None:
    """Smoothed training losses, and held-out ones as points."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "loss curves"
    figure, axis = plt.subplots(figsize=(8, 4.5))
    for r in runs:
        style = {"color": f"C{r.seed}", "linestyle": "-" if r.library == "chunkform" else "--", "linewidth": 1}
        curve = smoothed(r.training)
        first = len(r.training) - len(curve)
        axis.plot(range(first, len(r.training)), curve, label=f"{r.library}, seed {r.seed}", **style)
        axis.plot(
            *zip(*r.held_out.items(), strict=True), "x" if r.library == "fla" else ".", color=f"C{r.seed}", markersize=4
        )
    axis.set(xlabel="step", ylabel="nats a byte", title="training loss (mean of 50 steps), held-out loss (points)")
    axis.legend()
    axis.grid(alpha=0.3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})


def about(setup: Setup) -> dict[str, object]:
    import triton

    device = torch.cuda.get_device_name() if setup.device == "cuda" else setup.device
    versions = {"torch": torch.__version__, "triton": triton.__version__, "fla": peers.version("fla-core")}
    notes = {} if OPS[setup.op].channels else {"note": peers.GUARD.partition(", and the errors")[0]}
    size = {n: x for n, x in asdict(setup).items() if x != math.inf}
    return {"device": device, **versions, "date": str(datetime.date.today()), **notes, **size}


def main(
    fla: Annotated[bool, typer.Option("--fla", help="beside flash-linear-attention, which must be installed")] = False,
    op: Annotated[str, typer.Option(help=" or ".join(OPS))] = Setup.op,
    seeds: Annotated[int, typer.Option(help="how many")] = 2,
    fla_seeds: Annotated[int | None, typer.Option(help="how many of fla's, if not as many")] = None,
    seconds: Annotated[float, typer.Option(help="of a run: it ends early then")] = Setup.seconds,
    device: Annotated[str, typer.Option(help="cuda or cpu")] = "cuda",
    steps: Annotated[int, typer.Option(help="of training")] = Setup.steps,
    width: Annotated[int, typer.Option(help="of the model")] = Setup.width,
    layers: Annotated[int, typer.Option(help="of the model")] = Setup.layers,
    batch: Annotated[int, typer.Option(help="sequences of a step")] = Setup.batch,
    length: Annotated[int, typer.Option(help="bytes of a sequence")] = Setup.length,
    out: Annotated[Path | None, typer.Option("--json", help="where to write all losses")] = None,
    plot: Annotated[Path | None, typer.Option(help="where to draw them, as SVG")] = None,
    again: Annotated[Path | None, typer.Option(help="JSON of an earlier run, to be drawn and compared only")] = None,
) -> None:
    if again is not None:
        kept = json.loads(again.read_text())
        runs = [Run(**r | {"held_out": {int(n): x for n, x in r["held_out"].items()}}) for r in kept["runs"]]
        said = kept["about"]
    else:
        if op not in OPS:
            raise typer.BadParameter(f"{op} is none of {', '.join(OPS)}", param_hint="--op")
        setup = Setup(device, steps, width, layers, batch, length, op=op, seconds=seconds)
        runs, said = [], about(setup)
        many = seeds if fla_seeds is None else fla_seeds
        for run in trainings(setup, dict(zip(LIBRARIES, (seeds, many) if fla else (seeds,), strict=False))):
            runs.append(run)
            print(f"{run.library} seed {run.seed}: {run.parameters / 1e6:.1f}M parameters, {run.seconds} s", flush=True)
            if out is not None:
                write(out, said, runs)
    for r in runs:
        curve = smoothed(r.training)
        print(f"{r.library} seed {r.seed}: training {curve[-1]:.4f}, held out {r.held_out[max(r.held_out)]:.4f}")
    print(json.dumps(compared(runs)))
    if out is not None:
        write(out, said, runs)
    if plot is not None:
        try:
            draw(runs, plot)
        except ImportError:
            print(f"matplotlib isn't here: python -m benchmarks.loss_curves --again {out} --plot .. draws elsewhere")


if __name__ == "__main__":
    typer.run(main)
