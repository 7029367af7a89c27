"""Train a language model of any recurrence with transformers' Trainer, on a CPU in two minutes, and sample from it.

    python examples/transformers_lm.py [--mixer NAME or SPEC.py] [--steps 250] [--out out/transformers_lm]

The text is Python's reference documentation, as every Python has it (`pydoc_data.topics`); tokens are its bytes. What is
saved loads with AutoModelForCausalLM once `chunkform.integrations.transformers.modeling` is imported; a recurrence of one's
own travels as data.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from pydoc_data.topics import topics

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from chunkform.integrations.transformers import ChunkformConfig, ChunkformForCausalLM

LENGTH = 128


class Windows(torch.utils.data.Dataset):
    """Stretches of a text, as tokens that are their own labels."""

    def __init__(self, text: bytes) -> None:
        tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.rows = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def main() -> None:
    said = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    said.add_argument("--mixer", default="gated_delta_rule")
    said.add_argument("--steps", type=int, default=250)
    said.add_argument("--out", type=Path, default=Path("out/transformers_lm"))
    given = said.parse_args()

    text = "\n".join(topics[name] for name in sorted(topics)).encode()
    cut = len(text) * 9 // 10
    mixer = Path(given.mixer) if given.mixer.endswith(".py") else given.mixer
    torch.manual_seed(0)
    config = ChunkformConfig(
        mixer=mixer,
        vocab_size=256,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        num_attention_heads=4,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = ChunkformForCausalLM(config)
    how = TrainingArguments(
        output_dir=str(given.out / "runs"),
        max_steps=given.steps,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        learning_rate=6e-3,
        warmup_steps=20,
        lr_scheduler_type="cosine",
        logging_steps=max(1, given.steps // 10),
        disable_tqdm=True,
        save_strategy="no",
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
    )
    held_out = torch.utils.data.Subset(Windows(text[cut:]), range(16))
    trainer = Trainer(model=model, args=how, train_dataset=Windows(text[:cut]), eval_dataset=held_out)
    print("held out, before:", round(trainer.evaluate()["eval_loss"], 3), "nats a byte")
    trainer.train()
    print("held out, after:", round(trainer.evaluate()["eval_loss"], 3), "nats a byte")

    model.save_pretrained(given.out)
    again = AutoModelForCausalLM.from_pretrained(given.out).to(model.device).eval()
    start = torch.tensor([list(b"The expression is ")], device=model.device)
    torch.manual_seed(1)
    said_on = again.generate(start, max_new_tokens=200, do_sample=True, temperature=0.8, pad_token_id=0)
    print(bytes(said_on[0].tolist()).decode(errors="replace"))


if __name__ == "__main__":
    main()
