"""A small character-level language model whose only memory is a generated op, and the text that it learns.

Each block mixes over time with the recurrence of `my_recurrence.py` and over channels with a gated MLP; there is no attention
and no position. A character sees the one before it; of everything earlier the model knows what is in the op's state, d x e
numbers a head.
"""

from __future__ import annotations

import math
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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

    def decoded(self, codes: Tensor) -> str:
        return "".join(self.alphabet[i] for i in codes.tolist())


def read_text(file: Path | None = None, limit: int = 2_000_000) -> Text:
    """The characters of a file; without one, of Python's standard library, which every machine has."""
    if file is not None:
        raw, source = file.read_text(encoding="utf-8", errors="replace")[:limit], str(file)
    else:
        folder = Path(sysconfig.get_paths()["stdlib"])
        parts, size = [], 0
        for path in sorted(folder.glob("*.py")):
            parts.append(path.read_text(encoding="utf-8", errors="replace"))
            size += len(parts[-1])
            if size > limit:
                break
        raw, source = "".join(parts)[:limit], "the source of Python's standard library"
    if len(raw) < 5_000:
        raise SystemExit(f"{source} has {len(raw)} characters; a model needs at least 5000 to learn from")
    common = {c for c in set(raw) if raw.count(c) > 20} | {" "}
    alphabet = "".join(sorted(common)) + "\N{REPLACEMENT CHARACTER}"
    index = {c: i for i, c in enumerate(alphabet)}
    codes = torch.tensor([index.get(c, len(alphabet) - 1) for c in raw])
    cut = len(codes) * 9 // 10
    return Text(codes[:cut], codes[cut:], alphabet, source)


# --- model ------------------------------------------------------------------------------------------------------------


class Mixer(nn.Module):
    """Mixes over time with the generated op."""

    def __init__(self, op: Callable[..., Any], width: int, heads: int) -> None:
        super().__init__()
        self.op, self.heads, self.head = op, heads, width // heads
        self.project = nn.Linear(2 * width, 4 * width, bias=False)
        self.gates = nn.Linear(2 * width, 2 * heads)
        self.bonus = nn.Parameter(torch.ones(heads, self.head))
        self.out = nn.Linear(width, width, bias=False)
        with torch.no_grad():  # heads forget at rates from a few characters to hundreds
            self.gates.bias[heads:] = torch.linspace(1.0, 6.0, heads)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] -> the same."""
        pair = torch.cat([x, F.pad(x, (0, 0, 1, 0))[:, :-1]], -1)  # each token sees the one before it
        q, k, v, gate = self.project(pair).unflatten(-1, (4, self.heads, self.head)).unbind(2)
        strength, keep = self.gates(pair).unflatten(-1, (2, self.heads)).unbind(2)
        q, k = F.normalize(F.silu(q), dim=-1), F.normalize(F.silu(k), dim=-1)
        o, _ = self.op(q=q, k=k, v=v, b=strength, log_lam=F.logsigmoid(keep.float()), u=self.bonus)
        o = F.rms_norm(o, (self.head,)) * F.silu(gate)
        return self.out(o.flatten(2))


class Block(nn.Module):
    def __init__(self, op: Callable[..., Any], width: int, heads: int) -> None:
        super().__init__()
        self.before_mixer, self.before_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
        self.mixer = Mixer(op, width, heads)
        self.widen, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.before_mixer(x))
        a, b = self.widen(self.before_mlp(x)).chunk(2, -1)
        return x + self.narrow(F.silu(a) * b)


class CharacterModel(nn.Module):
    """[B, T] character codes -> [B, T, characters] logits of the next one."""

    def __init__(
        self, op: Callable[..., Any], characters: int, width: int = 128, heads: int = 4, blocks: int = 2
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.blocks = nn.ModuleList(Block(op, width, heads) for _ in range(blocks))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.5)

    def forward(self, codes: Tensor) -> Tensor:
        x = self.embedding(codes)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


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
    """Train for `steps`, or for so many seconds if that is less; yields once a step."""
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.05)
    random = torch.Generator().manual_seed(0)
    start = time.perf_counter()
    for step in range(1, steps + 1):
        elapsed = time.perf_counter() - start
        done = max(step / steps, elapsed / seconds)
        last = done >= 1
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, step / 20) * (0.05 + 0.475 * (1 + math.cos(math.pi * min(done, 1.0))))
        x = windows(text.training, batch, length, random).to(device)
        loss = nats(model, x)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        held_out = evaluate(model, text.held_out) if step % every == 0 or last else None
        yield Progress(step, loss.item(), held_out, time.perf_counter() - start)
        if last:
            return


def nats(model: CharacterModel, x: Tensor) -> Tensor:
    """The mean negative log likelihood of windows [B, T + 1]."""
    return F.cross_entropy(model(x[:, :-1]).flatten(0, 1).float(), x[:, 1:].flatten())


def windows(codes: Tensor, count: int, length: int, random: torch.Generator) -> Tensor:
    starts = torch.randint(len(codes) - length - 1, (count,), generator=random)
    return torch.stack([codes[s : s + length + 1] for s in starts.tolist()])


@torch.no_grad()
def evaluate(model: CharacterModel, codes: Tensor, count: int = 32, length: int = 256) -> float:
    """Nats per character of held-out text, on the same windows each time."""
    length = min(length, len(codes) - 2)
    x = windows(codes, count, length, torch.Generator().manual_seed(1))
    return nats(model, x.to(next(model.parameters()).device)).item()


@torch.no_grad()
def sample(model: CharacterModel, text: Text, prompt: str, count: int = 240, temperature: float = 0.7) -> str:
    """What the model writes after a prompt."""
    random = torch.Generator().manual_seed(0)
    codes = torch.tensor([[max(text.alphabet.find(c), 0) for c in prompt]])
    device = next(model.parameters()).device
    for _ in range(count):
        logits = model(codes[:, -128:].to(device))[0, -1].float().cpu() / temperature
        logits[-1] = -math.inf  # not the stand-in
        codes = torch.cat([codes, torch.multinomial(logits.softmax(-1), 1, generator=random)[None]], 1)
    return text.decoded(codes[0])
