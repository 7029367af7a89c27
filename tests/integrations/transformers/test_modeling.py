"""A causal language model of any recurrence: in pieces, padded, packed, generated, saved and loaded, and trained."""

import copy
import json

import pytest
import torch

from chunkform.errors import ArgumentError, ChunkformError
from chunkform.spec.language import Recurrence

transformers = pytest.importorskip("transformers", minversion="5.17")
safetensors = pytest.importorskip("safetensors.torch")
from chunkform.integrations.transformers import ChunkformConfig, ChunkformForCausalLM, modeling  # noqa: E402
from chunkform.integrations.transformers.modeling import CACHE  # noqa: E402


def own():
    r = Recurrence("leaky_sum")
    d, e = r.dims("d e")
    q, k = r.inputs("q k", d)
    v, lam = r.inputs("v", e), r.decay("lam")
    S = r.state("S", d, e)
    r.update(S, lam * S.prev + (1 - lam) * k * v.T)
    r.output("o", S.next.T * q)
    return r


SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "pad_token_id": 0,
    "eos_token_id": None,
}
MIXERS = {
    "a name": {"mixer": "gated_delta_rule"},
    "a recurrence, and a softmax layer": {"mixer": own(), "layer_types": ["linear_attention", "full_attention"]},
    "one for each layer, two states": {"mixer": ["linear_attention", "gradient_descent_squared_momentum"]},
}
every = pytest.mark.parametrize("given", MIXERS.values(), ids=MIXERS)


def model(**given):
    torch.manual_seed(0)
    return ChunkformForCausalLM(ChunkformConfig(**(SMALL | given))).eval()


@every
def test_pieces_through_a_cache_and_padded_sequences_are_the_whole(given):
    m, ids, cache, parts = model(**given), torch.randint(1, 64, (2, 20)), None, []
    mask = torch.ones_like(ids)
    mask[0, :6] = 0
    with torch.no_grad():
        whole = m(ids).logits
        for start, end in ((0, 7), (7, 8), (8, 19), (19, 20)):
            found = m(ids[:, start:end], cache=cache, use_cache=True)
            cache, parts = found[CACHE], [*parts, found.logits]
        padded = m(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
        alone = m(ids[:1, 6:]).logits
    assert torch.allclose(torch.cat(parts, 1), whole, atol=1e-5)
    assert torch.allclose(padded[:1, 6:], alone, atol=1e-5) and torch.allclose(padded[1], whole[1], atol=1e-5)


@pytest.mark.parametrize("name", ["past_key_values", "cache_params"])
def test_a_cache_goes_by_its_former_names_too(name):
    m, ids = model(**MIXERS["a recurrence, and a softmax layer"]), torch.randint(1, 64, (2, 9))
    with torch.no_grad():
        whole, cache = m(ids, use_cache=False).logits, m(ids[:, :4], use_cache=True)[CACHE]
        for call in (m, m.model):
            went_on = copy.deepcopy(cache)
            rest = call(ids[:, 4:], **{name: went_on})
            rest = rest.logits if call is m else m.lm_head(rest.last_hidden_state)
            assert torch.allclose(rest, whole[:, 4:], atol=1e-5)
        with pytest.raises(ArgumentError, match=f"cache and {name} are the same argument"):
            m(ids[:, 4:], cache=cache, **{name: went_on})
        with pytest.raises(ArgumentError, match=f"{name} must be a Cache, got tuple"):
            m(ids[:, 4:], **{name: ()})
        with pytest.raises(ArgumentError, match=r"cache has 0 layers, not the model's 2: .*config=model.config"):
            m(ids, cache=transformers.DynamicCache())


def test_the_library_may_call_the_cache_as_it_did_before(monkeypatch):
    """Earlier versions have past_key_values in outputs, masks and layers; later ones take that name as well."""
    m, ids = model(**MIXERS["a recurrence, and a softmax layer"]), torch.randint(1, 64, (2, 9))
    said = {"max_new_tokens": 5, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        whole, tokens = m(ids, use_cache=False).logits, m.generate(ids, **said)
        monkeypatch.setattr(modeling, "CACHE", "past_key_values")
        found = m(ids[:, :4], use_cache=True)
        rest = m(ids[:, 4:], past_key_values=found.past_key_values).logits
    assert torch.allclose(rest, whole[:, 4:], atol=1e-5) and torch.equal(m.generate(ids, **said), tokens)


@pytest.mark.parametrize("name", ["kattention", "softmax_attention"])  # one quantity is kept of each step, and two
def test_a_mixer_that_attends_goes_on_from_its_cache_and_takes_padding_at_the_end(name):
    m, ids = model(mixer=name, num_hidden_layers=1, layer_types=None), torch.randint(1, 64, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, 6:] = 0
    with torch.no_grad():
        whole = m(ids, use_cache=False).logits
        cache = m(ids[:, :5], use_cache=True)[CACHE]
        parts = [m(ids[:, t : t + 1], cache=cache, use_cache=True).logits for t in range(5, 9)]
        padded = m(ids, attention_mask=mask, use_cache=False).logits
    assert torch.allclose(torch.cat(parts, 1), whole[:, 5:], atol=1e-5)
    assert torch.allclose(padded[0, :6], whole[0, :6], atol=1e-5) and torch.allclose(padded[1], whole[1], atol=1e-5)
    for wrong, cached in ((mask, True), (mask.flip(1), False)):
        with pytest.raises(ArgumentError, match=f"layers of {name} take padding at the end alone"):
            m(ids, attention_mask=wrong, use_cache=cached)


LENGTHS = [5, 1, 6]
STARTS, NUMBERS = torch.tensor([0, 5, 6, 12]), torch.repeat_interleave(torch.arange(3), torch.tensor(LENGTHS))[None]
PLACES = torch.cat([torch.arange(n) for n in LENGTHS])[None]
TOLD = {  # by whatever a data collator tells
    "positions": {"position_ids": PLACES},
    "positions that start at 2": {"position_ids": PLACES + 2},
    "starts": {"cu_seq_lens_q": STARTS.int()},
    "starts in a list, and positions": {"cu_seq_lens_q": STARTS.tolist(), "position_ids": PLACES},
    "starts of keys": {"cu_seq_lens_k": STARTS},
    "starts by the op's name, and positions that go on": {"cu_seqlens": STARTS, "position_ids": torch.arange(12)[None]},
    "numbers": {"seq_idx": NUMBERS.int()},
    "all": {"seq_idx": NUMBERS, "cu_seq_lens_q": STARTS, "cu_seq_lens_k": STARTS, "position_ids": PLACES},
}
LAYERS = {
    "recurrent": {"mixer": "gated_delta_rule"},
    "recurrent and softmax": {"mixer": own(), "layer_types": ["linear_attention", "full_attention"]},
    "softmax": {"layer_types": ["full_attention"] * 2},
}


@pytest.mark.parametrize("told", TOLD.values(), ids=TOLD)
@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("masked", ["no mask", "a mask of ones"])
def test_packed_sequences_are_what_each_is_alone(layers, told, masked):
    m, row = model(**layers), torch.randint(1, 64, (1, 12))
    mask = None if masked == "no mask" else torch.ones_like(row)
    with torch.no_grad():
        alone = torch.cat([m(x).logits for x in row.split(LENGTHS, 1)], 1)
        found = m(row, attention_mask=mask, **told)
    assert torch.allclose(found.logits, alone, atol=1e-5) and found.get(CACHE) is None


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_packed_sequences_beside_padding_on_any_side_and_in_several_rows(layers):
    m, row = model(**layers), torch.randint(1, 64, (1, 12))
    around = torch.nn.functional.pad
    mask = around(torch.ones_like(row), (2, 3))
    positions = torch.cat([torch.ones(1, 2).long(), PLACES, torch.tensor([[0, 1, 2]])], 1)
    ways = [
        {"cu_seq_lens_q": torch.tensor([0, 7, 8, 17])},  # padding within the first and the last
        {"cu_seq_lens_q": torch.tensor([0, 2, 7, 8, 14, 17]), "position_ids": positions},
        {"seq_idx": around(NUMBERS, (2, 3), value=7)},
        {"position_ids": positions},
    ]
    with torch.no_grad():
        alone = torch.cat([m(x).logits for x in row.split(LENGTHS, 1)], 1)
        for told in ways:
            found = m(around(row, (2, 3)), attention_mask=mask, **told).logits[:, 2:-3]
            assert torch.allclose(found, alone, atol=1e-5), told
        rows, other = torch.cat([row, row.flip(1)]), [*reversed(LENGTHS)]
        alone = torch.cat([alone, torch.cat([m(x).logits for x in rows[1:].split(other, 1)], 1)])
        for told in ({"seq_idx": torch.cat([NUMBERS, 2 - NUMBERS.flip(1)])}, {"position_ids": PLACES.repeat(2, 1)}):
            if "position_ids" in told:
                told["position_ids"][1] = torch.cat([torch.arange(n) for n in other])
            assert torch.allclose(m(rows, **told).logits, alone, atol=1e-5), told


def test_padding_and_positions_that_go_on_are_no_packed_sequences():
    """However padded steps are numbered, and where steps in the middle are left out."""
    m, ids = model(**LAYERS["recurrent and softmax"]), torch.randint(1, 64, (2, 12))
    mask = torch.ones_like(ids)
    mask[0, :4] = mask[1, 5:8] = 0
    positions = mask.cumsum(1) - 1
    for numbered in (positions.clamp(min=0), positions.masked_fill(mask == 0, 1), torch.arange(12)[None]):
        found = m(ids, attention_mask=mask, position_ids=numbered, use_cache=True)
        assert found.get(CACHE) is not None
        assert torch.allclose(found.logits[:1, 4:], m(ids[:1, 4:]).logits, atol=1e-5)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"cu_seq_lens_q": STARTS[:-1]}, "cu_seq_lens_q must rise from 0 to T = 12, got"),
        ({"cu_seq_lens_k": torch.tensor([0, 8, 5, 12])}, "cu_seq_lens_k must rise from 0 to T = 12, got"),
        ({"cu_seqlens": torch.tensor(12)}, r"cu_seqlens must be \[N \+ 1\]"),
        ({"seq_idx": NUMBERS[0]}, r"seq_idx must be \[B, T\] = \[1, 12\], got \[12\]"),
        ({"seq_idx": NUMBERS, "cu_seq_lens_q": torch.tensor([0, 12])}, "cu_seq_lens_q and seq_idx tell of different"),
        ({"seq_idx": NUMBERS, "use_cache": True}, "packed sequences leave no cache"),
        ({"position_ids": PLACES, "cache": transformers.DynamicCache()}, "packed sequences leave no cache"),
        (
            {"seq_idx": NUMBERS, "attention_mask": torch.tensor([[1] * 7 + [0] + [1] * 4])},
            "a packed sequence is padded in its middle",
        ),
    ],
)
def test_what_is_told_wrongly_of_packed_sequences_is_named(told, said):
    m, row = model(**LAYERS["recurrent and softmax"]), torch.randint(1, 64, (1, 12))
    with pytest.raises(ArgumentError, match=said):
        m(row, **told)
    if "cu_seqlens" in told:
        with pytest.raises(ArgumentError, match="got a batch of 2 rows; seq_idx"):
            m(row.repeat(2, 1), cu_seqlens=STARTS)


def test_a_mixer_that_takes_no_packed_sequences_says_so():
    m, row = model(mixer="softmax_attention"), torch.randint(1, 64, (1, 12))
    for told in TOLD.values():
        with pytest.raises(ArgumentError, match="softmax_attention takes no packed sequences"):
            m(row, **told)


@every
def test_generation_takes_decoding_steps_and_beams(given):
    m, ids = model(**given), torch.randint(1, 64, (2, 6))
    said = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    assert torch.equal(m.generate(ids, **said), m.generate(ids, use_cache=False, **said))
    assert torch.equal(m.generate(ids, num_beams=2, **said), m.generate(ids, num_beams=2, use_cache=False, **said))


@every
def test_generation_takes_a_prompt_in_chunks(given):
    m, ids = model(**given), torch.randint(1, 64, (2, 10))
    said = {"max_new_tokens": 3, "do_sample": False}
    wanted, prefix = m.generate(ids, **said), transformers.DynamicCache(config=m.config)
    assert torch.equal(m.generate(ids, prefill_chunk_size=4, **said), wanted)
    if CACHE == "past_key_values":
        return  # these versions take chunks from the start, whatever the cache has seen
    with torch.no_grad():
        m(ids[:, :3], cache=prefix)
    assert torch.equal(m.generate(ids, cache=prefix, prefill_chunk_size=4, **said), wanted)


@every
def test_generation_goes_on_from_a_cache_of_a_prefix(given):
    """With all tokens, or with the new ones and a mask of all."""
    m, ids = model(**given), torch.randint(1, 64, (2, 9))
    said = {"max_new_tokens": 4, "do_sample": False}
    wanted, prefix = m.generate(ids, **said), transformers.DynamicCache(config=m.config)
    with torch.no_grad():
        m(ids[:, :6], cache=prefix)
    assert torch.equal(m.generate(ids, cache=copy.deepcopy(prefix), **said), wanted)
    new = m.generate(ids[:, 6:], cache=copy.deepcopy(prefix), attention_mask=torch.ones_like(ids), **said)
    assert torch.equal(new[:, 3:], wanted[:, 9:])
    with pytest.raises(ArgumentError, match="has seen 6 tokens, and 3 are given"):
        m.generate(ids[:, 6:], cache=copy.deepcopy(prefix), **said)
    if "full_attention" in m.config.layer_types and CACHE == "past_key_values":
        return  # of softmax layers these versions keep keys of zeros
    prefix.reset()
    assert torch.equal(m.generate(ids, cache=prefix, **said), wanted)


@every
def test_saved_and_loaded_by_its_kind_alone(given, tmp_path):
    m, ids = model(**given), torch.randint(1, 64, (1, 9))
    m.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(ids).logits, m(ids).logits)
    assert "nodes" in (tmp_path / "config.json").read_text() or isinstance(given["mixer"], str | list)


def test_what_a_checkpoint_lacks_of_a_layer_is_drawn_anew_and_the_rest_is_loaded(tmp_path):
    m = model(mixer="kimi_delta_attention", num_hidden_layers=1)
    m.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    saved = safetensors.load_file(file)
    lacking = [n for n in saved if n.endswith(("convolve.weight", "mixer.norm", "gate.bias", "values.alpha"))]
    assert len(lacking) > 2
    safetensors.save_file({n: x for n, x in saved.items() if n not in lacking}, file, metadata={"format": "pt"})
    for filled in (float("nan"), 7.0):
        torch.full((1 << 22,), filled)  # what memory may hold
        found = ChunkformForCausalLM.from_pretrained(tmp_path).state_dict()
        for n, x in saved.items():
            drawn = n in lacking and not n.endswith(
                ("mixer.norm", "values.alpha")
            )  # which begin with numbers of their own
            assert torch.equal(found[n], x) != drawn, n
            assert found[n].isfinite().all() and found[n].abs().max() < max(2 * x.abs().max(), 0.6), n


@every
def test_training_with_checkpoints_has_a_gradient_for_every_parameter(given):
    m, ids = model(**given).train(), torch.randint(1, 64, (2, 9))
    m(ids, labels=ids).loss.backward()
    before = {n: p.grad.clone() for n, p in m.named_parameters()}
    m.zero_grad()
    m.gradient_checkpointing_enable()
    m(ids, labels=ids).loss.backward()
    assert all(torch.allclose(p.grad, before[n], atol=1e-6) for n, p in m.named_parameters())


def test_a_spec_in_python_runs_only_where_it_was_said_to(tmp_path):
    m, ids = model(mixer="linear_attention"), torch.randint(1, 64, (1, 9))
    m.save_pretrained(tmp_path)
    (tmp_path / "spec.py").write_text(
        "from chunkform.spec.language import Recurrence\n"
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
        "r = Recurrence('plain_sum')\nd, e = r.dims('d e')\nq, k = r.inputs('q k', d)\nv = r.inputs('v', e)\n"
        "S = r.state('S', d, e)\nr.update(S, S.prev + k * v.T)\nr.output('o', S.next.T * q)\n"
    )
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"python_spec": "spec.py"}))
    for loaded in (transformers.AutoModelForCausalLM, ChunkformForCausalLM):
        with pytest.raises(ArgumentError, match="trust_remote_code"):
            loaded.from_pretrained(tmp_path)
    assert not (tmp_path / "ran").exists()
    trusted = ChunkformConfig.from_pretrained(tmp_path, trust_remote_code=True)
    models = [ChunkformForCausalLM.from_pretrained(tmp_path, config=trusted)]
    for loaded in (transformers.AutoModelForCausalLM, ChunkformForCausalLM):
        (tmp_path / "ran").unlink()
        models.append(loaded.from_pretrained(tmp_path, trust_remote_code=True))
        assert (tmp_path / "ran").exists() and models[-1].config.mixer["name"] == "plain_sum"
    for again in models:
        assert torch.allclose(again(ids).logits, m(ids).logits, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mixer": "gated_delta_rul"}, "gated_delta_rule"),
        ({"mixer": "spec/delta_rule.py"}, r"is named by Path\('spec/delta_rule.py'\)"),
        ({"mixer": {"format": 1, "name": "x"}}, "can't be read"),
        ({"mixer": ["delta_rule"]}, "2 recurrent layers"),
        ({"layer_types": ["linear_attention", "none"]}, "layer_types"),
        ({"num_attention_heads": 0}, "num_attention_heads must be 1 or more, got 0"),
        ({"mixer_options": "gate"}, "mixer_options must be a dict of options, got 'gate'"),
        ({"mixer_options": {"memory": "x"}}, "Mixer: memory must be two numbers of steps, 0 < low <= high, got 'x'"),
    ],
)
def test_what_is_no_mixer_is_told(given, said):
    with pytest.raises(ChunkformError, match=said):
        ChunkformForCausalLM(ChunkformConfig(**(SMALL | given)))


def test_trainer(tmp_path):
    m = model(mixer="linear_attention")
    rows = [{"input_ids": x, "labels": x} for x in torch.arange(1, 17).repeat(4, 1)]
    how = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=8, learning_rate=1e-2, report_to=[], save_strategy="no", use_cpu=True
    )
    trainer = transformers.Trainer(model=m, args=how, train_dataset=rows, eval_dataset=rows)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before - 0.5


SOFTMAX = {"mixer": "gated_delta_rule", "layer_types": ["full_attention"] * 2}


@pytest.mark.parametrize("given", [*MIXERS.values(), SOFTMAX], ids=[*MIXERS, "softmax layers alone"])
def test_a_static_cache_generates_the_same(given):
    m, ids = model(**given), torch.randint(1, 64, (2, 9))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    ask = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False}
    with torch.no_grad():
        assert torch.equal(m.generate(ids, cache_implementation="static", **ask), m.generate(ids, **ask))


def test_hidden_states_are_told_where_they_are_asked_for():
    m, ids = model(mixer="gated_delta_rule"), torch.randint(1, 64, (2, 9))
    found = m(ids, output_hidden_states=True).hidden_states
    assert len(found) == 3 and torch.equal(found[0], m.get_input_embeddings()(ids))
    assert torch.equal(m.lm_head(found[-1]), m(ids).logits) and m(ids).hidden_states is None
    made = m.generate(ids, max_new_tokens=2, output_hidden_states=True, return_dict_in_generate=True)
    assert [len(x) for x in made.hidden_states] == [3, 3]
    with pytest.raises(ArgumentError, match="output_attentions isn't supported"):
        m(ids, output_attentions=True)


@pytest.mark.parametrize("mask", [torch.ones(2, 8), torch.ones(1, 9), torch.ones(2, 1, 9, 9), [[1] * 9] * 2])
def test_a_mask_that_fits_no_sequences_is_named(mask):
    m, ids = model(mixer="gated_delta_rule"), torch.randint(1, 64, (2, 9))
    with pytest.raises(
        ArgumentError, match=r"attention_mask must be \[B, T\] = \[2, 9\], or longer beside a cache, got"
    ):
        m(ids, attention_mask=mask)
