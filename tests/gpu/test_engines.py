"""The functions of vLLM's and SGLang's names on a GPU: the tests of tests/integrations/engines, with every tensor there."""

import importlib.util
from pathlib import Path

import pytest
import torch

_spec = importlib.util.spec_from_file_location(
    "engines_on_a_cpu", Path(__file__).parents[1] / "integrations" / "engines" / "test_engines.py"
)
_tests = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_tests)

test_vllm_decodes_in_blocks = _tests.test_vllm_decodes_in_blocks
test_vllm_verifies_drafts = _tests.test_vllm_verifies_drafts_from_the_last_accepted_token
test_vllm_returns_the_states = _tests.test_vllm_returns_the_states_after_all_tokens
test_gates_are_made = _tests.test_gates_are_made_of_what_a_layer_projects
test_sglang_keeps_the_states_between = _tests.test_sglang_keeps_the_states_between
test_sglang_can_leave_outputs_out = _tests.test_sglang_can_leave_outputs_out
test_prefills = _tests.test_prefills
test_a_step_from_what_a_layer_projects = _tests.test_a_step_from_what_a_layer_projects
test_a_prefill_makes_its_own_decays = _tests.test_a_prefill_makes_its_own_decays
test_a_captured_graph_has_more_rows = _tests.test_a_captured_graph_has_more_rows_than_sequences_and_room_for_more_tokens

test_lightning_attention_decodes_and_prefills = _tests.test_lightning_attention_decodes_and_prefills


@pytest.fixture(autouse=True)
def on_gpu():
    """Tensors that a test makes are on the GPU."""
    with torch.device("cuda"):
        yield
