"""A small character-level language model whose only memory is a generated op, and the text that it learns.

Each block mixes over time with a recurrence and over channels with a gated MLP; there is no attention and no
position. Beyond the few characters that a short convolution sees, the model knows what is in the recurrences' states,
d x e numbers a head.
"""

from __future__ import annotations

import math
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from chunkform.runtime.nn import Cache, Mixer

# --- text -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Text:
    """A text as character codes; the last tenth is held out. `alphabet` ends with a stand-in for rare characters."""

    training: Tensor
    held_out: Tensor
    alphabet: str
    source: str

    @property
    def unigram(self) -> float:
        """Nats per character of the held-out text by its own character frequencies: the best without any memory."""
        p = torch.bincount(self.held_out, minlength=len(self.alphabet)).double() / len(self.held_out)
        return float(-(p[p > 0] * p[p > 0].log()).sum())

    def encoded(self, text: str) -> Tensor:
        return torch.tensor([max(self.alphabet.find(c), 0) for c in text])

    def decoded(self, codes: Tensor) -> str:
        return "".join(self.alphabet[i] for i in codes.tolist())


def read_text(file: Path | None = None, limit: int = 2_000_000) -> Text:
    """The characters of a file; without one, of Python's standard library, which every machine has (13 MB of it)."""
    if file is not None:
        raw, source = file.read_text(encoding="utf-8", errors="replace")[:limit], str(file)
    else:
        folder = Path(sysconfig.get_paths()["stdlib"])
        inner = (p for p in folder.rglob("*.py") if not {"site-packages", "dist-packages", "test"} & set(p.parts))
        parts, size = [], 0
        for path in [*sorted(folder.glob("*.py")), *sorted(p for p in inner if p.parent != folder)]:
            parts.append(path.read_text(encoding="utf-8", errors="replace"))
            size += len(parts[-1])
            if size > limit:
                break
        raw, source = "".join(parts)[:limit], "the source of Python's standard library"
    if len(raw) < 5_000:
        raise SystemExit(f"{source} has {len(raw)} characters; a model needs at least 5000 to learn from")
    alphabet = "".join(sorted({c for c, n in Counter(raw).items() if n > 20} | {" "})) + "\N{REPLACEMENT CHARACTER}"
    index = {c: i for i, c in enumerate(alphabet)}
    codes = torch.tensor([index.get(c, len(alphabet) - 1) for c in raw])
    cut = len(codes) * 9 // 10
    return Text(codes[:cut], codes[cut:], alphabet, source)


# --- model ------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, op: Any, width: int, heads: int, **options: Any) -> None:
        super().__init__()
        self.before_mixer, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.mixer = Mixer(op, width, heads, **options)
        self.widen, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self._mlp(x + self.mixer(self.before_mixer(x)))

    def prefill(self, x: Tensor) -> tuple[Tensor, Cache]:
        y, cache = self.mixer(self.before_mixer(x), output_cache=True)
        return self._mlp(x + y), cache

    def step(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        y, cache = self.mixer.step(self.before_mixer(x), cache)
        return self._mlp(x + y), cache

    def _mlp(self, x: Tensor) -> Tensor:
        a, b = self.widen(self.before_mlp(x)).chunk(2, -1)
        return x + self.narrow(F.silu(a) * b)


class CharacterModel(nn.Module):
    """[B, T] character codes -> [B, T, characters] logits of the next one. `options` go to each block's `Mixer`.

    `op` may be several, in a list: blocks take them in turn.
    """

    def __init__(
        self, op: Any, characters: int, width: int = 128, heads: int = 4, blocks: int = 2, **options: Any
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        ops = op if isinstance(op, list) else [op]
        self.blocks = nn.ModuleList(Block(ops[n % len(ops)], width, heads, **options) for n in range(blocks))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.5)

    def forward(self, codes: Tensor) -> Tensor:
        x = self.embedding(codes)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def prefill(self, codes: Tensor) -> tuple[Tensor, list[Cache]]:
        """The logits after a prompt [B, T], and what generation goes on with."""
        x, caches = self.embedding(codes), []
        for block in self.blocks:
            x, cache = block.prefill(x)
            caches.append(cache)
        return self.head(self.norm(x[:, -1])), caches

    def step(self, codes: Tensor, caches: Sequence[Cache]) -> tuple[Tensor, list[Cache]]:
        """The logits after one more character [B]: as much work for the thousandth as for the first."""
        x, after = self.embedding(codes), []
        for block, cache in zip(self.blocks, caches, strict=True):
            x, cache = block.step(x, cache)
            after.append(cache)
        return self.head(self.norm(x)), after

    @property
    def device(self) -> torch.device:
        return self.head.weight.device


# --- training ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """Where the training is: nats per character of the training batch, and of held-out text where it was measured."""

    step: int
    training: float
    held_out: float | None
    seconds: float


def train(
    model: CharacterModel,
    text: Text,
    steps: int,
    seconds: float = math.inf,
    batch: int = 16,
    length: int = 128,
    rate: float = 4e-3,
    every: int = 25,
) -> Iterator[Progress]:
    """Train for `steps`, or for so many seconds after the first step if that is less; yields once a step.

    On a GPU it computes in bfloat16 where autocast thinks that's wise.
    """
    codes = text.training.to(model.device)
    on_gpu = codes.is_cuda
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.05, fused=on_gpu)
    random = torch.Generator().manual_seed(0)
    start = began = time.perf_counter()
    for step in range(1, steps + 1):
        elapsed = time.perf_counter() - began
        done = max(step / steps, elapsed / seconds)
        last = done >= 1
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, step / 20) * (0.05 + 0.475 * (1 + math.cos(math.pi * min(done, 1.0))))
        loss = nats(model, windows(codes, batch, length, random))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step == 1:
            loss.item()
            began = time.perf_counter()  # kernels are compiled and tuned in the first step
        if on_gpu and not (step % every == 0 or last or step == 1):
            continue  # reading the loss would wait for the GPU
        held_out = evaluate(model, text.held_out, length=length) if step % every == 0 or last else None
        yield Progress(step, loss.item(), held_out, time.perf_counter() - start)
        if last:
            return


def nats(model: CharacterModel, x: Tensor) -> Tensor:
    """The mean negative log likelihood of windows [B, T + 1]."""
    with precision(model):
        logits = model(x[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), x[:, 1:].flatten())


def precision(model: CharacterModel) -> AbstractContextManager[Any]:
    """bfloat16 on a GPU, float32 on a CPU."""
    return torch.autocast("cuda", torch.bfloat16) if model.device.type == "cuda" else nullcontext()


def windows(codes: Tensor, count: int, length: int, random: torch.Generator) -> Tensor:
    starts = torch.randint(len(codes) - length - 1, (count, 1), generator=random)
    return codes[(starts + torch.arange(length + 1)).to(codes.device)]


def evaluate(model: CharacterModel, codes: Tensor, count: int = 32, length: int = 256) -> float:
    """Nats per character of held-out text, on the same windows each time. As in training, so that nothing is compiled for it."""
    length = min(length, len(codes) - 2)
    x = windows(codes, count, length, torch.Generator().manual_seed(1))
    return nats(model, x.to(model.device)).item()


@torch.no_grad()
def sample(model: CharacterModel, text: Text, prompt: str, count: int = 240, temperature: float = 0.7) -> str:
    """What the model writes after a prompt: the prompt at once, and then one decoding step a character."""
    random = torch.Generator().manual_seed(0)
    codes = text.encoded(prompt)
    with precision(model):
        logits, caches = model.prefill(codes[None].to(model.device))
        for _ in range(count):
            logits = logits[0].float().cpu() / temperature
            logits[-1] = -math.inf  # not the stand-in
            codes = torch.cat([codes, torch.multinomial(logits.softmax(-1), 1, generator=random)])
            logits, caches = model.step(codes[-1:].to(model.device), caches)
    return text.decoded(codes)
