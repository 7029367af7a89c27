"""Models of transformers on generated ops, against the library's own functions of plain torch."""

import copy
import gc
import importlib
import inspect
import itertools
import pickle
import weakref
from importlib.util import find_spec

import pytest
import torch
from shared import tiny_models
from shared.forked import code
from shared.in_float64 import from_float64
from shared.routing import in_bfloat16, in_float32, together
from shared.tiny_models import differences, greedy, of_rounding, tiny, tokens, trained

from chunkform.errors import ArgumentError

enabled = pytest.importorskip("chunkform.integrations.transformers.enable", exc_type=ImportError)
transformers = pytest.importorskip("transformers", minversion="5.17")
enable, models = enabled.enable, enabled.models

QUICK = ["mamba2", "qwen3_5"]
LATER = sorted(set(tiny_models.MODELS) - set(QUICK))
AUTOCAST = sorted(set(tiny_models.MODELS) - {"mamba2", "qwen3_next"})  # one without experts, one with, at once
APART_AT_150 = ["bailing_hybrid", "glm5_next", "zamba2"]
every = [*QUICK, *(pytest.param(n, marks=pytest.mark.long) for n in LATER)]


def check(model, ids, before, found, **more):
    """1e-5 of each tensor; of one whose terms cancel, no more than twice what another rounding of the parameters changes.

    At 40 tokens. At 150 three gradients are up to 1.7e-5 apart, since the library's are as far from float64: see below.
    """
    apart = differences(before, found)
    large = {n: x for n, x in apart.items() if x > 1e-5}
    if large:
        rounding = of_rounding(model, ids, before, **more)
        large = {n: (x, rounding[n]) for n, x in large.items() if x > 2 * rounding[n]}
    assert large == {}


def worst(a, b):
    apart = differences(a, b)
    return max(apart.values()), max(apart, key=apart.get)


@pytest.mark.parametrize("name", every)
def test_logits_loss_gradients_and_generated_text_are_the_librarys(name):
    model, ids = tiny(name), tokens(2, 40)
    before, text = trained(model, ids), greedy(model, ids[:, :9], 64)
    with enable(model) as on:
        assert on.replaced
        found, same = trained(model, ids), greedy(model, ids[:, :9], 64)
    check(model, ids, before, found)
    assert torch.equal(text, same)


@pytest.mark.parametrize("name", ["kimi_linear", *(pytest.param(n, marks=pytest.mark.long) for n in APART_AT_150)])
def test_what_is_further_apart_than_1e5_is_off_in_the_librarys_float32(name):
    theirs, ours = from_float64(name)
    assert max(ours.values()) < max(theirs.values()) and max(theirs.values()) > 1e-5


@pytest.mark.parametrize("name", ["mamba2", "qwen3_next", *(pytest.param(n, marks=pytest.mark.long) for n in AUTOCAST)])
def test_under_autocast_a_model_is_as_near_to_float32_as_the_librarys_where_it_takes_the_same_experts(name):
    model, ids = tiny(name), tokens(2, 40)
    exact, right = in_float32(model, ids)
    theirs, _ = in_bfloat16(model, ids, right.made)
    with enable(model):
        ours, _ = in_bfloat16(model, ids, right.made)
    far, near = (differences(together(exact), together(x)) for x in (ours, theirs))
    assert all(far[n] < 1.5 * near[n] for n in far), (far, near)


@pytest.mark.parametrize("name", every)
def test_left_and_right_padding(name):
    model, ids = tiny(name), tokens(2, 24)
    for padded in (slice(0, 7), slice(17, 24)):
        mask = torch.ones_like(ids)
        mask[0, padded] = 0
        before = trained(model, ids, attention_mask=mask)
        with enable(model):
            found = trained(model, ids, attention_mask=mask)
        check(model, ids, before, found, attention_mask=mask)


def test_every_model_that_calls_a_recurrence_is_found_and_each_function_takes_what_the_librarys_takes():
    assert set(models()) == {n for n in tiny_models.MODELS if find_spec(f"transformers.models.{n}")}
    ours = enabled.functions()
    for name in models():
        module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
        here = [n for n in ours if hasattr(module, n)]
        assert here or any(hasattr(module, n) for n in enabled.methods()), name
        for n in here:
            theirs = getattr(module, n)
            taken = inspect.signature(ours[n](theirs)).parameters
            if not any(p.kind is p.VAR_POSITIONAL for p in taken.values()):
                wanted = [p for p in inspect.signature(theirs).parameters if p != "kwargs"]
                assert list(taken)[: len(wanted)][:3] == wanted[:3] and set(wanted) <= set(taken), (name, n)


def test_a_model_runs_on_the_op(monkeypatch):
    """Where the op's result is wrong, so is the model's."""
    functions = importlib.import_module("chunkform.integrations.transformers.functions")
    model, ids = tiny("mamba2"), tokens(1, 12)
    before = model(input_ids=ids).logits
    real = functions.lightning_attention
    monkeypatch.setattr(functions, "lightning_attention", lambda **given: (real(**given)[0] * 2, real(**given)[1]))
    with enable(model), torch.no_grad():
        assert not torch.allclose(model(input_ids=ids, use_cache=False).logits, before, atol=1e-3)


APART = {
    "granitemoehybrid": "its softmax layers keep them apart with attn_implementation='flash_attention_2' alone",
    "glm5_next": "its layers of indexed attention see all that came before",
    "xlstm": "it doesn't tell its layers where they start",
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n != "xlstm")) for n in APART])
def test_a_model_that_would_mix_packed_sequences_refuses_them(name):
    model, row = tiny(name), tokens(1, 24)
    with torch.no_grad(), enable(model):
        one = torch.zeros(1, 24, dtype=torch.int32)
        plain = model(input_ids=row, use_cache=False).logits
        assert torch.equal(model(input_ids=row, use_cache=False, seq_idx=one).logits, plain)  # one sequence
        for given in (
            {"cu_seq_lens_q": torch.tensor([0, 9, 24])},
            {"seq_idx": (torch.arange(24) > 8)[None].int()},
            {"position_ids": torch.cat([torch.arange(9), torch.arange(15)])[None]},
        ):
            with pytest.raises(ArgumentError, match=f"can't take packed sequences: {APART[name]}; pad them instead"):
                model(input_ids=row, use_cache=False, **given)


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.long) for n in LATER if n not in APART)])
def test_packed_sequences_are_what_each_is_alone(name):
    model, row, lengths = tiny(name), tokens(1, 24), [9, 1, 14]
    starts = torch.tensor([0, 9, 10, 24], dtype=torch.int32)
    places = torch.cat([torch.arange(n) for n in lengths])[None]
    numbers = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None].int()
    with torch.no_grad(), enable(model):
        parts = [row[:, a:b] for a, b in itertools.pairwise(starts.tolist())]
        alone = torch.cat([model(input_ids=x, use_cache=False).logits for x in parts], 1)
        flat = transformers.DataCollatorWithFlattening(return_tensors="pt")(
            [{"input_ids": x[0].tolist()} for x in parts]
        )
        ones, on = torch.ones_like(row), torch.arange(24)[None]
        for given in (
            {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "position_ids": places},
            {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 14, "max_length_k": 14},
            {"cu_seq_lens_k": starts, "position_ids": on},
            {"seq_idx": numbers, "position_ids": places},
            {"seq_idx": numbers},
            {"position_ids": flat["position_ids"]},
            {"position_ids": places, "attention_mask": ones},
            {"cu_seq_lens_q": starts, "attention_mask": ones},
        ):
            assert torch.allclose(model(input_ids=row, **given).logits, alone, atol=1e-4), list(given)
        padded, mask = torch.nn.functional.pad(row, (0, 4)), torch.nn.functional.pad(ones, (0, 4))
        ends = torch.cat([starts[:-1], starts.new_tensor([28])])
        for given in ({"cu_seq_lens_q": ends}, {"position_ids": torch.cat([places, on[:, :4]], 1)}):
            found = model(input_ids=padded, attention_mask=mask, **given).logits[:, :24]
            assert torch.allclose(found, alone, atol=1e-4), list(given)
        rows = model(input_ids=row.repeat(2, 1), position_ids=places.repeat(2, 1)).logits
        assert torch.allclose(rows, alone.repeat(2, 1, 1), atol=1e-4)
        with pytest.raises(ArgumentError, match="packed sequences leave no cache"):
            model(input_ids=row, position_ids=places, use_cache=True)


@pytest.mark.parametrize("name", QUICK)
def test_trainer_learns_from_packed_batches_what_it_learns_from_padded_ones(name, tmp_path):
    rows = [{"input_ids": [*range(2, 2 + n)], "labels": [*range(2, 2 + n)]} for n in (5, 9, 3, 12)]
    settings = {"max_steps": 3, "report_to": [], "save_strategy": "no", "use_cpu": True, "learning_rate": 1e-2}
    how = transformers.TrainingArguments(output_dir=str(tmp_path), per_device_train_batch_size=4, **settings)

    def padded(rows):
        def beside(value, key):
            return torch.nn.utils.rnn.pad_sequence([torch.tensor(r[key]) for r in rows], True, value)

        mask = torch.arange(12) < torch.tensor([len(r["labels"]) for r in rows])[:, None]
        return {"input_ids": beside(0, "input_ids"), "labels": beside(-100, "labels"), "attention_mask": mask.long()}

    packed = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    losses = []
    for collator in (padded, packed, transformers.DataCollatorWithFlattening()):
        model = tiny(name)
        with enable(model):
            trainer = transformers.Trainer(model=model, args=how, train_dataset=rows, data_collator=collator)
            losses.append(trainer.train().training_loss)
    assert max(losses) - min(losses) < 1e-5 * losses[0]


@pytest.mark.parametrize("name", ["mamba2", "xlstm"])
def test_gradients_of_what_goes_on_from_a_cache_that_is_written_to(name):
    model, ids = tiny(name), tokens(2, 24)

    def gradients():
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            before = model(ids[:, :10], use_cache=True).cache_params
        model(ids[:, 10:], use_cache=True, cache_params=before)[0].square().mean().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    wanted = gradients()
    with enable(model):
        found = gradients()
    assert worst(wanted, found)[0] < 1e-4


def test_gradient_checkpointing():
    model, ids = tiny("qwen3_5").train(), tokens(1, 12)
    before = trained(model, ids)
    model.gradient_checkpointing_enable()
    with enable(model):
        error, where = worst(before, trained(model, ids))
    assert error < 1e-5, where


@pytest.mark.long
@pytest.mark.parametrize("name", ["qwen3_5", "mamba2", "kimi_linear"])
def test_a_compiled_model_is_one_graph(name):
    model, ids = tiny(name), tokens(2, 40)
    before = trained(model, ids)
    torch._dynamo.reset()
    model.zero_grad(set_to_none=True)
    with enable(model):
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        found = compiled(input_ids=ids, labels=ids, use_cache=False)
        found.loss.backward()
    assert torch.allclose(found.logits, before["logits"], rtol=1e-4, atol=1e-5)
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    error, where = worst({n: x for n, x in before.items() if n in gradients}, gradients)
    assert error < 1e-5, where


def test_all_models_or_one_and_back_again():
    module = importlib.import_module("transformers.models.qwen3_5.modeling_qwen3_5")
    before = module.torch_chunk_gated_delta_rule
    with enable():
        assert module.torch_chunk_gated_delta_rule is not before
        assert enable().replaced == ()  # a second time there is nothing to do
    assert module.torch_chunk_gated_delta_rule is before
    with enable() as everything:
        assert len(repr(everything)) < 500
    one, other = tiny("qwen3_5"), tiny("qwen3_5")
    kind = type(one.model.layers[0].linear_attn)
    on = enable(one)
    assert isinstance(one.model.layers[0].linear_attn, kind) and type(one.model.layers[0].linear_attn) is not kind
    assert type(other.model.layers[0].linear_attn) is kind and module.torch_chunk_gated_delta_rule is before
    on.disable()
    assert type(one.model.layers[0].linear_attn) is kind


def test_blocks_may_overlap_and_a_second_end_changes_nothing():
    module = importlib.import_module("transformers.models.qwen3_5.modeling_qwen3_5")
    before, model = module.torch_chunk_gated_delta_rule, tiny("qwen3_5")
    kind = type(model.model.layers[0].linear_attn)
    for meant in ((), (model,)):
        first, second = enable(*meant), enable(*meant)
        assert first.replaced and not second.replaced
        with second:
            first.disable()  # as another thread's block may end
            assert (module.torch_chunk_gated_delta_rule is before) == bool(meant)
            assert (type(model.model.layers[0].linear_attn) is kind) != bool(meant)
        assert module.torch_chunk_gated_delta_rule is before and type(model.model.layers[0].linear_attn) is kind
        with enable(*meant):
            first.disable()
            assert (module.torch_chunk_gated_delta_rule is before) == bool(meant)
            assert (type(model.model.layers[0].linear_attn) is kind) != bool(meant)


def test_a_model_on_our_ops_is_copied_and_pickled_as_one():
    model, ids = tiny("mamba2"), tokens(1, 9)
    kind = type(model.backbone.layers[0].mixer)
    with enable(model):
        copied, text = copy.deepcopy(model), pickle.dumps(model)
        ours, logits = type(model.backbone.layers[0].mixer), model(ids).logits
    assert b"on_chunkform" not in text  # a name that other processes don't have
    for again in (copied, pickle.loads(text)):
        assert type(again.backbone.layers[0].mixer) is ours and torch.equal(again(ids).logits, logits)
        enable(again).disable()
        assert type(again.backbone.layers[0].mixer) is kind


@pytest.mark.usefixtures("others_left_alone")
def test_a_model_that_is_not_kept_is_freed():
    model = tiny("mamba2")
    enable(model)
    layer = weakref.ref(model.backbone.layers[0].mixer)
    del model
    gc.collect()
    assert layer() is None


def test_what_one_call_is_told_of_packed_sequences_no_other_is():
    """Another thread may run the model meanwhile."""
    model, row = tiny("mamba2"), tokens(1, 24)
    numbers = torch.repeat_interleave(torch.arange(3), torch.tensor([9, 1, 14]))[None].int()
    found = []

    def meanwhile(*_):
        if not found:
            found.append(None)
            found[0] = model(row, use_cache=False).logits

    with torch.no_grad(), enable(model):
        alone = model(row, use_cache=False).logits
        model.backbone.embeddings.register_forward_hook(meanwhile)
        packed = model(row, use_cache=False, seq_idx=numbers).logits
    assert torch.equal(found[0], alone) and not torch.allclose(packed, alone, atol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("name", QUICK)
def test_packed_sequences_in_one_graph(name):
    model, row = tiny(name), tokens(1, 24)
    numbers = torch.repeat_interleave(torch.arange(3), torch.tensor([9, 1, 14]))[None].int()
    places = torch.cat([torch.arange(n) for n in (9, 1, 14)])[None]
    with torch.no_grad(), enable(model):
        wanted = model(row, use_cache=False, seq_idx=numbers).logits
        for given in ({"seq_idx": numbers}, {"position_ids": places}):
            torch._dynamo.reset()
            compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
            assert torch.allclose(compiled(input_ids=row, use_cache=False, **given).logits, wanted, atol=1e-5), list(
                given
            )
        compiled(
            input_ids=row, use_cache=False, position_ids=torch.arange(24)[None], attention_mask=torch.ones_like(row)
        )
        with pytest.raises(RuntimeError, match="position_ids start anew beside an attention_mask"):
            compiled(input_ids=row, use_cache=False, position_ids=places, attention_mask=torch.ones_like(row))


def test_a_subclass_keeps_its_own_forward():
    modeling = importlib.import_module("transformers.models.mamba2.modeling_mamba2")

    class Doubled(modeling.Mamba2ForCausalLM):
        def forward(self, *arguments, **options):
            found = super().forward(*arguments, **options)
            found.logits = 2 * found.logits
            return found

    model, ids = tiny("mamba2"), tokens(1, 9)
    logits = model(ids, use_cache=False).logits
    model.__class__ = Doubled
    with torch.no_grad(), enable(model):
        assert torch.allclose(model(ids, use_cache=False).logits, 2 * logits, atol=1e-5)


def test_a_model_without_such_a_layer_is_told_of_those_that_have_one():
    with pytest.raises(
        ArgumentError, match=r"Linear has no layer with a recurrence of the catalogue; there are .*qwen3_next"
    ):
        enable(torch.nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match="model must be a torch module, or None for all models, got 'mamba2'"):
        enable("mamba2")


def test_chunkform_loads_no_transformers():
    text = "import sys, chunkform.generated, chunkform.integrations; print('transformers' in sys.modules)"
    assert code(text).stdout.strip() == "False"
