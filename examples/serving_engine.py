"""An engine that serves a language model of any recurrence: continuous batching over a pool of states, a cache of prefixes, and
drafts that are looked up in what was said before. `serve.py` beside it puts an endpoint in front.

    engine = Engine(LanguageModel("gated_delta_rule"), rows=64)
    request = engine.submit(Request(prompt=list(b"Once upon"), max_tokens=20, tell=print))

A request's tokens don't depend on what else is served: each is drawn from the model's own distribution with the request's own
random numbers, whether it was drafted or not.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256  # tokens are bytes
EVERY = 32  # tokens between two checkpoints of a prefix
BUDGET = 512  # tokens of prompts that a round takes


class LanguageModel(nn.Module):
    """Layers that mix with an op: its arguments are projected from the tokens, by its signature alone."""

    def __init__(
        self, op: str, width: int = 64, heads: int = 2, layers: int = 2, dtype: torch.dtype = torch.float64
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, width, dtype=dtype)
        self.layers = nn.ModuleList([Layer(op, width, heads, dtype) for _ in range(layers)])
        self.norm = nn.RMSNorm(width, dtype=dtype)
        self.head = nn.Linear(width, VOCABULARY, bias=False, dtype=dtype)

    def pools(self, rows: int) -> list[tuple[Tensor, ...]]:
        """States for so many sequences, of each layer."""
        return [layer.pools(rows) for layer in self.layers]

    @torch.no_grad()
    def prefill(self, tokens: Tensor, starts: Tensor, pools: Sequence[Any], rows: Tensor) -> None:
        """Packed tokens [T] of sequences whose states are in these rows, and go on there."""
        x = self.embed(tokens)[None]
        for layer, pool in zip(self.layers, pools, strict=True):
            x = layer.prefill(x, starts, pool, rows)

    @torch.no_grad()
    def verify(self, tokens: Tensor, pools: Sequence[Any], rows: Tensor) -> tuple[Tensor, list[Any]]:
        """(logits [B, K, V] after each of the tokens [B, K], what `commit` takes over of them)."""
        x, drafts = self.embed(tokens), []
        for layer, pool in zip(self.layers, pools, strict=True):
            x, found = layer.draft(x, pool, rows)
            drafts.append(found)
        return self.head(self.norm(x)), drafts

    def commit(self, drafts: Sequence[Any], accepted: Tensor) -> None:
        for layer, found in zip(self.layers, drafts, strict=True):
            layer.op.commit(found, accepted)


class Layer(nn.Module):
    """The op, and a network for each token."""

    def __init__(self, op: str, width: int, heads: int, dtype: torch.dtype) -> None:
        super().__init__()
        module = importlib.import_module(f"chunkform.generated.{op}")
        self.op, self.signature, self.heads = getattr(module, op), module.OP.signature, heads
        self.own = width // heads
        timed = [a for a in self.signature.tensors if a.per_step]
        self.sizes = [heads * self.own ** len(a.dims) for a in timed]
        self.norm, self.norm_mlp = (nn.RMSNorm(width, dtype=dtype) for _ in range(2))
        self.project = nn.Linear(width, sum(self.sizes), bias=False, dtype=dtype)
        outputs = sum(heads * self.own ** len(dims) for _, dims in self.signature.outputs)
        self.out = nn.Linear(outputs, width, bias=False, dtype=dtype)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width, dtype=dtype), nn.SiLU(), nn.Linear(2 * width, width, dtype=dtype)
        )
        self.shared = nn.ParameterDict(
            {
                a.key: nn.Parameter(torch.randn(heads, *[self.own] * len(a.dims), dtype=dtype) / math.sqrt(self.own))
                for a in self.signature.tensors
                if not a.per_step
            }
        )

    def arguments(self, x: Tensor) -> dict[str, Tensor]:
        """What the op takes, [B, T, H, ..]: vectors of length 1, numbers between 0 and 1, decays as their logarithms."""
        parts = self.project(self.norm(x)).split(self.sizes, -1)
        timed = (a for a in self.signature.tensors if a.per_step)
        given = {}
        for a, part in zip(timed, parts, strict=True):
            y = part.unflatten(-1, (self.heads, *[self.own] * len(a.dims)))
            if a.kind == "decay":
                given[a.key] = functional.logsigmoid(y + 3)
            else:
                given[a.key] = functional.normalize(y, dim=-1) if a.dims else y.sigmoid()
        return given | {n: -x.square() if n.startswith("log_") else x for n, x in self.shared.items()}

    def pools(self, rows: int) -> tuple[Tensor, ...]:
        given = self.arguments(self.project.weight.new_zeros(1, 1, self.norm.weight.shape[0]))
        with torch.no_grad():
            *_, drafts = self.op.draft(None, **given)
        return tuple(x.expand(rows, *x.shape[1:]).clone() for x in drafts.pools)

    def prefill(self, x: Tensor, starts: Tensor, pool: tuple[Tensor, ...], rows: Tensor) -> Tensor:
        *o, _ = self.op(**self.arguments(x), state_pool=pool, state_indices=rows, cu_seqlens=starts)
        return self._after(x, o)

    def draft(self, x: Tensor, pool: tuple[Tensor, ...], rows: Tensor) -> tuple[Tensor, Any]:
        *o, drafts = self.op.draft(pool, **self.arguments(x), state_indices=rows)
        return self._after(x, o), drafts

    def _after(self, x: Tensor, o: Sequence[Tensor]) -> Tensor:
        x = x + self.out(torch.cat([y.flatten(2) for y in o], -1))
        return x + self.mlp(self.norm_mlp(x))


# --- requests ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Request:
    """What is asked for. `tell` is called by the engine's thread: with each new token, and once with None, or an exception."""

    prompt: list[int]
    max_tokens: int
    tell: Callable[[int | Exception | None], object]
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[bytes, ...] = ()  # what is said last, of tokens
    cancelled: bool = False
    tokens: list[int] = field(init=False)
    row: int = field(init=False, default=-1)
    taken: int = field(
        init=False, default=0
    )  # tokens that the states have seen: all but the last, once the prompt is done
    random: torch.Generator = field(init=False, repr=False)
    marks: list[bytes] = field(init=False, repr=False)  # of the prompt's first EVERY tokens, twice as many, and so on

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)
        self.random = torch.Generator().manual_seed(self.seed)
        read, self.marks = hashlib.blake2b(digest_size=16), []
        for at in range(0, len(self.prompt) // EVERY * EVERY, EVERY):
            read.update(bytes(self.prompt[at : at + EVERY]))
            self.marks.append(read.digest())

    @property
    def made(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def stopped(self) -> bool:
        """Has what it was to end with just been said?"""
        return any(len(x) <= self.made and self.tokens[-len(x) :] == [*x] for x in self.stop)

    def next(self, logits: Tensor) -> int:
        """A token, drawn with this request's own random numbers, of which each token takes one."""
        if self.temperature <= 0:
            return int(logits.argmax())
        logits = logits.double()
        weights = torch.softmax((logits - logits.max()) / self.temperature, -1).cumsum(-1)
        drawn = torch.rand((), generator=self.random, dtype=torch.float64) * weights[-1]
        return min(int((weights < drawn).sum()), VOCABULARY - 1)

    def look_up(self, most: int) -> list[int]:
        """Drafts: what came after the last two tokens when they were last said before."""
        pair = self.tokens[-2:]
        most = min(most, self.max_tokens - self.made - 1)
        if len(pair) < 2 or most < 1:
            return []
        for at in range(len(self.tokens) - 3, max(-1, len(self.tokens) - 2000), -1):
            if self.tokens[at : at + 2] == pair:
                return self.tokens[at + 2 : at + 2 + most]
        return []


class Full(Exception):
    """More requests wait than the engine holds: ask again later."""


class Closed(Exception):
    """The engine is shutting down, and ends what it hasn't finished."""


@dataclass(frozen=True)
class Limits:
    """Sequences that are served at the same time, requests that may wait, tokens that are tried at once beside the next one,
    checkpoints of prefixes that are kept, and tokens of a prompt."""

    rows: int
    waiting: int
    drafts: int
    prefixes: int
    longest: int

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("waiting", 1), ("drafts", 0), ("prefixes", 0), ("longest", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be {least} or more, got {getattr(self, name)}")


class Engine:
    """Serves requests round by round, in a thread of its own. `Limits` says what its numbers are."""

    def __init__(
        self,
        model: LanguageModel,
        rows: int = 64,
        waiting: int = 128,
        drafts: int = 3,
        prefixes: int = 256,
        longest: int = 8192,
    ) -> None:
        self.limits, self.free = Limits(rows, waiting, drafts, prefixes, longest), list(range(rows))
        self.model, self.pools = model, model.pools(rows + 1)  # the last row stays as it is: where sequences start
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.prefixes: OrderedDict[bytes, list[tuple[Tensor, ...]]] = OrderedDict()
        self.counts = {"tokens": 0, "rounds": 0, "drafted": 0, "accepted": 0, "prefix tokens": 0, "prompt tokens": 0}
        self.closing = self.ended = False
        self.changed = threading.Condition()
        self.thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.thread.start()

    def submit(self, request: Request) -> Request:
        """Raises: Full, Closed."""
        if not request.prompt or request.max_tokens < 1:
            raise ValueError("a request needs a prompt, and at least one token to make")
        if len(request.prompt) > self.limits.longest:
            raise ValueError(f"a prompt has {self.limits.longest} tokens at most, got {len(request.prompt)}")
        with self.changed:
            if self.closing:
                raise Closed("the server is shutting down")
            if len(self.waiting) >= self.limits.waiting:
                raise Full(f"{len(self.waiting)} requests are waiting already")
            self.waiting.append(request)
            self.changed.notify()
        return request

    def cancel(self, request: Request) -> None:
        """Its row is free in the next round; it is told nothing more."""
        with self.changed:
            request.cancelled = True
            self.changed.notify()

    def close(self, grace: float = 10.0) -> None:
        """Take no more, finish for `grace` seconds, and tell the others an error."""
        with self.changed:
            self.closing = True
            self.changed.notify()
            self.changed.wait_for(lambda: not (self.waiting or self.running) or not self.thread.is_alive(), grace)
            self.ended = True
            self.changed.notify()
        self.thread.join()

    # --- rounds

    def _run(self) -> None:
        error: Exception = Closed("the server was shut down before this was finished")
        try:
            while True:
                with self.changed:
                    self.changed.wait_for(lambda: self.waiting or self.running or self.ended)
                    if self.ended:
                        break
                    self._admit()
                self._round()
                with self.changed:
                    self.changed.notify_all()
        except Exception as caught:  # whoever waits must know
            error = RuntimeError(f"the engine failed: {caught}")
        with self.changed:
            self.closing = True
            left = [*self.running, *self.waiting]
            self.running, self.waiting = [], deque()
            self.changed.notify_all()
        for request in left:
            if not request.cancelled:
                request.tell(error)

    def _admit(self) -> None:
        """Give free rows to who waits longest, with the states of the longest prefix that is known."""
        for request in [r for r in self.running if r.cancelled]:
            self._leave(request)
        self.waiting = deque(r for r in self.waiting if not r.cancelled)
        while self.waiting and self.free:
            request = self.waiting.popleft()
            request.row = self.free.pop()
            self.running.append(request)
            known = self._known(request)
            states = None if known == 0 else self.prefixes[request.marks[known // EVERY - 1]]
            for n, pool in enumerate(self.pools):
                for i, x in enumerate(pool):
                    x[request.row] = x[self.limits.rows] if states is None else states[n][i]
            request.taken = known
            self.counts["prefix tokens"] += known

    def _known(self, request: Request) -> int:
        """How many of the prompt's tokens, but for the last, have a checkpoint after them."""
        for n in range((len(request.prompt) - 1) // EVERY, 0, -1):
            if request.marks[n - 1] in self.prefixes:
                self.prefixes.move_to_end(request.marks[n - 1])
                return n * EVERY
        return 0

    def _round(self) -> None:
        early = [r for r in self.running if r.taken < len(r.prompt) - 1]
        if early:
            self._prefill(early)
        ready = [r for r in self.running if r.taken == len(r.tokens) - 1]
        if ready:
            self._decode(ready)
        self.counts["rounds"] += 1

    def _prefill(self, requests: list[Request]) -> None:
        """The next stretch of each prompt, up to the next checkpoint, packed."""
        pieces: list[tuple[Request, int]] = []
        left = BUDGET
        for request in requests:
            count = min(EVERY - request.taken % EVERY, len(request.prompt) - 1 - request.taken, left)
            if count > 0:
                pieces.append((request, count))
                left -= count
        tokens = [t for r, n in pieces for t in r.prompt[r.taken : r.taken + n]]
        starts = torch.tensor([0, *(n for _, n in pieces)]).cumsum(0)
        rows = torch.tensor([r.row for r, _ in pieces])
        self.model.prefill(torch.tensor(tokens), starts, self.pools, rows)
        self.counts["prompt tokens"] += len(tokens)
        for request, count in pieces:
            request.taken += count
            if request.taken % EVERY:
                continue
            mark = request.marks[request.taken // EVERY - 1]
            if mark not in self.prefixes:
                self.prefixes[mark] = [tuple(x[request.row].clone() for x in pool) for pool in self.pools]
                if len(self.prefixes) > self.limits.prefixes:
                    self.prefixes.popitem(last=False)

    def _decode(self, requests: list[Request]) -> None:
        """The last token of each and its drafts at once; as many are taken over as are what would have been drawn."""
        drafts = [r.look_up(self.limits.drafts) for r in requests]
        width = 1 + max(map(len, drafts))
        tokens = torch.tensor(
            [[r.tokens[-1], *d, *[0] * (width - 1 - len(d))] for r, d in zip(requests, drafts, strict=True)]
        )
        rows = torch.tensor([r.row for r in requests])
        logits, found = self.model.verify(tokens, self.pools, rows)
        accepted = []
        ended = []
        for b, (request, own) in enumerate(zip(requests, drafts, strict=True)):
            count, done = 0, False
            while not done:
                token = request.next(logits[b, count])
                request.tokens.append(token)
                if not request.cancelled:
                    request.tell(token)
                count += 1
                done = request.made >= request.max_tokens or request.stopped
                if done:
                    ended.append(request)
                if count > len(own) or token != own[count - 1]:
                    break
            accepted.append(count)
            request.taken += count
            self.counts["tokens"] += count
            self.counts["drafted"] += len(own)
            self.counts["accepted"] += count - 1
        self.model.commit(found, torch.tensor(accepted))
        with self.changed:
            for request in ended:
                self._leave(request)
                if not request.cancelled:
                    request.tell(None)

    def _leave(self, request: Request) -> None:
        if request in self.running:
            self.running.remove(request)
            self.free.append(request.row)
