"""A model's forward that finds out about packed sequences, and tells its layers of them in full; or refuses what it would mix.

A data collator may tell of them by positions that start anew alone. The library's softmax layers find them there where there is
no mask and no cache, and its recurrences don't look. So whatever tells of sequences, layers are told of all of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from chunkform.errors import ArgumentError

from .packed import TELLING, Sequences, restarts, sequences_of

FLASH = "its softmax layers keep them apart with attn_implementation='flash_attention_2' alone"
INDEXED = "its layers of indexed attention see all that came before"
UNTOLD = "it doesn't tell its layers where they start"
LONGEST = ("max_length_q", "max_length_k")  # which go with where sequences start

Forward = Callable[..., object]
Given = Mapping[str, object]


def on_sequences(forward: Forward, mixes: str = "", drops: bool = False) -> Forward:
    """A model's forward that keeps packed sequences apart, by whatever tells of them.

    Args:
        forward: the library's.
        mixes: why the model's layers can't keep them apart, where they can't; they are refused then.
        drops: the library's forward doesn't tell its backbone of them.
    """
    kinds = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    names = [n for n, p in inspect.signature(forward).parameters.items() if p.kind not in kinds][1:]

    @functools.wraps(forward)
    def apart(self: torch.nn.Module, *arguments: object, **options: object) -> object:
        given = dict(zip(names, arguments, strict=False)) | options
        sequences = told_to(given)
        told = any(given.get(n) is not None for n in TELLING)
        if mixes and sequences is not None and not (mixes == FLASH and by_flash(self)):
            raise ArgumentError(f"{type(self).__name__} can't take packed sequences: {mixes}; pad them instead")
        if sequences is None and not told:
            return forward(self, *arguments, **options)
        whole = {n: x for n, x in given.items() if n not in (*TELLING, *LONGEST)}
        boundaries = {} if sequences is None else boundaries_of(sequences)
        if sequences is not None:
            whole |= alone(self, given, sequences, "position_ids" in names)
        if drops:
            return forward(Telling(self, **boundaries), **whole)
        return forward(self, **whole, **boundaries)

    apart.__module__ = __name__  # what says whose it is
    return apart


def told_to(given: Given) -> Sequences | None:
    """The packed sequences that a call of a model is of."""
    x = next((x for x in (given.get(n) for n in ("input_ids", "inputs_embeds")) if isinstance(x, Tensor)), None)
    if x is None:
        return None
    mask, positions = given.get("attention_mask"), text_positions(given.get("position_ids"))
    if mask is not None and not (isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[1] >= x.shape[1]):
        mask = positions = None  # of pairs of steps, as `generate` makes them; these say all
    elif mask is not None:
        mask = mask[:, -x.shape[1] :]
    if torch.compiler.is_compiling() and cache_in(given):
        positions = None  # what goes on from a cache is one sequence
    return sequences_of(given, positions, mask, x, not torch.compiler.is_compiling())


def text_positions(position_ids: object) -> Tensor | None:
    """[B or 1, T] of the text, which stand before those of images; three axes of images tell of no sequences."""
    if not isinstance(position_ids, Tensor):
        return None
    if position_ids.dim() == 3:
        return position_ids[0] if position_ids.shape[0] in (1, 4) else None
    return position_ids if position_ids.dim() == 2 else None


def cache_in(given: Given) -> bool:
    return any(given.get(n) is not None for n in ("cache", "past_key_values", "cache_params"))


def by_flash(model: torch.nn.Module) -> bool:
    """Do its softmax layers take boundaries, and no mask?"""
    return "flash" in str(getattr(getattr(model, "config", None), "_attn_implementation", ""))


def boundaries_of(sequences: Sequences) -> dict[str, object]:
    """As layers take them: in one row by where they start, with the longest's length; in more rows by numbers."""
    if sequences.given is None and (len(sequences.starts) > 1 or torch.compiler.is_compiling()):
        return {"seq_idx": sequences.seq_idx}
    return starting(sequences)


def starting(sequences: Sequences) -> dict[str, object]:
    """Where sequences start in all rows, one after the other, and the longest's length, as flash attention takes them."""
    starts = sequences.cu_seqlens
    found: dict[str, object] = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts}
    if not torch.compiler.is_compiling():
        found |= dict.fromkeys(LONGEST, int(starts.diff().max()))
    return found


def alone(model: torch.nn.Module, given: Given, sequences: Sequences, has_positions: bool) -> dict[str, object]:
    """What else a model is told: positions that start anew in each sequence, no padding beside them, and no cache."""
    more: dict[str, object] = {}
    looking, told = not torch.compiler.is_compiling(), any(given.get(n) is not None for n in TELLING)
    mask, positions = given.get("attention_mask"), given.get("position_ids")
    if looking or told:
        without_cache(given)
        more["use_cache"] = False
    if isinstance(mask, Tensor) and mask.dim() == 2:
        more["attention_mask"] = None
    if not has_positions:
        return more
    if by_flash(model) and len(sequences.starts) > 1:
        raise ArgumentError("packed sequences lie in one row where softmax layers run on flash attention")
    text = text_positions(positions)
    if text is None or (looking and not torch.equal(restarts(text, None, len(sequences.starts)), sequences.starts)):
        more["position_ids"] = sequences.positions
        if isinstance(positions, Tensor) and positions.dim() == 3 and positions.shape[0] > 1:
            more["position_ids"] = torch.cat([sequences.positions.unsqueeze(0), positions[-3:]])
    return more


def without_cache(given: Given) -> None:
    """Refuse packed sequences beside a cache, which goes on from one sequence a row."""
    if cache_in(given) or given.get("use_cache"):
        raise ArgumentError("packed sequences leave no cache that could go on: give use_cache=False, and no cache")


class HasBackbone(Protocol):
    backbone: torch.nn.Module


class Telling:
    """A model as its own forward sees it, whose backbone is told more. Nothing of the model changes, for others may run it."""

    def __init__(self, model: HasBackbone, **more: object) -> None:
        self._model, self._more = model, more

    def backbone(self, *arguments: object, **options: object) -> object:
        return self._model.backbone(*arguments, **options, **self._more)

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)
