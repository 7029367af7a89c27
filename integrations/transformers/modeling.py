"""A causal language model whose layers mix with any recurrence, by the library's own conventions: loading, generation, Trainer.

from chunkform.integrations.transformers import ChunkformConfig, ChunkformForCausalLM
model = ChunkformForCausalLM(ChunkformConfig(mixer="kimi_delta_attention", vocab_size=256, hidden_size=128, ...))
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, DynamicCache, GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache, LinearAttentionLayer
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.utils.generic import can_return_tuple

from chunkform.errors import ArgumentError
from chunkform.runtime.nn import Mixer
from chunkform.runtime.nn.mixer import Cache as MixerCache

from .configuration import LINEAR, SOFTMAX, ChunkformConfig
from .model_calls import by_flash, starting, without_cache
from .packed import TELLING, Sequences, sequences_of

CACHE = (
    "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"
)  # the library's name of it


class RecurrentMixer(nn.Module):
    """A `Mixer` in the place of a layer's attention. The cache's layer has its states and its convolution's tail."""

    def __init__(self, config: ChunkformConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        options = dict(config.mixer_options or {})
        self.mixer = Mixer(config.op_of(layer_idx), config.hidden_size, config.num_attention_heads, **options)

    def forward(
        self,
        hidden_states: Tensor,
        cache: Cache | None = None,
        padding_mask: Tensor | None = None,
        sequences: Sequences | None = None,
        **kwargs: object,
    ) -> tuple[Tensor, None]:
        if sequences is not None:
            row = hidden_states.flatten(0, 1).unsqueeze(0)
            return self.mixer(row, None, sequences.cu_seqlens).view_as(hidden_states), None
        cache = the_cache(cache, kwargs)
        layer = None if cache is None else cache.layers[self.layer_idx]
        before, seen = (None, 0) if layer is None else (kept(layer), steps_of(layer))
        steps = hidden_states.shape[1]
        if padding_mask is not None:
            padding_mask = padding_mask[:, -steps:].bool()
            padding_mask = None if bool(padding_mask.all()) else padding_mask
        if steps == 1 and layer is not None and padding_mask is None and not torch.is_grad_enabled():
            y, after = self.mixer.step(hidden_states[:, 0], before)
            y = y.unsqueeze(1)
        elif padding_mask is not None and not self.mixer.call.packs:
            y, after = self._padded_on_the_right(hidden_states, layer, padding_mask), None
        elif padding_mask is not None:
            y, after = self._unpadded(hidden_states, before, padding_mask)
        else:
            y, after = self.mixer(hidden_states, before, output_cache=True)
        if layer is not None and after is not None:
            keep(layer, after)
            layer.steps = seen + steps
        return y, None

    def _padded_on_the_right(self, x: Tensor, layer: object, mask: Tensor) -> Tensor:
        """What a causal attention has seen before a padded step is all there is."""
        if layer is not None or bool((mask[:, 1:] & ~mask[:, :-1]).any()):
            raise ArgumentError(
                f"attention_mask: layers of {self.mixer.call.signature.name} take padding at the end alone, and with "
                "use_cache=False; 'full_attention' in layer_types takes any"
            )
        return self.mixer(x).masked_fill(~mask.unsqueeze(-1), 0.0)

    def _unpadded(self, x: Tensor, before: MixerCache | None, mask: Tensor) -> tuple[Tensor, MixerCache]:
        """Padded steps are left out: a recurrence may write for an input of zero, too."""
        starts = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0))
        packed, after = self.mixer(x[mask].unsqueeze(0), before, starts, output_cache=True)
        return torch.zeros_like(x).masked_scatter(mask.unsqueeze(-1), packed.to(x.dtype)), after


def the_cache(cache: Cache | None, given: dict[str, object]) -> Cache | None:
    """The cache, by whichever name the library has for it or had before, which is taken out of `given`."""
    for name in ("past_key_values", "cache_params"):
        other = given.pop(name, None)
        if other is None:
            continue
        if cache is not None and other is not cache:
            raise ArgumentError(f"cache and {name} are the same argument, and were given different caches")
        if not isinstance(other, Cache):
            raise ArgumentError(f"{name} must be a Cache, got {type(other).__name__}")
        cache = other
    return cache


def kept(layer: LinearAttentionLayer) -> MixerCache | None:
    """What a mixer goes on with; None before the first step."""
    if not layer.has_previous_state[0]:
        return None
    *states, last = (layer.recurrent_states[i] for i in range(layer.number_of_states))
    tail = last if layer.has_tail else None
    states = states if layer.has_tail else [*states, last]
    return MixerCache(states[0] if len(states) == 1 else tuple(states), tail)


def steps_of(layer: object) -> int:
    """How many steps a layer of a cache has seen since it was made or reset."""
    return getattr(layer, "steps", 0) if getattr(layer, "has_previous_state", {0: False})[0] else 0


def keep(layer: LinearAttentionLayer, found: MixerCache) -> None:
    """Put states and the convolution's tail into the library's layer, as which they are reordered, offloaded and reset."""
    states = [*(found.state if isinstance(found.state, tuple) else (found.state,))]
    tensors = states if found.tail is None else [*states, found.tail]
    layer.has_tail = found.tail is not None
    layer.number_of_states = len(tensors)
    layer.recurrent_states = dict(enumerate(tensors))
    layer.conv_states = dict.fromkeys(range(len(tensors)))
    layer.is_conv_states_initialized = dict.fromkeys(range(len(tensors)), False)
    layer.is_recurrent_states_initialized = dict.fromkeys(range(len(tensors)), True)
    layer.has_previous_state = dict.fromkeys(range(len(tensors)), True)
    layer.device, layer.dtype = tensors[0].device, tensors[0].dtype


class ChunkformLayer(LlamaDecoderLayer):
    """The library's layer, whose attention may be a recurrence."""

    def __init__(self, config: ChunkformConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        assert config.layer_types is not None
        if config.layer_types[layer_idx] == LINEAR:
            self.self_attn = RecurrentMixer(config, layer_idx)


class ChunkformPreTrainedModel(PreTrainedModel):
    config_class = ChunkformConfig
    config: ChunkformConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("ChunkformLayer",)
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _is_stateful = True

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *arguments: object,
        config: ChunkformConfig | None = None,
        **options: object,
    ) -> ChunkformPreTrainedModel:
        """The library's; with `trust_remote_code=True` a spec in Python beside the weights is run."""
        if options.get("trust_remote_code"):
            told = config or ChunkformConfig.from_pretrained(pretrained_model_name_or_path)
            config = told.with_python_spec(pretrained_model_name_or_path) if told.python_spec else config
        found: ChunkformPreTrainedModel = super().from_pretrained(
            pretrained_model_name_or_path, *arguments, config=config, **options
        )
        return found

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Mixer):  # as a new layer draws them; what was loaded stays
            parameters = [*module.parameters()]
            loaded = [(p, p.clone()) for p in parameters if getattr(p, "_is_hf_initialized", False)]
            if len(loaded) < len(parameters):
                module.reset_parameters()
            for p, x in loaded:
                p.copy_(x)
        elif not any(isinstance(m, Mixer) for m in module.modules()):
            super()._init_weights(module)


class ChunkformModel(ChunkformPreTrainedModel):
    """Tokens to hidden states."""

    def __init__(self, config: ChunkformConfig) -> None:
        config.check_python_spec()
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList([ChunkformLayer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = LlamaRotaryEmbedding(config=config)
        self.gradient_checkpointing = False
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | dict[str, Tensor] | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: object,
    ) -> BaseModelOutputWithPast:
        """`attention_mask` [B, T], 0 where padded, on any side.

        Packed sequences are told of by `cu_seq_lens_q` (or `cu_seq_lens_k`, `cu_seqlens`), of one row, by `seq_idx` [B, T], or by
        `position_ids` that start anew; they leave no cache.
        """
        cache = the_cache(cache, kwargs)
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give input_ids or inputs_embeds")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        attention_mask, prepared = padding_of(attention_mask, x, self.config.layer_types or ())
        mask = None if attention_mask is None else attention_mask[:, -x.shape[1] :]
        told = {n: given for n in TELLING if (given := kwargs.pop(n, None)) is not None}
        looking = not torch.compiler.is_compiling() or not set(told) - {"seq_idx"}
        sequences = sequences_of(told, None if prepared is not None else position_ids, mask, x, looking)
        if sequences is not None:
            without_cache({"cache": cache, "use_cache": use_cache})
            attention_mask, use_cache = None, False
        use_cache = (self.config.use_cache and not self.training) if use_cache is None else use_cache
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        if cache is not None and len(cache.layers) < self.config.num_hidden_layers:
            raise ArgumentError(
                f"cache has {len(cache.layers)} layers, not the model's {self.config.num_hidden_layers}: make it by "
                "DynamicCache(config=model.config)"
            )
        keeps, states = shown(self.config, kwargs), []
        more = {CACHE: cache} | kwargs | {"sequences": sequences}
        if SOFTMAX in (self.config.layer_types or ()):
            more |= self._for_softmax(x, attention_mask, prepared, position_ids, cache, sequences)
        for layer in self.layers:
            states.append(x)
            x = layer(x, padding_mask=attention_mask, **more)
        x = self.norm(x)
        return BaseModelOutputWithPast(
            last_hidden_state=x,
            hidden_states=(*states, x) if keeps else None,
            **{CACHE: cache if use_cache else None},
        )

    def _for_softmax(
        self,
        x: Tensor,
        mask: Tensor | None,
        prepared: Tensor | None,
        position_ids: Tensor | None,
        cache: Cache | None,
        sequences: Sequences | None,
    ) -> dict[str, object]:
        """What softmax layers are told: positions, the mask, and where sequences start."""
        assert self.config.layer_types is not None
        past = 0 if cache is None else cache.get_seq_length(self.config.layer_types.index(SOFTMAX))
        apart = None if sequences is None else sequences.positions
        if position_ids is None:
            position_ids = (torch.arange(x.shape[1], device=x.device) + past).unsqueeze(0) if apart is None else apart
        more: dict[str, object] = {"position_embeddings": self.rotary_emb(x, position_ids)}
        more["position_ids"] = position_ids if apart is None else apart
        more["attention_mask"] = prepared
        if prepared is None:
            more["attention_mask"] = create_causal_mask(
                config=self.config,
                inputs_embeds=x,
                attention_mask=mask,
                position_ids=apart,
                **{CACHE: cache},
            )
        if sequences is not None and by_flash(self):
            more |= starting(sequences)
        return more


def padding_of(mask: object, x: Tensor, layers: Sequence[str]) -> tuple[Tensor | None, Tensor | None]:
    """(which steps are padded, [B, T] and those in a cache, the mask of softmax layers where it is made already).

    `generate` gives masks by kinds of layers beside a static cache. One of pairs of steps only softmax layers can take."""
    prepared: Tensor | None = None
    if isinstance(mask, dict) and set(layers) <= set(mask):
        mask, prepared = mask.get(LINEAR), mask.get(SOFTMAX)
    elif isinstance(mask, Tensor) and mask.dim() == 4 and LINEAR not in layers:
        mask, prepared = None, mask
    count, steps = x.shape[:2]
    if mask is None or (isinstance(mask, Tensor) and mask.dim() == 2 and len(mask) == count and mask.shape[1] >= steps):
        return mask, prepared
    got = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
    raise ArgumentError(f"attention_mask must be [B, T] = {[count, steps]}, or longer beside a cache, got {got}")


def shown(config: ChunkformConfig, given: dict[str, object]) -> bool:
    """Are hidden states asked for? Attentions, which recurrent layers have none of, aren't told."""
    asked = {n: given.pop(n, None) for n in ("output_hidden_states", "output_attentions")}
    if asked["output_attentions"]:
        raise ArgumentError("output_attentions isn't supported: recurrent layers have none")
    found = asked["output_hidden_states"]
    return bool(config.output_hidden_states if found is None else found)


class RecurrentCache(DynamicCache):
    """A cache of recurrent layers alone, which knows its length: chunked prefills and earlier versions ask for it."""

    is_compileable = False  # states are put into it new, not written in place

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return steps_of(self.layers[layer_idx]) if layer_idx < len(self.layers) else 0


def recurrent(cache: Cache) -> bool:
    """Are all layers of a cache recurrent ones, of which the library knows no length?"""
    return len(cache.layers) > 0 and all(isinstance(x, LinearAttentionLayer) for x in cache.layers)


def unseen(cache: Cache, input_ids: Tensor, given: dict[str, object]) -> int | None:
    """How many of the tokens a cache hasn't seen; None for all. A longer mask says that these are new."""
    embedded, told = given.get("inputs_embeds"), [given.get(n) for n in ("attention_mask", "position_ids")]
    count = embedded.shape[1] if isinstance(embedded, Tensor) else input_ids.shape[1]
    seen = max((steps_of(x) for x in cache.layers), default=0)
    if seen == 0 or any(isinstance(x, Tensor) and x.shape[-1] > count for x in told):
        return None
    if seen >= count:
        raise ArgumentError(
            f"the cache has seen {seen} tokens, and {count} are given: give all of them, those that it has seen too; or new "
            f"ones, with an attention_mask of all, [B, {seen + count}]"
        )
    return count - seen


class ChunkformForCausalLM(ChunkformPreTrainedModel, GenerationMixin):
    """Tokens to logits of the next one, and the loss of `labels`."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 (the library's own convention)

    def __init__(self, config: ChunkformConfig) -> None:
        super().__init__(config)
        self.model = ChunkformModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: object,
    ) -> CausalLMOutputWithPast:
        cache = the_cache(cache, kwargs)
        found = self.model(input_ids, attention_mask, position_ids, cache, inputs_embeds, use_cache, **kwargs)
        x = found.last_hidden_state
        last = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(x[:, last])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, hidden_states=found.hidden_states, **{CACHE: found.get(CACHE)}
        )

    def _prefill(
        self,
        input_ids: Tensor,
        generation_config: object,
        model_kwargs: dict[str, object],
        *more: object,
        **others: object,
    ) -> CausalLMOutputWithPast:
        """Of a cache that has seen some of the tokens, the rest; the library has it so where a layer is a softmax one."""
        cache = model_kwargs.get(CACHE)
        rest = unseen(cache, input_ids, model_kwargs) if isinstance(cache, Cache) else None
        if rest is not None and CACHE == "cache" and recurrent(cache):
            embedded = model_kwargs.get("inputs_embeds")
            if isinstance(embedded, Tensor):
                model_kwargs = model_kwargs | {"inputs_embeds": embedded[:, -rest:]}
            input_ids = input_ids[:, -rest:]
        found: CausalLMOutputWithPast = super()._prefill(input_ids, generation_config, model_kwargs, *more, **others)
        return found

    def _prepare_cache_for_generation(
        self, generation_config: object, model_kwargs: dict[str, object], *more: object
    ) -> bool:
        given = model_kwargs.get(CACHE)
        found: bool = super()._prepare_cache_for_generation(generation_config, model_kwargs, *more)
        made = model_kwargs.get(CACHE)
        if isinstance(made, Cache) and recurrent(made):
            if type(made) is DynamicCache:
                made.__class__ = RecurrentCache
            elif given is None and CACHE == "past_key_values":
                model_kwargs[CACHE] = RecurrentCache(config=self.config)
        return found

    def generate(self, *arguments: object, **options: object) -> object:
        """The library's, to which a cache goes by the name that it has for it."""
        cache = options.pop("cache", None)
        cache = the_cache(cache if isinstance(cache, Cache) else None, options)
        return super().generate(*arguments, **options, **({} if cache is None else {CACHE: cache}))


AutoConfig.register("chunkform", ChunkformConfig, exist_ok=True)
AutoModel.register(ChunkformConfig, ChunkformModel, exist_ok=True)
AutoModelForCausalLM.register(ChunkformConfig, ChunkformForCausalLM, exist_ok=True)

__all__ = ["ChunkformConfig", "ChunkformForCausalLM", "ChunkformModel", "ChunkformPreTrainedModel"]
