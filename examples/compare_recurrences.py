"""The same small language model with five recurrences: one name changes, five curves.

    python examples/compare_recurrences.py                             on a CPU: tiny, a minute or two
    python examples/compare_recurrences.py --out DIR                   on a GPU: 8 MB of text, bfloat16, compiled, 45 s each

Each model is trained on the same batches and then writes text with the decoding step. Writes DIR/compare.svg,
compare.md and compare.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import math
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait leave the core to others

import matplotlib
import torch
from rich.console import Console

matplotlib.use("svg")
import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).resolve().parent))

from char_lm import CharacterModel, Progress, Text, read_text, sample, train

OPS = ["linear_attention", "retention", "gated_linear_attention", "delta_rule", "gated_delta_rule"]
INK, FAINT = "#2b2f36", "#c9c4b8"
COLOURS = ["#8c8577", "#c98b2b", "#4a6fa5", "#a8443a", "#2f6f6a", "#7a5195", "#5b8c3a"]
COLUMNS = ("op", "parameters", "held out, nats a character", "bits", "steps", "seconds", "first step, s")
COLUMNS += ("characters a second", "ms a character written")
WRITTEN = 400  # characters that each model writes


@dataclass(frozen=True)
class Size:
    """How large the model and its training are."""

    width: int
    heads: int
    blocks: int
    batch: int
    length: int
    rate: float
    characters: int
    every: int
    steps: int
    seconds: float


CPU = Size(96, 3, 2, 8, 128, 5e-3, 2_000_000, 20, 200, math.inf)
GPU = Size(512, 8, 6, 32, 1024, 2e-3, 8_000_000, 50, 800, 30.0)


@dataclass
class Trained:
    """What became of one model."""

    op: str
    parameters: int
    progress: list[Progress] = field(default_factory=list)
    text: str = ""
    generation: float = 0.0  # seconds for each character written

    @property
    def held_out(self) -> list[tuple[int, float]]:
        return [(p.step, p.held_out) for p in self.progress if p.held_out is not None]

    @property
    def loss(self) -> float:
        return self.held_out[-1][1]


@dataclass(frozen=True)
class Setup:
    """What all models of a comparison have in common."""

    device: str
    text: str
    unigram: float
    size: Size
    how: str


def main() -> None:
    arguments = parsed()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    asked = {n: value for n in ("steps", "seconds", "characters") if (value := getattr(arguments, n)) is not None}
    size = dataclasses.replace(GPU if device == "cuda" else CPU, **asked)
    console = Console(width=140) if not Console().is_terminal else Console()
    found: list[Trained] = []
    for file in arguments.earlier:
        setup, models = read(file)
        found += models
    if arguments.ops:
        text = read_text(arguments.text, size.characters)
        setup = setup_of(text, size, device, arguments.compile)
        console.print(f"{setup.text}, on {setup.device}", highlight=False)
        found += [one(op, text, size, device, arguments.compile, console) for op in arguments.ops]
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    (out / "compare.svg").write_text(plot(setup, found))
    (out / "compare.md").write_text(page(setup, found))
    data = {"setup": asdict(setup), "models": [asdict(t) for t in found]}
    (out / "compare.json").write_text(json.dumps(data, indent=1))
    console.print(f"\n{out}/compare.svg, compare.md, compare.json", style="bold")


def setup_of(text: Text, size: Size, device: str, compiled: bool) -> Setup:
    name = torch.cuda.get_device_name() if device == "cuda" else "a CPU"
    how = "bfloat16 autocast" if device == "cuda" else "float32"
    how += f"{', torch.compile' if compiled else ''}; {name}, torch {torch.__version__}, {date.today().isoformat()}"
    return Setup(name, f"{len(text.training):,} characters of {text.source}", text.unigram, size, how)


def read(file: Path) -> tuple[Setup, list[Trained]]:
    """What an earlier comparison wrote."""
    data = json.loads(file.read_text())
    setup = Setup(**data["setup"] | {"size": Size(**data["setup"]["size"])})
    return setup, [Trained(**m | {"progress": [Progress(**p) for p in m["progress"]]}) for m in data["models"]]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The same small language model with several recurrences.")
    parser.add_argument("--ops", nargs="*", default=OPS, help="names of the catalogue (%(default)s)")
    parser.add_argument("--text", type=Path, help="what to learn; Python's standard library when left out")
    parser.add_argument("--steps", type=int, help="how many training steps at most, for each model")
    parser.add_argument("--seconds", type=float, help="how long to train each model at most, after its first step")
    parser.add_argument("--characters", type=int, help="how much of the text to take")
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available(), help="torch.compile"
    )
    parser.add_argument(
        "--earlier", nargs="+", type=Path, default=[], help="compare.json of earlier runs, to show theirs too"
    )
    parser.add_argument("--out", type=Path, default=Path("out/compare"), help="where to write (%(default)s)")
    arguments = parser.parse_args()
    for file in [arguments.text, *arguments.earlier]:
        if file is not None and not file.is_file():
            parser.error(f"there is no file {file}")
    if not arguments.ops and not arguments.earlier:
        parser.error("nothing to compare: give --ops or --earlier")
    return arguments


def one(op: str, text: Text, size: Size, device: str, compiled: bool, console: Console) -> Trained:
    """Train a model whose only difference from the others is the name of its op, and let it write."""
    torch.manual_seed(0)
    model = CharacterModel(op, len(text.alphabet), size.width, size.heads, size.blocks).to(device)
    result = Trained(op, sum(p.numel() for p in model.parameters()))
    if compiled:
        torch.compiler.reset()  # what it keeps of the models before, of which it takes only so many
        for block in model.blocks:  # one graph for all blocks
            block.compile(fullgraph=True)
    for p in train(model, text, size.steps, size.seconds, size.batch, size.length, size.rate, size.every):
        result.progress.append(p)
    prompt = "def main("
    sample(model, text, prompt, 8)  # the kernels of decoding are compiled here
    begin = time.perf_counter()
    result.text = sample(model, text, prompt, WRITTEN)
    result.generation = (time.perf_counter() - begin) / WRITTEN
    last = result.progress[-1]
    console.print(
        f"{op:24} {result.parameters:>12,} parameters   held out {result.loss:.3f} nats a character   "
        f"{last.step} steps in {last.seconds:.0f} s   {1000 * result.generation:.1f} ms a character written",
        highlight=False,
    )
    return result


# --- what is shown ----------------------------------------------------------------------------------------------------


def plot(setup: Setup, found: list[Trained]) -> str:
    """Held-out loss over training steps, one curve for each op, named at its end."""
    plt.rcParams["svg.hashsalt"] = "compare"
    figure, axes = plt.subplots(figsize=(8, 4.4), layout="constrained")
    ends = []
    for i, t in enumerate(found):
        steps, losses = zip(*t.held_out, strict=True)
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(steps, losses, color=colour, lw=1.8)
        ends.append((losses[-1], t.op, colour))
    last = max(t.progress[-1].step for t in found)
    low = min(t.loss for t in found)
    high = min(setup.unigram, max(t.held_out[0][1] for t in found))
    gap = (high - low) * 0.055
    below = -math.inf
    for loss, name, colour in sorted(ends):  # names keep their distance where curves end together
        below = max(loss, below + gap)
        axes.annotate(
            f"{name}  {loss:.3f}", (last * 1.02, below), color=colour, va="center", fontsize=9, annotation_clip=False
        )
    axes.set_xlim(0, last)
    axes.set_ylim(low - gap, high + gap)
    axes.set_xlabel("training step", color=INK)
    axes.set_ylabel("held-out text, nats a character", color=INK)
    axes.set_title(f"One language model, {len(found)} recurrences ({setup.device})", color=INK, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=FAINT, lw=0.5, alpha=0.6)
    axes.tick_params(colors=INK)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    return buffer.getvalue()


def page(setup: Setup, found: list[Trained]) -> str:
    """The table and what each model wrote."""
    size = setup.size
    lines = [
        "# One language model, five recurrences" if len(found) == 5 else "# One language model, several recurrences",
        "",
        "Written by `python examples/compare_recurrences.py`.",
        "",
        f"{setup.text}; width {size.width}, {size.heads} heads, {size.blocks} blocks; batches of {size.batch} x {size.length}; "
        f"{setup.how}; {limits(size)}. Without memory (character frequencies): {setup.unigram:.3f} nats a "
        "character.",
        "",
        "![held-out loss](compare.svg)",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|---{'|--:' * (len(COLUMNS) - 1)}|",
    ]
    for t in found:
        first, last = t.progress[0], t.progress[-1]
        rate = size.batch * size.length * (last.step - first.step) / max(last.seconds - first.seconds, 1e-9)
        lines.append(
            f"| {t.op} | {t.parameters:,} | {t.loss:.3f} | {t.loss / math.log(2):.3f} | {last.step} | {last.seconds:.0f} | "
            f"{first.seconds:.1f} | {rate:,.0f} | {1000 * t.generation:.2f} |"
        )
    lines += [
        "",
        "Seconds are those of the training, with the first step, in which kernels are compiled, and the evaluations.",
    ]
    for t in found:
        lines += ["", f"## {t.op} writes", "", "```text", *(line.rstrip() for line in t.text.splitlines()), "```"]
    return "\n".join(lines) + "\n"


def limits(size: Size) -> str:
    time = f", or {size.seconds:g} s after the first" if size.seconds < math.inf else ""
    return f"each trained for {size.steps} steps{time}"


if __name__ == "__main__":
    main()
