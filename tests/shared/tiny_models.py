"""Models of transformers so small that they run in a second on a CPU: random weights, of a size at which every part matters.

python -m shared.tiny_models        (in tests/) compares each with generated ops and without, and prints a table
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
TWO = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
DELTA = {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
}
EXPERTS = {
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "mlp_layer_types": ["dense", "sparse"],
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_chunk_size": 32}

# folder of transformers: (config's class, model's class, arguments)
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", SMALL | TWO | DELTA | EXPERTS),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", SMALL | TWO | DELTA),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", SMALL | TWO | DELTA | EXPERTS),
    "olmo_hybrid": ("OlmoHybridConfig", "OlmoHybridForCausalLM", SMALL | TWO | DELTA),
    "lara_mini": ("LaraMiniConfig", "LaraMiniForCausalLM", SMALL | TWO | DELTA | EXPERTS),
    "qwen4_exp": (
        "Qwen4ExpTextConfig",
        "Qwen4ExpForCausalLM",
        SMALL
        | TWO
        | DELTA
        | EXPERTS
        | {
            "hc_count": 2,
            "hc_lowrank": 8,
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": 256,
            "indexer_compress_ratio": 4,
        },
    ),
    "kimi_linear": (
        "KimiLinearConfig",
        "KimiLinearForCausalLM",
        SMALL | TWO | LATENT | {"num_local_experts": 3, "linear_head_dim": 8, "linear_num_heads": 4},
    ),
    "bailing_hybrid": (
        "BailingHybridConfig",
        "BailingHybridForCausalLM",
        SMALL | TWO | LATENT | {"num_local_experts": 3, "head_dim": 8, "num_mtp_layers": 0},
    ),
    "glm5_next": (  # generates text alone, too
        "Glm5NextConfig",
        "Glm5NextForConditionalGeneration",
        {
            "text_config": SMALL
            | TWO
            | LATENT
            | {
                "n_routed_experts": 3,
                "qk_rope_head_dim": 0,
                "linear_head_dim": 8,
                "linear_num_heads": 4,
                "hc_mult": 2,
                "index_topk": 256,
                "index_n_heads": 2,
                "index_head_dim": 16,
                "index_kpool": 4,
            },
            "vision_config": {
                "depth": 1,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_heads": 2,
                "out_hidden_size": 32,
                "image_size": 28,
                "patch_size": 14,
            },
        },
    ),
    "minimax": (
        "MiniMaxConfig",
        "MiniMaxForCausalLM",
        SMALL | TWO | {"num_local_experts": 3, "num_experts_per_tok": 2, "block_size": 16},
    ),
    "mamba2": (
        "Mamba2Config",
        "Mamba2ForCausalLM",
        {
            "vocab_size": 96,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_heads": 4,
            "head_dim": 16,
            "state_size": 8,
            "n_groups": 2,
            "chunk_size": 32,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": None,
        },
    ),
    "bamba": ("BambaConfig", "BambaForCausalLM", SMALL | MAMBA | {"num_hidden_layers": 2, "attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1Config", "FalconH1ForCausalLM", SMALL | MAMBA | {"num_hidden_layers": 2, "mamba_d_ssm": 64}),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        "GraniteMoeHybridForCausalLM",
        SMALL | TWO | MAMBA | {"num_local_experts": 3, "shared_intermediate_size": 16, "attention_multiplier": 0.35},
    ),
    "nemotron_h": (
        "NemotronHConfig",
        "NemotronHForCausalLM",
        SMALL
        | {
            "layers_block_type": ["linear_attention", "full_attention", "mlp"],
            "head_dim": 8,
            "ssm_state_size": 8,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "chunk_size": 32,
        },
    ),
    "zamba2": (
        "Zamba2Config",
        "Zamba2ForCausalLM",
        SMALL
        | {
            "num_key_value_heads": 4,
            "num_hidden_layers": 3,
            "layers_block_type": ["linear_attention", "hybrid", "linear_attention"],
            "mamba_d_state": 8,
            "mamba_ngroups": 2,
            "n_mamba_heads": 4,
            "chunk_size": 32,
            "adapter_rank": 4,
        },
    ),
    "xlstm": (
        "xLSTMConfig",
        "xLSTMForCausalLM",
        {
            "vocab_size": 96,
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_heads": 2,
            "chunk_size": 16,
            "mode": "inference",
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": None,
        },
    ),
}


def tiny(name: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A model by its folder in transformers, in float32 on the CPU."""
    config, model, given = MODELS[name]
    library: Any = importlib.import_module("transformers")
    module: Any = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    torch.manual_seed(seed)
    made = getattr(module, model)(getattr(library, config)(**given))
    with torch.no_grad():
        for n, p in made.named_parameters():  # of a size at which no part is lost in another's rounding
            if n.endswith("A_log"):
                p.uniform_(-3.0, 0.0)  # decays that forget in a few steps round away what a gradient is made of
            elif n.endswith("dt_bias"):
                p.uniform_(-1.0, 1.0)
            elif p.dim() >= 2:
                p.normal_(0.0, p.shape[-1] ** -0.5)
    return made.to(dtype).eval()


def tokens(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(2, 96, (batch, length), generator=torch.Generator().manual_seed(seed))


def trained(model: Any, ids: torch.Tensor, **more: Any) -> dict[str, torch.Tensor]:
    """Logits, the loss and every parameter's gradient."""
    model.zero_grad(set_to_none=True)
    found = model(input_ids=ids, labels=ids, use_cache=False, **more)
    out, loss = found.logits, found.loss
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return {"logits": out.detach(), "loss": loss.detach()} | gradients


def differences(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> dict[str, float]:
    """|a - b| / |a| of each tensor."""
    assert a.keys() == b.keys()
    return {n: ((a[n] - b[n]).norm() / a[n].norm().clamp(min=1e-30)).item() for n in a}


def of_rounding(model: Any, ids: torch.Tensor, before: dict[str, torch.Tensor], **more: Any) -> dict[str, float]:
    """What the model's own numbers change by where its parameters are rounded otherwise, by 1e-7 of each."""
    torch.manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + 1e-7 * torch.randn_like(p))
    return differences(before, trained(model, ids, **more))


def greedy(model: Any, ids: torch.Tensor, count: int, **more: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.generate(ids, max_new_tokens=count, min_new_tokens=count, do_sample=False, **more)


def table() -> None:
    from chunkform.integrations.transformers import enable, models

    for name in sys.argv[1:] or MODELS:
        model, ids = tiny(name), tokens(2, 40)
        before = trained(model, ids), greedy(model, ids[:, :20], 64)
        with enable(model):
            after = trained(model, ids), greedy(model, ids[:, :20], 64)
        apart = differences(before[0], after[0])
        worst = max((n for n in apart if n not in ("logits", "loss")), key=lambda n: apart[n])
        same = torch.equal(before[1], after[1])
        print(
            f"| {name} | {models()[name]} | {apart['logits']:.1e} | {apart['loss']:.1e} | {apart[worst]:.1e} ({worst}) | {same} |"
        )


if __name__ == "__main__":
    table()
